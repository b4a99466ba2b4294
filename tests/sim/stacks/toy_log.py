"""A replicated log in its simplest form, and the disk below it.

An entry is one ordered item; the state is the list of entries with the chain over them.  After a
crash the disk has what was fsynced before, and perhaps the one commit that was under way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from vsync.primary.events import Activation
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.types import record


class LogEntry(NamedTuple):
    epoch: int
    order: bytes  # the chain after this entry
    item: bytes | Activation


def next_order(order: bytes, item: bytes | Activation) -> bytes:
    data = item if isinstance(item, bytes) else repr(tuple(item)).encode()
    return hashlib.blake2b(order + data, digest_size=16).digest()


def order_at(entries: Sequence[LogEntry], position: int) -> bytes | None:
    """The chain over the first entries; None beyond the end."""
    if position == 0:
        return ZERO_CHAIN
    return entries[position - 1].order if position <= len(entries) else None


def steps_to(items: Sequence[bytes | Activation], start: bytes, target: bytes) -> int:
    """How many of `items` lead from chain `start` to `target`; -1 if they do not."""
    order = start
    if order == target:
        return 0
    for count, item in enumerate(items, 1):
        order = next_order(order, item)
        if order == target:
            return count
    return -1


@record
class Image:
    """The contents of a disk: the log, and what this store knows of its cluster."""

    entries: tuple[LogEntry, ...] = ()
    cluster_id: str = ""
    voters: tuple[str, ...] = ()
    promised_epoch: int = 0
    filled: bool = False


class ToyLog:
    """The state in memory."""

    def __init__(self, image: Image) -> None:
        self.entries: list[LogEntry] = list(image.entries)
        self.cluster_id = image.cluster_id
        self.voters = image.voters
        self.promised_epoch = image.promised_epoch
        self.filled = image.filled

    @property
    def position(self) -> int:
        return len(self.entries)

    @property
    def epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

    @property
    def order(self) -> bytes:
        return self.entries[-1].order if self.entries else ZERO_CHAIN

    def order_at(self, position: int) -> bytes | None:
        """The chain at an earlier position; None beyond the end."""
        return order_at(self.entries, position)

    def apply(self, epoch: int, item: bytes | Activation) -> None:
        self.entries.append(LogEntry(epoch, next_order(self.order, item), item))

    def image(self) -> Image:
        return Image(
            tuple(self.entries), self.cluster_id, self.voters, self.promised_epoch, self.filled
        )


class Disk:
    """One member's disk: it outlives the member's processes."""

    def __init__(self) -> None:
        self.durable = Image()
        self.writing: Image | None = None

    def begin(self, image: Image) -> None:
        assert self.writing is None
        self.writing = image

    def finish(self) -> Image:
        assert self.writing is not None
        self.durable, self.writing = self.writing, None
        return self.durable

    def crash(self, keep: bool) -> None:
        """Lose power: the commit under way is there as a whole or not at all."""
        if self.writing is not None and keep:
            self.durable = self.writing
        self.writing = None
