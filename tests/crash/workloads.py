"""Workloads on the real store, which note each promise they give.

Run under `record_writes.c`: `python -m tests.crash.workloads LIBRARY WORKLOAD DIR record` once,
recording all writes, or `... DIR fault` once for each operation and each fault.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker.durability.recovery import checkpoint_of, recover
from broker.durability.store_writer import (
    CheckpointBeforeStop,
    DataDirectoryDevice,
    StoreWriter,
    close_store,
)
from broker.machine.command_codec import pack_blob
from broker.machine.commands import CONNECTION_OPEN, ConnectionOpen
from broker.machine.machine import Machine
from broker.process import arbitrator_record
from broker.process.arbitrator_record import RecordFile
from broker.replication.chain import History, Promise
from broker.replication.persister import Persister
from broker.replication.replica import Item, Replica
from store import journal, lmdb_environment, lmdb_store, schema, swap
from store.api import Marker, Meta
from store.errors import StoreError
from store.files import durable_files
from store.files.space import Reserve
from store.journal import Journal
from store.lmdb_store import LmdbStore
from vsync.primary.events import Activation
from vsync.types import RingId

Note = Callable[[str], None]
RING = RingId(1, "a", 1)
CLUSTER = "c1a5"
FRESH = Meta("prod", "a", "5eed")
PROMISED = 9
MAP_BYTES = 1 << 17
JOURNAL_BYTES = 1 << 14  # of the plain store: it is full more than once
KILLED = -1
FAULTS = (KILLED, errno.EIO, errno.ENOSPC)
REFUSED, WRONG = 3, 1
"""How a run that met an error ends: it said so in words of its own, or it broke."""


def entry_of(first: int, last: int) -> bytes:
    """The content of one entry of the plain store, sometimes more than a page."""
    return b"%d..%d|" % (first, last) + bytes(first * 37 % 9000)


def commit_to(store: LmdbStore, note: Note, count: int) -> None:
    """Commit one entry of `count` positions to the plain store."""
    first = store.meta.position + 1
    last = first + count - 1
    meta = replace(store.meta, position=last, chain=b"%d" % last)
    store.commit(entry_of(first, last), first, last, meta)
    note(f"position {last}")


def plain_store(directory: Path, note: Note, *, sync: bool = True) -> None:
    """Commits, meta records, a checkpoint in slices, garbage, a growing map."""
    store = LmdbStore(
        directory / "store", FRESH, map_bytes=MAP_BYTES, sync=sync, journal_bytes=JOURNAL_BYTES
    )
    note("position 0")
    commit = partial(commit_to, store, note)
    for count in (1, 3, 40, 2, 200, 1):
        commit(count)
    store.put_meta(replace(store.meta, promised_epoch=PROMISED))
    note(f"promised {PROMISED}")
    position = store.meta.position
    staging = store.stage(position)
    staging.add([b"%d" % position] * 3)
    commit(2)
    staging.add([b"%d" % position] * 2)
    staging.finish()
    note(f"checkpoint {position}")
    while store.trim():
        pass
    for count in (5, 1):
        commit(count)
    store.close()


def killed_store(directory: Path, note: Note) -> None:
    """A store that is killed and goes on, repeatedly, each time with a journal to replay."""
    for life in range(4):
        store = LmdbStore(
            directory / "store", FRESH, map_bytes=MAP_BYTES, journal_bytes=JOURNAL_BYTES
        )
        note(f"position {store.meta.position}")
        for count in (1, 2, 40, 3, 200, 1)[life % 2 :]:
            commit_to(store, note, count)
        if life == 2:
            store.put_meta(replace(store.meta, promised_epoch=PROMISED))
            note(f"promised {PROMISED}")
            commit_to(store, note, 2)
        _kill(store)


def _kill(store: LmdbStore) -> None:
    """Release the files as the end of a process does: nothing is written."""
    store._journal.close()
    store._env.close()
    store._lock.release()


def switches(directory: Path, note: Note) -> None:
    """Stores put in force and set aside beside what switches left that were cut short."""
    _made(directory / swap.STORE_NAME, 1)
    note("position 1")
    _begun(_made(directory / f"{swap.JOINING_PREFIX}1", 0))
    swap.put_in_force(directory, _made(directory / f"{swap.JOINING_PREFIX}2", 2))
    note("position 2")
    _begun(directory / "_cluster.bak.0001")
    swap.recover(directory)
    swap.put_in_force(directory, _made(directory / "_cluster.bak.0002", 3))
    note("position 3")
    note("leaves 3")
    swap.set_aside(directory)
    note("left 3")


def _made(path: Path, position: int) -> Path:
    """A plain store."""
    store = LmdbStore(path, FRESH, map_bytes=MAP_BYTES, journal_bytes=JOURNAL_BYTES)
    for _ in range(position):
        commit_to(store, lambda _: None, 1)
    store.close()
    return path


def _begun(path: Path) -> None:
    """The switch to this store was begun, and killed."""
    (path / swap.VERIFIED_NAME).touch()
    durable_files.sync_directory(path)


class Member:
    """A replica with a store: what its member would apply, without a ring."""

    def __init__(self, items: int = 0) -> None:
        self.replica = Replica("a", Machine("a"), History())
        self.promise = Promise(CLUSTER, ("a", "b", "c"), 1)
        activation = Activation(1, (("a", 1, False),), True, ("a", "b", "c"), CLUSTER)
        self.replica.apply(Item(1, RING, 1, "a", activation))
        self._applied = 0
        for _ in range(items):
            self.apply()

    def apply(self) -> None:
        """Apply one more item."""
        self._applied += 1
        number = self._applied
        session = self.replica.machine.sessions["a"].session
        peer = f"p:{number}" + "x" * (number * 700 % 5000)
        command = ConnectionOpen(CONNECTION_OPEN, number, "/", "guest", peer)
        body = pack_blob(session, number, 1, [command])
        self.replica.apply(Item(1, RING, 1 + number, "a", body))
        self.replica.effects.clear()


class Stored:
    """The real persister of one member over its data directory, on a loop."""

    def __init__(self, directory: Path, member: Member, note: Note) -> None:
        self.directory, self.member, self.note = directory, member, note
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store = LmdbStore(directory / swap.STORE_NAME, FRESH, map_bytes=MAP_BYTES)
        device = DataDirectoryDevice(
            directory, asyncio.get_running_loop(), self._on_failed, Reserve(directory)
        )
        self.persister = Persister(device, store, store.meta, self._on_durable)

    def _on_durable(self, position: int) -> None:
        self.note(f"position {position}")

    def _on_failed(self, error: StoreError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def keep(self, items: int) -> None:
        """Apply this many items, and wait until they are durable."""
        for _ in range(items):
            self.member.apply()
        self.persister.keep(self.member.replica, self.member.promise)
        await self._until_written()

    async def promise(self, epoch: int) -> None:
        """Promise an epoch after everything that was applied."""
        self.member.promise = replace(self.member.promise, promised_epoch=epoch)
        self.persister.promise(self.member.promise, lambda: self.note(f"promised {epoch}"))
        await self._until_written()

    async def checkpoint(self) -> None:
        """Write a checkpoint during commits."""
        made = self.persister.checkpoints
        self.persister.request_checkpoint()
        self.persister.keep(self.member.replica, self.member.promise)
        while self.persister.checkpoints == made:
            await self._moment()

    async def until_in_force(self) -> None:
        """Wait until a received store has replaced the old one."""
        while self.persister.switching:
            await self._moment()

    async def _until_written(self) -> None:
        while self.persister.writer.lag().waiting:
            await self._moment()

    async def _moment(self) -> None:
        await asyncio.sleep(0.001)
        if self.failed.done():
            self.failed.result()

    async def checkpoint_at_the_end(self) -> None:
        """As the end of a clean shutdown, which skips what its disk refuses."""
        before_stop = CheckpointBeforeStop(self.persister, 60.0)
        self.failed.add_done_callback(lambda failed: before_stop.skip(str(failed.exception())))
        await before_stop.at_the_end(self.member.replica, self.member.promise)

    async def close(self, marker: Marker, reason: str) -> None:
        """End as a process does."""
        try:
            await close_store(self.persister, self.member.replica, marker, reason)
        finally:
            self.persister.store.close()


def receive(directory: Path, donor: Member, own: Meta) -> LmdbStore:
    """Receive another member's checkpoint, in slices, into a directory for received stores."""
    history = donor.replica.history
    fresh = Meta(own.cluster_name, own.member, own.store_id, incarnation=own.incarnation)
    store = swap.incoming(directory, "1", fresh)
    staging = store.stage(history.position)
    for chunk in checkpoint_of(donor.replica):
        staging.add([chunk])
    staging.finish(
        replace(
            store.meta, state_epoch=history.epoch, position=history.position,
            chain=history.chain, order=history.order,
        )
    )  # fmt: skip
    return store


