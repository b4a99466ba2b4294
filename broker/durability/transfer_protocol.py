"""The protocol of state transfer between a donor and a joiner, over datagrams.

    joiner                                    donor
    ASK (id, point, beyond)              ->   does that point lie on my history?
                                         <-   TAIL (id, end): it does, my log leads on from there
                                         <-   CHECKPOINT (id, offer): it does not, begin with this
                                         <-   REFUSE (id, reason)
    GET (id, stream, cursor, pieces)     ->
                                         <-   PIECE (id, stream, cursor, number, of, next, bytes)
    DONE (id)                            ->

The joiner pulls. A stream is a sequence of blocks. A block begins at a cursor, which is a position
in the log or the number of a checkpoint's chunk, and gives the cursor of the next block. It travels
in pieces; the joiner asks again only for missing ones. Each datagram has a checksum. So any of them
may be lost, late, doubled or damaged, and a joiner that asks anew goes on where it was, with any
donor whose history holds its point. Neither side holds more than a few blocks.

Pure: reading and sending go through callbacks of the shell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

import msgpack
from xxhash import xxh3_64_digest

from broker.replication.chain import History
from vsync.types import Member

PIECE_BYTES = 32_000
BLOCK_BYTES = 16 * PIECE_BYTES
BLOCKS_AHEAD = 2
"""How many blocks a joiner asks for beyond those it has processed."""
LOG = 0
"""The stream number of the log; the number of another stream is its checkpoint's generation."""
ASK_AGAIN_S = 0.25
POLL_S = 0.02
"""How long a joiner that has everything on its donor's disk waits before it asks for more."""
GIVE_UP_S = 30.0


class Tag(IntEnum):
    """The datagrams of a transfer."""

    ASK = 1
    TAIL = 2
    CHECKPOINT = 3
    GET = 4
    PIECE = 5
    DONE = 6
    REFUSE = 7


FROM_JOINER = (Tag.ASK, Tag.GET, Tag.DONE)


class Tail(NamedTuple):
    """The donor's log leads on from the joiner's point; it reached `end` at the time of asking."""

    end: int


class Offer(NamedTuple):
    """A checkpoint of the donor: its generation, its size, and its point in the history.

    Generation 0 and no chunks: the empty state, if the donor's log still has the whole history.
    """

    generation: int
    chunks: int
    size: int
    epoch: int
    position: int
    chain: bytes
    order: bytes

    @property
    def history(self) -> History:
        """Return the checkpoint's point in the history."""
        return History(self.epoch, self.position, self.chain, self.order)


class Block(NamedTuple):
    """One block of a stream, whole."""

    stream: int
    cursor: int
    following: int  # the cursor of the next one
    data: bytes


def is_transfer(payload: bytes) -> bool:
    """Whether a direct datagram belongs to a state transfer."""
    return payload[:1] == b"T"


def encode(tag: Tag, *fields: object) -> bytes:
    """Return one datagram."""
    body = bytes(msgpack.packb((int(tag), *fields)))
    return b"T" + xxh3_64_digest(body) + body


def decode(payload: bytes) -> tuple[Tag, tuple[object, ...]] | None:
    """Return (tag, fields) of a datagram, or None if it is damaged or malformed."""
    checksum, body = payload[1:9], payload[9:]
    if checksum != xxh3_64_digest(body):
        return None
    try:
        tag, *fields = msgpack.unpackb(body, use_list=False)
        return Tag(tag), tuple(fields)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


class _Assembly:
    """A block whose pieces are arriving."""

    def __init__(self, now: float) -> None:
        self.asked_at = now
        self.of = self.following = -1  # not known before the first piece
        self.pieces: dict[int, bytes] = {}


