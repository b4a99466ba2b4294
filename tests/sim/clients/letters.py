"""A queue whose dead letters are kept until they are taken, and operators that block their way.

Messages that die in the queue `kept` go by the exchange `post` to the queue `mail`.  By chance
operators remove the exchange or the binding, or let `mail` take little and refuse the rest; when
the chaos is over they open the way.  `LetterWitness` judges G31 over a whole history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from broker.machine.commands import (
    ACTIVATE,
    CHANNEL_OPEN,
    DEFINE,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_UNBIND,
    ChannelOpen,
    Command,
    Define,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueUnbind,
    Table,
    Value,
)
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.move_log import BY_DEAD_LETTER, BY_LETTER, FLAG, MOVE, Op
from broker.machine.state import BODY, NUMBER, Queue
from tests.sim.broker.operator import GRAVE
from tests.sim.clients.messages import MessageId, message_id
from tests.sim.world.random_tape import Tape

KEPT, POST, MAIL = "kept", "post", "mail"
WAYS_CHAN = 2
"""The channel of the operators that open and close ways: its requests may be refused."""


class LetterPlan(NamedTuple):
    """The plan of a whole run: every member declares the queues alike."""

    used: bool
    arguments: Table

    @classmethod
    def draw(cls, tape: Tape) -> LetterPlan:
        """Draw the plan: most runs have no such queue."""
        used = tape.chance(0.3)
        arguments: Table = {
            "x-dead-letter-exchange": POST,
            "x-dead-letter-routing-key": MAIL,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        if tape.chance(0.7):
            arguments["x-message-ttl"] = tape.number(0, 300)
        if tape.chance(0.3):
            arguments["x-max-length"] = tape.number(5, 50)
        return cls(used, arguments)

    def declare(self, conn: int, chan: int) -> list[Command]:
        grave: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
        return [
            QueueDeclare(QUEUE_DECLARE, conn, chan, name, False, True, False, False, False, given)
            for name, given in ((KEPT, self.arguments), (MAIL, grave))
        ]


class SimWays:
    """The operators that open and close the way of dead letters at one member."""

    def __init__(self, tape: Tape, plan: LetterPlan) -> None:
        self._tape, self.plan = tape, plan
        self._requests = count(1 << 20)
        self._eager = 0.15 if plan.used and tape.chance(0.6) else 0.0
        self.conn = 0
        self._opened_for_good = False

    @property
    def publishes(self) -> bool:
        """Whether the next message goes to the queue whose letters are kept."""
        return self.plan.used and self._tape.chance(0.25)

    def begin(self, conn: int) -> list[Command]:
        """Begin on a channel of a connection that was just opened, in a session of its own."""
        self.conn = conn
        self._opened_for_good = False
        if not self.plan.used:
            return []
        return [*self.begin_again(), *self.plan.declare(conn, WAYS_CHAN)]

    def begin_again(self) -> list[Command]:
        """Its channel was closed by an error."""
        return [ChannelOpen(CHANNEL_OPEN, self.conn, WAYS_CHAN)]

    def whim(self) -> list[Command]:
        """The present action: mostly none."""
        if not self._tape.chance(self._eager):
            return []
        conn, chan = self.conn, WAYS_CHAN
        return self._tape.pick(
            (
                self._open(),
                [ExchangeDelete(EXCHANGE_DELETE, conn, chan, POST, False, True)],
                [QueueUnbind(QUEUE_UNBIND, conn, chan, MAIL, POST, MAIL, False, {})],
                [self._policy({"max-length": self._tape.number(0, 3),
                               "overflow": "reject-publish"})],
                [self._policy({"overflow": "drop-head"})],
            )
        )  # fmt: skip

    def open_for_good(self) -> list[Command]:
        """Open the way for good, once in each session."""
        if self._opened_for_good or not self.plan.used or not self.conn:
            return []
        self._opened_for_good = True
        return [*self._open(), self._policy({"overflow": "drop-head"})]

    def _open(self) -> list[Command]:
        conn, chan = self.conn, WAYS_CHAN
        return [
            ExchangeDeclare(
                EXCHANGE_DECLARE, conn, chan, POST, "direct", False, True, False, False, True, {}
            ),
            QueueBind(QUEUE_BIND, conn, chan, MAIL, POST, MAIL, True, {}),
        ]  # fmt: skip

    def _policy(self, definition: Table) -> Define:
        body: dict[str, Value] = {"pattern": f"^{MAIL}$", "definition": definition, "priority": 9}
        return Define(DEFINE, next(self._requests), "sim", "policy", "/", MAIL, body)


class LetterWitness:
    """Follows the letters of `kept` through the moves of a history."""

    def __init__(self, broken: Callable[[str, str], None], tally: Callable[[str], None]) -> None:
        self._broken, self._tally = broken, tally
        self.taken: dict[MessageId, tuple[int, bool]] = {}  # by `kept`: where, and if persistent
        self.arrived: dict[MessageId, int] = {}  # at `mail`: where it was sent last
        self._waiting: deque[int] = deque()  # numbers of letters that cannot go, as they died

    def applied(
        self, machine: Machine, position: int, command: Command, moves: list[bytes]
    ) -> None:
        """Called after each command, with its moves."""
        vhost = machine.vhosts.get("/")
        if vhost is None or KEPT not in vhost.queues:
            return
        kept, mail = vhost.queues[KEPT], vhost.queues.get(MAIL)
        if command[0] == ACTIVATE and command[3]:  # type: ignore[misc]
            # It takes transient messages.
            self._waiting = deque(
                number for number in self._waiting if number in _numbers(kept.letters)
            )
        cause = published = of = 0
        arrivals = set[int]()
        for what, _, queue, seq, _, _ in MOVE.iter_unpack(b"".join(moves)):
            if what & 15 == Op.PUBLISHED:
                cause, published, of = what & ~FLAG, seq, queue
            elif what & 15 != Op.ENQUEUED:
                continue
            elif queue == kept.number and command[0] == PUBLISH:
                self.taken[message_id(command[8])] = position, bool(what & FLAG)  # type: ignore[misc, arg-type]
            elif kept.letters is not None and queue == kept.letters.number:
                self._waiting.append(published)
                self._tally("letters_kept")
            elif mail is not None and queue == mail.number and cause in (BY_DEAD_LETTER, BY_LETTER):
                self._arrives(position, cause, of)
                arrivals.add(published)
        if mail is not None and arrivals:
            for message in _sent_to(machine, mail, arrivals):
                self.arrived[message] = position

    def _arrives(self, position: int, cause: int, number: int) -> None:
        first = self._waiting[0] if self._waiting else None
        if cause == BY_DEAD_LETTER:
            self._tally("letters_that_went")
            if first is not None:
                self._broken("G31", f"a letter at {position} overtakes number {first}, which waits")
            return
        self._tally("letters_sent_on")
        if number != first:
            self._broken("G31", f"letter {number} comes at {position} instead of {first}")
        elif first is not None:
            self._waiting.popleft()

    def at_rest(self, machine: Machine, present: set[MessageId], cold: int) -> None:
        """At the end each message that the queue took is somewhere, or was settled; `cold` is the
        position of the last cold start, which takes transient messages."""
        for message, (position, persistent) in self.taken.items():
            if message not in present and (persistent or position > cold):
                self._broken("G31", f"{message}, which `{KEPT}` took at {position}, is lost")
        vhost = machine.vhosts.get("/")
        kept = None if vhost is None else vhost.queues.get(KEPT)
        if kept is not None and (waits := _numbers(kept.letters)):
            text = f"{len(waits)} letters wait, as of number {min(waits)}, and their way is open"
            self._broken("G31", text)


def _sent_to(machine: Machine, mail: Queue, numbers: set[int]) -> Iterator[MessageId]:
    """The messages of this queue with these numbers, or that left it at once."""
    waits = (*mail.ready, *mail.returned.values())
    held = (
        one
        for channel in machine.channels.values()
        for of, _, one, *_ in (*channel.unacked.values(), *channel.unsent.values())
        if of is mail
    )
    for message in (*waits, *held):
        if message[NUMBER] in numbers:
            yield message_id(message[BODY])
    for effect in machine.effects:  # a consumer without acks holds nothing
        if not isinstance(effect, DeliverEffect) or not effect.no_ack:
            continue
        if effect.consumer_tag.startswith(f"{MAIL}/"):
            yield message_id(effect.body)


def _numbers(letters: Queue | None) -> set[int]:
    return set() if letters is None else {one[NUMBER] for one in letters.ready}
