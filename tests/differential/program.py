"""Random programs of AMQP clients: steps, each of them data that can be printed and run again."""

from __future__ import annotations

from random import Random
from typing import NamedTuple, TypeAlias, TypeVar

from broker.amqp.fields import Table, Value

Choice = TypeVar("Choice")
Args: TypeAlias = tuple[Value, ...]
OBSERVER = 9
"""The connection that looks at the remaining messages in the end."""
BRIEF_MS = 40
"""A time to live; each step of a program that has any waits longer than that."""


class Step(NamedTuple):
    """One action of a client.  A connection or channel that is not open is opened first.

    `what` is a method and `args` its arguments; or `publish` (exchange, key, mandatory, immediate,
    properties, body), `settle` (method, which of the held deliveries, multiple, requeue), `drop`
    (close the connection's socket), `policy` (name, the management API's body, or None).  A `~`
    stands for a prefix that no other program has.
    """

    conn: int
    channel: int
    what: str
    args: Args = ()


class Program(NamedTuple):
    steps: tuple[Step, ...]
    timed: bool = False
    """Whether something expires while it runs."""


QUEUES = "~q1", "~q2", "~q3"
STREAM = "~s1"
EXCHANGES = "~x1", "~x2", "~x3"
KEYS = "a", "a.b", "a.b.c", "b", "", "a..c", "~q1", "~q2"
PATTERNS = "#", "*", "a.*", "#.c", "*.b.#", "a.#.c", "a.b", "", "a.*.*", "#.#", "*.*"
VALUES: tuple[Value, ...] = (1, 2, "1", "x", True, None, 1.0, (1, "x"), {"k": 1})
CONSUMERS = "t1", "t2", "t3"
WRONG: tuple[Value, ...] = (-1, "a", 1.5, True, (1,), {"k": 1}, 1 << 40)