class Receiver:
    """The joiner's half of one attempt: asks one donor, then pulls one stream.

    `point` is the joiner's point in the history; None: it has no state to go on from. `resumed`: a
    checkpoint, and the number of its first chunk that is still missing.
    """

    def __init__(
        self, attempt: str, donor: Member, point: History | None, beyond: int, now: float,
        send: Callable[[Member, bytes], None], resumed: tuple[Offer, int] | None = None,
    ) -> None:  # fmt: skip
        self.id, self.donor, self.point, self.beyond = attempt, donor, point, beyond
        self.answer: Tail | Offer | None = None
        self.failed = ""
        self.counters = {"pieces": 0, "bytes": 0, "asked_again": 0}
        self._send, self._resumed = send, resumed
        self._blocks: deque[Block] = deque()
        self._assemblies: dict[int, _Assembly] = {}  # by cursor
        self._cursor = self._end = -1
        self._stream = LOG
        self._heard_at = self._asked_at = now
        self._poll_at = 0.0
        self._ask()

    def _ask(self) -> None:
        point = None
        if self.point is not None:
            point = (self.point.epoch, self.point.position, self.point.chain)
        self._send(self.donor, encode(Tag.ASK, self.id, point, self.beyond))

    # -- what comes in ---------------------------------------------------------------------------

    def on_message(self, tag: Tag, fields: tuple[object, ...], now: float) -> None:
        """Take one datagram of this attempt."""
        if not fields or fields[0] != self.id or self.failed:
            return
        match tag, fields[1:]:
            case Tag.TAIL, (int(end),) if self.answer is None and self.point is not None:
                self._answered(Tail(end), LOG, self.point.position, -1, now)
            case (
                Tag.CHECKPOINT,
                (int(generation), int(chunks), int(size), int(epoch), int(position),
                 bytes(chain), bytes(order)),
            ) if self.answer is None:  # fmt: skip
                offer = Offer(generation, chunks, size, epoch, position, chain, order)
                begin = 0
                if self._resumed is not None and self._resumed[0] == offer:
                    begin = self._resumed[1]
                self._answered(offer, generation, begin, chunks, now)
            case (
                Tag.PIECE,
                (int(stream), int(cursor), int(number), int(of), int(following), bytes(data)),
            ):  # fmt: skip
                if stream == self._stream and 0 <= number < of and following >= cursor:
                    self._on_piece(cursor, number, of, following, data, now)
            case Tag.REFUSE, (str(reason),):
                self.failed = f"{self.donor.name} refused: {reason}"
            case _:
                pass

    def _answered(
        self, answer: Tail | Offer, stream: int, cursor: int, end: int, now: float
    ) -> None:
        self.answer, self._stream, self._cursor, self._end = answer, stream, cursor, end
        self._heard_at = now
        self._fetch(now)

    def _on_piece(
        self, cursor: int, number: int, of: int, following: int, data: bytes, now: float
    ) -> None:
        assembly = self._assemblies.get(cursor)
        if assembly is None:
            return
        if (assembly.of, assembly.following) != (of, following):
            assembly.pieces.clear()  # the donor read anew, and further: do not mix pieces of two
        if number in assembly.pieces:
            return
        self._heard_at = assembly.asked_at = now
        self.counters["pieces"] += 1
        self.counters["bytes"] += len(data)
        assembly.of, assembly.following = of, following
        assembly.pieces[number] = data
        if following == cursor:  # all that the donor has on disk is here
            del self._assemblies[cursor]
            self._poll_at = now + POLL_S
            return
        if cursor == self._cursor:
            self._cursor = following
        self._complete_in_order()
        self._fetch(now)

    def _complete_in_order(self) -> None:
        for cursor, assembly in sorted(self._assemblies.items()):
            if len(assembly.pieces) != assembly.of:
                return
            data = b"".join(piece for _, piece in sorted(assembly.pieces.items()))
            self._blocks.append(Block(self._stream, cursor, assembly.following, data))
            del self._assemblies[cursor]

    # -- what goes out ---------------------------------------------------------------------------

    def _fetch(self, now: float) -> None:
        ahead = len(self._blocks) + len(self._assemblies)
        if (
            self.answer is None
            or self._cursor == self._end
            or self._cursor in self._assemblies
            or ahead >= BLOCKS_AHEAD
            or now < self._poll_at
        ):
            return
        self._assemblies[self._cursor] = _Assembly(now)
        self._send(self.donor, encode(Tag.GET, self.id, self._stream, self._cursor, ()))

    @property
    def has_block(self) -> bool:
        """Whether `take` has a block."""
        return bool(self._blocks)

    def take(self, now: float) -> Block | None:
        """Return the next block, in order, and ask for another one."""
        block = self._blocks.popleft() if self._blocks else None
        self._fetch(now)
        return block

    def done(self) -> None:
        """Nothing more is needed: the donor may forget this joiner."""
        self._send(self.donor, encode(Tag.DONE, self.id))

    def wake(self, now: float) -> None:
        """Ask again for overdue pieces; give up when nothing came for long."""
        if self.failed:
            return
        if self.answer is None:
            if now - self._asked_at > ASK_AGAIN_S:
                self._asked_at = now
                self._ask()
        elif not self._assemblies:
            if self._blocks or now < self._poll_at:
                self._heard_at = now  # it is not for the donor that this waits
            self._fetch(now)
        for cursor, assembly in self._assemblies.items():
            if now - assembly.asked_at > ASK_AGAIN_S:
                assembly.asked_at = now
                self.counters["asked_again"] += 1
                missing = [n for n in range(assembly.of) if n not in assembly.pieces]
                self._send(self.donor, encode(Tag.GET, self.id, self._stream, cursor, missing))
        if now - self._heard_at > GIVE_UP_S:
            self.failed = f"nothing from {self.donor.name} for {GIVE_UP_S:.0f} s"


