"""Claims that no other record contradicts, and that nothing in the logs explains (G7, G14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.machine import commands as c
from broker.machine.commands import PUBLISH, VOTERS
from broker.memberlog.records import (
    Active,
    ConfirmRecord,
    Decided,
    Inactive,
    Queues,
    Start,
    Stop,
    ViewSeen,
)
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history, of_three
from tests.system.verify.support.make_moves import MoveMaker
from tests.system.verify.support.recorded_history import plain_history
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.input.rows import Row
from tools.verify.job import verify

A, B, C, C2 = ("a", 1), ("b", 1), ("c", 1), ("c", 2)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def rows_of(maker: LogMaker, directory: Path, segment_bytes: int = 1 << 20) -> list[Row]:
    maker.write(directory, segment_bytes)
    return rows_in(sorted(directory.rglob("*.qml")))


def named(rows: list[Row]) -> list[tuple[str, str, int]]:
    found = check_control_rows(rows).findings
    return [(one.property, one.member, one.position) for one in found]


def at_end_of(maker: LogMaker, epoch: int) -> int:
    """Return the position after which this epoch began."""
    return next(
        record.base_position
        for record in maker.logs[A]
        if isinstance(record, Active) and record.epoch == epoch
    )


def with_voters(maker: LogMaker, epoch: int, *voters: str) -> LogMaker:
    for records in maker.logs.values():
        for at, record in enumerate(records):
            if isinstance(record, Active) and record.epoch >= epoch:
                records[at] = record._replace(voters=voters)
    return maker


class TestVoters:
    def test_a_primary_that_invents_voters_is_named_where_it_begins(self, tmp_path: Path) -> None:
        """G7, and not only the consequences in its later life: a and b go on with voters of their
        own."""
        maker = with_voters(good_history(3), 2, "a", "b")
        assert named(rows_of(maker, tmp_path)) == [("G7", "a", at_end_of(maker, 2))]

    @pytest.mark.parametrize("refuse", [0, 1])
    def test_an_executed_command_explains_other_voters(self, tmp_path: Path, refuse: int) -> None:
        maker = of_three()
        maker.item("a", bytes([VOTERS, PUBLISH]), A, B, C, refuse=refuse)
        maker.leave(A, B, C)
        maker.view(2, A, B, C)
        maker.activate(A, B, C)
        found = named(rows_of(with_voters(maker, 2, "a", "b"), tmp_path))
        assert found == [("G7", "a", 3)] * refuse

    @pytest.mark.parametrize("applied_by_a", [False, True])
    def test_a_primary_is_counted_before_it_decides_the_undecided(
        self, tmp_path: Path, applied_by_a: bool
    ) -> None:
        """It counts by the old voters, although the command is not behind its base (seed 660395).
        If one of its members had applied the command before, it should have counted by the new
        ones."""
        maker = of_three()
        maker.item("a", bytes([VOTERS]), A, B, C)
        early = maker.item("a", bytes([VOTERS, PUBLISH]), A) if applied_by_a else None
        maker.leave(A, B, C)
        for incarnation in (A, B, C):
            maker.logs[incarnation].append(Decided(2))
            if early is not None and incarnation != A:
                maker.logs[incarnation].append(early)
        if early is None:
            maker.item("a", bytes([VOTERS, PUBLISH]), A, B, C)
        maker.view(2, A, B, C)
        maker.activate(A, B, C)
        maker.leave(A, B, C)
        maker.view(3, A, B, C)
        maker.activate(A, B, C)
        maker = with_voters(maker, 2, "a", "b", "c", "@expected_votes=2")
        found = named(rows_of(with_voters(maker, 3, "a", "b"), tmp_path))
        assert found == [("G7", "a", at_end_of(maker, 3))] * applied_by_a

    def test_missing_positions_give_no_verdict(self, tmp_path: Path) -> None:
        maker = with_voters(good_history(3), 2, "a", "b")
        rows = rows_of(maker, tmp_path, 700)
        later = [row for row in rows if row.segment >= 2]
        assert not [one for one in check_control_rows(later).findings if "no command" in one.what]


def test_a_queue_has_one_name_in_all_logs(tmp_path: Path) -> None:
    """G14: only QUEUES records it, and findings and clients' histories rely on it."""
    maker = plain_history()
    records = maker.logs[B]
    for at, record in enumerate(records):
        if isinstance(record, Queues):
            renamed = ((n, v, f"{q}x" if q == "ranked" else q, *o) for n, v, q, *o in record.queues)
            records[at] = record._replace(queues=tuple(renamed))  # type: ignore[arg-type]
    maker.write_all(tmp_path)
    (found,) = verify(None, [tmp_path]).findings
    assert (found.property, found.member) == ("G14", "b")
    assert "/ rankedx, which is / ranked in other logs" in found.what


@pytest.mark.parametrize("flags", [c.PERSISTENT, 0])
def test_nothing_is_confirmed_above_the_durable_mark(tmp_path: Path, flags: int) -> None:
    """G9: not even a message that no disk keeps."""
    maker = MoveMaker()
    client = maker.rig.client("b")
    client.queue("q")
    client.publish("q", b"m", flags=flags, no=1)
    at = maker.machine.position
    maker.end()
    confirms = [n for n, one in enumerate(maker.logs[B]) if isinstance(one, ConfirmRecord)]
    maker.logs[B][confirms[0]] = ConfirmRecord(1, at - 1, (at,))
    maker.write_all(tmp_path)
    found = [(f.property, f.member, f.position) for f in verify(None, [tmp_path]).findings]
    assert found == [("G9", "b", at)]


