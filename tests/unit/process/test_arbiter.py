"""An arbiter reports only written records, and promises once nobody replies in an older
view (G8)."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

from broker.process.arbiter import Arbiter
from broker.process.arbitrator_record import ArbiterRecord
from vsync.primary.events import Holders, PersistEpoch
from vsync.types import Member

LEASE_S = 0.25


class Bench:
    """An arbiter with a disk and a clock that the test controls."""

    def __init__(self) -> None:
        self.ring, self.lease = Mock(), Mock()
        self.ring.submit.return_value = True
        self.lease.silent_in.return_value = LEASE_S
        self.writing: list[tuple[ArbiterRecord, Callable[[], None]]] = []
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        shell = Mock()
        shell.write = lambda record, then: self.writing.append((record, then))
        shell.later = lambda delay_s, call: self.waiting.append((delay_s, call))
        me = Member("x", 1, "x:1")
        record = ArbiterRecord("prod", "x")
        self.arbiter = Arbiter(me, record, self.ring, self.lease, shell, size=2, requested=())
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
    acknowledge()
    bench.persisted.assert_called_once_with(3)
