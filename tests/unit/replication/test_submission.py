"""A member's own blobs are applied exactly once and in order, whatever the ring does (G5, G12)."""

from __future__ import annotations

from collections import deque
from typing import cast

import pytest

from broker.machine.command_codec import pack_blob, unpack_blob
from broker.machine.commands import (
    ACK,
    BODY_PART,
    PUBLISH,
    QUEUE_BIND,
    TX_COMMIT,
    Ack,
    BodyPart,
    Command,
    Publish,
    QueueBind,
    Table,
    TxCommit,
    TxPublish,
)
from broker.replication.submissions import (
    BLOB_BYTES_TARGET,
    BLOB_WORK_MAX,
    COMMAND_OVERHEAD_BYTES,
    FEW_COMMANDS_BYTES_MAX,
    LARGE_LATE_US,
    LARGE_ON_THE_RING_MAX,
    LARGE_WAITING_BYTES_MAX,
    LARGE_WINDOW_BYTES_MAX,
    ON_THE_RING_BYTES_MAX,
    ON_THE_RING_WORK_MAX,
    UNFILLED_BLOBS_MAX,
    UNIT_BYTES,
    LargePace,
    Submissions,
)


def ack(tag: int) -> Command:
    return Ack(ACK, 1, 1, tag, False)


class Ring:
    def __init__(self) -> None:
        self.room = 1_000_000
        self.sent: list[int] = []
        self.payloads: list[bytes] = []
        self.urgent: list[bool] = []

    def send(self, payload: bytes, urgent: bool) -> bool:
        if self.room == 0:
            return False
        self.urgent.append(urgent)
        self.room -= 1
        self.sent.append(unpack_blob(payload).blob_no)
        self.payloads.append(payload)
        return True


def own_commands(ring: Ring) -> Submissions:
    own = Submissions(ring.send, pack_blob, lambda: 1, lambda _: 0)
    own.start(7)
    return own


def publish(number: int, size: int = 1000, conn: int = 1) -> Publish:
    return Publish(PUBLISH, conn, 1, number, "", "q", 0, b"", b"x" * size)


def said(ring: Ring) -> list[tuple[int, int]]:
    """What was sent, in order: (kind, publish number or delivery tag)."""
    commands = [list(c) for p in ring.payloads for c in unpack_blob(p).commands]
    return [(cast("int", c[0]), cast("int", c[3])) for c in commands]


def test_numbers_rise_and_a_full_ring_holds_the_rest_together() -> None:
    ring = Ring()
    own = own_commands(ring)
    ring.room = 1
    for tag in range(3):
        own.submit([ack(tag)])
    assert ring.sent == [1]
    assert own.outstanding == 2
    ring.room = 10
    own.flush()
    assert ring.sent == [1, 2]
    assert said(ring) == [(ACK, 0), (ACK, 1), (ACK, 2)]
    own.applied(1)
    assert own.outstanding == 1
    own.applied(2)
    assert own.bytes_outstanding == 0


def test_after_a_view_change_only_unapplied_blobs_are_resent_in_order() -> None:
    ring = Ring()
    own = own_commands(ring)
    for tag in range(4):
        own.submit([ack(tag)])
    own.suspend()
    own.submit([ack(9)])
    assert ring.sent == [1, 2, 3, 4]
    own.resume(2)
    assert ring.sent == [1, 2, 3, 4, 3, 4, 5]
    assert ring.payloads[4:6] == ring.payloads[2:4]


def test_a_new_session_forgets_the_old_one() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.submit([ack(1)])
    own.suspend()
    own.start(8)
    assert own.outstanding == 0
    own.submit([ack(1)])
    assert unpack_blob(ring.payloads[-1])[:2] == (8, 1)


def test_small_commands_are_cut_into_blobs_of_a_few_frames() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.submit([publish(number, size=200) for number in range(750)])
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    assert said(ring) == [(PUBLISH, n) for n in range(750)]
    assert all(len(payload) <= BLOB_BYTES_TARGET for payload in ring.payloads)
    assert len(ring.payloads) == 2


