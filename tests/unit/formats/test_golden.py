"""Recorded bytes of every disk and network format, one file for each version.

From the first release on, stores contain such bytes and other members send them. A changed layout
needs a higher version; the first test with it writes a new file and fails. An existing file is
never regenerated; until version 1 is released, a changed layout has its file removed. The files of
member logs are in `tests/unit/verify/format/golden`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.durability.recovery import CHECKPOINT_VERSION, checkpoint_of, head_of
from broker.machine import commands as c
from broker.machine.command_codec import BLOB_VERSION, pack_blob, unpack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.version import MACHINE_VERSION
from broker.replication.chain import History
from broker.replication.replica import RECORD_VERSION, Replica, records_of
from store import journal, schema
from store.api import Marker, Meta, SavedCheckpoint
from tests.support.stores.poisoned import Author, publish
from tests.unit.vsync.wire.test_codec import MESSAGES, A, B
from vsync.totem.membership.compatibility import Hello, read_hello
from vsync.wire.codec import HELLO_VERSION, WIRE_VERSION, Codec
from vsync.wire.messages import Data, FrameKind

GOLDEN = Path(__file__).parent / "golden"
META = Meta(
    "prod", "a", "5eed", "ab" * 16, 7, ("a", "b=2", "@arbitrator=c"), 9, 8, 300, b"c" * 16,
    b"o" * 16, Marker.CLEAN, "down", "of an operator", 1,
)  # fmt: skip


def checked_in(name: str, version: int, made: dict[str, bytes]) -> dict[str, bytes]:
    """The recorded bytes of this version of a format; `made` is recorded if there are none."""
    path = GOLDEN / f"{name}_{version}.txt"
    if not path.exists():
        path.write_text("".join(f"{key} {value.hex()}\n" for key, value in made.items()))
        pytest.fail(f"{path.name} is new: look at it, and check it in")
    rows = (line.split(" ") for line in path.read_text().splitlines())
    return {key: bytes.fromhex(value) for key, value in rows}


def test_frames() -> None:
    writer, reader = Codec(A, "test", 32768, b"sets"), Codec(B, "test", 32768, b"sets")
    messages = {f"{at}-{type(one).__name__}": one for at, one in enumerate(MESSAGES)}
    made = {name: writer.encode(one) for name, one in messages.items()}
    made["early"] = writer.early_frame(next(one for one in MESSAGES if isinstance(one, Data)).body)
    assert {frame[1] for frame in made.values()} == set(FrameKind), "one frame of each kind"
    frames = checked_in("frames", WIRE_VERSION, made)
    assert frames == made
    for name, message in messages.items():
        assert frames[name][0] == WIRE_VERSION
        assert reader.decode(frames[name], reader.open(frames[name])) == message


def test_hellos_readable_by_all_versions() -> None:
    hello = Hello(A, 1, "test", {"wire_version": 2, "window_frames": 64}, b"digest", b"card")
    made = {"asks": hello.encode(asks=True), "answers": hello.encode()}
    frames = checked_in("hellos", HELLO_VERSION, made)
    assert frames == made
    assert [read_hello(frame) for frame in frames.values()] == [hello, hello]


def test_the_records_of_a_store() -> None:
    saved = SavedCheckpoint(3, 2, 250, 12_345)
    made = {
        "meta": schema.encode_meta(META), "journaled": schema.encode_meta(META, journaled=True),
        "pointer": schema.encode_pointer(saved), "chunk": schema.encode_chunk(b"chunk", 1),
        "entry": schema.encode_entry(b"entry", 251, 300, 4_096),
        "log_key": schema.log_key(251), "chunk_key": schema.chunk_key(3, 1),
    }  # fmt: skip
    values = checked_in("store", schema.FORMAT_VERSION, made)
    assert values == made
    for name in ("meta", "journaled"):
        assert schema.decode_meta(values[name], "x") == META
        assert schema.is_journaled(values[name]) == (name == "journaled")
    assert schema.decode_pointer(values["pointer"], "x") == saved
    assert schema.decode_chunk(values["chunk"], 1, 250, "x") == b"chunk"
    assert schema.decode_entry(values["entry"], 251, "x") == (300, b"entry")
    assert schema.log_first(values["log_key"]) == 251
    assert schema.chunk_generation(values["chunk_key"]) == 3


def test_the_records_of_a_journal() -> None:
    """Its version is that of the store, whose meta record says whether it counts."""
    record = journal.Record(
        301, 302, schema.encode_entry(b"entry", 301, 302, 9), schema.encode_meta(META)
    )
    head = journal._head(2 * journal.BLOCK_BYTES, b"s" * 16, b"5eed")
    written = journal._encode(record, b"s" * 16)
    made = {"head": head, "record": written.rstrip(b"\0")}
    data = checked_in("journal", schema.FORMAT_VERSION, made)
    assert data == made
    whole = b"".join(part.ljust(journal.BLOCK_BYTES, b"\0") for part in data.values())
    assert journal.records_after(whole, "5eed", 300) == ([record], "")


COMMANDS: list[Command] = [
    publish(1, b"body"), publish(2, b"another"), publish(3, b"and one more"),
    c.QueueDeclare(
        c.QUEUE_DECLARE, 1, 1, "log", False, True, False, False, False, {"x-queue-type": "stream"}
    ),
    c.QueueDeclare(
        c.QUEUE_DECLARE, 1, 1, "p", False, True, False, False, False, {"x-max-priority": 5}
    ),
]  # fmt: skip


def test_items_and_their_records() -> None:
    blobs = checked_in("blob", BLOB_VERSION, made := {"blob": pack_blob(1, 2, 3, COMMANDS)})
    assert blobs == made
    assert unpack_blob(blobs["blob"]).commands == tuple(map(tuple, COMMANDS))
    author = Author()
    author.submit(*COMMANDS)
    batch = author.replica.cut()
    assert batch is not None
    entry = checked_in("record", RECORD_VERSION, made := {"entry": batch.entry})
    assert entry == made
    again = Replica("a", Machine("a"), History())
    again.replay(entry["entry"])
    assert again.history == author.replica.history
    assert [one.first for one in records_of(entry["entry"])] == [1, 2, 5]


def test_checkpoints() -> None:
    """The first piece has its own version; the rest has the machine version in force."""
    author = Author()
    author.submit(*COMMANDS)
    chunks = [chunk for chunk in checkpoint_of(author.replica) if chunk]
    made = {str(at): chunk for at, chunk in enumerate(chunks)}
    assert checked_in("checkpoint", CHECKPOINT_VERSION, {"0": chunks[0]}) == {"0": chunks[0]}
    state = checked_in("state", MACHINE_VERSION, made)
    assert state == made
    pieces = iter(state.values())
    assert head_of(author.replica.history.position, pieces) == author.replica.history
    restored = Machine.restore("a", pieces)
    assert restored.root() == author.replica.machine.root()
