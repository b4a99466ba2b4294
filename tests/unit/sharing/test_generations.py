"""Generations: copies of a store that another process may be writing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.sharing import generations
from broker.sharing.generations import (
    copy_store_files,
    generation_path,
    make_generation,
    newest_complete,
    newest_number,
    remove_former,
    source_for,
)
from store.api import Marker, Meta
from store.errors import NoSpace, StoreFailed, StoreMissing
from store.journal import BLOCK_BYTES
from store.lmdb_store import LmdbStore


def filled(path: Path, values: int) -> Path:
    """A generation with a store and the other files of a data directory."""
    (path / "store").mkdir(parents=True)
    with lmdb.open(str(path / "store"), map_size=64 << 20) as env:
        put(env, values)
    (path / "owner.lock").write_text("1\n")
    (path / "reserve").write_bytes(b"\0" * 4096)
    (path / "administrator").write_text("admin geheim\n")
    (path / "evidence" / "0001-failed").mkdir(parents=True)
    (path / "evidence" / "0001-failed" / "facts.json").write_text("{}")
    return path


def put(env: lmdb.Environment, value: int) -> None:
    """One commit that changes every key."""
    with env.begin(write=True) as txn:
        for key in range(200):
            txn.put(b"%d" % key, b"%d" % value * 50)


def held(store: Path) -> set[bytes]:
    """The values of one commit: a copy that mixes two has more than one."""
    with lmdb.open(str(store), readonly=True, lock=False) as env, env.begin() as txn:
        assert txn.stat()["entries"] == 200
        return {bytes(value) for _, value in txn.cursor()}


def test_a_generation_contains_all_durable_files(tmp_path: Path) -> None:
    filled(generation_path(tmp_path, 3), 1)
    path = make_generation(tmp_path, 4, source_for(tmp_path, 3))
    assert held(path / "store") == {b"1" * 50}
    found = sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())
    assert found == ["administrator", "evidence/0001-failed/facts.json", "store/data.mdb"]
    assert newest_complete(tmp_path) == 4


def test_a_whole_generation_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G38: its leader confirms by its contents, and power may fail at any time."""
    (filled(generation_path(tmp_path, 3), 1) / "store" / "journal").write_bytes(b"journal")
    on_disk: list[Path] = []
    monkeypatch.setattr(generations, "sync_file", on_disk.append)
    monkeypatch.setattr(generations, "sync_directory", on_disk.append)
    path = make_generation(tmp_path, 4, 3)
    fresh = path.with_name(f"{path.name}.new")
    made = {fresh / one.relative_to(path) for one in path.rglob("*")}
    assert set(on_disk[:-1]) == {fresh, *made}
    assert on_disk[-2:] == [fresh, tmp_path]