async def _join(directory: Path, note: Note) -> None:
    """A member with a past receives another member's state in its place."""
    stored = Stored(directory, Member(), note)
    await stored.keep(2)
    await stored.promise(PROMISED)
    await _adopt(stored, directory, note)
    await stored.keep(2)
    await stored.close(Marker.DIRTY, "")


async def _adopt(stored: Stored, directory: Path, note: Note) -> None:
    donor = Member(20)
    note("receiving 0")
    received = receive(directory, donor, stored.persister.meta)
    replica = recover("a", received)
    counts = stored.persister.votes
    stored.persister.adopt(received, replica, counts=counts)
    await stored.until_in_force()
    donor.replica.cut()
    stored.member, donor.promise = donor, stored.member.promise
    note(f"position {donor.replica.history.position}")


async def _shutdown(directory: Path, note: Note) -> None:
    """An ordered shutdown, after a checkpoint beside the commits, and with one at the end."""
    stored = Stored(directory, Member(), note)
    await stored.keep(3)
    await stored.checkpoint()
    await stored.keep(4)
    stored.member.apply()  # handed over only as it ends
    stored.persister.keep(stored.member.replica, stored.member.promise)
    stored.persister.request_checkpoint()  # however short the log is
    await stored.checkpoint_at_the_end()
    await stored.close(Marker.CLEAN, "shut down")
    note(f"position {stored.member.replica.history.position}")
    note("marker clean")


