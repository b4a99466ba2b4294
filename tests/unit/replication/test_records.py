"""Items in a member's log carry the state they lead to: wrong ones are named, pieces can be cut."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import cast

import msgpack
import pytest
from xxhash import xxh3_128_digest

from broker.machine import commands as c
from broker.machine.command_codec import (
    BLOB_COMMANDS_MAX,
    BLOB_VERSION,
    LARGE_BYTES,
    RUN,
    RUN_NUMBER_MAX,
    BlobMalformed,
    pack_blob,
    unpack_blob,
)
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import (
    RECORD_VERSION,
    Divergence,
    Item,
    Replica,
    cut_records,
    records_of,
)
from tests.support.stores.poisoned import RING, Author, publish


def written() -> tuple[Author, bytes]:
    """A history, and all of it as one entry."""
    author = Author()
    for number in range(1, 6):
        author.submit(publish(number, b"body"), publish(10 + number, b"and another"))
    batch = author.replica.cut()
    assert batch is not None
    return author, batch.entry


def empty() -> Replica:
    return Replica("a", Machine("a"), History())


def test_each_item_records_the_state_it_leads_to() -> None:
    author, entry = written()
    records = list(records_of(entry))
    assert [r.first for r in records[1:]] == [r.last + 1 for r in records[:-1]]
    end = author.replica.history
    assert (records[-1].last, records[-1].chain) == (end.position, end.chain)


def test_re_execution_names_the_first_item_with_another_result() -> None:
    """G14: not only that the end differs."""
    author, entry = written()
    third = list(records_of(entry))[2]
    wrong = entry.replace(third.chain, bytes(16))
    with pytest.raises(Divergence, match=f"the item at position {third.first} again"):
        empty().replay(wrong)
    unchecked = empty()
    unchecked.replay(wrong, checks=False)
    assert unchecked.history == author.replica.history


def test_anothers_applied_items_are_kept_like_any_and_reach_no_client() -> None:
    author, entry = written()
    other = empty()
    for recorded in records_of(entry):
        other.follow(recorded)
    assert other.history == author.replica.history
    assert other.machine.root() == author.replica.machine.root()
    assert not other.effects
    batch = other.cut()
    assert batch is not None
    assert batch.entry == entry


def test_messages_a_tail_purges_are_freed_later() -> None:
    """The loop frees them in slices; a worker thread, which has no loop, frees them at once."""
    author, _ = written()
    author.submit(c.QueuePurge(c.QUEUE_PURGE, 1, 1, "q", True))
    batch = author.replica.cut()
    assert batch is not None
    following, replaying = empty(), empty()
    for recorded in [*records_of(written()[1]), *records_of(batch.entry)]:
        following.follow(recorded)
    assert any(following.machine.discarded)
    replaying.replay(written()[1])
    replaying.replay(batch.entry)
    assert not replaying.machine.discarded


def test_anothers_item_with_a_different_result_is_not_kept() -> None:
    _, entry = written()
    records = list(records_of(entry))
    other = empty()
    other.follow(records[0])
    with pytest.raises(Divergence):
        other.follow(records[1]._replace(chain=bytes(16)))
    assert other.broken
    assert other.cut() is None


@pytest.mark.parametrize("bytes_max", [0, 200, 450, 1 << 20])
def test_the_pieces_of_an_entry_add_up_to_it(bytes_max: int) -> None:
    author, entry = written()
    end, pieces, after = author.replica.history.position, [], 0
    while after < end:
        piece, after, _ = cut_records(entry, after, bytes_max)
        assert piece
        assert len(piece) <= bytes_max or len(list(records_of(piece))) == 1
        pieces.append(piece)
    assert b"".join(pieces) == entry
    assert cut_records(entry, end, bytes_max) == (b"", end, b"")
    piece, after, rest = cut_records(entry, 0, bytes_max)
    assert piece + rest == entry
    assert cut_records(rest, after, 1 << 20)[0] == rest


def test_acks_are_not_awaited_and_publishes_are() -> None:
    """Work that is handed over later must answer no client, or G9's confirm would be as late."""
    author = Author()
    author.replica.cut()
    assert not author.replica.uncut
    ack = c.Ack(c.ACK, 1, 1, 1, False)
    author.submit(ack, c.Nack(c.NACK, 1, 1, 1, False, True))
    assert author.replica.uncut
    assert not author.replica.awaited
    author.submit(ack, publish(1, b"body"))
    assert author.replica.awaited
    author.submit(ack)
    assert author.replica.awaited, "awaited until the cut"
    author.replica.cut()
    assert not author.replica.awaited
    _, entry = written()
    again = empty()
    again.replay(entry)
    assert not again.awaited, "items from the store are in it already"


