"""Tests only the store on disk can fail: damage, versions, permissions, growth, failed commits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import lmdb
import pytest
from xxhash import xxh3_64_digest

from store import schema
from store.api import Marker, Meta
from store.errors import (
    NotWritable,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreMissing,
    StoreUnreadable,
    StoreVersion,
)
from store.files.directory_lock import DirectoryLock
from store.lmdb_environment import MapGate, inspect
from store.lmdb_store import LmdbStore

FRESH = Meta(cluster_name="prod", member="a", store_id="5eed")


def filled(path: Path, entries: int = 3) -> None:
    """Make a store with entries of two positions each and a checkpoint of one chunk."""
    store = LmdbStore(path, FRESH)
    store.write_checkpoint(0, [b"chunk"], store.meta)
    for first in range(1, 2 * entries, 2):
        meta = replace(store.meta, position=first + 1)
        store.commit(f"entry {first}".encode(), first, first + 1, meta)
    store.close()


def meddle(path: Path, change: Callable[[lmdb.Transaction], object]) -> None:
    """Change the file behind the store's back."""
    with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
        change(txn)


def test_the_map_is_not_moved_under_a_reader() -> None:
    gate, order = MapGate(), list[str]()

    def move() -> None:
        with gate.exclusive():
            order.append("moved")

    mover = threading.Thread(target=move)
    with gate.reading():
        mover.start()
        while not gate._changed._waiters and not order:  # type: ignore[attr-defined]
            time.sleep(0.001)
        order.append("read")
    mover.join()
    assert order == ["read", "moved"]


def test_a_reader_that_was_killed_keeps_no_pages(tmp_path: Path) -> None:
    """Its place in the lock file would pin them for ever, and the file would only grow. LMDB clears
    that file itself where nobody else has the store open."""
    filled(tmp_path)
    reads = f"import lmdb; e = lmdb.open({str(tmp_path)!r}); t = e.begin(); print(flush=True)"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", f"{reads}; input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()
    readers[0].kill()
    readers[0].wait()
    store = LmdbStore(tmp_path)
    listed = store._env.readers()
    assert str(readers[0].pid) not in listed
    assert str(readers[1].pid) in listed
    store.close()
    for reader in readers:
        reader.communicate()


class ReaderComes:
    """An environment into which a thread wants to look at the moment at which it is closed."""

    def __init__(self, store: LmdbStore, look: Callable[[], object]) -> None:
        self._env, self._look, self._enter = store._env, look, store._gate.reading
        self._came = threading.Event()
        self.met: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        vars(store).update(_env=self)
        vars(store._gate).update(reading=self._reading)

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def _reading(self) -> AbstractContextManager[None]:
        if threading.current_thread() is self.thread:
            self._came.set()
        return self._enter()

    def _run(self) -> None:
        try:
            self._look()
        except Exception as error:
            self.met.append(error)
        finally:
            self._came.set()

    def close(self) -> None:
        if self.thread.ident is None:
            self.thread.start()
            self._came.wait()
        self._env.close()


@pytest.mark.parametrize("what", ["size_bytes", "reusable_bytes", "log_begins"])
def test_who_reads_while_it_is_closed_is_told_so(tmp_path: Path, what: str) -> None:
    """A received state takes the place of a store that others read. What watches the disk met an
    error of LMDB at that moment, and ended: no alarm about space or memory came any more."""
    filled(tmp_path)
    store = LmdbStore(tmp_path)
    reader = ReaderComes(store, lambda: getattr(store, what)())
    store.close()
    reader.thread.join()
    (error,) = reader.met
    assert isinstance(error, StoreFailed), repr(error)


def value_of(txn: lmdb.Transaction, key: bytes) -> bytes:
    """Return a value that must be there."""
    value = txn.get(key)
    assert value is not None
    return bytes(value)


def flip(key: bytes, at: int) -> Callable[[lmdb.Transaction], object]:
    """Return a change that flips one bit of one value."""

    def change(txn: lmdb.Transaction) -> None:
        value = bytearray(value_of(txn, key))
        value[at] ^= 0x10
        txn.put(key, bytes(value))

    return change


def _at(store: LmdbStore, position: int) -> Meta:
    return replace(store.meta, position=position)


