# mypy: disable-error-code="import-untyped"
"""The state's digest (the root): a 64-bit additive multiset hash with one element per thing.

Root = sum modulo 2**64 of one element per thing. A change adds and subtracts elements, so its cost
does not depend on the size of the state; `recompute_root` sums all elements anew. Sums, not XOR:
the same thing twice must not cancel out. Counters add `salt * value`. The encoding is fixed: little
endian integers, or msgpack with the keys of tables in order.

A message's element is recomputed when it leaves, from the bytes held then. So a corrupted copy
leaves a trace in the root for ever instead of cancelling out.
Decision: docs/decisions/0017-digests-are-voted-on.md.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat, starmap
from operator import add
from typing import cast

import msgpack
from xxhash import xxh3_64_intdigest

from broker.machine.commands import Table, Value
from broker.waiting.bodies import Body, LargeBody

MASK = (1 << 64) - 1
ALGORITHM = "xxh3_64-sum-1"

bytes_hash: Callable[[bytes], int] = xxh3_64_intdigest
element_of: Callable[[bytes], int] = xxh3_64_intdigest
content_of: Callable[[bytes, int], int] = xxh3_64_intdigest
place = struct.Struct("<QQQQQ").pack
PLACE_FIELDS = 5
head = struct.Struct("<QQqIIII").pack
"""The input of `message_hash`, `ready_element` and `held_element`. A function call costs as much as
the hash itself, so loops over runs inline them: `content_of(head(...) + text, hashed)` and
`element_of(place(...))`."""
_key = struct.Struct("<Q16sQQQ").pack


_EACH_PLACE = struct.Struct(f"{8 * PLACE_FIELDS}s").iter_unpack


def body_hash(body: Body) -> int:
    """A body's own hash; that of a large body was computed as its parts came."""
    return body.hashed if type(body) is LargeBody else bytes_hash(body)


def message_hash(
    number: int,
    exchange: str,
    key: str,
    flags: int,
    created_us: int,
    ttl_us: int,
    properties: bytes,
    body: Body,
    hashed: int,
) -> int:
    """The hash of all parts of a message. Lengths come first, so no two messages share an encoding.
    `hashed` is the body's own hash, which a client can compute too: evidence names bodies by it."""
    sizes = len(exchange), len(properties), len(body)
    text = (exchange + key).encode() + properties
    return content_of(head(number, created_us, ttl_us, flags, *sizes) + text, hashed)


def message_hashes(
    numbers: Collection[int],
    exchanges: Collection[str],
    keys: Collection[str],
    flags: Collection[int],
    created_us: Collection[int],
    ttl_us: Collection[int],
    properties: Collection[bytes],
    bodies: Collection[Body],
) -> list[int]:
    """`message_hash` of many, by columns of one length: a restart hashes all it restores."""
    lengths = map(len, exchanges), map(len, properties), map(len, bodies)
    heads = map(head, numbers, created_us, ttl_us, flags, *lengths)
    texts = map(str.encode, map(add, exchanges, keys))
    wholes = map(add, map(add, heads, texts), properties)
    if list(map(type, bodies)).count(bytes) == len(bodies):
        hashes = map(bytes_hash, cast("Collection[bytes]", bodies))
    else:
        hashes = map(body_hash, bodies)
    return list(map(xxh3_64_intdigest, wholes, hashes))


def ready_elements(
    contents: Iterable[int], queue_id: int, seqs: Iterable[int], redelivered: bool
) -> int:
    """The sum of the elements of messages of one queue."""
    rest = repeat(0), repeat(redelivered)
    return sum(map(xxh3_64_intdigest, map(place, contents, repeat(queue_id), seqs, *rest)))


def elements_in_a_row(contents: Sequence[int], queue_id: int, first: int, redelivered: bool) -> int:
    """The same for consecutive messages numbered from `first` on. The hash inputs of all are built
    at once, by columns, because a start does this three times for each message waiting on disk."""
    size = len(contents)
    places = array("Q", bytes(8 * PLACE_FIELDS * size))
    places[0::PLACE_FIELDS] = array("Q", contents)
    places[1::PLACE_FIELDS] = array("Q", (queue_id,)) * size
    places[2::PLACE_FIELDS] = array("Q", range(first, first + size))
    places[4::PLACE_FIELDS] = array("Q", (redelivered,)) * size
    if sys.byteorder == "big":
        places.byteswap()
    return sum(starmap(xxh3_64_intdigest, _EACH_PLACE(places)))


def ready_element(content: int, queue_id: int, seq: int, redelivered: bool) -> int:
    return xxh3_64_intdigest(place(content, queue_id, seq, 0, redelivered))


def held_element(content: int, queue_id: int, seq: int, holder: int, tag: int) -> int:
    """`holder` is the channel's salt; `tag` is twice the delivery tag plus the redelivered bit."""
    return xxh3_64_intdigest(place(content, queue_id, seq, holder, tag))


def producer_element(salt: int, epoch: int, used: int, highest: int) -> int:
    """The element of a producer that numbers its messages, without the numbers."""
    return xxh3_64_intdigest(place(salt, epoch, used, highest, MASK))


def number_element(salt: int, number: int, entry: int) -> int:
    """The element of the outcome of one number of a producer."""
    return xxh3_64_intdigest(place(salt, number, entry, 0, MASK - 1))


def window_element(salt: int, key: bytes, place: int, noted_us: int, volatile: bool) -> int:
    """The element of a key in the window of a queue."""
    return xxh3_64_intdigest(_key(salt, key, place, noted_us + noted_us + volatile, MASK - 3))


def part_element(salt: int, index: int, data: bytes) -> int:
    """The element of a part of an incomplete body; `salt` is that of its channel."""
    return xxh3_64_intdigest(place(salt, index, bytes_hash(data), 0, MASK - 2))


def item_hash(*items: Value) -> int:
    """The element or salt of a record; the name of its kind comes first."""
    return int(xxh3_64_intdigest(msgpack.packb(items)))


def canonical(table: Table) -> bytes:
    """One encoding per table, however its keys were ordered."""
    packed = msgpack.packb(ordered(table)) if table else b"\x80"
    return bytes(packed)


def ordered(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(ordered(item) for item in value)
    return value