def test_a_state_after_an_orderly_stop_is_that_of_the_stop(tmp_path: Path) -> None:
    """G14: positions above it came from nowhere."""
    maker = good_history(3)
    stop = maker.logs[C2][-1]
    assert isinstance(stop, Stop)
    again = Start(3, stop.position, stop.chain, 1)
    maker.logs["c", 3] = [again]
    assert named(rows_of(maker, tmp_path / "same")) == []
    maker.logs["c", 3] = [again._replace(position=stop.position - 4)]  # an older copy of its store
    assert named(rows_of(maker, tmp_path / "older")) == []
    maker.logs["c", 3] = [again._replace(position=stop.position + 4)]
    assert named(rows_of(maker, tmp_path / "beyond")) == [("G14", "c", stop.position + 4)]


@pytest.mark.parametrize("seen", [("c", 3), ("c", 4), ("b", 3)])
def test_a_state_may_be_from_an_incarnation_whose_log_is_missing(
    tmp_path: Path, seen: tuple[str, int]
) -> None:
    """A member log on a separate disk that was lost: the views of others name the incarnation."""
    maker = good_history(3)
    stop = maker.logs[C2][-1]
    assert isinstance(stop, Stop)
    maker.logs["c", 4] = [Start(3, stop.position + 4, stop.chain, 1)]
    last = maker.logs[A].pop()
    maker.leave(A)
    maker.logs[A] += [ViewSeen(9, "a", regular=True, members=(A, seen)), last]
    rows = rows_of(maker, tmp_path)
    missing = seen == ("c", 3)
    assert named(rows) == ([] if missing else [("G14", "c", stop.position + 4)])
    said = "and the log of its incarnation 3, which was in a view, is not here"
    assert any(said in one for one in check_control_rows(rows).notes) is missing


@pytest.mark.parametrize("stopped_before", [False, True])
def test_after_a_crash_the_log_may_be_behind_the_store(
    tmp_path: Path, stopped_before: bool
) -> None:
    maker = good_history(3)
    last = maker.history
    if stopped_before:
        maker.logs["c", 3] = [Start(3, last.position, last.chain, 1)]
    else:
        maker.logs[C2].pop()
    maker.logs["c", 4] = [Start(3, last.position + 4, last.chain, 1)]
    assert named(rows_of(maker, tmp_path)) == []


@pytest.mark.parametrize("kind", [c.REEXECUTED, PUBLISH])
def test_reexecution_while_replies_are_stopped_is_no_finding(tmp_path: Path, kind: int) -> None:
    """A vote was undecided: all members stop replying, then order and apply what each found by
    executing its store again (G10). The check called that "applied outside of the primary, and by
    no member in it" (G7)."""
    maker = of_three(2)
    for incarnation in (A, B, C):
        maker.logs[incarnation].append(Inactive("no majority of the voters agrees"))
    maker.item("a", bytes([kind]), A, B, C)
    last = maker.history.position
    maker.stop(A, B, C)
    maker.write(tmp_path)
    found = [(one.property, one.position) for one in verify(None, [tmp_path]).findings]
    assert found == ([] if kind == c.REEXECUTED else [("G7", last)] * 3)


def go_on_without_c(maker: LogMaker) -> None:
    """Its view ends; a and b form the next primary and apply more."""
    maker.leave(A, B)
    maker.view(2, A, B)
    maker.activate(A, B)
    maker.traffic(2, A, B)


@pytest.mark.parametrize("meets", [True, False])
def test_a_crash_may_lose_a_state_received_from_a_member_of_the_view(
    tmp_path: Path, meets: bool
) -> None:
    """Seed 8740015 of the broker stack: the state was in the store, and not yet in the log."""
    maker = of_three(2)
    held_by_c = maker.history
    go_on_without_c(maker)
    maker.start(C2, held_by_c)
    maker.leave(A, B)
    maker.view(3, *([A, B, C2] if meets else [A, B]))
    maker.stop(A, B)
    maker.start(("c", 3), maker.history)
    expected = [] if meets else [("G14", "c", maker.history.position)]
    assert named(rows_of(maker, tmp_path)) == expected


@pytest.mark.parametrize("later", [False, True])
def test_a_crash_may_leave_more_of_an_epoch_than_a_later_one_began_with(
    tmp_path: Path, later: bool
) -> None:
    """Seed 8770041 of the broker stack: the log of c ends earlier, and the others had less."""
    maker = of_three(2)
    held_by_all = maker.history
    maker.item("c", bytes([c.PUBLISH]))
    held_by_c = maker.history
    maker.history = held_by_all
    go_on_without_c(maker)
    epoch = maker.history.epoch if later else held_by_c.epoch
    maker.start(C2, replace(held_by_c, epoch=epoch))
    maker.stop(A, B)
    expected = [("G14", "c", held_by_c.position)] if later else []
    assert named(rows_of(maker, tmp_path)) == expected


@pytest.mark.parametrize("newer", [False, True])
def test_a_crash_may_leave_an_epoch_that_is_in_no_log(tmp_path: Path, newer: bool) -> None:
    """Seed 8900809 of the broker stack: a and c began epoch 2, which only c had on its disk; a and
    b formed a later one without c."""
    maker = of_three(2)
    held_by_all = maker.history
    maker.item("c", bytes([c.PUBLISH]))
    held_by_c = maker.history
    maker.history = held_by_all
    maker.epoch += 1
    unknown = maker.epoch
    go_on_without_c(maker)
    maker.start(C2, replace(held_by_c, epoch=unknown + newer))
    maker.stop(A, B)
    rows = rows_of(maker, tmp_path)
    assert named(rows) == ([("G14", "c", held_by_c.position)] if newer else [])
    told = check_control_rows(rows).notes
    assert any("no log tells of that epoch" in note for note in told) is not newer