async def _stop(directory: Path, note: Note) -> None:
    """An orderly stop of one member, which writes a checkpoint while it goes on."""
    stored = Stored(directory, Member(), note)
    await stored.keep(2)
    await stored.keep(2)
    stored.persister.request_checkpoint()  # however short the log is
    before_stop = CheckpointBeforeStop(stored.persister, 60.0)
    while before_stop.awaited(stored.member.replica, 0.0):
        await stored.keep(1)
    await stored.close(Marker.DIRTY, "")
    note(f"position {stored.member.replica.history.position}")


async def _ejection(directory: Path, note: Note) -> None:
    """A member that lost a digest vote ends, and returns for another member's state."""
    stored = Stored(directory, Member(), note)
    await stored.keep(3)
    await stored.promise(PROMISED)
    await stored.close(Marker.INCONSISTENT, "lost a vote")
    note("marker inconsistent")
    stored = Stored(directory, Member(3), note)
    stored.member.replica.cut()
    await _adopt(stored, directory, note)
    note("marker dirty")
    await stored.close(Marker.DIRTY, "")


def arbitrator(directory: Path, note: Note) -> None:
    """The record of an arbitrator, epoch by epoch."""
    file = RecordFile(directory, "prod", "arb")
    try:
        for epoch in range(1, 5):
            file.write(replace(file.record, epoch=epoch, promised_epoch=epoch, holders=("a", "b")))
            note(f"promised {epoch}")
    finally:
        file.close()


WORKLOADS: dict[str, Callable[[Path, Note], None]] = {
    "store": plain_store,
    "killed": killed_store,
    "switches": switches,
    "join": lambda directory, note: asyncio.run(_join(directory, note)),
    "shutdown": lambda directory, note: asyncio.run(_shutdown(directory, note)),
    "stop": lambda directory, note: asyncio.run(_stop(directory, note)),
    "ejection": lambda directory, note: asyncio.run(_ejection(directory, note)),
    "arbitrator": arbitrator,
}


# -- mistakes --------------------------------------------------------------------------------------


def _no_sync(_path: Path) -> None:
    """Nothing is made durable."""