def test_the_chains_contain_each_items_xxh3() -> None:
    """G14."""
    author = Author()
    session = author.replica.machine.sessions["a"].session
    body = pack_blob(session, 2, 1, [publish(1, b"x")])
    order = author.replica.history.order
    applied = author.replica.apply(Item(1, RING, 3, "a", body))
    assert applied.kinds == bytes([c.PUBLISH])
    assert applied.hashed == xxh3_128_digest(body)
    assert author.replica.history.order == blake2b(order + applied.hashed, digest_size=16).digest()


def test_a_blob_without_commands_has_one_position_and_is_malformed() -> None:
    """G14: nobody sends one, but a sender must not be able to stop all members by an assertion."""
    author = Author()
    session = author.replica.machine.sessions["a"].session
    before = author.replica.history.position
    body = pack_blob(session, 2, 1, [])
    with pytest.raises(BlobMalformed, match="no command"):
        unpack_blob(body)
    applied = author.replica.apply(Item(1, RING, 4, "a", body))
    assert applied.outcomes == struct.pack("<H", c.MALFORMED)
    assert author.replica.history.position == before + 1


@pytest.mark.parametrize("version", [BLOB_VERSION - 1, BLOB_VERSION + 1])
def test_a_blob_of_another_version_is_malformed(version: int) -> None:
    body = msgpack.packb((version, 1, 1, 1, [publish(1, b"x")]))
    with pytest.raises(BlobMalformed, match=f"version {version} is not {BLOB_VERSION}"):
        unpack_blob(body)


@pytest.mark.parametrize("size", [4095, 4096, 65535, 65536])
@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_large_bodies_are_packed_as_msgpack_would(size: int, count: int) -> None:
    """All members hash a blob's bytes, and later starts read the store's entries."""
    commands: list[Command] = [c.Ack(c.ACK, 1, 2, 3, False)]
    commands += [publish(7, bytes(size)) for _ in range(count - 2)]  # number repeated: no run
    commands.append(c.BodyPart(c.BODY_PART, 1, 2, bytes(size)))
    commands = commands[-count:]
    blob = pack_blob(1 << 40, 7, 1 << 60, commands)
    whole = (BLOB_VERSION, 1 << 40, 7, 1 << 60, commands)
    assert blob == msgpack.packb(whole)
    replica = empty()
    replica.execute(Item(3, RING, 4, "a", blob))
    batch = replica.cut()
    assert batch is not None
    end = (replica.history.position, replica.history.chain)
    assert batch.entry == msgpack.packb((RECORD_VERSION, 1, 0, 3, tuple(RING), 4, "a", blob, *end))


def numbered(number: int, body: bytes) -> c.Publish:
    return cast("c.Publish", publish(number, body))


def kinds_in(blob: bytes) -> list[int]:
    return [record[0] for record in msgpack.unpackb(blob)[4]]


def there_and_back(commands: list[Command]) -> list[int]:
    """The kinds of the records that carry these commands."""
    blob = pack_blob(1, 2, 3, commands)
    assert unpack_blob(blob).commands == tuple(map(tuple, commands))
    return kinds_in(blob)


