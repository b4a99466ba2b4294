"""An arbiter reports only written records, and promises once nobody replies in an older
view (G8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.exit_codes import Exit
from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord
from vsync.primary.events import Activated, Holders, NeverJoins, PersistEpoch, PrimaryPhase
from vsync.totem.events import Marks
from vsync.types import Member

LEASE_S = 0.25
NEW = ArbiterRecord("prod", "x")


class Bench:
    """An arbiter with a disk and a clock that the test controls."""

    def __init__(self, known: ArbiterRecord = NEW) -> None:
        self.ring, self.lease = Mock(), Mock()
        self.ring.submit.return_value = True
        self.lease.silent_in.return_value = LEASE_S
        self.writing: list[tuple[ArbiterRecord, Callable[[], None]]] = []
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.shell = shell = Mock()
        shell.write = lambda record, then: self.writing.append((record, then))
        shell.later = lambda delay_s, call: self.waiting.append((delay_s, call))
        me = Member("x", 1, "x:1")
        self.arbiter = Arbiter(me, known, self.ring, self.lease, shell, size=2, requested=())
        self.persisted = Mock()
        self.arbiter.primary.persisted = self.persisted  # type: ignore[method-assign]


def test_it_reports_an_epoch_once_its_record_is_written() -> None:
    bench = Bench()
    bench.arbiter._follow(Holders(7, frozenset("ab")))
    (record, then), *_ = bench.writing
    assert (record.epoch, record.holders, record.promised_epoch) == (7, ("a", "b"), 7)
    bench.ring.set_mark.assert_not_called()
    then()
    bench.ring.set_mark.assert_called_once_with(7)


def test_it_promises_written_epochs_once_all_others_are_silent() -> None:
    bench = Bench()
    bench.arbiter._follow(PersistEpoch(8, "c", ("a", "b"), 3))
    (record, then), *_ = bench.writing
    assert (record.promised_epoch, record.epoch) == (8, 0)
    assert not bench.waiting
    bench.persisted.assert_not_called()
    then()
    bench.persisted.assert_not_called()
    ((delay_s, acknowledge),) = bench.waiting
    assert delay_s == LEASE_S
    sent = bench.arbiter.work = Mock()  # type: ignore[method-assign]
    acknowledge()
    bench.persisted.assert_called_once_with(3)
    sent.assert_called_once_with()


def test_a_record_keeps_what_the_one_before_it_says() -> None:
    """G7: the one before may not be written yet."""
    bench = Bench(replace(NEW, cluster_id="c", epoch=3, holders=("a",)))
    bench.arbiter._follow(PersistEpoch(8, "c", ("a", "b"), 3))
    bench.arbiter._follow(Holders(7, frozenset("ab")))
    _, (record, _) = bench.writing
    assert record == ArbiterRecord("prod", "x", 0, "c", 8, 7, ("a", "b"), ("a", "b"))


@pytest.mark.parametrize("epoch", [0, 3])
def test_only_an_arbitrator_with_a_record_counts(epoch: int) -> None:
    known = replace(NEW, cluster_id="c", epoch=epoch, holders=("a",), promised_epoch=5)
    bench = Bench(known)
    report = bench.arbiter.state_report()
    assert (report.filled, report.arbitrator) == (epoch > 0, True)
    assert (report.state_epoch, report.promised_epoch, report.holders) == (epoch, 5, ("a",))
    bench.arbiter.start()
    bench.ring.set_mark.assert_called_once_with(epoch)


def test_what_the_ring_has_no_room_for_goes_first_the_next_time() -> None:
    bench = Bench()
    bench.arbiter.primary = primary = Mock()
    primary.take.return_value = [Holders(7, frozenset("ab"))]
    primary.take_outgoing.return_value = [b"1", b"2", b"3"]
    bench.ring.submit.side_effect = [True, False]
    bench.arbiter.on_output(Marks({}))
    primary.on_output.assert_called_once_with(Marks({}))
    assert len(bench.writing) == 1
    assert [one.args[0] for one in bench.ring.submit.call_args_list] == [b"1", b"2"]
    primary.put_back.assert_called_once_with([b"2", b"3"])


@pytest.mark.parametrize(("settings", "code"), [(True, Exit.PROTOCOL), (False, Exit.DATA)])
def test_one_that_can_never_join_stops(code: Exit, *, settings: bool) -> None:
    bench = Bench()
    bench.arbiter._follow(NeverJoins("another cluster", settings))
    bench.shell.stop.assert_called_once_with(code, "another cluster")


def test_an_arbitrator_says_that_it_ran() -> None:
    """From its first activation on it is of the running cluster, for those who start."""
    bench = Bench()
    assert not bench.arbiter.state_report().ran
    nothing: Any = Mock()
    bench.arbiter._follow(Activated(nothing, 1, nothing, nothing, caught_up=True))
    assert bench.arbiter.state_report().ran


@pytest.mark.parametrize("phase", PrimaryPhase)
@pytest.mark.parametrize("cluster_id", ["", "c"])
def test_when_a_first_start_is_waited_for(phase: PrimaryPhase, cluster_id: str) -> None:
    bench = Bench(replace(NEW, cluster_id=cluster_id))
    bench.arbiter.primary.phase = phase
    waits = phase is PrimaryPhase.INQUORATE and not cluster_id
    assert bench.arbiter.waits_for_first_start is waits
