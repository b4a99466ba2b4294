"""A member's point in the history: position, epoch, and the two hash chains that identify it.

A *position* counts commands from 1. One ordered item (a blob of commands, or an activation)
advances it by the number of its commands, at least by one, so that equal positions always mean
equal sequences of items. `order` chains the ordered bytes alone; `chain` chains the bytes and the
outcomes of their commands. Two members that apply the same input with different results differ in
`chain` from that item on.
Decision: docs/decisions/0017-digests-are-voted-on.md.
"""

from __future__ import annotations

from hashlib import blake2b

import msgpack
from xxhash import xxh3_128_digest

from vsync.primary.events import Activation
from vsync.primary.state_exchange import ZERO_CHAIN
from vsync.types import record

DIGEST_BYTES = 16


def item_hash(item: bytes | Activation) -> bytes:
    """Return the hash of one ordered item, the unit of both chains.

    The hash is not cryptographic: hashing large bodies is a good part of a member's work, and an
    attacker who could make two items with one hash cannot have both ordered at one position.
    Decision: docs/decisions/0143-items-and-frames-are-hashed-by-xxh3.md.
    """
    data = item if isinstance(item, bytes) else b"activate" + msgpack.packb(tuple(item))
    return xxh3_128_digest(data)


def next_order(order: bytes, hashed: bytes) -> bytes:
    """Return the order chain after an item with hash `hashed`."""
    return blake2b(order + hashed, digest_size=DIGEST_BYTES).digest()


def next_chain(chain: bytes, hashed: bytes, outcomes: bytes) -> bytes:
    """Return the outcome chain after an item; `outcomes` has one little-endian u16 per command."""
    return blake2b(chain + hashed + outcomes, digest_size=DIGEST_BYTES).digest()


@record
class History:
    """The point in the history that a member's state has reached."""

    epoch: int = 0
    position: int = 0
    chain: bytes = ZERO_CHAIN
    order: bytes = ZERO_CHAIN

    def after(self, epoch: int, count: int, hashed: bytes, outcomes: bytes) -> History:
        """Return the point after one more item of `count` commands."""
        assert count == len(outcomes) // 2
        assert count > 0
        return History(
            epoch,
            self.position + count,
            next_chain(self.chain, hashed, outcomes),
            next_order(self.order, hashed),
        )

    def __str__(self) -> str:
        return f"position {self.position} of epoch {self.epoch}, chain {self.chain.hex()[:12]}"


def steps_to(items: list[bytes | Activation], start: bytes, target: bytes) -> int:
    """Return how many of `items` lead the order chain from `start` to `target`; -1 when none do."""
    order = start
    if order == target:
        return 0
    for count, item in enumerate(items, 1):
        order = next_order(order, item_hash(item))
        if order == target:
            return count
    return -1


@record
class Promise:
    """A member's promise: the part of its durable state that is not history.

    It names the member's cluster, the voters there, and the highest epoch it agreed to.
    """

    cluster_id: str
    voters: tuple[str, ...]
    promised_epoch: int
