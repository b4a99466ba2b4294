"""The state of a member in its life, in the words of Qpid's cluster, and its log lines about it.

The state stands in front of each line of the member's log, `cluster(ID STATE)`, and each change is
logged once. A member without a majority names who is missing, what may be lost, and the command to
type; with --cluster-cman it stops at once instead of waiting for the others.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum

from broker.exit_codes import Exit
from broker.options.broker import BrokerOptions
from broker.process.join_refusal import JoinRefusal, RingStatus, TransportStatus, outdated
from broker.process.ring_setup import FirstStart
from broker.replication.controller import Controller
from vsync.primary.events import PrimaryPhase
from vsync.quorum.voter_set import parse
from vsync.totem.events import Note
from vsync.types import Member

log = logging.getLogger("qpidd")

ADVICE_S = 5.0
"""How long a majority must be missing before advice is given: most absences are shorter."""


class LifeState(Enum):
    """The states that an operator sees. docs/operations/watching.md explains them."""

    PRE_INIT = "PRE_INIT"  # reads its store
    INIT = "INIT"  # looks for the others, or waits for enough of them
    JOINER = "JOINER"  # in a primary view, and requests the state
    UPDATEE = "UPDATEE"  # receives it
    CATCHUP = "CATCHUP"  # has it, and executes commands ordered meanwhile
    READY = "READY"  # serves clients
    STALLED = "STALLED"  # has served, and is in no primary view now
    LEFT = "LEFT"  # stopping


def prefix(name: str, state: LifeState) -> str:
    """Return the prefix of this member's log lines."""
    return f"cluster({name} {state.value}) "


class MemberLife:
    """Follows one member's controller; called a few times a second with the loop's time."""

    def __init__(
        self,
        options: BrokerOptions,
        controller: Controller,
        ring: RingStatus,
        transport: TransportStatus,
        stop: Callable[[Exit, str], None],
        *,
        stopping: Callable[[], bool],
        progress: Callable[[], str],
        lack: Callable[[], str],
    ) -> None:
        """`lack`: the other members to which there is no connection."""
        self._controller, self._stop = controller, stop
        self._data_dir, self._cman = options.data_dir, options.cman
        self._stopping, self._progress = stopping, progress
        self._first_start = FirstStart(lack)
        self._join_refusal = JoinRefusal(controller, ring, transport, stop, log.error)
        self.takes = self._join_refusal.takes
        self._logged = LifeState.PRE_INIT
        self._waits_logged = False
        self._lost_at, self._lost_since = 0.0, ""
        self._advice = ""

    @property
    def state(self) -> LifeState:
        """The present state of this member."""
        controller = self._controller
        primary = controller.primary
        if self._stopping():
            return LifeState.LEFT
        if controller.serving and primary.has_caught_up:
            return LifeState.READY
        if controller.transfer_donor:
            return LifeState.UPDATEE if self._progress() else LifeState.JOINER
        if primary.phase in (PrimaryPhase.ACTIVE, PrimaryPhase.CATCHING_UP) and (
            not controller.halted
        ):
            return LifeState.CATCHUP
        return LifeState.STALLED if controller.ran else LifeState.INIT

    def status(self) -> dict[str, str]:
        """Return its part of the reply to `status`."""
        return {"member_state": self.state.value}

    def prefix(self) -> str:
        """Return the present prefix of log lines."""
        return prefix(self._controller.me.name, self.state)

    @property
    def reason(self) -> str:
        """Return the reason for `qpid-cluster`, in addition to the primary layer's own."""
        lack = self._first_start.told
        waits = f"{self._controller.primary.reason}; {lack}" if lack else ""
        return self._progress() or self._advice or waits

    @staticmethod
    def outdated(note: Note) -> tuple[Member, bytes]:
        """Log that a process's frames are dropped; return it, and the datagram that tells it so."""
        sentence, member, datagram = outdated(note)
        log.warning("%s", sentence)
        return member, datagram

    def wake(self, now: float) -> None:
        """Log a change of state; handle reasons against joining, and a missing majority."""
        self._join_refusal.wake(now)
        state = self.state
        if state is not self._logged:
            log.info("%s, was %s", state.value, self._logged.value)
            self._logged = state
        without = self._controller.primary.phase is PrimaryPhase.INQUORATE
        self._first_start.wake(now, waits=without and not self._controller.promise.cluster_id)
        if self._cman:
            self._follow_quorum(without=without)
        if not without:
            self._lost_since = self._advice = ""
        elif not self._lost_since:
            self._lost_at = now
            self._lost_since = datetime.now(UTC).isoformat(timespec="seconds")
        elif now - self._lost_at > ADVICE_S and not self._advice:
            self._advice = self._advise()
            if self._advice:
                log.warning("%s", self._advice)

    def _follow_quorum(self, *, without: bool) -> None:
        """Wait for a quorum at the start; a member that had one and lost it stops at once."""
        if without and self._controller.ran:
            self._stop(Exit.QUORUM, "Lost contact with cluster quorum.")
        elif without and not self._waits_logged:
            self._waits_logged = True
            log.info("Waiting for cluster quorum.")

    def _advise(self) -> str:
        """Return what an operator has to know when voters are missing; empty if none are."""
        controller = self._controller
        primary = controller.primary
        electorate = parse(controller.promise.voters)
        present = {one.name for one, report in primary.reports.items() if report.filled}
        if primary.lacks_its_peer:
            return ""  # it continues alone as soon as its pair's rule allows
        newest = primary.newest()
        if newest is None or not set(electorate.names) - present or electorate.quorate(present):
            return ""
        holder, report = newest
        here = holder == controller.me and self._data_dir is not None
        where = "this broker" if here else f"the broker {holder.name}"
        directory = shlex.quote(str(self._data_dir)) if here else "DIR (its --data-dir)"
        return (
            f"{primary.reason}. This has been so since {self._lost_since}. The newest state here "
            f"is that of {holder.name}, position {report.position} of epoch {report.state_epoch}; "
            "messages confirmed after it are on the missing members only. Start them: the cluster "
            "then continues by itself. If they are lost FOR GOOD, with all that only they held: "
            f"stop {where}, run: qpid-cluster-store -c --sole-voter {directory} - then start it "
            "again"
        )
