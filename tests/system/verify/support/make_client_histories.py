"""Makes members' moves and clients' operations as rows of the tables "moves" and "clients".

Tests then corrupt either side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from broker.machine.move_log import Op
from broker.memberlog.client_history import ClientHistory, Session
from broker.memberlog.records import CLIENT_ROW, REDELIVERED
from tools.verify.input.rows import signed

if TYPE_CHECKING:
    import pyarrow as pa

CHANNEL, CONSUMER = 11, 22

MOVES = (
    "epoch bigint, position bigint, ordinal bigint, op bigint, flag boolean, cause bigint, "
    "queue bigint, seq bigint, of bigint, detail bigint"
)
OPERATIONS = (
    "client string, life bigint, session bigint, queue string, lsn bigint, ordinal bigint, "
    "op bigint, flag boolean, body bigint, aux bigint"
)


class MoveRow(NamedTuple):
    """One row of the table of moves, in the columns that the check of clients uses."""

    epoch: int
    position: int
    ordinal: int
    op: int
    flag: bool
    cause: int
    queue: int
    seq: int
    of: int
    detail: int


class Message(NamedTuple):
    """A message in a queue."""

    queue: int
    seq: int
    content: int


class Servers:
    """Moves of one history.  Each call is a command, unless `also` is set."""

    def __init__(self) -> None:
        self.rows: list[MoveRow] = []
        self.confirms: list[int] = []
        self._queues: dict[int, str] = {}
        self.number = 0
        self._position = 0
        self._ordinal = 0
        self._next_seq: dict[int, int] = {0: 1}

    def queue(self, name: str) -> int:
        """Declare a durable queue; "": the logs do not name it."""
        number = len(self._queues) + 1
        self._queues[number] = name
        self._next_seq[number] = 1
        self._command()
        self._move(Op.DECLARED, True, 0, number, 0, 0, 0)
        return number

    def publish(
        self, body: bytes, number: int, *queues: int, cause: int = 0, also: bool = False
    ) -> list[Message]:
        """Publish a persistent message; return it in each queue.  `also`: by the same command."""
        if not also:
            self._command()
        self.number += bool(queues)
        hashed = xxh3_64_intdigest(body)
        content = xxh3_64_intdigest(b"%d" % self.number, hashed)
        of = CHANNEL if cause < 2 else 0
        self._move(Op.PUBLISHED, True, cause, number, self.number if queues else 0, of, hashed)
        held = []
        for queue in queues:
            seq = self._next_seq[queue]
            self._next_seq[queue] += 1
            self._move(Op.ENQUEUED, True, 0, queue, seq, self.number, content)
            held.append(Message(queue, seq, content))
        self.confirms.append(self._position)
        return held

    def again(self, body: bytes, number: int, message: int) -> None:
        """Publish with a number that stands for this message (its own number) already."""
        self._command()
        self._move(Op.PUBLISHED, True, 3, number, message, CHANNEL, xxh3_64_intdigest(body))
        self.confirms.append(self._position)

    def repeat(self, body: bytes, number: int, message: Message, *queues: int) -> list[Message]:
        """Publish with this message's key, which its queue knows; return the message in other
        queues."""
        held = self.publish(body, number, *queues or (0,))
        content = held[0].content
        if not queues:
            self.rows.pop()
            held, self._next_seq[0] = [], 1
        self._move(Op.REPEATED, True, 0, message.queue, message.seq, self.number, content)
        return held

    def deliver(self, message: Message, *, redelivered: bool = False, epoch: int = 1) -> None:
        """Deliver a message."""
        self._command()
        queue, seq, content = message
        self._move(Op.DELIVERED, redelivered, 0, queue, seq, CONSUMER, content, epoch)

    def read(self, message: Message) -> None:
        """Send a message to a reader of a stream, where it stays; and settle it."""
        self._command()
        self._move(Op.READ, False, 0, message.queue, message.seq, CONSUMER, 1)
        self._command()
        self._move(Op.READ_END, False, 0, message.queue, message.seq, CONSUMER, 1)

    def settle(self, message: Message, cause: int = 0) -> None:
        """Settle a held message."""
        self._command()
        self._move(Op.SETTLED, False, cause, message.queue, message.seq, CONSUMER, 1)

    def give_back(self, message: Message) -> None:
        """Return a held message to its queue."""
        self._command()
        queue, seq, content = message
        self._move(Op.RETURNED, False, 0, queue, seq, CONSUMER, content)

    def drop(self, message: Message) -> None:
        """Let a message expire."""
        self._command()
        queue, seq, content = message
        self._move(Op.DROPPED, False, 0, queue, seq, 0, content)

    def purge(self, queue: int, ready: int, cause: int = 0, *, also: bool = False) -> None:
        """Purge a queue.  `also`: by the same command."""
        if not also:
            self._command()
        self._move(Op.PURGED, False, cause, queue, self._next_seq[queue], ready, 0)

    def cold_start(self, queue: int, kept: list[Message], *, also: bool = False) -> list[Message]:
        """Cold start of the cluster; return the kept messages, at their new places."""
        if not also:
            self._command()
        first = self._next_seq[queue]
        self._move(Op.RECOVERED, False, 0, queue, first, len(kept), 0)
        self._next_seq[queue] += len(kept)
        return [one._replace(seq=first + at) for at, one in enumerate(kept)]

    def keep_no_disk(self) -> None:
        """The last move was of a message that is not persistent."""
        self.rows[-1] = self.rows[-1]._replace(flag=False)

    def without_last(self, op: Op) -> None:
        """Remove the last move of this kind."""
        self.rows.remove([row for row in self.rows if row.op == op][-1])

    def table(self, epoch: int | None = None) -> pa.Table:
        """Return the moves as table rows; of one epoch, or all."""
        import pyarrow as pa

        from tools.verify.input.tables import arrow_schema

        rows = [row._asdict() for row in self.rows if epoch in (None, row.epoch)]
        return pa.Table.from_pylist(rows, schema=arrow_schema(MOVES))

    def names(self) -> pa.Table:
        """Return the names of queues."""
        import pyarrow as pa

        known = {number: name for number, name in self._queues.items() if name}
        numbers = pa.array(list(known), pa.int64())
        return pa.table({"queue": numbers, "name": pa.array(list(known.values()))})

    def _command(self) -> None:
        self._position += 1
        self._ordinal = 0

    def _move(
        self, op: Op, flag: bool, cause: int, queue: int, seq: int, of: int, detail: int,
        epoch: int = 1,
    ) -> None:  # fmt: skip
        self.rows.append(
            MoveRow(
                epoch, self._position, self._ordinal, int(op), flag, cause, queue, seq, of,
                signed(detail),
            )
        )  # fmt: skip
        self._ordinal += 1


class Clients(ClientHistory):
    """Histories of clients, kept in memory."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._made: list[Session] = []

    def client(self, name: str, queue: str = "") -> Session:
        """A client with one connection."""
        self._names.append(name)
        self._made.append(Session(self, 1, queue))
        return self._made[-1]

    def made(self, name: str) -> Session:
        """Return the connection of a client."""
        return self._made[self._names.index(name)]

    def forget(self, name: str) -> None:
        """Lose the history of a client."""
        del self._made[self._names.index(name)]
        self._names.remove(name)

    def is_later_life(self, name: str, of: str) -> None:
        """Let one client be another one that was started again."""
        self._names[self._names.index(name)] = of

    def mark_fresh(self, session: Session) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def table(self) -> pa.Table:
        """Return the operations as table rows, one record each."""
        import pyarrow as pa

        from tools.verify.input.tables import arrow_schema

        lives = [self._names[:at].count(name) + 1 for at, name in enumerate(self._names)]
        rows = [
            (name, life, session.number, session.queue, lsn, 0, what & ~REDELIVERED,
             bool(what & REDELIVERED), signed(body), aux)
            for name, life, session in zip(self._names, lives, self._made, strict=True)
            for lsn, (what, body, aux) in enumerate(CLIENT_ROW.iter_unpack(bytes(session.ops)))
        ]  # fmt: skip
        schema = arrow_schema(OPERATIONS)
        return pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)