class Generator:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._bodies = 0
        self._timed = self._random.random() < 0.07
        self._wrong = self._random.choice((0.0, 0.0, 0.03, 0.15))
        self._quorum = self._random.random() < 0.05
        self._connections = self._random.choice((1, 1, 2, 3))
        self._streams = self._random.random() < 0.05
        self._policies = self._random.random() < 0.12
        self._queues = (*QUEUES, STREAM) if self._streams else QUEUES

    def program(self) -> Program:
        steps = [self.step() for _ in range(self._random.randint(8, 45))]
        end = ending(self._streams)
        return Program((*self._scene(), *steps, *end), self._timed)

    def step(self) -> Step:
        verbs = {
            self._publish: 30, self._settle: 14, self._consume: 9, self._get: 9,
            self._queue: 5, self._exchange: 3, self._bind: 5, self._unbind: 2, self._delete: 2,
            self._cancel: 2, self._mode: 3, self._qos: 3, self._transaction: 3, self._recover: 2,
            self._end: 2, self._odd: 1, self._purge: 1,
            self._policy: 5 * self._policies,
        }  # fmt: skip
        (verb,) = self._random.choices(list(verbs), list(verbs.values()))
        what, *args = verb()
        conn = self._random.randint(1, self._connections)
        channel = self._random.choice((1, 1, 1, 2))
        return Step(conn, channel, str(what), tuple(args))

    def _scene(self) -> list[Step]:
        """Declare the objects that most programs need."""
        made: list[list[Value]] = []
        for name in QUEUES[: self._random.choice((0, 1, 2, 3, 3))]:
            what, _, _, *args = self._queue()
            made.append([what, name, False, *args])
        for name in EXCHANGES[: self._random.choice((0, 1, 2, 3, 3))]:
            what, _, kind, _, *args = self._exchange()
            made.append([what, name, kind, False, *args])
        if self._streams:
            log: Table = {"x-queue-type": "stream"}
            made.append(["queue.declare", STREAM, False, True, False, False, False, log])
            made.append(["basic.qos", 0, self._one(2, 5, 100), False])
        if self._policies:
            made.append(self._policy())
        made += [self._bind() for _ in range(self._random.randint(0, 6))]
        return [Step(1, 1, str(what), tuple(args)) for what, *args in made]

    def _one(self, *choices: Choice) -> Choice:
        return self._random.choice(choices)

    def _flag(self, chance: float = 0.2) -> bool:
        return self._random.random() < chance

    def _table(self, choices: dict[str, tuple[Value, ...]], chance: float) -> Table:
        table: Table = {}
        for name, values in choices.items():
            if self._flag(chance):
                table[name] = self._one(*(WRONG if self._flag(self._wrong) else values))
        return table

    def _queue(self) -> list[Value]:
        brief = (BRIEF_MS, 0) if self._timed else (0, 60_000)
        arguments = self._table(
            {
                "x-message-ttl": brief,
                "x-expires": (3 * BRIEF_MS, 60_000) if self._timed else (60_000,),
                "x-max-length": (0, 1, 2, 3),
                "x-max-length-bytes": (0, 3, 12, 30),
                "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
                "x-max-priority": (0, 1, 3, 10, 255),
                "x-dead-letter-exchange": ("", "~x1", "~x2", "~nope"),
                "x-dead-letter-routing-key": ("~q2", "~q1", "a.b"),
                "x-single-active-consumer": (True, False),
                "x-queue-mode": ("default", "lazy"),
                "x-queue-type": ("classic", "quorum") if self._quorum else ("classic",),
                "x-delivery-limit": (0, 1, 2),
                "mine": (1,),
            },
            self._random.choice((0.0, 0.12, 0.25)),
        )
        if arguments.get("x-queue-type") != "quorum":
            arguments.pop("x-delivery-limit", None)  # RabbitMQ knows it of these only
        name = self._one(
            *self._queues, *self._queues, *QUEUES, "", "amq.mine" if self._wrong else ""
        )
        flags = [self._flag(c) for c in (0.1, 0.3, 0.1, 0.12, 0.05)]
        return ["queue.declare", name, *flags, arguments]

    def _exchange(self) -> list[Value]:
        kind = self._one("direct", "fanout", "topic", "topic", "headers", "headers")
        if self._flag(self._wrong):
            kind = "nope"
        arguments = self._table({"alternate-exchange": ("~x1", "~x2", "~x3", "~nope")}, 0.2)
        name = self._one(
            *EXCHANGES, *EXCHANGES, *(("", "amq.x", "amq.topic") if self._wrong else ())
        )
        flags = [self._flag(c) for c in (0.08, 0.3, 0.1, 0.05, 0.05)]
        return ["exchange.declare", name, kind, *flags, arguments]

    def _binding(self, *, closed: bool) -> list[Value]:
        arguments = self._table(
            {
                "x-match": ("all", "any", "all-with-x", "any-with-x"),
                "k": VALUES, "l": VALUES, "x-k": VALUES,
            },
            self._random.choice((0.0, 0.0, 0.5)),
        )  # fmt: skip
        key = self._one(*KEYS, *PATTERNS)
        source = self._one(
            *EXCHANGES, *EXCHANGES, *(("amq.direct", "", "~nope") if self._wrong else ())
        )
        nowait = [self._flag(0.05)]
        if self._flag(0.3):
            destination = self._one(*EXCHANGES)
            return ["exchange.", destination, source, key, *nowait, arguments]
        queue = self._one(*self._queues, *QUEUES, *(("", "~nope") if self._wrong else ()))
        return ["queue.", queue, source, key, *(nowait if closed else []), arguments]

    def _bind(self) -> list[Value]:
        kind, *args = self._binding(closed=True)
        return [f"{kind!s}bind", *args]

    def _unbind(self) -> list[Value]:
        kind, *args = self._binding(closed=False)
        return [f"{kind!s}unbind", *args]

    def _delete(self) -> list[Value]:
        unused, nowait = self._flag(), self._flag(0.1)
        if self._flag(0.4):
            return ["exchange.delete", self._one(*EXCHANGES), unused, nowait]
        return ["queue.delete", self._one(*QUEUES), unused, self._flag(), nowait]

    def _purge(self) -> list[Value]:
        return ["queue.purge", self._one(*self._queues), self._flag(0.1)]

    def _policy(self) -> list[Value]:
        name = self._one("~p1", "~p2")
        if self._flag():
            return ["policy", name, None]
        definition = self._table(
            {
                "message-ttl": (BRIEF_MS, 0) if self._timed else (0, 60_000),
                "expires": (3 * BRIEF_MS, 60_000) if self._timed else (60_000,),
                "max-length": (0, 1, 2),
                "max-length-bytes": (0, 3, 12),
                "overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
                "dead-letter-exchange": ("", "~x1", "~nope"),
                "dead-letter-routing-key": ("~q2", "~q1"),
                "delivery-limit": (0, 1, 2),
                "alternate-exchange": ("~x1", "~x2", "~nope"),
            },
            0.3,
        )
        if not self._quorum:
            definition.pop("delivery-limit", None)
        what: Table = {
            "pattern": self._one("^~q1$", "^~q", "^~.*2$", "^~x", "^~"),
            "apply-to": self._one("queues", "queues", "all", "exchanges"),
            "definition": definition or {"max-length": 3},
            "priority": self._one(0, 1, 5),
        }
        return ["policy", name, what]

    def _publish(self) -> list[Value]:
        self._bodies += 1
        headers = self._table(
            {
                "CC": (("~q1",), ("~q2", "a.b"), (), ("a", 1)),
                "BCC": (("~q2",), ("~q3", "a"), ()),
                "k": VALUES, "l": VALUES, "x-k": VALUES,
            },
            self._random.choice((0.0, 0.0, 0.3)),
        )  # fmt: skip
        properties = self._table(
            {
                "delivery_mode": (1, 2),
                "expiration": (str(BRIEF_MS), "0") if self._timed else ("0", "60000"),
                "priority": (0, 1, 2, 3, 9, 255),
                "message_id": ("id",), "type": ("t",), "timestamp": (5,), "reply_to": ("r",),
                "content_type": ("c",), "user_id": ("guest",),
            },
            self._random.choice((0.0, 0.0, 0.2)) if not self._flag(0.1) else 0.5,
        )  # fmt: skip
        properties = {name: value for name, value in properties.items() if _fits(name, value)}
        if self._flag(self._wrong):
            properties["expiration"] = self._one("-1", "abc", "1x", "", "99999999999", "1.5")
        if self._flag(self._wrong / 2):
            properties["user_id"] = "other"
        if headers:
            properties["headers"] = headers
        body = f"m{self._bodies}" + self._random.choice(("", "", "", "x" * 9))
        exchange = self._one("", *EXCHANGES, *(("~nope",) if self._flag(self._wrong) else ()))
        key = self._one(*self._queues) if exchange == "" else self._one(*KEYS)
        immediate = self._flag(self._wrong / 5)
        return ["publish", exchange, key, self._flag(0.3), immediate, properties, body]

    def _consume(self) -> list[Value]:
        arguments = self._table({"x-priority": (-1, 0, 1, 5), "mine": (1,)}, 0.15)
        if self._streams and self._flag(0.8):
            offsets: tuple[Value, ...] = ("first", "last", "next", "nope", 0, 1, 3, 100)
            arguments["x-stream-offset"] = self._one(*offsets)
        name = self._one(*self._queues, *self._queues, *(("", "~nope") if self._wrong else ()))
        no_ack, exclusive = self._flag(0.25), self._flag(0.06)
        tag = self._one(*CONSUMERS, *CONSUMERS, "")
        return ["basic.consume", name, tag, False, no_ack, exclusive, False, arguments]

    def _cancel(self) -> list[Value]:
        return ["basic.cancel", self._one(*CONSUMERS), self._flag(0.1)]

    def _get(self) -> list[Value]:
        return ["basic.get", self._one(*self._queues), self._flag(0.3)]

    def _settle(self) -> list[Value]:
        name = self._one("basic.ack", "basic.ack", "basic.nack", "basic.reject")
        which = -1 if self._flag(self._wrong) else self._random.randrange(12)
        return ["settle", name, which, self._flag(0.3), self._flag(0.5)]

    def _recover(self) -> list[Value]:
        return [self._one("basic.recover", "basic.recover", "basic.recover-async"), True]

    def _qos(self) -> list[Value]:
        return ["basic.qos", 0, self._one(0, 1, 2, 3), self._flag(0.3)]

    def _mode(self) -> list[Value]:
        return ["confirm.select", self._flag(0.1)]

    def _transaction(self) -> list[Value]:
        return [self._one("tx.select", "tx.commit", "tx.commit", "tx.rollback")]

    def _end(self) -> list[Value]:
        if self._flag(0.6):
            return ["channel.close", 200, "", 0, 0]
        return ["drop"] if self._flag() else ["connection.close", 200, "", 0, 0]

    def _odd(self) -> list[Value]:
        odd: list[list[Value]] = [
            ["channel.flow", True], ["channel.flow", False], ["channel.open"],
            ["basic.recover", False], ["basic.qos", 7, 1, False], ["channel.flow-ok", True],
            ["basic.cancel-ok", "t1"], ["channel.open-ok"], ["queue.declare-ok", "q", 0, 0],
            ["connection.update-secret", b"guest", "r"], ["connection.open", "/"],
            ["connection.tune-ok", 0, 0, 0], ["tx.select-ok"],
        ]  # fmt: skip
        return self._random.choice(odd) if self._wrong else ["channel.flow", True]


def _fits(name: str, value: Value) -> bool:
    """Whether a property can be encoded at all."""
    if name in ("delivery_mode", "priority", "timestamp"):
        return type(value) is int and 0 <= value < 256
    return isinstance(value, str)


def ending(streams: bool) -> list[Step]:
    """Steps that show the final state: depths while all are there (except of streams, which
    RabbitMQ counts only now and then), then every message."""
    looked = [
        Step(OBSERVER, n, "queue.declare", (queue, True, False, False, False, False, {}))
        for n, queue in enumerate(QUEUES, 1)
    ]
    gone = [Step(conn, 0, "drop") for conn in (1, 2, 3)]
    drained = [Step(OBSERVER, 1, "drain", (queue,)) for queue in QUEUES]
    if streams:
        first: Table = {"x-stream-offset": "first"}
        drained += [
            Step(OBSERVER, 5, "basic.qos", (0, 100, False)),
            Step(OBSERVER, 5, "basic.consume", (STREAM, "r", False, False, False, False, first)),
        ]
    return [*looked, *gone, *looked, *drained]


def program(seed: int) -> Program:
    return Generator(seed).program()