@pytest.mark.parametrize("first", [0, 1, 70_000])
def test_publishes_that_differ_only_in_number_and_body_are_one_record(first: int) -> None:
    step = 1 if first else 0
    alike = [numbered(first + step * at, b"%d" % at) for at in range(300)]
    assert there_and_back([*alike]) == [RUN]
    blob = pack_blob(1, 2, 3, [*alike])
    assert len(blob) < 100 + sum(5 + len(one.body) for one in alike)
    unpacked = unpack_blob(blob).commands
    assert len({id(command[7]) for command in unpacked}) == 1, "one properties object"  # type: ignore[misc]


def test_a_run_ends_where_a_publish_differs_in_anything_else() -> None:
    first = numbered(1, b"1")
    others = [
        first._replace(publish_no=2, conn=2),
        first._replace(publish_no=2, chan=2),
        first._replace(publish_no=2, exchange="amq.fanout"),
        first._replace(publish_no=2, key="other"),
        first._replace(publish_no=2, flags=0),
        first._replace(publish_no=2, properties=b"\x10\0\x01"),
        first._replace(publish_no=2, body=bytes(LARGE_BYTES)),
        first._replace(publish_no=3),
        first,
        first._replace(publish_no=0),
    ]
    for other in others:
        assert there_and_back([first, other]) == [c.PUBLISH, c.PUBLISH]
        assert there_and_back([first, numbered(2, b"2"), other])[0] == RUN
    ack = c.Ack(c.ACK, 1, 1, 1, False)
    assert there_and_back([first, ack, numbered(2, b"2")]) == [c.PUBLISH, c.ACK, c.PUBLISH]
    some: list[Command] = [first, numbered(2, b"2")]
    assert there_and_back([ack, *some, ack, *some, *some]) == [c.ACK, RUN, c.ACK, RUN, RUN]
    large: list[Command] = [numbered(3, bytes(LARGE_BYTES)), numbered(4, bytes(LARGE_BYTES))]
    assert there_and_back(some + large) == [RUN, c.PUBLISH, c.PUBLISH]


@pytest.mark.parametrize(
    "run",
    [
        (RUN, 1, 1, 1, "", "q", 0, b"", []),
        (RUN, 1, 1, 1, "", "q", 0, b"", [b"1"]),
        (RUN, 1, 1, 1, "", "q", 0, b"", [b"1", "2"]),
        (RUN, 1, 1, 1, "", "q", 0, b"", [b"1", [b"2"]]),
        (RUN, 1, 1, 1, "", "q", 0, b"", b"12"),
        (RUN, 1, 1, -1, "", "q", 0, b"", [b"1", b"2"]),
        (RUN, 1, 1, RUN_NUMBER_MAX + 1, "", "q", 0, b"", [b"1", b"2"]),
        (RUN, 1, 1, True, "", "q", 0, b"", [b"1", b"2"]),
        (RUN, 1, 1, 1, b"", "q", 0, b"", [b"1", b"2"]),
        (RUN, 1, 1, 1, "", "q", 0, [b"1", b"2"]),
    ],
)
def test_an_invalid_run_is_refused_as_a_whole(run: tuple[object, ...]) -> None:
    ack = (c.ACK, 1, 1, 1, False)
    with pytest.raises(BlobMalformed):
        unpack_blob(msgpack.packb([BLOB_VERSION, 1, 1, 1, [ack, run]]))


def test_a_run_has_no_more_commands_than_a_blob() -> None:
    """Input is not trusted: a few bytes may stand for many commands."""
    half = BLOB_COMMANDS_MAX // 2

    def blob(*sizes: int) -> bytes:
        runs = [(RUN, 1, 1, 0, "", "q", 0, b"", [b""] * size) for size in sizes]
        blob = (BLOB_VERSION, 1, 1, 1, [*runs, (c.ACK, 1, 1, 1, False)])
        return cast("bytes", msgpack.packb(blob))

    assert len(unpack_blob(blob(half, half)).commands) == BLOB_COMMANDS_MAX
    for sizes in ((half, half + 1), (half, half, half)):
        with pytest.raises(BlobMalformed, match="too many"):
            unpack_blob(blob(*sizes))
