"""The frontend of one simulated member: the machine's effects for clients, and their release.

The real gate for effects that must be durable first, in front of simulated clients.  The judge
checks each effect when it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.machine.commands import Command
from broker.machine.effects import Confirm, DeliverEffect, Effect, Reply
from broker.replication.durable_gate import DurableGate, acknowledges_durable
from tests.sim.broker.judge import BrokerJudge, ConfirmSent, DeliverySent
from tests.sim.clients.messages import message_id
from tests.sim.clients.programs import SimClients
from tests.support.stores.memory import MemoryDisk
from vsync.quorum.voter_set import Terms

if TYPE_CHECKING:
    from broker.replication.controller import Controller

Entry = tuple[int, bytes, Effect]  # position, chain of the item that made it, effect


class SimOutbox:
    """A member's client side (`ports.Clients`), in the place of `broker.frontend.connections`."""

    def __init__(
        self,
        clients: SimClients,
        judge: BrokerJudge,
        controller: Callable[[], Controller],
        released: Callable[[int, bytes, Terms], None],
        disks: Callable[[str], list[MemoryDisk]],
    ) -> None:
        self.clients, self.judge, self._disks = clients, judge, disks
        self._controller, self._on_released = controller, released
        self._fresh: deque[Entry] = deque()
        self._gate: DurableGate[Entry] = DurableGate()
        self._confirmed: list[int] = []
        self._released_to = 0
        self._releases: deque[tuple[int, Terms]] = deque()  # with the voters that counted then

    @property
    def durable_mark(self) -> int:
        return self._gate.released

    def take_commands(self) -> list[Command]:
        return self.clients.take_commands()

    def effects(self, effects: list[tuple[int, Effect]]) -> None:
        tip = self._controller().replica.history.chain  # the log was written a while after that
        for position, effect in effects:
            item = self.judge.at(tip, position)
            assert item is not None
            self._fresh.append((position, item.chain, effect))

    def release(self, position: int) -> None:
        controller = self._controller()
        self._look_at_backups(controller, position)
        self._releases.append((position, controller.promise.voters))
        self._gate.release(position)

    def _look_at_backups(self, controller: Controller, position: int) -> None:
        """Where confirms wait for all members, each with the state has it on disk, or lags."""
        backups = controller.backups
        if backups is None:
            return
        self.judge.counters["released_by_all" if not backups.late else "released_without_some"] += 1
        for name in controller.primary.marks_with_state().keys() - backups.late:
            metas = [disk.meta for disk in self._disks(name)]
            if not any(meta is not None and meta.position >= position for meta in metas):
                text = f"{self.clients.member} releases {position}, and {name}, which it waits for"
                self.judge.broken("G37", f"{text}, does not have it on its disk")

    def flush(self, *, may_reply: bool, soon: bool) -> list[int]:
        """Write at once, except effects that must be durable first."""
        if not may_reply:
            return []
        while self._fresh:
            entry = self._fresh.popleft()
            position, _, effect = entry
            if acknowledges_durable(effect) and not self._gate.is_open(position):
                self._gate.hold(position, entry)
            else:
                self._write(entry)
        for _, entry in self._gate.take():
            self._write(entry)
        self.clients.history.flush()
        confirmed, self._confirmed = self._confirmed, []
        return confirmed

    def throttle(self, *, full: bool, large_full: bool, alarm: str) -> None:
        """Asked by the load before each publish."""
        self.clients.blocked = bool(alarm)

    def session_started(self, session: int) -> None:
        self._fresh.clear()
        self._gate.clear()
        self.clients.session_started(session)

    def set_aside(self) -> None:
        self.session_started(0)
        self._gate.begin_anew()
        self._releases.clear()
        self._released_to = 0

    def _voters_of(self, position: int) -> Terms:
        """The voters whose disks made it durable: they may have changed by the time of the
        write."""
        while self._releases and self._releases[0][0] < position:
            self._releases.popleft()
        # The gate is open without a release: the judge checks the disks all the same.
        return self._releases[0][1] if self._releases else self._controller().promise.voters

    def _write(self, entry: Entry) -> None:
        position, chain, effect = entry
        judge, clients, name = self.judge, self.clients, self.clients.member
        judge.written(name, self._controller().primary.epoch, position, chain)
        told_durable = isinstance(effect, (Confirm, Reply)) and effect.durable
        if told_durable and position > self._released_to:
            self._released_to = position
            self._on_released(position, chain, self._voters_of(position))
        if isinstance(effect, Confirm) and effect.conn == clients.publisher:
            if effect.ack:
                self._confirmed.append(position)
            message = message_id(clients.unconfirmed[effect.publish_no].body)
            if effect.ack:
                judge.confirms_sent.append(
                    ConfirmSent(name, message, position, chain, effect.durable)
                )
        elif isinstance(effect, DeliverEffect):
            message_id(effect.body)
            judge.deliveries_sent.append(
                DeliverySent(name, clients.session, position, chain, effect)
            )
        clients.receive(effect)