def test_a_blob_has_at_most_the_small_commands_one_item_may_apply() -> None:
    """However small they are, and also if acks take publishes along (G15)."""
    most = BLOB_WORK_MAX // COMMAND_OVERHEAD_BYTES
    ring = Ring()
    own = own_commands(ring)
    own.suspend()
    own.submit([publish(number, size=0) for number in range(2 * most - 5)])
    own.submit([Ack(ACK, 2, 1, tag, False) for tag in range(9)])
    own.resume(0)
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    counts = [len(unpack_blob(payload).commands) for payload in ring.payloads]
    assert counts == [9, most, most - 5]


def test_a_few_large_commands_share_a_blob() -> None:
    """An ordered item costs each member as much as several commands."""
    ring = Ring()
    own = own_commands(ring)
    full = FEW_COMMANDS_BYTES_MAX // 16_500
    own.submit([publish(number, size=16_384) for number in range(3 * full)])
    counts = [len(unpack_blob(payload).commands) for payload in ring.payloads]
    assert said(ring) == [(PUBLISH, n) for n in range(3 * full)]
    assert counts == [full] * 3
    assert all(len(payload) <= FEW_COMMANDS_BYTES_MAX for payload in ring.payloads)


def test_a_command_larger_than_a_shared_blob_stands_alone() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.submit([publish(number, size=FEW_COMMANDS_BYTES_MAX) for number in range(3)])
    assert [len(unpack_blob(payload).commands) for payload in ring.payloads] == [1, 1, 1]


def test_large_and_heavy_commands_do_not_share_a_blob() -> None:
    """An item is applied in one go, so the work in it is bounded as with small ones (G15)."""
    ring = Ring()
    own = Submissions(ring.send, pack_blob, lambda: 1, lambda _: 1000)
    own.start(7)
    own.submit([publish(number, size=16_384) for number in range(12)])
    assert {len(unpack_blob(payload).commands) for payload in ring.payloads} == {2}


def test_only_a_few_commands_with_large_arguments_share_a_blob() -> None:
    """Five hundred commands with a frame of arguments each made one item above the ring's limit,
    and the ring's refusal ended the member (G15)."""
    ring = Ring()
    own = own_commands(ring)
    arguments: Table = {"a": "x" * 100_000}
    binds: list[Command] = [
        QueueBind(QUEUE_BIND, 1, 1, "q", "amq.headers", "", True, arguments) for _ in range(30)
    ]
    own.submit(binds)
    assert own.bytes_outstanding > 30 * 100_000
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    assert all(len(payload) <= FEW_COMMANDS_BYTES_MAX for payload in ring.payloads)
    assert [len(unpack_blob(payload).commands) for payload in ring.payloads] == [3] * 10


def test_transactions_of_many_small_messages_do_not_share_a_blob() -> None:
    """Each publish of a transaction is work, however small its body: thirteen of these transactions
    in one item would be 3,900 messages applied in one go (G15)."""
    ring = Ring()
    own = own_commands(ring)
    publishes = (TxPublish("", "q", 0, b"", b"x"),) * 300
    commits: list[Command] = [TxCommit(TX_COMMIT, 1, 1, publishes, ()) for _ in range(13)]
    own.submit(commits)
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    assert [len(unpack_blob(payload).commands) for payload in ring.payloads] == [1] * 13


def test_a_consumers_acks_overtake_others_publishes_but_not_its_own() -> None:
    """G12: each connection's commands stay in order; others do not wait behind a deep window."""
    ring = Ring()
    own = own_commands(ring)
    own.submit([publish(n, conn=1) for n in range(2000)])
    on_the_ring = len(said(ring))
    assert on_the_ring < 2000 / 2
    own.submit([Ack(ACK, 2, 1, 77, False), Ack(ACK, 1, 1, 88, False)])
    own.applied(len(ring.sent))
    own.flush()
    assert said(ring)[on_the_ring] == (ACK, 77)
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    order = said(ring)
    assert [n for kind, n in order if kind == PUBLISH] == list(range(2000))
    assert order[-1] == (ACK, 88)


