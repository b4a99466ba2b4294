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
from tests.system.verify.support.make_logs import LogMaker, good_history, root_of
from tests.system.verify.support.make_moves import MoveMaker
from tests.system.verify.support.recorded_history import plain_history
from tools.verify.job import verify

Named = tuple[str, str, int]  # promise, member, position
SEGMENT_BYTES = (1 << 20, 1)  # one segment, or one for each record


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def of_three(rounds: int = 3) -> LogMaker:
    """A primary of all members that applied and confirmed something."""
    maker = LogMaker()
    for incarnation in (A, B, C):
        maker.start(incarnation)
    maker.view(1, A, B, C)
    maker.activate(A, B, C)
    maker.traffic(rounds, A, B, C)
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
    made = of_three()
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
    made = of_three()
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
    made = of_three()
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


# Disks: G9.


def disk_falls_to_nothing_and_rises_again(maker: LogMaker) -> Named:
    """A DURABLE of 0 says that another store takes the place of this one; none does."""
    log = maker.logs[B]
    at = [i for i, r in enumerate(log) if isinstance(r, Durable)][3]
    log[at:at] = [Durable(0), Durable(5)]
    return "G9", "b", 5


def disk_falls(maker: LogMaker) -> Named:
    at = [i for i, r in enumerate(maker.logs[B]) if isinstance(r, Durable)][3]
    maker.logs[B].insert(at + 1, Durable(3))
    return "G9", "b", 3


def disk_ahead_of_the_state(maker: LogMaker) -> Named:
    batch = batch_of(maker, 2, 2, B)
    maker.logs[B].insert(maker.logs[B].index(batch), Durable(after(batch)))
    return "G9", "b", after(batch)


# Primaries: G7.


def confirmed_before_the_primary_is_active(maker: LogMaker) -> Named:
    log = maker.logs[A]
    at = next(i for i, r in enumerate(log) if isinstance(r, Decided))
    late = next(r for r in log[at::-1] if isinstance(r, Batch))
    log.insert(at + 1, ConfirmRecord(2, late.first_position, (late.first_position,)))
    return "G7", "a", late.first_position


def confirmed_in_an_epoch_to_come(maker: LogMaker) -> Named:
    log = maker.logs[B]
    at, given = next((i, r) for i, r in enumerate(log) if isinstance(r, ConfirmRecord))
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
    made = of_three()
    where = made.history.position
    made.activate(A, B, C)
    made.stop(A, B, C)
    maker.logs = made.logs
    return "G7", "b", where


# The order: G1, G14.


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
    made = of_three()
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
)  # fmt: skip

IN_ONE_SEGMENT = {
    confirmed_for_the_life_before, base_that_nobody_names, header_of_another_member_in_the_middle
}  # fmt: skip
"""These two records are beside each other, or the lie is that they are in one segment."""


@pytest.mark.turns(12)
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