def _mapped_bytes(path: Path) -> int:
    """The number of bytes of this file's map that are resident in this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(one for one in lines if one.startswith("Rss:")).split()[1]) << 10
        for line in lines
        if line.endswith(str(path))
    )


class TestDamage:
    @pytest.mark.parametrize("at", [0, -20, -12, -1])
    def test_a_flipped_bit_in_an_entry_is_named_by_position(self, tmp_path: Path, at: int) -> None:
        filled(tmp_path)
        meddle(tmp_path, flip(schema.log_key(3), at))
        store = LmdbStore(tmp_path)
        with pytest.raises(StoreCorrupt) as caught:
            list(store.log(0))
        assert caught.value.position == 3
        assert "checksum" in str(caught.value)
        store.close()

    def test_an_entry_under_the_wrong_key_is_refused(self, tmp_path: Path) -> None:
        filled(tmp_path)
        meddle(tmp_path, lambda txn: txn.put(schema.log_key(3), value_of(txn, schema.log_key(1))))
        store = LmdbStore(tmp_path)
        with pytest.raises(StoreCorrupt) as caught:
            list(store.log(0))
        assert caught.value.position == 3
        store.close()

    def test_a_missing_entry_is_named_by_position(self, tmp_path: Path) -> None:
        filled(tmp_path)
        meddle(tmp_path, lambda txn: txn.delete(schema.log_key(3)))
        store = LmdbStore(tmp_path)
        with pytest.raises(StoreCorrupt) as caught:
            list(store.log(0))
        assert caught.value.position == 3
        with pytest.raises(StoreCorrupt):
            list(store.log(2))
        store.close()

    def test_a_missing_last_entry_is_found_at_opening(self, tmp_path: Path) -> None:
        filled(tmp_path)
        meddle(tmp_path, lambda txn: txn.delete(schema.log_key(5)))
        with pytest.raises(StoreCorrupt, match="meta says 6 but the entries reach 4"):
            LmdbStore(tmp_path)

    def test_a_flipped_bit_in_a_chunk(self, tmp_path: Path) -> None:
        filled(tmp_path)
        meddle(tmp_path, flip(schema.chunk_key(1, 0), 2))
        store = LmdbStore(tmp_path)
        kept = store.checkpoint()
        assert kept is not None
        with pytest.raises(StoreCorrupt, match="chunk 0"):
            list(kept[1])
        store.close()

    @pytest.mark.parametrize("key", [schema.META_KEY, schema.POINTER_KEY])
    def test_a_flipped_bit_in_a_record(self, tmp_path: Path, key: bytes) -> None:
        filled(tmp_path)
        meddle(tmp_path, flip(key, 6))
        with pytest.raises(StoreCorrupt):
            LmdbStore(tmp_path)

    def test_meta_that_does_not_decode(self, tmp_path: Path) -> None:
        filled(tmp_path)
        body = b"\x00\x01\x00\x91\x01"
        meddle(tmp_path, lambda txn: txn.put(schema.META_KEY, body + xxh3_64_digest(body)))
        with pytest.raises(StoreCorrupt, match="does not decode"):
            LmdbStore(tmp_path)


class TestRefusal:
    def test_another_format_version(self, tmp_path: Path) -> None:
        filled(tmp_path)
        body = b"\x00\x02whatever comes then"
        meddle(tmp_path, lambda txn: txn.put(schema.META_KEY, body + xxh3_64_digest(body)))
        with pytest.raises(StoreVersion, match="format 2, this release reads format 1"):
            LmdbStore(tmp_path, FRESH)

    def test_another_lmdb_file(self, tmp_path: Path) -> None:
        meddle(tmp_path, lambda txn: txn.put(b"zebra", b"1"))
        with pytest.raises(StoreUnreadable, match="something else"):
            LmdbStore(tmp_path, FRESH)
        with pytest.raises(StoreUnreadable, match="something else"):
            inspect(tmp_path)

    def test_a_file_that_is_not_lmdb(self, tmp_path: Path) -> None:
        (tmp_path / "data.mdb").write_bytes(b"not at all" * 2000)
        said = rf"^{re.escape(str(tmp_path))}: MDB_INVALID: "
        with pytest.raises(StoreUnreadable, match=said):
            LmdbStore(tmp_path, FRESH)
        with pytest.raises(StoreUnreadable, match=said):
            inspect(tmp_path)

    def test_a_file_where_the_directory_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "store").write_text("")
        with pytest.raises(StoreError):
            LmdbStore(tmp_path / "store", FRESH)

    def test_an_unfinished_creation_is_not_a_store(self, tmp_path: Path) -> None:
        lmdb.open(str(tmp_path)).close()
        with pytest.raises(StoreMissing, match="never finished"):
            LmdbStore(tmp_path)
        with pytest.raises(StoreMissing):
            inspect(tmp_path)

    def test_an_interrupted_creation_starts_over(self, tmp_path: Path) -> None:
        """A store is made under another name, so leftovers never open."""
        (tmp_path / "data.mdb.new").write_bytes(bytes(5000))
        store = LmdbStore(tmp_path, FRESH)
        assert store.meta == FRESH
        store.close()
        assert not (tmp_path / "data.mdb.new").exists()

    def test_a_journal_without_its_store_is_no_empty_store(self, tmp_path: Path) -> None:
        """A new one would forget what its member confirmed: first the operator looks for it."""
        path = tmp_path / "store"
        filled(path)
        (path / "data.mdb").unlink()
        with pytest.raises(StoreMissing):
            LmdbStore(path)
        (path / "journal").write_bytes(b"QJ01")
        with pytest.raises(StoreCorrupt, match=r"data\.mdb is gone, its journal is there"):
            LmdbStore(path, FRESH)
        assert not (path / "data.mdb").exists()

    def test_busy_names_the_process(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path, FRESH)
        with pytest.raises(StoreBusy) as caught:
            LmdbStore(tmp_path)
        assert caught.value.pid == os.getpid()
        assert str(os.getpid()) in str(caught.value)
        store.close()

    def test_busy_in_another_process(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path, FRESH)
        script = (
            "import sys; from pathlib import Path; from store.lmdb_store import LmdbStore\n"
            "from store.errors import StoreBusy\n"
            "try: LmdbStore(Path(sys.argv[1]))\n"
            "except StoreBusy as error: sys.exit(str(error))"
        )
        done = run_python(script, str(tmp_path))
        store.close()
        assert f"in use by process {os.getpid()}" in done.stderr

    def test_not_writable(self) -> None:
        # As another user, because root may write anywhere.
        with tempfile.TemporaryDirectory() as place:
            base = Path(place)
            filled(base / "store")
            (base / "store").chmod(0o555)
            for file in (base / "store").iterdir():
                file.chmod(0o444)
            base.chmod(0o555)
            script = (
                "import os, sys; from pathlib import Path; from store.lmdb_store import LmdbStore\n"
                "from store.api import Meta; from store.errors import NotWritable\n"
                "if os.getuid() == 0: os.setuid(65534)\n"
                "for name in ('store', 'fresh'):\n"
                "    try: LmdbStore(Path(sys.argv[1]) / name, Meta('prod', 'a', '1'))\n"
                "    except NotWritable as error: print(error)"
            )
            done = run_python(script, place)
            base.chmod(0o755)
            (base / "store").chmod(0o755)
        assert done.stdout.count("cannot be written") == 2, done.stderr
        assert issubclass(NotWritable, StoreError)


class TestFailure:
    def test_a_failed_commit_poisons(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        filled(tmp_path)
        store = LmdbStore(tmp_path)
        meta = replace(store.meta, position=7)

        class Broken:
            def begin(self, write: bool = False) -> object:
                raise lmdb.Error("mdb_txn_commit: Input/output error")

            def info(self) -> object:
                return env.info()

            def stat(self) -> object:
                return env.stat()

            def close(self) -> None:
                env.close()

        env = store._env
        monkeypatch.setattr(store, "_env", Broken())
        with pytest.raises(StoreFailed, match="Input/output error"):
            store.commit(b"x", 7, 7, meta)
        monkeypatch.setattr(store, "_env", env)
        for call in (
            lambda: store.commit(b"x", 7, 7, meta),
            lambda: store.put_meta(store.meta),
            lambda: list(store.log(0)),
            lambda: store.checkpoint(),
            lambda: store.trim(),
            lambda: store.size_bytes(),
            lambda: store.meta,
        ):
            with pytest.raises(StoreFailed, match="Input/output error"):
                call()
        store.close()
        store = LmdbStore(tmp_path)
        assert store.meta.position == 6
        store.close()

    def test_the_map_grows(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path, FRESH, map_bytes=128 << 10)
        entry = os.urandom(50_000)
        for position in range(1, 31):
            store.commit(entry, position, position, replace(store.meta, position=position))
        store.write_checkpoint(30, [os.urandom(300_000)] * 4, store.meta)
        store.close()
        store = LmdbStore(tmp_path, map_bytes=128 << 10)
        assert store.meta.position == 30
        assert store.size_bytes() > 1_200_000
        store.close()

    def test_pages_that_were_read_do_not_stay_in_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The map of a large store must not count as process memory, whoever reads all of it."""
        monkeypatch.setattr("store.lmdb_store.MAPPED_BYTES", 1 << 20)
        store = LmdbStore(tmp_path, FRESH)
        chunks = [os.urandom(250_000) for _ in range(40)]
        store.write_checkpoint(0, chunks, store.meta)
        saved = store.checkpoint()
        assert saved is not None
        for expected, found in zip(chunks, saved[1], strict=True):
            assert found == expected
            assert _mapped_bytes(tmp_path / "data.mdb") < 4 << 20
        for position in range(1, 41):
            store.commit(chunks[position - 1], position, position, _at(store, position))
        for expected, (_, entry) in zip(chunks, store.log(0), strict=True):
            assert entry == expected
        assert _mapped_bytes(tmp_path / "data.mdb") < 8 << 20
        store.close()

    def test_a_full_store_stops(self, tmp_path: Path) -> None:
        limit = 256 << 10
        store = LmdbStore(tmp_path, FRESH, map_bytes=128 << 10, map_bytes_max=limit)

        def fill() -> None:
            for position in range(1, 100):
                meta = replace(store.meta, position=position)
                store.commit(bytes(20_000), position, position, meta)

        with pytest.raises(StoreFull, match="limit"):
            fill()
        with pytest.raises(StoreFailed):
            store.meta  # noqa: B018
        store.close()
        store = LmdbStore(tmp_path)
        assert store.meta.position > 3
        assert len(list(store.log(0))) == store.meta.position
        store.close()

    def test_growing_waits_for_readers_and_readers_wait_for_growing(self, tmp_path: Path) -> None:
        store = LmdbStore(tmp_path, FRESH, map_bytes=128 << 10)
        store.commit(bytes(1000), 1, 1, replace(store.meta, position=1))
        reading = store.log(0)
        assert next(reading)[0] == 1
        for position in range(2, 20):  # a reader between two slices holds nothing
            meta = replace(store.meta, position=position)
            store.commit(bytes(50_000), position, position, meta)
        assert list(reading) == []
        store.close()