def test_with_blobs_under_way_the_next_waits_until_full_or_one_is_applied() -> None:
    """An item costs all members as much as a few commands, however few are in it."""
    ring = Ring()
    own = own_commands(ring)
    for number in range(UNFILLED_BLOBS_MAX + 2):
        own.submit([publish(number, size=200)])
    assert ring.sent == [1, 2, 3, 4]
    own.submit([publish(number, size=200) for number in range(6, 420)])
    assert ring.sent == [1, 2, 3, 4, 5]
    own.applied(2)
    own.flush()
    assert ring.sent == [1, 2, 3, 4, 5, 6]
    assert said(ring) == [(PUBLISH, number) for number in range(420)]


def test_publishes_join_acks_unless_a_connections_order_would_change() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.suspend()
    own.submit([publish(1), publish(2), Ack(ACK, 2, 1, 7, False)])
    own.resume(0)
    assert [len(unpack_blob(payload).commands) for payload in ring.payloads] == [3]
    assert said(ring) == [(ACK, 7), (PUBLISH, 1), (PUBLISH, 2)]
    own.suspend()
    acks = [Ack(ACK, 3, 1, number, False) for number in range(700)]  # more than one blob
    own.submit([*acks, publish(3, conn=3)])
    own.resume(1)
    assert said(ring)[3:] == [*[(ACK, number) for number in range(700)], (PUBLISH, 3)]


def test_a_large_blob_does_not_wait_for_another_to_be_applied() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.submit([publish(number, size=ON_THE_RING_BYTES_MAX) for number in range(3)])
    assert ring.sent == [1, 2]


def test_heavy_commands_make_short_blobs_few_of_which_are_on_the_ring() -> None:
    """An item is applied in one go: a command that is costly to apply stands alone (G15)."""
    ring = Ring()
    own = Submissions(ring.send, pack_blob, lambda: 1, lambda _: 2000)
    own.start(7)
    own.submit([publish(number, size=1) for number in range(100)])
    assert {len(unpack_blob(payload).commands) for payload in ring.payloads} == {1}
    on_the_ring = len(ring.sent)
    assert on_the_ring * 2000 <= 2 * ON_THE_RING_WORK_MAX / UNIT_BYTES
    assert on_the_ring < 100
    own.applied(on_the_ring)
    own.flush()
    assert said(ring)[: len(ring.sent)] == [(PUBLISH, n) for n in range(len(ring.sent))]
    assert len(ring.sent) == 2 * on_the_ring


def test_each_address_and_each_message_with_headers_is_weighed() -> None:
    """Publishes of one channel to one address weigh the same, so only the first is weighed;
    commands between them, and headers, which may name more keys, cause another weighing (G15)."""
    weighed: list[Command] = []

    def weigh(command: Command) -> int:
        weighed.append(command)
        return 0

    own = Submissions(lambda _payload, _urgent: True, pack_blob, lambda: 1, weigh)
    own.start(7)
    alike = publish(1)
    others = [
        alike._replace(key="r"),
        alike._replace(exchange="amq.fanout"),
        alike._replace(chan=2),
        alike._replace(conn=2),
    ]
    for other in others:
        own.submit([alike, alike._replace(body=b""), other, alike])
        assert weighed == [alike, other, alike]
        weighed.clear()
    named = alike._replace(properties=b"\x20\0")
    own.submit([named, named, alike, ack(1), alike, alike, named, alike])
    assert weighed == [named, named, alike, ack(1), alike, named, alike]


PART = b"p" * 200_000


def part(conn: int = 1) -> Command:
    return BodyPart(BODY_PART, conn, 1, PART)


def kinds_of(ring: Ring) -> list[tuple[int, int]]:
    """What was sent, in order: kind and connection."""
    commands = [c for payload in ring.payloads for c in unpack_blob(payload).commands]
    return [(c[0], cast("int", c[1])) for c in commands]


