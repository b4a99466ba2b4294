"""Lies that each record of a log allows by itself, and another one, perhaps in another segment or
of an earlier state, contradicts: each is found, in whole logs and in logs of small segments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.machine.commands import ACTIVATE, PUBLISH
from broker.memberlog.codec import NO_LINK
from broker.memberlog.reader import read_segment
from broker.memberlog.records import (
    Active,
    Batch,
    ConfirmRecord,
    Decided,
    Durable,
    Header,
    Queues,
    Snapshot,
    Stop,
    ViewSeen,
    Vote,
)
from tests.system.verify.corruption.further_lies import (
    C2,
    A,
    B,
    C,
    after,
    base_of,
    batch_of,
    change_batch,
    replace_in,
)
from tests.system.verify.support.checks_without_spark import findings_without_spark, rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history, of_three, root_of
from tests.system.verify.support.make_moves import MoveMaker
from tests.system.verify.support.recorded_history import plain_history
from tools.verify.format.records import RecordKind
from tools.verify.job import verify

Named = tuple[str, str, int]  # promise, member, position
SEGMENT_BYTES = (1 << 20, 1)  # one segment, or one for each record


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def caught_up(decided_by: int = 2) -> LogMaker:
    """c, restarted, applies the first items of epoch 2 from the log of another member, before its
    ACTIVE."""
    maker = of_three(3)
    held = maker.history
    maker.leave(A, B)
    maker.start(C2, held)
    maker.view(2, A, B, C2)
    maker.activate(A, B, C2)
    item = maker.item("a", bytes([PUBLISH]), A, B)
    batch, active = maker.logs[C2].pop(), maker.logs[C2].pop()
    assert isinstance(active, Active)
    active = active._replace(base_position=0, base_chain=bytes(16))
    maker.logs[C2] += [Decided(decided_by), batch, item, active]
    maker.traffic(2, A, B, C2)
    maker.stop(A, B, C2)
    return maker


# Confirms: G9.


def confirmed_twice_in_one_turn(maker: LogMaker) -> Named:
    log = maker.logs[A]
    at, given = next((i, r) for i, r in enumerate(log) if isinstance(r, ConfirmRecord))
    log[at] = given._replace(positions=(*given.positions, given.positions[-1]))
    return "G9", "a", given.positions[-1]


def confirmed_twice_by_later_segments(maker: LogMaker) -> Named:
    """Neither of the two is in the segment that has the publish."""
    log = maker.logs[A]
    last = max(i for i, r in enumerate(log) if isinstance(r, ConfirmRecord))
    log.insert(last + 1, log[last])
    given = log[last]
    assert isinstance(given, ConfirmRecord)
    return "G9", "a", given.positions[0]


def confirmed_for_the_life_before(maker: LogMaker) -> Named:
    """c, restarted, applies what its clients of before its crash published, and confirms it."""
    made = of_three(3)
    held_by_c = made.history
    late = made.item("c", bytes([PUBLISH]), A, B)
    made.leave(A, B)
    made.start(C2, held_by_c)
    made.view(2, A, B, C2)
    made.logs[C2] += [Decided(2), late]
    made.activate(A, B, C2)
    where = made.history.position
    for incarnation in (A, B, C2):
        made.logs[incarnation].append(Durable(where))
    made.logs[C2].append(ConfirmRecord(2, where, (late.first_position,)))
    made.stop(A, B, C2)
    maker.logs = made.logs
    return "G9", "c", late.first_position


def confirmed_for_the_state_before(maker: LogMaker) -> Named:
    """What c alone had applied is replaced with its state, and c confirms it then."""
    made = of_three(3)
    held = made.history
    lost = made.item("c", bytes([PUBLISH]), C)
    made.history = held
    made.leave(C)
    made.leave(A, B)
    made.view(2, A, B)
    made.activate(A, B)
    made.leave(A, B)
    made.view(3, A, B, C)
    made.activate(A, B, C, fresh=(C,))
    held = made.history
    made.logs[C].append(Snapshot(held.epoch, held.position, held.chain, root_of(held), "a"))
    for incarnation in (A, B, C):
        made.logs[incarnation].append(Durable(held.position))
    made.logs[C].append(ConfirmRecord(3, held.position, (lost.first_position,)))
    made.stop(A, B, C)
    maker.logs = made.logs
    return "G9", "c", lost.first_position


def confirmed_by_the_vote_of_one_that_had_stopped(maker: LogMaker) -> Named:
    """b crashes, c stops in order, and a counts c in its primary."""
    made = of_three(3)
    where = made.history.position
    made.stop(C)
    made.leave(A)
    made.logs[A].append(ViewSeen(2, "a", True, (A, C)))
    made.ring, made.seq = (2, "a"), 0
    made.epoch += 1
    members = (("a", 1, False), ("c", 1, False))
    held = made.history
    active = Active(2, 2, "a", held.position, held.chain, members, made.voters, False)
    made.logs[A].append(active)
    made.item("a", bytes([ACTIVATE]), A)
    made.traffic(2, A)
    made.stop(A)
    maker.logs = made.logs
    return "G9", "a", where + 1


def confirmed_by_a_mark_that_falls_again(maker: LogMaker) -> Named:
    """Nobody has that much on disk, and the next mark is right."""
    log = maker.logs[A]
    at, given = next(
        (i, r) for i, r in enumerate(log) if isinstance(r, ConfirmRecord) and r.epoch == 3
    )
    log[at] = given._replace(durable_mark=given.durable_mark + 1_000)
    return "G9", "a", max(r.position for r in log if isinstance(r, Durable)) + 1


# Disks: G9.


def disk_falls_to_nothing_and_rises_again(maker: LogMaker) -> Named:
    """A DURABLE of 0 says that another store takes the place of this one; none does."""
    log = maker.logs[B]
    at = [i for i, r in enumerate(log) if isinstance(r, Durable)][3]
    log[at:at] = [Durable(0), Durable(5)]
    return "G9", "b", 5


def disk_falls(maker: LogMaker) -> Named:
    at, before = [(i, r) for i, r in enumerate(maker.logs[B]) if isinstance(r, Durable)][3]
    maker.logs[B].insert(at + 2, Durable(before.position - 1))  # a segment may lie between
    return "G9", "b", before.position - 1


def disk_ahead_of_the_state(maker: LogMaker) -> Named:
    batch = batch_of(maker, 2, 2, B)
    maker.logs[B].insert(maker.logs[B].index(batch), Durable(batch.first_position))
    return "G9", "b", batch.first_position


def disk_ahead_of_an_empty_state(maker: LogMaker) -> Named:
    maker.logs[B].insert(1, Durable(1))
    return "G9", "b", 1


# Primaries: G7.


def confirmed_before_the_primary_is_active(maker: LogMaker) -> Named:
    log = maker.logs[A]
    at = next(i for i, r in enumerate(log) if isinstance(r, Decided))
    late = next(r for r in log[at::-1] if isinstance(r, Batch))
    log.insert(at + 1, ConfirmRecord(2, late.first_position, (late.first_position,)))
    return "G7", "a", late.first_position


def confirmed_in_an_epoch_to_come(maker: LogMaker) -> Named:
    log = maker.logs[B]
    at, given = [(i, r) for i, r in enumerate(log) if isinstance(r, ConfirmRecord)][1]
    log[at] = given._replace(epoch=9)
    return "G7", "b", given.positions[0]


def base_that_nobody_names(maker: LogMaker) -> Named:
    """All say that they received the state of epoch 2, and apply its activation themselves: so
    nobody says where it began, nor that its voters are other ones."""
    where = base_of(maker, 2)
    replace_in(
        maker, Active, lambda r: r.epoch == 2,
        lambda r: r._replace(base_position=0, base_chain=bytes(16), voters=("a", "b")),
    )  # fmt: skip
    return "G7", "a", where + 1


def primary_twice_in_one_view(maker: LogMaker) -> Named:
    made = of_three(3)
    where = made.history.position
    made.activate(A, B, C)
    made.stop(A, B, C)
    maker.logs = made.logs
    return "G7", "b", where


def catches_up_with_what_nobody_decided(maker: LogMaker) -> Named:
    """It says that the primary before decided the items of this one."""
    made = caught_up(decided_by=1)
    maker.logs = made.logs
    return "G7", "c", base_of(made, 2) + 1


# The order: G1, G14.


def first_item_is_missing(maker: LogMaker) -> Named:
    maker.logs[C].remove(batch_of(maker, 1, 0, C))
    return "G1", "c", 1


def order_that_does_not_follow(maker: LogMaker) -> Named:
    """The chain does."""
    batch = batch_of(maker, 1, 2)
    return "G14", "b", change_batch(maker, batch, lambda r: r._replace(order=b"o" * 16))


def place_before_the_last_one(maker: LogMaker) -> Named:
    batch = batch_of(maker, 1, 3)
    return "G1", "b", change_batch(maker, batch, lambda r: r._replace(seq=1))


def stops_with_less_than_it_applied(maker: LogMaker) -> Named:
    """With the position and chain of an item before its last one."""
    last = [r for r in maker.logs[C2] if isinstance(r, Batch)][-2]
    maker.logs[C2][-1] = Stop("shutdown", after(last), last.chain)
    return "G14", "c", after(last)


def stops_in_a_history_that_was_set_aside(maker: LogMaker) -> Named:
    """c received another state since, and says at its end that it has the former one."""
    made = of_three(3)
    held = made.history
    made.item("c", bytes([PUBLISH]), C)
    lost = made.history
    made.history = held
    made.leave(C)
    made.leave(A, B)
    made.logs[C].append(Snapshot(held.epoch, held.position, held.chain, root_of(held), "a"))
    made.view(2, A, B, C)
    made.activate(A, B, C)
    assert made.history.position == lost.position
    made.stop(A, B)
    made.logs[C].append(Stop("shutdown", lost.position, lost.chain))
    maker.logs = made.logs
    return "G14", "c", lost.position


# The log itself: LOG.


def header_of_another_member_in_the_middle(maker: LogMaker) -> Named:
    batch = batch_of(maker, 1, 3, B)
    header = Header(1, "prod", "c1", "z", 1, 0, NO_LINK, "blake2b-16", 0)
    maker.logs[B].insert(maker.logs[B].index(batch), header)
    return "LOG", "b", batch.first_position - 1


def something_before_its_start(maker: LogMaker) -> Named:
    maker.logs[B].insert(0, Durable(0))
    return "LOG", "b", -1


def goes_on_behind_its_stop(maker: LogMaker) -> Named:
    last = maker.logs[B].pop()
    assert isinstance(last, Stop)
    at = max(i for i, r in enumerate(maker.logs[B]) if isinstance(r, Batch))
    before = next(r for r in maker.logs[B][at - 1 :: -1] if isinstance(r, Batch))
    maker.logs[B].insert(at, Stop("shutdown", after(before), before.chain))
    return "LOG", "b", after(before)


LIES: tuple[Callable[[LogMaker], Named], ...] = (
    confirmed_twice_in_one_turn, confirmed_twice_by_later_segments, confirmed_for_the_life_before,
    confirmed_for_the_state_before, confirmed_by_the_vote_of_one_that_had_stopped,
    disk_falls_to_nothing_and_rises_again, disk_falls, disk_ahead_of_the_state,
    confirmed_before_the_primary_is_active, confirmed_in_an_epoch_to_come, base_that_nobody_names,
    primary_twice_in_one_view, order_that_does_not_follow, place_before_the_last_one,
    stops_with_less_than_it_applied, stops_in_a_history_that_was_set_aside,
    header_of_another_member_in_the_middle, goes_on_behind_its_stop,
    something_before_its_start, confirmed_by_a_mark_that_falls_again, first_item_is_missing,
    catches_up_with_what_nobody_decided, disk_ahead_of_an_empty_state,
)  # fmt: skip

IN_ONE_SEGMENT = {
    confirmed_for_the_life_before, base_that_nobody_names, header_of_another_member_in_the_middle
}  # fmt: skip
"""These two records are beside each other, or the lie is that they are in one segment."""


@pytest.mark.turns(12)
@pytest.mark.lies
@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_found_at_its_place(
    lie: Callable[[LogMaker], Named], segment_bytes: int, tmp_path: Path
) -> None:
    maker = good_history(2)
    expected = lie(maker)
    maker.write(tmp_path, segment_bytes)
    if segment_bytes == 1 and lie in IN_ONE_SEGMENT:
        return
    found = [(one.property, one.member, one.position) for one in verify(None, [tmp_path]).findings]
    assert expected in found


def test_a_vote_is_about_the_state_behind_an_item(tmp_path: Path) -> None:
    """G10: within an item there is none, and no other record names it."""
    maker = good_history(2)
    at, vote = next((i, r) for i, r in enumerate(maker.logs[B]) if isinstance(r, Vote))
    maker.logs[B][at] = vote._replace(position=vote.position - 1)
    maker.write(tmp_path)
    found = [(one.property, one.member, one.position) for one in verify(None, [tmp_path]).findings]
    assert found == [("G10", "b", vote.position - 1)]


def test_a_queue_keeps_its_name_in_all_logs(tmp_path: Path) -> None:
    """G14: all call it otherwise later, as the names at the beginning of a segment may."""
    maker: MoveMaker = plain_history()
    for records in maker.logs.values():
        at, named = [(i, r) for i, r in enumerate(records) if isinstance(r, Queues)][1]
        other = ((number, vhost, "other", *rest) for number, vhost, _, *rest in named.queues)
        records.insert(at + 1, named._replace(queues=tuple(other)))  # type: ignore[arg-type]
    maker.write_all(tmp_path)
    found = verify(None, [tmp_path]).findings
    assert {(one.property, one.member) for one in found} == {("G14", name) for name in "abc"}
    assert "/ ranked" in found[0].what
    assert "/ other" in found[0].what


@pytest.mark.lies
@pytest.mark.parametrize("segment_bytes", range(200, 1200, 100))
@pytest.mark.parametrize(
    "lie", [disk_falls, disk_ahead_of_the_state, confirmed_in_an_epoch_to_come]
)
def test_a_lie_is_found_wherever_segments_end(
    lie: Callable[[LogMaker], Named], segment_bytes: int, tmp_path: Path
) -> None:
    maker = good_history(4)
    expected = lie(maker)
    maker.write(tmp_path, segment_bytes)
    findings = findings_without_spark(rows_in(sorted(tmp_path.rglob("*.qml"))))
    assert expected in [(one.property, one.member, one.position) for one in findings]


# What looks like a lie, and is none.


def older_state(maker: LogMaker) -> int:
    """c crashes with items on its disk that nobody else has, restarts, and receives an older state
    instead; return its position."""
    held = maker.history
    maker.item("c", bytes([PUBLISH] * 40), C)
    lost = maker.history
    maker.history = held
    maker.leave(A, B)
    maker.view(2, A, B)
    maker.activate(A, B)
    maker.leave(A, B)
    maker.start(C2, lost)
    maker.view(3, A, B, C2)
    maker.activate(A, B, C2, fresh=(C2,))
    held = maker.history
    state = Snapshot(held.epoch, held.position, held.chain, root_of(held), "a")
    maker.logs[C2] += [Durable(0), state, Durable(held.position)]
    maker.traffic(2, A, B, C2)
    maker.stop(A, B, C2)
    return held.position


@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
def test_a_disk_may_fall_with_a_received_state(tmp_path: Path, segment_bytes: int) -> None:
    maker = of_three(3)
    older_state(maker)
    maker.write(tmp_path, segment_bytes)
    assert verify(None, [tmp_path]).findings == []


def test_a_disk_holds_the_received_state(tmp_path: Path) -> None:
    """G9: and the recovered one. A later DURABLE says no less."""
    maker = of_three(3)
    where = older_state(maker)
    maker.logs[C2][maker.logs[C2].index(Durable(where))] = Durable(where - 1)
    maker.write(tmp_path)
    found = [(one.property, one.member, one.position) for one in verify(None, [tmp_path]).findings]
    assert found == [("G9", "c", where - 1)]


def test_a_hole_may_hide_the_state_with_which_a_disk_fell(tmp_path: Path) -> None:
    maker = of_three(3)
    older_state(maker)
    maker.write(tmp_path)
    (path,) = (tmp_path / "c").glob("c.2.*")
    data = bytearray(path.read_bytes())
    (hit,) = [e for e in read_segment(bytes(data), "c") if isinstance(e.record, Snapshot)]
    data[hit.end - 1] ^= 1
    path.write_bytes(data)
    assert {one.property for one in verify(None, [tmp_path]).findings} == {"LOG"}


def test_a_state_of_a_history_set_aside_is_not_taken_for_that_of_the_log(tmp_path: Path) -> None:
    """The comparison of members would not look at it then."""
    maker = LogMaker()
    _, _, where = stops_in_a_history_that_was_set_aside(maker)
    maker.write(tmp_path)
    rows = rows_in([next((tmp_path / "c").iterdir())])
    (stop,) = [row for row in rows if row.kind == RecordKind.STOP]
    assert stop.position == where
    assert not stop.flag


def test_a_later_start_tells_what_a_crash_left_on_disk(tmp_path: Path) -> None:
    """G9: b crashed before its log had the DURABLE that it had reported, and c before it had
    applied the message."""
    maker = of_three(3)
    sent = maker.item("a", bytes([PUBLISH]), A, B)
    where = sent.first_position
    maker.logs[A] += [Durable(where), ConfirmRecord(1, where, (where,))]
    held = maker.history
    maker.stop(A)
    maker.start(("b", 2), held)
    maker.stop(("b", 2))
    maker.logs["c", 2] = [*maker.logs[C][:1]]
    maker.history = held
    stop = maker.logs[A][-1]
    assert isinstance(stop, Stop)
    maker.logs["c", 2].append(stop._replace(position=0, chain=bytes(16)))
    maker.write(tmp_path)
    assert verify(None, [tmp_path]).findings == []


@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
def test_a_member_catches_up_within_its_primary(tmp_path: Path, segment_bytes: int) -> None:
    caught_up().write(tmp_path, segment_bytes)
    assert verify(None, [tmp_path]).findings == []


@pytest.mark.parametrize("segment_bytes", SEGMENT_BYTES)
def test_a_hole_may_hide_which_primary_a_member_was_in(tmp_path: Path, segment_bytes: int) -> None:
    of_three(3).write(tmp_path, segment_bytes)
    for path in (tmp_path / "c").iterdir():
        data = bytearray(path.read_bytes())
        for entry in list(read_segment(bytes(data), "c")):
            if isinstance(entry.record, Active):
                data[entry.end - 1] ^= 1
        path.write_bytes(data)
    assert {one.property for one in verify(None, [tmp_path]).findings} == {"LOG"}


def test_two_items_of_one_message_have_one_place(tmp_path: Path) -> None:
    maker = of_three(3)
    maker.seq -= 1
    maker.item("a", bytes([PUBLISH]), A, B, C)
    maker.stop(A, B, C)
    maker.write(tmp_path)
    assert verify(None, [tmp_path]).findings == []