@pytest.mark.parametrize("clones", [True, False])
def test_a_file_is_copied_while_it_is_written(
    tmp_path: Path, clones: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy has one commit: a mixture of two would show two values or a broken tree."""
    if not clones:
        monkeypatch.setattr(os, "copy_file_range", refused)
    store = filled(generation_path(tmp_path, 1), 1) / "store"
    done = threading.Event()

    def write() -> None:
        with lmdb.open(str(store), map_size=64 << 20, sync=False) as env:
            value = 1
            while not done.wait(0.002):
                value += 1
                put(env, value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen, number = set[bytes](), 0
        while number < 30 or len(seen) < 2:  # a writer may get no processor for a while
            number += 1
            target = tmp_path / f"copy-{number}"
            target.mkdir()
            copy_store_files(store, target)
            (value,) = held(target)
            seen.add(value)
    finally:
        done.set()
        writer.join()


def refused(*_: object) -> int:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


SIZES = (20, 3000, 70_000)
"""Of entries: one block of the journal, one as well, and one that goes to LMDB at once."""
FRESH = Meta("shop", "a", "5eed", cluster_id="c1", marker=Marker.DIRTY)


@given(
    before=st.lists(st.sampled_from(SIZES), max_size=6),
    during=st.lists(st.lists(st.sampled_from((*SIZES, 0)), max_size=7), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_a_copy_has_everything_confirmed_before_it_whatever_is_written(
    before: list[int], during: list[list[int]]
) -> None:
    """Between any two steps of the copy the former leader goes on: small commits, large ones, a
    full journal that starts over, a promise (0). The copy is a valid store too: its entries follow
    without a gap, and are those that were committed."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        source, target = Path(directory) / "source", Path(directory) / "target"
        target.mkdir()
        store = LmdbStore(source, FRESH, journal_bytes=5 * BLOCK_BYTES)
        written = [b""]

        def write(size: int) -> None:
            position = store.meta.position + 1
            if not size:
                store.put_meta(replace(store.meta, promised_epoch=position))
                return
            written.append(b"%d|" % position + bytes(size))
            store.commit(written[-1], position, position, replace(store.meta, position=position))

        def interrupted(step: Callable[..., object]) -> Callable[..., object]:
            def stepped(*arguments: object) -> object:
                for size in during.pop() if during else ():
                    write(size)
                return step(*arguments)

            return stepped

        for size in before:
            write(size)
        confirmed = store.meta
        for name in ("content", "_meta_pages", "_copy_bytes", "sync_file"):
            patch.setattr(generations, name, interrupted(getattr(generations, name)))
        patch.setattr(generations, "_PAUSE_S", 0.0)
        copy_store_files(source, target)
        store.close()
        copy = LmdbStore(target)
        assert copy.meta.position >= confirmed.position
        assert copy.meta.promised_epoch >= confirmed.promised_epoch
        assert [entry for _, entry in copy.log(0)] == written[1 : copy.meta.position + 1]
        copy.close()


def test_a_copy_during_which_the_journal_starts_over_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal would continue from what LMDB holds by now, while its pages lack the
    older commits."""
    source = generation_path(tmp_path, 1) / "store"
    store = LmdbStore(source, FRESH)
    for position in (1, 2):
        store.commit(b"x", position, position, replace(store.meta, position=position))
    copy, copies = generations._copy, [0]

    def commit_in_between(file: Path, target: Path, size: int) -> None:
        copy(file, target, size)
        copies[0] += 1
        if copies[0] == 2:  # the journal is copied, and LMDB's file
            store.put_meta(store.meta)
            store.commit(b"x", 3, 3, replace(store.meta, position=3))

    monkeypatch.setattr(generations, "_copy", commit_in_between)
    monkeypatch.setattr(generations, "_PAUSE_S", 0.0)
    made = LmdbStore(make_generation(tmp_path, 2, 1) / "store")
    assert copies[0] == 4
    assert made.meta.position == 3
    made.close()
    store.close()


def test_a_file_that_never_rests_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(generation_path(tmp_path, 1), 1) / "store"
    copy = generations._copy

    def copy_and_commit(source: Path, target: Path, size: int) -> None:
        copy(source, target, size)
        with lmdb.open(str(store), map_size=64 << 20) as env:
            put(env, 2)

    monkeypatch.setattr(generations, "_copy", copy_and_commit)
    with pytest.raises(StoreFailed, match="a former leader still commits"):
        make_generation(tmp_path, 2, 1)
    assert newest_complete(tmp_path) == 1
    assert not (tmp_path / "generation.000002.new").exists()


def test_a_file_system_that_copies_nothing_itself_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some answer copy_file_range(2) with 0, as at the end of a file, instead of an error."""
    filled(tmp_path / "generation.000001", 7)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    monkeypatch.setattr(fcntl, "ioctl", _not_shared)
    path = make_generation(tmp_path, 2, 1)
    assert held(path / "store") == {b"7" * 50}
    assert (path / "administrator").read_text() == "admin geheim\n"


def _not_shared(*_: object) -> int:
    raise OSError(errno.EOPNOTSUPP, "no shared blocks")


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_store_is_not_copied_as_an_empty_one(tmp_path: Path, page: int) -> None:
    """Nothing was copied of a store whose first page had become zeros, and the next leader began
    with an empty store."""
    filled(tmp_path / "generation.000001", 7)
    with (tmp_path / "generation.000001" / "store" / "data.mdb").open("r+b") as file:
        file.seek(4096 * page)
        file.write(bytes(4096))
    with pytest.raises(StoreFailed, match="damaged"):
        make_generation(tmp_path, 2, 1)
    assert newest_complete(tmp_path) == 1


def test_a_full_disk_leaves_the_source_and_no_partial_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(generation_path(tmp_path, 1), 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generations, "_copy_bytes", full)
    with pytest.raises(NoSpace, match="free space there"):
        make_generation(tmp_path, 2, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["generation.000001"]
    assert held(tmp_path / "generation.000001" / "store") == {b"1" * 50}


def test_a_full_disk_is_reported_also_while_a_later_leader_removes_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ended with a traceback, in the middle of measuring what it needs."""
    filled(generation_path(tmp_path, 1), 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def listed(folder: Path, _: str) -> Iterator[Path]:
        yield folder / "administrator"
        shutil.rmtree(folder)
        yield from folder.iterdir()

    monkeypatch.setattr(generations, "_copy_bytes", full)
    monkeypatch.setattr(Path, "rglob", listed)
    with pytest.raises(NoSpace):
        make_generation(tmp_path, 2, 1)


def test_the_generation_named_by_the_lease_must_exist(tmp_path: Path) -> None:
    """An empty store in its place would forget confirmed commands."""
    assert source_for(tmp_path, 0) == 0
    with pytest.raises(StoreMissing, match=r"generation\.000002 is named by the lease"):
        source_for(tmp_path, 2)


def test_an_unfinished_copy_is_not_a_generation(tmp_path: Path) -> None:
    (tmp_path / "generation.000002.new").mkdir()
    filled(generation_path(tmp_path, 1), 1)
    assert newest_complete(tmp_path) == 1


def test_a_copy_keeps_the_file_modes(tmp_path: Path) -> None:
    """Regression: copies made their owner's secrets readable by all."""
    source = filled(generation_path(tmp_path, 1), 1)
    modes = {".": 0o750, "administrator": 0o600, "store": 0o700, "store/data.mdb": 0o640}
    for name, mode in modes.items():
        (source / name).chmod(mode)
    path = make_generation(tmp_path, 2, 1)
    assert {name: (path / name).stat().st_mode & 0o7777 for name in modes} == modes


def test_interrupted_copies_go_but_nothing_from_the_own_number_on(tmp_path: Path) -> None:
    for name in ("6", "7", "8.new", "9.new", "10.new", "11", "12"):
        number, _, new = name.partition(".")
        (tmp_path / f"generation.{int(number):06d}{'.new' if new else ''}").mkdir()
    remove_former(tmp_path, 7, 10)
    remove_former(tmp_path, 12, 10)  # a restored one: not this leader's to remove
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == ["generation.000010.new", "generation.000011", "generation.000012"]


def test_all_generations_but_the_last_two_go(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        generation_path(tmp_path, number).mkdir()
    (tmp_path / "generation.000002.new").mkdir()
    remove_former(tmp_path, 3, 4)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "generation.000003", "generation.000004",
    ]  # fmt: skip


def test_a_copy_being_removed_cannot_become_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that lost its lease while it copied ends its copy as the next leader removes it: if
    that leader dies as well, what is left of the copy must not be taken for the newest state."""
    filled(tmp_path / "generation.000007", 1)
    fresh = filled(tmp_path / "generation.000008.new", 1)
    remove = shutil.rmtree

    def removed_slowly(path: Path) -> None:
        remove(Path(path) / "store")
        with contextlib.suppress(FileNotFoundError):
            fresh.rename(generation_path(tmp_path, 8))  # the last step of `make_generation`
        remove(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", removed_slowly)
    remove_former(tmp_path, 7, 9)
    assert source_for(tmp_path, 7) == 7
    assert [one.name for one in tmp_path.iterdir()] == ["generation.000007"]


def test_an_interrupted_removal_is_completed_by_the_next_leader(tmp_path: Path) -> None:
    (tmp_path / "generation.000007").mkdir()
    (tmp_path / "generation.000008.gone" / "store").mkdir(parents=True)
    assert newest_complete(tmp_path) == 7
    assert newest_number(tmp_path) == 8
    remove_former(tmp_path, 7, 9)
    assert [one.name for one in tmp_path.iterdir()] == ["generation.000007"]


@pytest.mark.parametrize("copies", [True, False])
def test_a_file_larger_than_a_chunk_is_copied_to_its_end_and_no_further(
    tmp_path: Path, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files cannot be shared, by the kernel or by reading and writing."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "not there")

    monkeypatch.setattr(generations, "_CHUNK_BYTES", 4)
    if not copies:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "old").write_bytes(b"0123456789abc")
    with (tmp_path / "old").open("rb") as old, (tmp_path / "new").open("wb") as new:
        generations._copy_bytes(old.fileno(), new.fileno(), 10)
    assert (tmp_path / "new").read_bytes() == b"0123456789"