class Library(Protocol):
    """A donor's data; a worker thread calls these methods, one call at a time for each joiner."""

    def judge(self, key: str, point: History | None, beyond: int) -> Tail | Offer | None:
        """Return the way on from `point`; None: not known yet, the joiner will ask again."""

    def read(self, key: str, stream: int, cursor: int) -> tuple[int, bytes]:
        """Return the block at a cursor, and the next cursor."""

    def close(self, key: str) -> None:
        """Nobody reads under this key any more."""


KEPT_S = 60.0
"""How long a donor keeps a silent joiner's data."""
PINNED_S = 3600.0
"""How long one joiner may keep a checkpoint, and the log behind it, from being deleted."""
QUEUED_BLOCKS = 2 + BLOCKS_AHEAD


class _Reader:
    """One joiner at a donor."""

    def __init__(self, attempt: str, joiner: Member, now: float) -> None:
        self.id, self.joiner = attempt, joiner
        # A worker may still read for a former incarnation.
        self.key = f"{joiner.name} {joiner.incarnation}"
        self.begun_at = self.used_at = now
        self.answer: Tail | Offer | None = None
        self.busy = False  # a worker thread reads for it
        self.over = False
        self.blocks: dict[tuple[int, int], tuple[int, bytes]] = {}  # next cursor, bytes
        self.wanted: dict[tuple[int, int], tuple[int, ...]] = {}  # not read yet: pieces, () is all
        self.queued: dict[tuple[int, int, int], None] = {}  # pieces to send, in order


Work = Callable[[Callable[[], object], Callable[[object, Exception | None], None]], None]
"""Runs a job on a worker thread, then hands its result or its error to a callback on the loop."""


