"""Follows the messages that shovels or a link of federation move through a history (G24, G27)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from broker.machine.commands import OK, PUBLISH, REPEATED, UNROUTABLE, Command
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE, Op
from broker.machine.state import BODY
from broker.shovels.definition import ON_CONFIRM
from tests.sim.clients.link_ends import ATTEMPT
from tests.sim.clients.link_plan import (
    DESTINATION,
    NEAR,
    SOURCES,
    definition_of,
    fed_by,
    is_in_order,
)
from tests.sim.clients.messages import MessageId, message_id

Copy = tuple[str, MessageId]  # a queue, and a message in it


class _Attempt:
    """One attempt to move messages, as far as a history shows it."""

    def __init__(self) -> None:
        self.source = ""
        self.taken: list[MessageId] = []
        self.to_come: Counter[MessageId] = Counter()
        self.passed_on: set[MessageId] = set()

    def takes(self, source: str, message: MessageId) -> None:
        """The source delivers it."""
        self.source = source
        self.taken.append(message)
        self.to_come[message] += 1

    def brings(self, message: MessageId) -> bool:
        """The destination takes it; whether the attempt has taken it as often."""
        self.passed_on.add(message)
        self.to_come[message] -= 1
        return self.to_come[message] >= 0

    def left_out(self, arrived: Collection[MessageId]) -> list[MessageId]:
        """The messages that it should have passed on, as it passed on later ones."""
        ends = [at for at, one in enumerate(self.taken) if one in self.passed_on]
        return [one for one in self.taken[: max(ends, default=0)] if one not in arrived]


class MoveWitness:
    """Each message that a source took arrives at the destination once, in the order of the source
    where that is promised, and leaves the source after that.

    Without confirms, an attempt that ends may lose the last messages that it took, and no others; a
    returned message, or one not known to be sent when a member died, arrives twice.
    """

    def __init__(self, broken: Callable[[str, str], None], tally: Callable[[str], None]) -> None:
        self._broken, self._tally = broken, tally
        self.arrived: dict[Copy, int] = {}  # where it was brought to
        self.twice: set[Copy] = set()
        """Messages that may be there twice: a cold start gives them new places, or none were
        counted."""
        self._places: dict[Copy, int] = {}  # where in a source, of the first if it is there twice
        self._entered: Counter[Copy] = Counter()
        self._moved: Counter[Copy] = Counter()  # from a source, since the last cold start
        self._furthest: dict[object, int] = {}  # by source, or by attempt as well
        self._cold = 0
        self._attempts: dict[object, _Attempt] = {}  # by their connections
        self._by_name: dict[str, _Attempt] = {}

    def cold_start(self, position: int) -> None:
        """Messages under way arrive again, also in front of those that have arrived."""
        self._cold = position
        self._furthest.clear()
        self._moved.clear()

    def opens(self, conn: object, peer: str) -> None:
        """A connection, perhaps one of an attempt."""
        if peer.startswith(ATTEMPT):
            self._attempts[conn] = self._by_name.setdefault(peer, _Attempt())

    def enters(self, machine: Machine, command: Command, moves: list[bytes]) -> None:
        """A message enters a queue, or several."""
        queues = map(machine.vhosts["/"].queues.get, SOURCES)
        sources = {queue.number: queue.name for queue in queues if queue is not None}
        for what, _, queue, *_ in MOVE.iter_unpack(b"".join(moves)) if sources else ():
            if what & 15 == Op.ENQUEUED and queue in sources:
                message = message_id(command[8])  # type: ignore[misc, arg-type]
                copy = sources[queue], message
                self._places.setdefault(copy, len(self._places))
                self._entered[copy] += 1

    def taken(self, delivery: DeliverEffect) -> None:
        """The source delivers it."""
        attempt = self._attempts.get(delivery.conn)
        if attempt is not None:
            attempt.takes(delivery.consumer_tag.partition("/")[0], message_id(delivery.body))

    def arrives(
        self, machine: Machine, position: int, command: Command, outcome: int,
        moves: list[bytes],
    ) -> bool:  # fmt: skip
        """Whether this is a message that was moved; then it is judged here."""
        if command[0] != PUBLISH:
            return False
        exchange, key = command[4:6]  # type: ignore[misc]
        if exchange == NEAR:
            key = DESTINATION
        elif exchange or (key != DESTINATION and command[1] not in self._attempts):
            return False
        message = message_id(command[8])  # type: ignore[misc, arg-type]
        if outcome == REPEATED:
            self._tally("moved_again")
            return True
        if outcome != OK and (outcome, exchange) != (UNROUTABLE, NEAR):  # unbound meanwhile
            self._broken("G24", f"{message} is refused at {position}, as {outcome}")
            return True
        came = str(key), message
        source = self._source_of(machine, came)
        if not source:
            self._broken("G24", f"{message} comes at {position}, and was not there to be moved")
            return True
        self._judge(machine, source, came, position, command[1])
        self.enters(machine, command, moves)  # to be moved on, where one shovel feeds another
        return True

    def _source_of(self, machine: Machine, came: Copy) -> str:
        """The queue from which it was brought here; empty: none."""
        return next(
            (
                source
                for source in SOURCES
                if (source, came[1]) in self._places and fed_by(machine, source) == came[0]
            ),
            "",
        )

    def _judge(
        self, machine: Machine, source: str, came: Copy, position: int, conn: object
    ) -> None:
        message, copy = came[1], (source, came[1])
        place, all_came = self._places[copy], self._moved[copy] >= self._entered[copy]
        self._moved[copy] += 1
        definition = definition_of(machine, source)
        mode = definition.get("ack-mode")
        self._tally(f"moved_{mode}")
        attempt = self._attempts.get(conn)
        was_taken = attempt is None or attempt.brings(message)
        before = self.arrived.get(came)
        line: object = source if mode == ON_CONFIRM else (source, conn)
        furthest = self._furthest.get(line, -1)
        again = before is not None and before > self._cold and all_came
        if again and mode == ON_CONFIRM:
            self._broken("G24", f"{message} came at {before}, and comes again at {position}")
        elif not was_taken:
            self._broken("G24", f"{message} comes at {position}, more often than it was taken")
        elif before is not None:
            self.twice.add(came)
        elif is_in_order(definition) and place < furthest:
            text = f"{message}, place {place}, comes at {position} after place {furthest}"
            self._broken("G24", text)
        self._furthest[line] = max(furthest, place)
        self.arrived[came] = position

    def leaves(self, machine: Machine, copy: Copy, position: int) -> None:
        """It is settled at the source."""
        source, message = copy
        waits = definition_of(machine, source).get("ack-mode") == ON_CONFIRM
        there = source in SOURCES and (fed_by(machine, source), message) in self.arrived
        if source in SOURCES and waits and not there:
            text = f"{message} is acknowledged at the source at {position}, and did not arrive"
            self._broken("G24", text)

    def at_rest(self, machine: Machine) -> None:
        """Everything is moved, except messages that still wait because nobody wants them."""
        queues = [machine.vhosts["/"].queues.get(name) for name in SOURCES]
        waiting = {
            (queue.name, message_id(one[BODY]))
            for queue in queues if queue is not None
            for one in (*queue.ready, *queue.returned.values())
        }  # fmt: skip
        attempts = self._by_name.values()
        lost = [
            one for attempt in attempts
            for one in attempt.left_out(self._brought_to(fed_by(machine, attempt.source)))
        ]  # fmt: skip
        taken = {(attempt.source, one) for attempt in attempts for one in attempt.taken}
        for copy in self._places:
            source, message = copy
            confirmed = definition_of(machine, source).get("ack-mode") == ON_CONFIRM
            gone = (fed_by(machine, source), message) not in self.arrived and copy not in waiting
            if gone and (confirmed or copy not in taken):
                lost.append(message)
        if lost:
            self._broken("G24", f"{len(lost)} messages are not moved, as of {lost[0]}")

    def _brought_to(self, queue: str) -> set[MessageId]:
        return {message for there, message in self.arrived if there == queue}
