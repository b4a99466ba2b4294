"""The decisions of an arbitrator, without sockets, disk and clock. Pure.

In every epoch in which it sees a view activated it records which members hold everything this view
confirms, and only then reports that to the others (its mark is the epoch of its record). It
acknowledges a promise once the promise is written and members that may still reply in an older view
have stopped (G7, G8). `vsync.quorum.voter_set` says what its vote is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from broker.exit_codes import Exit
from broker.process.arbitrator_record import ArbiterRecord
from broker.replication.ports import Lease, Ring
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    Holders,
    Inquorate,
    NeverJoins,
    PersistEpoch,
    PrimaryEvent,
    PrimaryPhase,
    StateReport,
)
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Output
from vsync.types import Guarantee, Member


class ArbiterShell(Protocol):
    """The process, as seen by an arbiter."""

    def write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        """Make a record durable, after the previous ones; then call `then`."""

    def later(self, delay_s: float, call: Callable[[], None]) -> object:
        """Call after some time."""

    def stop(self, code: Exit, reason: str) -> None:
        """Stop this arbitrator, which can do no good here."""

    def note(self, text: str) -> None:
        """Something happened that may interest an operator."""


class Arbiter:
    """One incarnation of an arbitrator on its ring."""

    def __init__(
        self,
        me: Member,
        record: ArbiterRecord,
        ring: Ring,
        lease: Lease,
        shell: ArbiterShell,
        *,
        size: int,
        requested: Terms,
    ) -> None:
        self.primary = Primary(me, self)
        self.ran = False
        self._record = record  # its content once all pending writes are done
        self._ring, self._lease, self._shell = ring, lease, shell
        self._size, self._requested = size, requested

    @property
    def waits_for_first_start(self) -> bool:
        """Whether there is no cluster yet, and too few of its members are present."""
        return self.primary.phase is PrimaryPhase.INQUORATE and not self._record.cluster_id

    def start(self) -> None:
        """Report the content of its record."""
        self._ring.set_mark(self._record.epoch)

    # -- asked by the primary layer --------------------------------------------------------------

    def state_report(self) -> StateReport:
        """Return the report of its record."""
        record = self._record
        return StateReport(
            filled=record.epoch > 0, live=False, ran=self.ran, patient=False,
            cluster_id=record.cluster_id, proposal="", voters=record.voters,
            size=self._size, promised_epoch=record.promised_epoch,
            state_epoch=record.epoch, position=0, chain=ZERO_CHAIN, order=ZERO_CHAIN, label="",
            requested=self._requested, arbitrator=True, holders=record.holders,
        )  # fmt: skip

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """Return that no payloads lead anywhere: there is no state."""
        return -1

    # -- from the ring ---------------------------------------------------------------------------

    def on_output(self, output: Output) -> None:
        """Take one output of the ring, except datagrams and notes."""
        self.primary.on_output(output)
        self.work()

    def work(self) -> None:
        """Carry out the primary layer's decisions, and give the ring waiting payloads."""
        for event in self.primary.take():
            self._follow(event)
        waiting = self.primary.take_outgoing()
        while waiting and self._ring.submit(waiting[0], Guarantee.SAFE):
            waiting.pop(0)
        self.primary.put_back(waiting)

    def _follow(self, event: PrimaryEvent) -> None:
        match event:
            case PersistEpoch(epoch, cluster_id, voters, request):
                record = replace(
                    self._record, promised_epoch=epoch, cluster_id=cluster_id, voters=voters
                )
                self._write(record, lambda: self._promised(request))
            case Activated():
                self.ran = True
            case Holders(epoch, names):
                self._shell.note(f"epoch {epoch} is held by {', '.join(sorted(names))}")
                record = replace(
                    self._record, epoch=epoch, holders=tuple(sorted(names)),
                    promised_epoch=max(epoch, self._record.promised_epoch),
                )  # fmt: skip
                self._write(record, lambda: self._ring.set_mark(epoch))
            case Inquorate(reason):
                self._shell.note(f"not in the primary view: {reason}")
            case NeverJoins(reason, settings):
                self._shell.stop(Exit.PROTOCOL if settings else Exit.DATA, reason)
            case _:
                pass  # commands and their outcomes are for members with data

    # -- the record ------------------------------------------------------------------------------

    def _write(self, record: ArbiterRecord, then: Callable[[], None]) -> None:
        self._record = record
        self._shell.write(record, then)

    def _promised(self, request: int) -> None:
        """Acknowledge a promise once members that did not come along have stopped replying."""
        self._shell.later(
            self._lease.silent_in(self.primary.members), lambda: self._acknowledge(request)
        )

    def _acknowledge(self, request: int) -> None:
        self.primary.persisted(request)
        self.work()