class Sender:
    """The donor's half of all transfers. `work` runs a job elsewhere; `pump` sends due pieces."""

    def __init__(
        self, send: Callable[[Member, bytes], None], library: Library, work: Work,
        now: Callable[[], float], piece_bytes: int = PIECE_BYTES,
    ) -> None:  # fmt: skip
        self.readers: dict[Member, _Reader] = {}
        self.counters = {
            "asked": 0, "tails": 0, "checkpoints": 0, "refused": 0, "sent_bytes": 0,
            "given_up": 0, "pins_expired": 0,
        }  # fmt: skip
        self._send, self._library, self._work, self._now = send, library, work, now
        self._piece_bytes = piece_bytes

    def on_message(self, joiner: Member, tag: Tag, fields: tuple[object, ...]) -> None:
        """Handle one datagram from a joiner."""
        reader = self.readers.get(joiner)
        match tag, fields:
            case Tag.ASK, (str(attempt), None, int(beyond)):
                self._on_ask(reader, joiner, attempt, None, beyond)
            case Tag.ASK, (str(attempt), (int(epoch), int(position), bytes(chain)), int(beyond)):
                point = History(epoch, position, chain)
                self._on_ask(reader, joiner, attempt, point, beyond)
            case Tag.GET, (str(attempt), int(stream), int(cursor), tuple(pieces)):
                if reader is None or reader.id != attempt or reader.answer is None:
                    self._refuse(joiner, attempt, "it does not know that transfer")
                elif all(isinstance(number, int) for number in pieces):
                    self._on_get(reader, (stream, cursor), pieces)
            case Tag.DONE, (str(attempt),):
                if reader is not None and reader.id == attempt:
                    self._end(reader)
            case _:
                pass

    def _refuse(self, joiner: Member, attempt: str, reason: str) -> None:
        self.counters["refused"] += 1
        self._send(joiner, encode(Tag.REFUSE, attempt, reason))

    def _on_ask(
        self, reader: _Reader | None, joiner: Member, attempt: str, point: History | None,
        beyond: int,
    ) -> None:  # fmt: skip
        now = self._now()
        if reader is None or reader.id != attempt:
            for other in [r for m, r in self.readers.items() if m.name == joiner.name]:
                if other.busy and other.joiner == joiner:
                    return  # it asks again
                if other.joiner != joiner:
                    self._end(other)
            begun = reader.begun_at if reader is not None else now
            reader = self.readers[joiner] = _Reader(attempt, joiner, now)
            reader.begun_at = begun
            self.counters["asked"] += 1
        reader.used_at = now
        if reader.answer is not None:
            self._tell(reader)
        elif not reader.busy:
            self._on_worker(
                reader, lambda: self._library.judge(reader.key, point, beyond), self._judged
            )

    def _judged(self, reader: _Reader, answer: object) -> None:
        if isinstance(answer, (Tail, Offer)):
            self.counters["tails" if isinstance(answer, Tail) else "checkpoints"] += 1
            reader.answer = answer
            self._tell(reader)

    def _tell(self, reader: _Reader) -> None:
        assert reader.answer is not None
        tag = Tag.TAIL if isinstance(reader.answer, Tail) else Tag.CHECKPOINT
        self._send(reader.joiner, encode(tag, reader.id, *reader.answer))

    def _on_get(self, reader: _Reader, at: tuple[int, int], pieces: tuple[int, ...]) -> None:
        reader.used_at = self._now()
        if at in reader.blocks:
            self._queue(reader, at, pieces)
        else:
            reader.wanted[at] = pieces
            self._read_next(reader)

    def _read_next(self, reader: _Reader) -> None:
        if reader.wanted and not reader.busy:
            at = next(iter(reader.wanted))
            self._on_worker(reader, lambda: (at, *self._library.read(reader.key, *at)), self._read)

    def _read(self, reader: _Reader, found: object) -> None:
        assert isinstance(found, tuple)
        at, following, data = found
        reader.blocks[at] = following, data
        while len(reader.blocks) > QUEUED_BLOCKS:
            del reader.blocks[next(iter(reader.blocks))]
        self._queue(reader, at, reader.wanted.pop(at, ()))
        self._read_next(reader)

    def _queue(self, reader: _Reader, at: tuple[int, int], pieces: tuple[int, ...]) -> None:
        of = max(1, -(-len(reader.blocks[at][1]) // self._piece_bytes))
        for number in pieces or range(of):
            if 0 <= number < of:
                reader.queued[(*at, number)] = None

    def _on_worker(
        self, reader: _Reader, job: Callable[[], object],
        then: Callable[[_Reader, object], None],
    ) -> None:  # fmt: skip
        def done(result: object, error: Exception | None) -> None:
            reader.busy = False
            if reader.over:
                self._library.close(reader.key)
            elif self.readers.get(reader.joiner) is reader:
                if error is None:
                    then(reader, result)
                else:
                    self._refuse(reader.joiner, reader.id, str(error))
                    self._end(reader)

        reader.busy = True
        self._work(job, done)

    @property
    def has_work(self) -> bool:
        """Whether there are pieces to send."""
        return any(reader.queued for reader in self.readers.values())

    def pump(self, bytes_max: int) -> None:
        """Send about `bytes_max` bytes, to all joiners in turn."""
        left = bytes_max
        while left > 0:
            waiting = [reader for reader in self.readers.values() if reader.queued]
            if not waiting:
                return
            for reader in waiting:
                left -= self._send_piece(reader)

    def _send_piece(self, reader: _Reader) -> int:
        stream, cursor, number = next(iter(reader.queued))
        del reader.queued[stream, cursor, number]
        if (stream, cursor) not in reader.blocks:
            return 0  # an old one, asked for again and not needed any more
        following, data = reader.blocks[stream, cursor]
        size = self._piece_bytes
        piece, of = data[number * size : (number + 1) * size], max(1, -(-len(data) // size))
        fields = (reader.id, stream, cursor, number, of, following, piece)
        self._send(reader.joiner, encode(Tag.PIECE, *fields))
        if following == cursor:
            del reader.blocks[stream, cursor]  # there may be more the next time
        self.counters["sent_bytes"] += len(piece)
        return len(piece) or 1

    def wake(self) -> None:
        """Drop readers that are silent, and those that read for too long."""
        now = self._now()
        for reader in list(self.readers.values()):
            if now - reader.used_at > KEPT_S:
                self.counters["given_up"] += 1
                self._end(reader)
            elif now - reader.begun_at > PINNED_S:
                self.counters["pins_expired"] += 1
                self._refuse(reader.joiner, reader.id, f"it took longer than {PINNED_S:.0f} s")
                self._end(reader)

    def close(self) -> None:
        """Give all of them up."""
        for reader in list(self.readers.values()):
            self._end(reader)

    def _end(self, reader: _Reader) -> None:
        del self.readers[reader.joiner]
        reader.over = True
        if not reader.busy:
            self._library.close(reader.key)