def test_parts_of_a_large_message_leave_room_on_the_ring_for_others() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.pace.window = LARGE_WINDOW_BYTES_MAX
    own.submit([part() for _ in range(20)])
    assert kinds_of(ring) == [(BODY_PART, 1)] * LARGE_ON_THE_RING_MAX
    own.submit([publish(1, conn=2), Ack(ACK, 3, 1, 1, False)])
    assert kinds_of(ring)[LARGE_ON_THE_RING_MAX:] == [(ACK, 3), (PUBLISH, 2)]
    assert (own.large_full, own.full) == (True, False)
    while own.outstanding:
        own.applied(ring.sent[-1])
        own.flush()
    assert kinds_of(ring).count((BODY_PART, 1)) == 20
    assert (own.large_full, own.bytes_outstanding) == (False, 0)


def test_a_connection_keeps_its_order_around_a_large_message() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.pace.window = LARGE_WINDOW_BYTES_MAX
    ring.room = 0
    own.submit([publish(1, 30_000), ack(2), part(), part(), publish(3), ack(4)])
    own.submit([publish(5, 30_000, conn=2)])
    ring.room = 1_000_000
    own.flush()
    assert [kind for kind, conn in kinds_of(ring) if conn == 1] == [
        *(PUBLISH, ACK, BODY_PART, BODY_PART, PUBLISH, ACK)
    ]
    own.submit([ack(6)])
    assert kinds_of(ring)[-1] == (ACK, 1)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_large_message_waits_for_its_connections_earlier_commands(batches: int) -> None:
    """G5: the lanes take turns, and more than one blob may be ahead of it."""
    ring = Ring()
    own = own_commands(ring)
    ring.room = 0
    before = [publish(number, FEW_COMMANDS_BYTES_MAX) for number in range(1, 1 + batches)]
    own.submit([*before, part(), part()])
    own.submit([publish(9, conn=2)])
    while own.outstanding:
        ring.room = 1
        own.flush()
        own.applied(ring.sent[-1])
    kinds = [kind for kind, conn in kinds_of(ring) if conn == 1]
    assert kinds == [*[PUBLISH] * batches, BODY_PART, BODY_PART]


def test_large_messages_and_others_take_turns() -> None:
    ring = Ring()
    own = own_commands(ring)
    ring.room = 0
    own.submit([publish(1, 200_000, conn=2), *[part() for _ in range(6)]])
    own.submit([publish(number, 200_000, conn=2) for number in range(2, 8)])
    while own.outstanding:
        ring.room = 1
        own.flush()
        own.applied(ring.sent[-1])
    kinds = [kind for kind, _ in kinds_of(ring)]
    assert kinds == [PUBLISH, *[BODY_PART, PUBLISH] * 6]