def _without_sync() -> None:
    WORKLOADS["store"] = lambda directory, note: plain_store(directory, note, sync=False)


def _names_not_synced() -> None:
    for module in (durable_files, journal, lmdb_environment, swap, arbitrator_record):
        vars(module)["sync_directory"] = _no_sync


def _mark_not_ended_by(function: Callable[..., object]) -> Callable[[], None]:
    def planted() -> None:
        def end(path: Path) -> None:
            if sys._getframe(1).f_code is function.__code__:
                (path / swap.VERIFIED_NAME).unlink(missing_ok=True)
            else:
                ends(path)

        ends = swap._end
        vars(swap)["_end"] = end

    return planted


def _copy_not_synced() -> None:
    vars(swap)["LmdbStore"] = partial(LmdbStore, sync=False)
    for module in (durable_files, lmdb_environment):
        vars(module)["sync_file"] = _no_sync


def _promise_forgotten() -> None:
    def adopt(
        self: Persister[LmdbStore, StoreWriter], received: LmdbStore, replica: Replica, *,
        counts: bool,
    ) -> None:  # fmt: skip
        self.meta = replace(self.meta, promised_epoch=0)
        adopts(self, received, replica, counts=counts)

    adopts = Persister.adopt
    Persister.adopt = adopt  # type: ignore[method-assign, assignment]


def _journal_without_sync() -> None:
    def opened(self: Journal, store_id: str) -> bool:
        if self._fd < 0 and opens(self, store_id):
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_RDWR)
        return self._fd >= 0

    opens = Journal.open
    Journal.open = opened  # type: ignore[method-assign]


def _journal_not_announced() -> None:
    def encode(meta: Meta, *, journaled: bool = False) -> bytes:
        return encodes(meta)

    encodes = schema.encode_meta
    schema.encode_meta = encode


def _journal_made_anew_before_it_was_taken_up() -> None:
    vars(lmdb_store)["left_in_journal"] = lambda *_: ([], "")


def _journal_restarted_before_lmdb_is_durable() -> None:
    opens = lmdb_environment.open_environment
    vars(lmdb_store)["open_environment"] = lambda path, size, _sync: opens(path, size, False)


MISTAKES: dict[str, tuple[str, Callable[[], None]]] = {
    "lmdb_without_sync": ("store", _without_sync),
    "journal_without_sync": ("store", _journal_without_sync),
    "journal_made_anew_before_it_was_taken_up": (
        "killed",
        _journal_made_anew_before_it_was_taken_up,
    ),
    "journal_not_announced": ("store", _journal_not_announced),
    "journal_restarted_before_lmdb_is_durable": (
        "store",
        _journal_restarted_before_lmdb_is_durable,
    ),
    "directory_not_synced": ("join", _names_not_synced),
    "other_switch_not_ended_before_one_begins": (
        "switches",
        _mark_not_ended_by(swap.put_in_force),
    ),
    "end_of_a_switch_not_synced_at_the_start": ("switches", _mark_not_ended_by(swap.recover)),
    "end_of_a_switch_not_synced_before_its_store_is_set_aside": (
        "switches",
        _mark_not_ended_by(swap.set_aside),
    ),
    "received_copy_not_synced": ("join", _copy_not_synced),
    "promise_dropped_at_the_switch": ("join", _promise_forgotten),
}
"""With the workload that shows it."""


# -- what is there afterwards ----------------------------------------------------------------------


