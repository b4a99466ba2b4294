"""Key layout and value formats of the LMDB store. Pure.

    a                            meta: version u16 | journaled u8 | msgpack list | checksum 8
    b                            checkpoint: generation u32 | chunks u32 | position u64 | bytes u64
                                 | checksum 8
    c | generation u32 | no u32  one checkpoint chunk: bytes | checksum 8
    l | first position u64       one entry: bytes | last position u64 | log bytes u64 | checksum 8

Integers are big-endian. Entries sort last, so a commit appends at the end of the tree. A checksum
is xxh3-64 seeded with the entry's first position (or the chunk's number), so an intact value under
the wrong key does not pass. The log bytes of an entry are those of all entries ever committed to
this store, including itself, so the amount of log between two entries follows from them alone.
"""

from __future__ import annotations

import struct

import msgpack
from xxhash import xxh3_64, xxh3_64_digest

from store.api import Marker, Meta, SavedCheckpoint
from store.errors import StoreCorrupt, StoreVersion

FORMAT_VERSION = 1
META_KEY = b"a"
POINTER_KEY = b"b"
CHUNK_PREFIX = b"c"
LOG_PREFIX = b"l"
CHECKSUM_BYTES = 8

_META = struct.Struct(">HB")
_U64 = struct.Struct(">Q")
_CHUNK = struct.Struct(">cII")
_POINTER = struct.Struct(">IIQQ")
_ENTRY_END = struct.Struct(">QQ")


def log_key(first: int) -> bytes:
    """Return the key of the entry that starts at `first`."""
    return LOG_PREFIX + _U64.pack(first)


def log_first(key: bytes) -> int:
    """Return the first position that a log key names."""
    return int(_U64.unpack_from(key, 1)[0])


def chunk_key(generation: int, number: int) -> bytes:
    """Return the key of one checkpoint chunk."""
    return _CHUNK.pack(CHUNK_PREFIX, generation, number)


def chunk_generation(key: bytes) -> int:
    """Return the generation that a chunk key belongs to."""
    return int(_CHUNK.unpack(key)[1])


def encode_entry(entry: bytes, first: int, last: int, log_bytes: int) -> bytes:
    """Return the value for an entry."""
    end = _ENTRY_END.pack(last, log_bytes)
    checksum = xxh3_64(entry, seed=first)
    checksum.update(end)
    return b"".join((entry, end, checksum.digest()))


def decode_entry(value: bytes, first: int, path: str) -> tuple[int, bytes]:
    """Return (last position, entry)."""
    body = _verified(value, first, path, first, "the checksum of an entry does not hold")
    if len(body) <= _ENTRY_END.size:
        raise StoreCorrupt(path, first, "an entry is too short")
    return entry_end(value)[0], body[: -_ENTRY_END.size]


def entry_end(value: bytes) -> tuple[int, int]:
    """Return an entry's last position and log bytes, unchecked (for a bounded delete)."""
    last, log_bytes = _ENTRY_END.unpack_from(value, len(value) - CHECKSUM_BYTES - _ENTRY_END.size)
    return int(last), int(log_bytes)


def entry_bytes(value: bytes) -> int:
    """Return the length of the entry in this value."""
    return len(value) - CHECKSUM_BYTES - _ENTRY_END.size


def encode_chunk(chunk: bytes, number: int) -> bytes:
    """Return the value for a checkpoint chunk."""
    return chunk + xxh3_64_digest(chunk, seed=number)


def decode_chunk(value: bytes, number: int, position: int, path: str) -> bytes:
    """Return the chunk."""
    what = f"the checksum of checkpoint chunk {number} does not hold"
    return _verified(value, number, path, position, what)


def encode_pointer(saved: SavedCheckpoint) -> bytes:
    """Return the pointer record, which names the current checkpoint."""
    body = _POINTER.pack(*saved)
    return body + xxh3_64_digest(body)


def decode_pointer(value: bytes, path: str) -> SavedCheckpoint:
    """Return which checkpoint is the current one."""
    body = _verified(value, 0, path, 0, "the checksum of the checkpoint record does not hold")
    if len(body) != _POINTER.size:
        raise StoreCorrupt(path, 0, "the checkpoint record has the wrong length")
    return SavedCheckpoint(*(int(number) for number in _POINTER.unpack(body)))


def encode_meta(meta: Meta, *, journaled: bool = False) -> bytes:
    """Return the value of the meta record; `journaled`: the journal may hold later records."""
    fields = (
        meta.cluster_name,
        meta.cluster_id,
        meta.store_id,
        meta.member,
        meta.incarnation,
        meta.voters,
        meta.promised_epoch,
        meta.state_epoch,
        meta.position,
        meta.chain,
        meta.order,
        meta.marker.value,
        meta.shutdown_id,
        meta.note,
        meta.version,
    )
    body = _META.pack(FORMAT_VERSION, journaled) + bytes(msgpack.packb(fields))
    return body + xxh3_64_digest(body)


def decode_meta(value: bytes, path: str) -> Meta:
    """Return the meta record. The version is checked first: another layout may follow it."""
    if len(value) < _META.size + CHECKSUM_BYTES:
        raise StoreCorrupt(path, 0, "the meta record is too short")
    version, _ = _META.unpack_from(value)
    if version != FORMAT_VERSION:
        # Damage to these two bytes looks like another version; nothing is written in either case.
        raise StoreVersion(
            f"{path}: store format {version}, this release reads format {FORMAT_VERSION}: start it "
            "with the release that wrote it (docs/operations/maintenance.md#upgrading)"
        )
    body = _verified(value, 0, path, 0, "the checksum of the meta record does not hold")
    try:
        (
            cluster_name,
            cluster_id,
            store_id,
            member,
            incarnation,
            voters,
            promised_epoch,
            state_epoch,
            position,
            chain,
            order,
            marker,
            shutdown_id,
            note,
            machine_version,
            *_,  # written by a later release that can still be downgraded to this one
        ) = msgpack.unpackb(body[_META.size :])
        return Meta(
            cluster_name=str(cluster_name),
            cluster_id=str(cluster_id),
            store_id=str(store_id),
            member=str(member),
            incarnation=int(incarnation),
            voters=tuple(str(voter) for voter in voters),
            promised_epoch=int(promised_epoch),
            state_epoch=int(state_epoch),
            position=int(position),
            chain=bytes(chain),
            order=bytes(order),
            marker=Marker(marker),
            shutdown_id=str(shutdown_id),
            note=str(note),
            version=int(machine_version),
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(path, 0, f"the meta record does not decode: {error}") from error


def is_journaled(value: bytes) -> bool:
    """Whether the journal may hold records beyond this decoded meta record."""
    return bool(_META.unpack_from(value)[1])


def _verified(value: bytes, seed: int, path: str, position: int, what: str) -> bytes:
    body, checksum = value[:-CHECKSUM_BYTES], value[-CHECKSUM_BYTES:]
    if xxh3_64_digest(body, seed=seed) != checksum:
        raise StoreCorrupt(path, position, what)
    return body