def test_a_sender_of_large_messages_waits_alone() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.pace.window = LARGE_WINDOW_BYTES_MAX
    for _ in range(LARGE_ON_THE_RING_MAX + (LARGE_WAITING_BYTES_MAX - 1) // len(PART)):
        own.submit([part()])
    assert not own.large_full
    own.submit([part()])
    assert own.large_full
    own.start(8)
    assert (own.large_full, own.outstanding) == (False, 0)
    own.submit([ack(1)])
    assert kinds_of(ring)[-1] == (ACK, 1)


def until_it_waits(own: Submissions, ring: Ring) -> int:
    """Apply all blobs sent, each at the position of its number, until no more are sent; return
    their number."""
    applied = -1
    while applied != len(ring.sent):
        applied = len(ring.sent)
        own.applied(applied, applied)
        own.flush()
    return applied


def test_parts_of_a_large_message_wait_for_a_majoritys_disks_others_do_not() -> None:
    """So what is ordered and committed beside them waits for a bounded number of their bytes."""
    ring = Ring()
    own = own_commands(ring)
    own.submit([part() for _ in range(100)])
    assert until_it_waits(own, ring) == 1, "at least two, however small the window"
    own.submit([publish(1, conn=2), Ack(ACK, 3, 1, 1, False), publish(2, conn=2)])
    assert kinds_of(ring)[1:] == [(ACK, 3), (PUBLISH, 2), (PUBLISH, 2)], "in one blob"
    until_it_waits(own, ring)
    own.submit([publish(3, conn=2)])
    assert kinds_of(ring)[4:] == [(PUBLISH, 2)], "although it is the large one's turn"
    own.durable(1)
    while own.outstanding:
        own.durable(until_it_waits(own, ring))
    assert kinds_of(ring).count((BODY_PART, 1)) == 100


def test_a_replaced_state_is_no_longer_waited_for() -> None:
    ring = Ring()
    own = own_commands(ring)
    own.submit([part() for _ in range(100)])
    at_once = until_it_waits(own, ring)
    own.state_replaced()
    own.flush()
    assert until_it_waits(own, ring) == 2 * at_once
    own.start(8)
    own.submit([part()])
    assert unpack_blob(ring.payloads[-1])[:2] == (8, 1)


def test_a_new_session_does_not_wait_for_the_old_ones_large_blobs() -> None:
    """They are applied for nobody, and large messages would wait as long as the process lives."""
    ring = Ring()
    own = own_commands(ring)
    own.pace.window = LARGE_WINDOW_BYTES_MAX
    own.submit([part() for _ in range(20)])
    assert len(ring.sent) == LARGE_ON_THE_RING_MAX
    own.start(8)
    own.submit([part()])
    assert unpack_blob(ring.payloads[-1])[:2] == (8, 1)


def test_a_resumed_session_waits_for_nothing_applied_elsewhere() -> None:
    """Its state does not say at which position it was applied."""
    ring = Ring()
    own = own_commands(ring)
    own.submit([part() for _ in range(100)])
    assert until_it_waits(own, ring) == 1
    own.durable(1)
    own.flush()
    assert len(ring.sent) == 2
    own.suspend()
    own.resume(2)
    assert until_it_waits(own, ring) == 3


BLOB = FEW_COMMANDS_BYTES_MAX


class Disks:
    """Members that apply a large message as it is ordered, in a millisecond a blob, and commit all
    that waits at once, at the speed of their disks; a mark takes one rotation of the token."""

    FLUSH_US = 2_000

    def __init__(self, *us_a_byte: float, round_us: int = 2_000) -> None:
        self.us_a_byte, self.round_us = us_a_byte, round_us
        self.pace = LargePace()
        self.now_us = self.sent = self.applied = 0
        self.marks = [0] * len(us_a_byte)
        self.commits = [(0, 0)] * len(us_a_byte)  # for each member: until when, up to where
        self.told: list[deque[tuple[int, int]]] = [deque() for _ in us_a_byte]  # from which time on
        self.ahead = 0  # at most what a majority had committed

    @property
    def mark(self) -> int:
        """The position a majority has committed."""
        return sorted(self.marks, reverse=True)[len(self.marks) // 2]

    def run(self, seconds: float) -> int:
        """Return the number of blobs sent."""
        before, until_us = self.sent, self.now_us + int(seconds * 1e6)
        self.ahead = 0
        while self.now_us < until_us:
            self.now_us += 1_000
            if self.applied < self.sent:
                self.applied += 1
                self.pace.applied(self.applied, BLOB, self.now_us - 1_000)
            for member, us in enumerate(self.us_a_byte):
                self._commit(member, us)
            self.pace.durable(self.mark, self.now_us)
            self.ahead = max(self.ahead, max(self.marks) - self.mark)
            if not self.pace.is_full:
                self.sent += 1
                self.pace.sent(BLOB, self.now_us)
        return self.sent - before

    def _commit(self, member: int, us_a_byte: float) -> None:
        told = self.told[member]
        while told and told[0][0] <= self.now_us:
            self.marks[member] = told.popleft()[1]
        end_us, last = self.commits[member]
        size = (self.applied - last) * BLOB
        if size and end_us <= self.now_us:
            end_us = self.now_us + self.FLUSH_US + int(size * us_a_byte)
            self.commits[member] = end_us, self.applied
            told.append((end_us + self.round_us, self.applied))


QUICK, SLOW = 0.001, 0.1
"""A gigabyte a second, and ten megabytes."""


def test_a_slow_disk_of_the_sender_does_not_hold_a_large_message_up() -> None:
    """Two other members have it, and nobody else waits for that disk either."""
    all_quick = Disks(QUICK, QUICK, QUICK).run(2.0)
    beside = Disks(SLOW, QUICK, QUICK)
    assert beside.run(2.0) == all_quick
    assert beside.pace.window == LARGE_WINDOW_BYTES_MAX


def test_one_other_members_slow_disk_does_not_hold_it_up_either() -> None:
    assert Disks(QUICK, QUICK, SLOW).run(2.0) == Disks(QUICK, QUICK, QUICK).run(2.0)


def test_a_large_message_goes_at_the_pace_of_two_slow_disks_of_others() -> None:
    """The sender's own disk says nothing about what others wait for."""
    slow = Disks(QUICK, SLOW, SLOW)
    sent = slow.run(2.0)
    assert slow.pace.window < 2 * BLOB
    assert slow.ahead <= 2, "the quick disk is at most two parts ahead"
    assert 2 * sent * BLOB >= 2.0 * 1e6 / SLOW, "at least half of what they could take"


def test_a_large_messages_window_follows_the_disks_up_and_down() -> None:
    disks = Disks(QUICK, QUICK, QUICK)
    disks.run(1.0)
    assert disks.pace.window == LARGE_WINDOW_BYTES_MAX
    disks.us_a_byte = SLOW, SLOW, SLOW
    disks.run(3.0)
    assert disks.pace.window < 2 * BLOB
    disks.us_a_byte = QUICK, QUICK, QUICK
    disks.run(1.0)
    assert disks.pace.window == LARGE_WINDOW_BYTES_MAX


def test_between_distant_sites_a_large_message_goes_no_slower_than_it_must() -> None:
    """A mark takes as long there whatever is in flight, so a smaller window helps nobody."""
    distant = Disks(QUICK, QUICK, QUICK, round_us=5 * LARGE_LATE_US)
    distant.run(20.0)
    assert distant.pace.window == LARGE_WINDOW_BYTES_MAX


def test_without_a_window_the_next_blob_goes_when_the_last_is_durable() -> None:
    pace, later = LargePace(0), 10 * LARGE_LATE_US
    for number in range(1, 10):
        assert not pace.is_full
        pace.sent(BLOB, number * later)
        pace.applied(number, BLOB, number * later)
        pace.durable(number - 1, number * later + 1)
        assert pace.is_full
        pace.durable(number, (number + 1) * later)
    assert pace.window == 0


def send(pace: LargePace, *numbers: int, at_us: int) -> None:
    for number in numbers:
        pace.sent(BLOB, at_us + number)
        pace.applied(number, BLOB, at_us + number)


def test_late_marks_shrink_the_window_once_for_what_was_in_flight() -> None:
    """It was sent in the larger window, and says nothing about the smaller one."""
    pace, late = LargePace(32 * BLOB), LARGE_LATE_US + 100
    pace.window = 32 * BLOB
    send(pace, *range(1, 11), at_us=0)
    for number in range(1, 11):
        pace.durable(number, late)
    once = pace.window
    assert 16 * BLOB <= once < 32 * BLOB
    send(pace, 11, at_us=late)
    pace.durable(11, 2 * late)
    twice = pace.window
    assert twice < once
    send(pace, 12, at_us=2 * late)
    pace.durable(12, 2 * late)
    assert pace.window == twice, "an unfilled window says nothing about a larger one"


def test_a_clock_set_back_still_shrinks_the_window() -> None:
    pace, hour, late = LargePace(32 * BLOB), 3_600_000_000, LARGE_LATE_US + 100
    pace.window = 32 * BLOB
    send(pace, 1, at_us=hour)
    pace.durable(1, hour + late)
    once = pace.window
    send(pace, 2, at_us=0)
    pace.durable(2, late)
    assert pace.window < once < 32 * BLOB


def test_unawaited_blobs_are_sent_as_such_and_resent_as_urgent() -> None:
    ring = Ring()
    own = Submissions(ring.send, pack_blob, lambda: 1, lambda _: 0, lambda some: len(some) > 1)
    own.start(7)
    own.submit([publish(1)])
    own.submit([publish(2), publish(3)])
    assert ring.urgent == [False, True]
    own.suspend()
    own.resume(0)
    assert ring.urgent == [False, True, True, True]
