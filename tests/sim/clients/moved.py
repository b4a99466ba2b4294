"""Follows what a shovel or a link of federation moves through a history (G24, G27)."""

from __future__ import annotations

from collections.abc import Callable

from broker.machine.commands import OK, PUBLISH, REPEATED, UNROUTABLE, Command
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE, Op
from tests.sim.clients.link_plan import DESTINATION, NEAR, SOURCES, is_in_order
from tests.sim.clients.messages import MessageId, message_id


class MoveWitness:
    """Each message that the source took comes to the destination once, in the order of the source
    where that is promised, and goes from the source after that."""

    def __init__(self, broken: Callable[[str, str], None], tally: Callable[[str], None]) -> None:
        self._broken, self._tally = broken, tally
        self.arrived: dict[MessageId, int] = {}
        self.twice: set[MessageId] = set()
        """As a cold start gives what is left new places."""
        self._places: dict[MessageId, int] = {}  # in the source
        self._furthest = -1
        self._cold = 0

    def cold_start(self, position: int) -> None:
        """What was under way comes again, also in front of what has come."""
        self._cold, self._furthest = position, -1

    def enters(self, machine: Machine, command: Command, moves: list[bytes]) -> None:
        """A publisher's message comes to a queue, or to several."""
        queues = map(machine.vhosts["/"].queues.get, SOURCES)
        numbers = [queue.number for queue in queues if queue is not None]
        for what, _, queue, *_ in MOVE.iter_unpack(b"".join(moves)) if numbers else ():
            if what & 15 == Op.ENQUEUED and queue in numbers:
                message = message_id(command[8])  # type: ignore[misc, arg-type]
                self._places[message] = len(self._places)

    def arrives(self, machine: Machine, position: int, command: Command, outcome: int) -> bool:
        """Whether this is a message that was moved; then it is judged here."""
        if command[0] != PUBLISH:
            return False
        exchange, key = command[4:6]  # type: ignore[misc]
        if exchange != NEAR and (exchange, key) != ("", DESTINATION):
            return False
        message = message_id(command[8])  # type: ignore[misc, arg-type]
        if outcome == REPEATED:
            self._tally("moved_again")
            return True
        if outcome != OK and (outcome, exchange) != (UNROUTABLE, NEAR):  # unbound meanwhile
            self._broken("G24", f"{message} is refused at {position}, as {outcome}")
            return True
        self._tally("moved" if exchange != NEAR else "linked")
        if message not in self._places:
            self._broken("G24", f"{message} comes at {position}, and was not there to be moved")
            return True
        before = self.arrived.get(message)
        if before is not None and before > self._cold:
            self._broken("G24", f"{message} came at {before}, and comes again at {position}")
        elif before is not None:
            self.twice.add(message)
        elif is_in_order(machine) and self._places[message] < self._furthest:
            text = f"{message}, place {self._places[message]}, comes at {position} after place"
            self._broken("G24", f"{text} {self._furthest}")
        self._furthest = max(self._furthest, self._places[message])
        self.arrived[message] = position
        return True

    def leaves(self, message: MessageId, position: int) -> None:
        """It is acknowledged at the source."""
        if message not in self.arrived:
            text = f"{message} is acknowledged at the source at {position}, and did not arrive"
            self._broken("G24", text)

    def at_rest(self) -> None:
        """All is moved."""
        missing = [message for message in self._places if message not in self.arrived]
        if missing:
            text = f"{len(missing)} messages are not moved, as of {missing[0]}"
            self._broken("G24", text)