def test_a_hanging_disk_is_detected_before_a_read_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB would meet it in a page fault, while it holds the interpreter's lock."""
    filled(tmp_path)
    store = LmdbStore(tmp_path)
    met: list[str] = []
    real = store._env

    def begin() -> lmdb.Transaction[bytes]:
        met.append("begin")
        return real.begin()

    monkeypatch.setattr(DirectoryLock, "touch", lambda lock: met.append("touch"))
    store._env = cast("lmdb.Environment", SimpleNamespace(begin=begin))
    for read in (lambda: list(store.log(0)), lambda: list(store.checkpoint()[1]), store.trim):  # type: ignore[index]
        met.clear()
        read()
        assert met
        assert met == ["touch", "begin"] * (len(met) // 2)
    store._env = real
    store.close()


def test_closing_waits_for_a_write_under_way(tmp_path: Path) -> None:
    """A joiner's store was closed as its member stopped, while a worker committed to it: at best
    the commit failed, and at worst LMDB never returned, holding the interpreter's lock."""
    filled(tmp_path / "store")
    store = LmdbStore(tmp_path / "store")
    within, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work(txn: lmdb.Transaction) -> None:
        within.set()
        go_on.wait(10)
        txn.put(schema.POINTER_KEY, b"")
        done.append("written")

    def close() -> None:
        store.close()
        done.append("closed")

    writer = threading.Thread(target=lambda: store._write(work))
    closer = threading.Thread(target=close)
    writer.start()
    assert within.wait(10)
    closer.start()
    closer.join(0.2)
    go_on.set()
    for thread in (writer, closer):
        thread.join(10)
    assert done == ["written", "closed"]
    with pytest.raises(StoreFailed, match="closed"):
        store._write(work)


def test_a_store_a_restart_would_not_find_is_detected(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", FRESH)
    assert store.misplaced() == ""
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert "No such file" in store.misplaced()
    LmdbStore(tmp_path / "store", FRESH).close()
    assert "not the file that this broker has open" in store.misplaced()
    store.close()


def test_inspect_reads_a_store_in_use(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, FRESH)
    store.put_meta(replace(FRESH, marker=Marker.DIRTY))
    script = (
        "import sys; from pathlib import Path; from store.lmdb_environment import inspect\n"
        "print(inspect(Path(sys.argv[1])).marker)"
    )
    assert run_python(script, str(tmp_path)).stdout == "Marker.DIRTY\n"
    store.close()
    assert inspect(tmp_path).marker is Marker.DIRTY


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a few lines in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=100,
    )


def test_a_map_that_the_process_may_not_have_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `ulimit -v`; it was called an unreadable store."""

    def refused(*_: object, **__: object) -> None:
        raise lmdb.MemoryError("store: Cannot allocate memory")

    LmdbStore(tmp_path / "one", FRESH).close()
    monkeypatch.setattr(lmdb, "open", refused)
    with pytest.raises(StoreError, match=r"Cannot allocate memory: .*ulimit -v") as error:
        LmdbStore(tmp_path / "one")
    assert not isinstance(error.value, StoreUnreadable)