def check(workload: str, directory: Path, notes: list[str]) -> None:
    """Start again on what is left: everything promised is there, and nothing is partial."""
    said = [note.split() for note in notes]
    most = {what: int(n) for what, n in sorted(said, key=lambda two: two[1]) if n.isdigit()}
    for what, number in said:
        if number.isdigit():
            most[what] = max(most[what], int(number))
    if workload == "arbitrator":
        file = RecordFile(directory, "prod", "arb")
        file.close()
        assert file.record.epoch >= most.get("promised", 0), f"{file.record}, {notes}"
        return
    directory.mkdir(parents=True, exist_ok=True)
    swap.recover(directory)
    if "leaves" in most and not (directory / swap.STORE_NAME).exists():
        return
    assert "left" not in most, "the store that was set aside is back"
    store = LmdbStore(directory / "store", FRESH, map_bytes=MAP_BYTES)
    try:
        meta = store.meta
        assert meta.position >= most.get("position", 0), f"{meta}, {notes}"
        assert meta.promised_epoch >= most.get("promised", 0), f"{meta}, {notes}"
        markers = [number for what, number in said if what == "marker"]
        if markers == ["clean"]:
            assert meta.marker is Marker.CLEAN
        if markers == ["inconsistent"]:  # until another member's state has replaced it
            replaced = meta.marker in (Marker.DIRTY, Marker.JOINING) and ["receiving", "0"] in said
            assert meta.marker is Marker.INCONSISTENT or replaced, f"{meta}, {notes}"
        if workload in ("store", "killed", "switches"):
            _check_plain(store, most.get("checkpoint", 0))
        elif meta.position:
            recover("a", store)
    finally:
        store.close()


def _check_plain(store: LmdbStore, checkpointed: int) -> None:
    start = 0
    if (kept := store.checkpoint()) is not None:
        start, chunks = kept
        assert list(chunks) == [b"%d" % start] * 5
    assert start >= checkpointed
    assert not store.meta.position or store.meta.chain == b"%d" % store.meta.position
    expected = start + 1
    for first, entry in store.log(start):
        last = int(entry.split(b"|")[0].split(b"..")[1])
        assert first == expected
        assert entry == entry_of(first, last)
        expected = last + 1
    assert expected == store.meta.position + 1


# -- under the library -----------------------------------------------------------------------------


class Library:
    """The functions of `record_writes.c` that control it."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._lib.crash_arm.argtypes = [ctypes.c_long, ctypes.c_int]
        self._lib.crash_operations.restype = ctypes.c_long

    def watch(self, directory: Path, log: Path | None) -> None:
        self._lib.crash_watch(os.fsencode(directory), os.fsencode(log) if log else None)

    def arm(self, number: int, how: int) -> None:
        self._lib.crash_arm(number, how)

    def note(self, text: str) -> None:
        self._lib.crash_note(text.encode())

    @property
    def operations(self) -> int:
        return int(self._lib.crash_operations())


def _run(workload: str, directory: Path, note: Note) -> int:
    try:
        WORKLOADS[workload](directory, note)
    except (StoreError, OSError) as error:
        print(error)
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return WRONG
    return 0


def _fault(library: Library, workload: str, directory: Path, number: int, how: int) -> str:
    """Run once with one fault; return what went wrong, or ""."""
    notes = directory.with_name(directory.name + ".notes")
    child = os.fork()
    if child == 0:
        with notes.with_suffix(".said").open("w") as said, notes.open("a") as file:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            library.watch(directory, None)
            library.arm(number, how)
            code = _run(workload, directory, lambda text: print(text, file=file, flush=True))
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = notes.with_suffix(".said").read_text()
    if code not in (0, REFUSED, -9):
        return f"ends with {code}: {text}"
    if how == errno.ENOSPC and code == REFUSED and "No space left" not in text:
        return f"does not say that the disk is full: {text}"
    try:
        check(workload, directory, notes.read_text().split("\n")[:-1])
    except Exception:
        return traceback.format_exc()
    return ""


def _faults(library: Library, workload: str, directory: Path, operations: int) -> int:
    wrong = 0
    for number in range(1, operations + 1):
        for how in FAULTS:
            place = directory / f"{number}.{how}"
            place.mkdir(parents=True)
            why = _fault(library, workload, place / "data", number, how)
            wrong += bool(why)
            if why:
                name = "SIGKILL" if how == KILLED else errno.errorcode[how]
                print(f"operation {number}, {name}: {why}", flush=True)
            shutil.rmtree(place)
    return wrong


def main(arguments: list[str]) -> int:
    path, workload, place, mode, *broken = arguments
    for name in broken:
        MISTAKES[name][1]()
    library, directory = Library(path), Path(place)
    library.watch(directory / "data", directory / "records")
    code = _run(workload, directory / "data", library.note)
    operations = library.operations
    library.watch(Path("/nowhere"), None)
    print(operations)
    if mode == "record" or code != 0:
        return code
    return WRONG if _faults(library, workload, directory / "faults", operations) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
