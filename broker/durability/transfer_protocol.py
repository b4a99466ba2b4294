"""State transfer between a donor and a joiner: one consistent file, in chunks, over datagrams.

The joiner pulls: it asks for the donor's state at or beyond a base position, learns size and
digest, and then keeps a window of chunk requests open, asking again for what did not come.  Any
datagram may be lost, late or doubled; a transfer ends complete and verified or not at all.

Pure: what is to be sent, written or copied goes out through the callbacks of the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b

import msgpack

from vsync.types import Member

CHUNK_BYTES = 32_000
WINDOW_CHUNKS = 16
ASK_AGAIN_S = 0.25
GIVE_UP_S = 30.0
OFFER_KEPT_S = 60.0


class Tag(IntEnum):
    """The datagrams of a transfer."""

    ASK = 1  # joiner: (id, base position, position that the checkpoint must have reached)
    OFFER = 2  # donor: (id, size, digest)
    GET = 3  # joiner: (id, chunk number)
    CHUNK = 4  # donor: (id, chunk number, bytes)
    DONE = 5  # joiner: (id,)
    REFUSE = 6  # donor: (id, reason)


def is_transfer(payload: bytes) -> bool:
    """Whether a direct datagram belongs to a state transfer."""
    return payload[:1] == b"T"


def encode(tag: Tag, *fields: object) -> bytes:
    """Return one datagram."""
    return b"T" + bytes(msgpack.packb((int(tag), *fields)))


def decode(payload: bytes) -> tuple[Tag, tuple[object, ...]] | None:
    """Return (tag, fields) of a datagram, or None when it is not well formed."""
    try:
        tag, *fields = msgpack.unpackb(payload[1:], use_list=False, max_bin_len=CHUNK_BYTES)
        return Tag(tag), tuple(fields)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


class Receiver:
    """The joiner's half of one transfer."""

    def __init__(
        self,
        transfer_id: str,
        donor: Member,
        base: int,
        now: float,
        send: Callable[[Member, bytes], None],
        write: Callable[[int, bytes], None],
        beyond: int = 0,
    ) -> None:
        self.id, self.donor, self.base, self.beyond = transfer_id, donor, base, beyond
        self.size = -1
        self.received_bytes = 0
        self.failed = ""
        self._send, self._write = send, write
        self._digest = b""
        self._hash = blake2b(digest_size=16)
        self._early: dict[int, bytes] = {}
        self._next = 0  # the next chunk to be hashed and written
        self._asked: dict[int, float] = {}
        self._progress_at = now
        self._asked_at = now
        send(donor, encode(Tag.ASK, transfer_id, base, beyond))

    @property
    def chunks(self) -> int:
        """Return how many chunks the whole has."""
        return -(-self.size // CHUNK_BYTES)

    @property
    def complete(self) -> bool:
        """Whether everything came and its digest is the donor's."""
        return self.size >= 0 and self._next == self.chunks and not self.failed

    def on_message(self, tag: Tag, fields: tuple[object, ...], now: float) -> None:
        """Take one datagram of this transfer."""
        if not fields or fields[0] != self.id or self.failed:
            return
        match tag, fields:
            case Tag.OFFER, (_, int(size), bytes(digest)) if self.size < 0:
                self.size, self._digest = size, digest
                self._progress_at = now
                self._ask_more(now)
                self._finish_if_complete()
            case Tag.CHUNK, (_, int(number), bytes(data)) if self.size >= 0:
                self._on_chunk(number, data, now)
            case Tag.REFUSE, (_, str(reason)):
                self.failed = f"{self.donor.name} refused: {reason}"
            case _:
                pass

    def _on_chunk(self, number: int, data: bytes, now: float) -> None:
        expected = min(CHUNK_BYTES, self.size - number * CHUNK_BYTES)
        if number not in self._asked or len(data) != expected:
            return
        del self._asked[number]
        self._early[number] = data
        while self._next in self._early:
            piece = self._early.pop(self._next)
            self._hash.update(piece)
            self._write(self._next * CHUNK_BYTES, piece)
            self.received_bytes += len(piece)
            self._next += 1
        self._progress_at = now
        self._ask_more(now)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self.size >= 0 and self._next == self.chunks:
            if self._hash.digest() != self._digest:
                self.failed = "the digest of what arrived is not the donor's"
            self._send(self.donor, encode(Tag.DONE, self.id))

    def _ask_more(self, now: float) -> None:
        number = self._next
        while len(self._asked) < WINDOW_CHUNKS and number < self.chunks:
            if number not in self._asked and number not in self._early:
                self._asked[number] = now
                self._send(self.donor, encode(Tag.GET, self.id, number))
            number += 1

    def wake(self, now: float) -> None:
        """Ask again for what is overdue; give up when nothing came for long."""
        if self.failed or self.complete:
            return
        if now - self._progress_at > GIVE_UP_S:
            self.failed = f"nothing from {self.donor.name} for {GIVE_UP_S:.0f} s"
        elif self.size < 0:
            if now - self._asked_at > ASK_AGAIN_S:
                self._asked_at = now
                self._send(self.donor, encode(Tag.ASK, self.id, self.base, self.beyond))
        else:
            for number, asked in list(self._asked.items()):
                if now - asked > ASK_AGAIN_S:
                    self._asked[number] = now
                    self._send(self.donor, encode(Tag.GET, self.id, number))


class Offer:
    """The donor's half of one transfer: a copy of the store that is being made or served."""

    def __init__(self, joiner: Member, now: float) -> None:
        self.joiner = joiner
        self.used_at = now
        self.ready = False
        self.size = 0
        self.digest = b""


class Sender:
    """The donor's half of all transfers.

    `copy(id, base, beyond)` starts making a copy at a position >= base, with a checkpoint at a
    position >= beyond, or returns False when this member has not made these durable yet (the
    joiner asks again); `read(id, offset, length)`
    returns a piece of a ready copy; `drop(id)` removes it.
    """

    def __init__(
        self,
        send: Callable[[Member, bytes], None],
        copy: Callable[[str, int, int], bool],
        read: Callable[[str, int, int], bytes],
        drop: Callable[[str], None],
    ) -> None:
        self.offers: dict[str, Offer] = {}
        self._send, self._copy, self._read, self._drop = send, copy, read, drop

    def on_message(self, joiner: Member, tag: Tag, fields: tuple[object, ...], now: float) -> None:
        """Take one datagram of a joiner."""
        match tag, fields:
            case Tag.ASK, (str(tid), int(base), int(beyond)):
                offer = self.offers.get(tid)
                if offer is None:
                    # A copy is as large as the store: who asks for another gives up the first.
                    for old in [t for t, o in self.offers.items() if o.joiner.name == joiner.name]:
                        self._end(old)
                    if self._copy(tid, base, beyond):
                        self.offers[tid] = Offer(joiner, now)
                elif offer.ready:
                    self._send(joiner, encode(Tag.OFFER, tid, offer.size, offer.digest))
            case Tag.GET, (str(tid), int(number)):
                offer = self.offers.get(tid)
                if offer is None or not offer.ready:
                    self._send(joiner, encode(Tag.REFUSE, tid, "that copy is gone"))
                elif 0 <= number * CHUNK_BYTES < offer.size:
                    offer.used_at = now
                    data = self._read(tid, number * CHUNK_BYTES, CHUNK_BYTES)
                    self._send(joiner, encode(Tag.CHUNK, tid, number, data))
            case Tag.DONE, (str(tid),):
                self._end(tid)
            case _:
                pass

    def copied(self, tid: str, size: int, digest: bytes, now: float) -> None:
        """The copy asked for is ready to be read."""
        offer = self.offers.get(tid)
        if offer is not None:
            offer.ready, offer.size, offer.digest, offer.used_at = True, size, digest, now
            self._send(offer.joiner, encode(Tag.OFFER, tid, size, digest))

    def copy_failed(self, tid: str, reason: str) -> None:
        """The copy could not be made; the joiner is notified and tries another way."""
        offer = self.offers.pop(tid, None)
        if offer is not None:
            self._send(offer.joiner, encode(Tag.REFUSE, tid, reason))

    def wake(self, now: float) -> None:
        """Drop copies that nobody reads any more."""
        for tid in [t for t, o in self.offers.items() if now - o.used_at > OFFER_KEPT_S]:
            self._end(tid)

    def _end(self, tid: str) -> None:
        if self.offers.pop(tid, None) is not None:
            self._drop(tid)
