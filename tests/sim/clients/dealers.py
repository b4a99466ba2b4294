"""Simulated clients that work in transactions, and the witness that no transaction is split.

A dealer at each member takes coins out of one till by basic.get, and in one transaction settles
them and publishes the same ones to the other till; some are returned, some transactions refused.
With each transaction it may put a stamp into a queue that takes each key once (G26), under keys
that dealers of other members use as well.  So a coin is in one till, once, whatever happens: it
would be there twice, or not at all, if half of a transaction was applied, repeated, or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from broker.amqp.codec import encode_properties
from broker.machine.commands import (
    ACK,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    GET,
    NACK,
    OK,
    PERSISTENT,
    QUEUE_DECLARE,
    TX_ACK,
    TX_COMMIT,
    TX_REQUEUE,
    Ack,
    ChannelOpen,
    Command,
    ConnectionClose,
    ConnectionOpen,
    Get,
    Nack,
    QueueDeclare,
    Table,
    TxCommit,
    TxPublish,
    TxSettle,
)
from broker.machine.effects import ChannelError, Effect, GetEmpty, GetOk, Reply
from broker.machine.machine import Machine
from broker.machine.requests.properties import headers_of, with_header
from broker.machine.state import BODY, NUMBER
from tests.sim.clients.messages import MESSAGE, MessageId, message_id
from tests.sim.world.random_tape import Tape

TILLS, STAMPS = ("till-a", "till-b"), "stamps"
DEALT = "till|stamps"
"""Prefix of the queues from which operators let nothing be dropped."""
NOWHERE = "an exchange that is not there"
KEY = "x-deduplication-header"
COINS, KEYS, HAND = 5, 40, 3
PAUSE_S = 0.01


class SimDealer:
    """The dealer of one incarnation: one connection with one channel, new in each session."""

    def __init__(
        self,
        tape: Tape,
        priorities: int,
        numbers: Iterator[int],
        later: Callable[[float, Callable[[], None]], None],
        calm: Callable[[], bool],
    ) -> None:
        """`priorities`: the number of priorities of the second till, the same at every member."""
        self.tape, self.priorities, self.numbers = tape, priorities, numbers
        self._later, self._calm = later, calm
        self.conn = self._number = self._waits_for = 0
        self._commands: list[Command] = []
        self._held: dict[int, bytes] = {}  # by delivery tag
        self._till = TILLS[0]
        self._has_paid_in = False

    def begin(self) -> None:
        """Begin with a new connection; what the old one held is gone with it."""
        self._commands = []
        self._connect()

    def hang_up(self) -> None:
        """Disconnect abruptly, whatever it waits for, and return."""
        self._commands.append(ConnectionClose(CONNECTION_CLOSE, self.conn))
        self._connect()

    def _connect(self) -> None:
        self.conn, self._waits_for, self._number = next(self.numbers), 0, 0
        self._held.clear()
        self._commands += [
            ConnectionOpen(CONNECTION_OPEN, self.conn, "/", "guest", "p:4"),
            ChannelOpen(CHANNEL_OPEN, self.conn, 1),
            *self._declare(),
        ]
        if not self._has_paid_in and not self._calm():
            self._has_paid_in = True
            paid = tuple(self._coin(self._body(), TILLS[0]) for _ in range(COINS))
            self._ask(TxCommit(TX_COMMIT, self.conn, 1, paid, ()))
        else:
            self._soon()

    def _declare(self) -> list[Command]:
        ranked: Table = {"x-max-priority": self.priorities} if self.priorities else {}
        once: Table = {"x-message-deduplication": True}
        given: dict[str, Table] = {TILLS[0]: {}, TILLS[1]: ranked, STAMPS: once}
        return [
            QueueDeclare(QUEUE_DECLARE, self.conn, 1, name, False, True, False, False, False, one)
            for name, one in given.items()
        ]

    def take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    @property
    def settled(self) -> bool:
        """Whether it waits for nothing and holds nothing."""
        return not (self._commands or self._waits_for or self._held)

    # -- what it asks for ------------------------------------------------------------------------

    def _ask(self, command: Command) -> None:
        self._waits_for += 1
        self._commands.append(command)

    def _soon(self) -> None:
        conn = self.conn
        self._later(self.tape.gap(PAUSE_S), lambda: self._deal(conn))

    def _body(self) -> bytes:
        self._number += 1
        return MESSAGE.pack(self.conn, self._number)

    def _coin(self, body: bytes, till: str) -> TxPublish:
        said: dict[str, int] = {"delivery_mode": 2}
        if self.priorities:
            said["priority"] = self.tape.number(0, 5)
        return TxPublish("", till, PERSISTENT, encode_properties(dict(said)), body)

    def _stamp(self) -> TxPublish:
        properties = with_header(b"\0\0", KEY, f"k{self.tape.number(1, KEYS)}")
        return TxPublish("", STAMPS, PERSISTENT, properties, self._body())

    def _deal(self, conn: int) -> None:
        """Do the next step, unless it has reconnected meanwhile."""
        if conn != self.conn or self._waits_for:
            return
        if self._calm():
            if self._held:
                self._give_back()
        elif len(self._held) < HAND and self.tape.chance(0.6):
            if not self._held:
                self._till = self.tape.pick((*TILLS, STAMPS))
            self._ask(Get(GET, conn, 1, self._till, False))
        elif self._held and self._till == STAMPS:
            tags, several = list(self._held), self.tape.chance(0.5)
            self._commands.append(Ack(ACK, conn, 1, tags[-1] if several else tags[0], several))
            for tag in tags if several else tags[:1]:
                del self._held[tag]
            self._soon()
        elif self.tape.chance(0.1):
            self._give_back()
            self._soon()
        else:
            self._commit()

    def _give_back(self) -> None:
        if self._held:
            self._commands.append(Nack(NACK, self.conn, 1, max(self._held), True, True))
            self._held.clear()

    def _commit(self) -> None:
        """Move all held coins, except some that are returned; by chance add a stamp."""
        tape, other = self.tape, TILLS[self._till == TILLS[0]]
        publishes: list[TxPublish] = []
        settles: list[TxSettle] = []
        for tag, body in self._held.items():
            goes = tape.chance(0.8)
            settles.append(TxSettle(tag, False, TX_ACK if goes else TX_REQUEUE))
            if goes:
                publishes.append(self._coin(body, other))
        if tape.chance(0.5):
            publishes += [self._stamp() for _ in range(tape.number(1, 2))]
        if tape.chance(0.1):  # then nothing of it is done, and the channel is closed
            publishes.append(TxPublish(NOWHERE, "", PERSISTENT, b"\0\0", self._body()))
        self._ask(TxCommit(TX_COMMIT, self.conn, 1, tuple(publishes), tuple(settles)))

    # -- what it receives ------------------------------------------------------------------------

    def receives(self, effect: Effect) -> bool:
        """Whether this is for it."""
        if not self.conn or getattr(effect, "conn", 0) != self.conn:
            return False
        match effect:
            case GetOk(_, _, tag):
                self._held[tag] = bytes(effect.body)
            case Reply(_, _, "tx.commit-ok"):
                self._held.clear()
            case ChannelError():
                self._held.clear()
                self._commands.append(ChannelOpen(CHANNEL_OPEN, self.conn, 1))
            case GetEmpty():
                pass
            case _:
                return True  # it requested that without waiting
        self._waits_for -= 1
        self._soon()
        return True


class DealWitness:
    """Follows coins and stamps through a history."""

    def __init__(
        self,
        broken: Callable[[str, str], None],
        tally: Callable[[str], None],
        settled: Mapping[tuple[str, MessageId], int],
    ) -> None:
        """`settled`: the messages that left their queue for good by an acknowledgement."""
        self._broken, self._tally, self._settled = broken, tally, settled
        self.coins: dict[MessageId, int] = {}  # and where each was paid in
        self._first: dict[str, MessageId] = {}  # stamps that are to be taken, by their keys

    def applied(self, machine: Machine, position: int, command: Command, outcome: int) -> None:
        """Called after each command."""
        if command[0] != TX_COMMIT:
            return
        _, _, _, publishes, acks = cast("TxCommit", command)
        self._tally("transactions" if outcome == OK else "transactions_refused")
        if outcome == OK:
            for _, to, _, properties, body in publishes:
                message = message_id(body)
                if to == STAMPS:
                    key = str(headers_of(properties)[KEY])
                    if self._first.setdefault(key, message) != message:
                        self._tally("stamps_repeated")
                elif not acks:
                    self.coins[message] = position
        self.look(machine, f"at {position}")

    def look(self, machine: Machine, when: str) -> None:
        """Each coin is in one till, once; of each key the first stamp was taken, and no other."""
        vhost = machine.vhosts.get("/")
        queues = {} if vhost is None else vhost.queues
        there = [
            (name, message_id(message[BODY]))
            for name in (*TILLS, STAMPS)
            if name in queues
            for message in (*queues[name].ready, *queues[name].returned.values())
        ] + [
            (queue.name, message_id(message[BODY]))
            for channel in machine.channels.values()
            for queue, _, message, *_ in channel.unacked.values()
            if message[NUMBER] and queue.name in (*TILLS, STAMPS)
        ]
        coins = sorted(message for name, message in there if name in TILLS)
        if coins != sorted(self.coins):
            odd = sorted(set(coins) ^ self.coins.keys())[:3]
            text = f"{when} there are {len(coins)} coins of {len(self.coins)}: {odd}"
            self._broken("G9", text)
        stamps = sorted(message for name, message in there if name == STAMPS)
        gone = {message for queue, message in self._settled if queue == STAMPS}
        if stamps != sorted(set(self._first.values()) - gone):
            text = f"{when} {len(stamps)} stamps wait: {stamps[:5]} of {self._first}"
            self._broken("G26", text)
