"""A store's journal: what survives a kill, and what is refused.

tests/crash covers power losses.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import pytest

from store import journal, schema
from store.api import Marker, Meta
from store.errors import NoSpace, StoreCorrupt, StoreFailed
from store.files.space import OwnedSpace
from store.journal import JOURNAL_NAME, Journal
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore

FRESH = Meta("prod", "a", "5eed", cluster_id="c1", marker=Marker.DIRTY)


def commit(store: LmdbStore, size: int = 20) -> None:
    position = store.meta.position + 1
    entry = b"%d|" % position + bytes(size)
    store.commit(entry, position, position, replace(store.meta, position=position))


def filled(path: Path, commits: int) -> LmdbStore:
    """An open store whose last commits are only in the journal."""
    store = LmdbStore(path, FRESH)
    for _ in range(commits):
        commit(store)
    return store


def killed(store: LmdbStore, target: Path) -> Path:
    """Copy the files that a process killed now would leave."""
    shutil.copytree(store.path, target)
    return target


def positions(store: LmdbStore, after: int = 0) -> list[int]:
    return [first for first, _ in store.log(after)]


def in_lmdb(path: Path) -> tuple[bool, int]:
    """Whether the meta record in LMDB counts the journal, and the position there."""
    with TemporaryDirectory() as copy:  # LMDB refuses to open a file twice in one process
        shutil.copy(path / "data.mdb", copy)
        with lmdb.open(copy, readonly=True, lock=False) as env, env.begin() as txn:
            value = bytes(txn.get(schema.META_KEY) or b"")
    return schema.is_journaled(value), schema.decode_meta(value, "").position


def meddle(path: Path, number: int) -> None:
    """Flip a bit of the record with this number, counted from 0."""
    file = path / JOURNAL_NAME
    data = bytearray(file.read_bytes())
    data[journal.BLOCK_BYTES * (number + 1) + 40] ^= 1  # each has a block, after the head's block
    file.write_bytes(data)


def test_small_commits_survive_a_kill(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 5)
    left = killed(store, tmp_path / "left")
    assert in_lmdb(left) == (True, 0), "LMDB has one of them"
    found = LmdbStore(left)
    assert found.meta == store.meta
    assert found.bytes_to_start() == store.bytes_to_start()
    assert found.log_begins() == 1
    commit(found)
    assert positions(found) == [1, 2, 3, 4, 5, 6]
    found.close()
    store.close()


def test_the_journal_is_written_from_its_beginning_again_when_it_was_full(tmp_path: Path) -> None:
    """Otherwise each commit behind the first round would be a transaction."""
    store = LmdbStore(tmp_path / "one", FRESH, journal_bytes=16 * journal.BLOCK_BYTES)
    rounds = 0
    for _ in range(60):
        commit(store)
        rounds += not store._journal.waiting
    assert rounds == 60 // 16
    left = killed(store, tmp_path / "left")
    store.close()
    again = LmdbStore(left)
    assert positions(again) == list(range(1, 61))
    again.close()


def test_what_waits_in_the_journal_has_its_space_in_lmdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is confirmed: it must never meet a full disk."""
    store, wanted = filled(tmp_path / "one", 1), list[int]()
    monkeypatch.setattr(OwnedSpace, "own", lambda _self, size, _leave=0: wanted.append(size))
    for _ in range(10):
        commit(store, 50_000)
    assert len(store._journal.waiting) == 11
    assert wanted[-1] > 10 * 50_000
    store.close()
    assert wanted[-1] > 10 * 50_000, "and when they move there"


def test_a_store_that_went_on_after_a_kill_is_killed_again(tmp_path: Path) -> None:
    """The first process's commits are in LMDB by then, and new records overwrite its old ones."""
    store = filled(tmp_path / "one", 3)
    second = LmdbStore(killed(store, tmp_path / "two"))
    second.put_meta(replace(second.meta, promised_epoch=7))
    commit(second)
    third = LmdbStore(killed(second, tmp_path / "three"))
    assert positions(third) == [1, 2, 3, 4]
    commit(third)
    fourth = LmdbStore(killed(third, tmp_path / "four"))
    assert positions(fourth) == [1, 2, 3, 4, 5]
    for one in (store, second, third, fourth):
        one.close()


@pytest.mark.parametrize("refused", [1, 2])
def test_a_journal_lmdb_does_not_know_yet_accepts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """The disk was full at that moment, and the commit is retried."""
    store = LmdbStore(tmp_path / "one", FRESH)
    owns, left = OwnedSpace.own, [refused]

    def own(self: OwnedSpace, size: int, leave: int = 0) -> None:
        left[0] -= 1
        if not left[0]:
            raise NoSpace("here", size)
        owns(self, size, leave)

    monkeypatch.setattr(OwnedSpace, "own", own)
    with pytest.raises(NoSpace):
        commit(store)
    assert store.meta.position == 0
    commit(store)
    again = LmdbStore(killed(store, tmp_path / "left"))
    assert again.meta.position == 1
    again.close()
    store.close()


def test_a_closed_store_is_complete_without_its_journal(tmp_path: Path) -> None:
    """So a copy of `data.mdb` alone has everything."""
    store = filled(tmp_path, 3)
    store.close()
    assert in_lmdb(tmp_path) == (False, 3)
    (tmp_path / JOURNAL_NAME).unlink()
    again = LmdbStore(tmp_path)
    assert positions(again) == [1, 2, 3]
    again.close()


def test_a_half_made_journal_is_removed_at_the_next_start(tmp_path: Path) -> None:
    path = killed(filled(tmp_path / "running", 3), tmp_path / "left")
    half = path / "journal.new"
    half.write_bytes(bytes(4096))
    store = LmdbStore(path)
    assert not half.exists()
    assert positions(store) == [1, 2, 3]
    store.close()


def test_commits_an_earlier_release_made_since_count(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    without = LmdbStore(tmp_path, journal_bytes=0)
    commit(without)
    without.close()
    store = LmdbStore(tmp_path)
    commit(store)
    left = LmdbStore(killed(store, tmp_path / "left"))
    assert positions(left) == [1, 2, 3, 4, 5]
    left.close()
    store.close()


def test_each_write_to_lmdb_includes_what_the_journal_holds(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    commit(store, size=journal.ENTRY_BYTES_MAX)
    assert in_lmdb(tmp_path)[1] == 4, "a large entry goes there at once"
    commit(store)
    assert in_lmdb(tmp_path)[1] == 4
    store.put_meta(replace(store.meta, promised_epoch=7))
    assert in_lmdb(tmp_path)[1] == 5
    commit(store)
    store.write_checkpoint(6, [b"state"], store.meta)
    assert in_lmdb(tmp_path)[1] == 6
    commit(store)
    assert positions(store, after=6) == [7], "reading the log brings it there"
    left = LmdbStore(killed(store, tmp_path / "left"))
    assert (left.meta.position, left.meta.promised_epoch) == (7, 7)
    left.close()
    store.close()


def test_a_full_journal_is_overwritten_from_its_start(tmp_path: Path) -> None:
    """Old records remain after the new ones, and do not count."""
    store = LmdbStore(tmp_path / "one", FRESH, journal_bytes=1 << 14)
    for number in range(1, 60):
        commit(store, size=number * 37 % 500)
        left = LmdbStore(killed(store, tmp_path / f"{number}"))
        assert positions(left) == list(range(1, number + 1))
        left.close()
    assert (store.path / JOURNAL_NAME).stat().st_size == 1 << 14
    store.close()


def test_a_record_a_crash_cut_off_was_never_promised(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 3)
    left = killed(store, tmp_path / "left")
    store.close()
    meddle(left, 2)
    found = LmdbStore(left)
    assert found.meta.position == 2
    commit(found)
    assert positions(found) == [1, 2, 3]
    found.close()


@pytest.mark.parametrize("number", [0, 1])
def test_damage_before_another_record_is_named(tmp_path: Path, number: int) -> None:
    """Each record was written once the one before was durable, so this is no crash."""
    store = filled(tmp_path / "one", 3)
    left = killed(store, tmp_path / "left")
    store.close()
    meddle(left, number)
    with pytest.raises(StoreCorrupt, match="a record is damaged before") as caught:
        LmdbStore(left)
    assert caught.value.position == number + 1


def missing(left: Path, _other: Path) -> str:
    (left / JOURNAL_NAME).unlink()
    return "the journal is missing"


def cut_short(left: Path, _other: Path) -> str:
    with (left / JOURNAL_NAME).open("r+b") as file:
        file.truncate(journal.BLOCK_BYTES * 3)
    return "the journal is cut short"


def all_cut_off(left: Path, _other: Path) -> str:
    with (left / JOURNAL_NAME).open("r+b") as file:
        file.truncate(3)
    return "the journal is cut short"


def another(left: Path, other: Path) -> str:
    shutil.copy(other / JOURNAL_NAME, left / JOURNAL_NAME)
    return "the journal is that of another store"


def head_damaged(left: Path, _other: Path) -> str:
    data = bytearray((left / JOURNAL_NAME).read_bytes())
    data[7] ^= 1
    (left / JOURNAL_NAME).write_bytes(data)
    return "the head of the journal is damaged"


@pytest.mark.parametrize("harm", [missing, cut_short, all_cut_off, another, head_damaged])
def test_a_journal_that_lacks_confirmed_commits_is_named(
    tmp_path: Path, harm: Callable[[Path, Path], str]
) -> None:
    """Also to a mere reader: the older position in LMDB must not pass for the store's."""
    store = filled(tmp_path / "one", 3)
    other = LmdbStore(tmp_path / "two", replace(FRESH, store_id="0ther"))
    commit(other)
    left = killed(store, tmp_path / "left")
    store.close()
    what = harm(left, other.path)
    other.close()
    for look in (LmdbStore, inspect):
        with pytest.raises(StoreCorrupt, match=what):
            look(left)


def test_inspecting_a_damaged_journal_names_it(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 3)
    left = killed(store, tmp_path / "left")
    store.close()
    meddle(left, 0)
    with pytest.raises(StoreCorrupt, match="a record is damaged before"):
        inspect(left)


def test_a_restored_lmdb_file_meets_no_record_of_its_old_future(
    tmp_path: Path,
) -> None:
    """An operator restores data.mdb alone: the journal beside it continues from a later
    position."""
    filled(tmp_path / "one", 2).close()
    shutil.copy(tmp_path / "one" / "data.mdb", tmp_path / "kept.mdb")
    store = LmdbStore(tmp_path / "one")
    for _ in range(3):
        commit(store)
    store.close()
    shutil.copy(tmp_path / "kept.mdb", tmp_path / "one" / "data.mdb")
    store = LmdbStore(tmp_path / "one")
    commit(store)  # as long as the earlier one at that position
    left = LmdbStore(killed(store, tmp_path / "left"))
    assert positions(left) == [1, 2, 3]
    left.close()
    store.close()


def test_a_clients_body_is_not_taken_for_a_record(tmp_path: Path) -> None:
    """It stands where the next record would, and looks like one to a reader that ignores
    the salt."""
    store = LmdbStore(tmp_path / "one", FRESH)
    commit(store)
    forger = Journal(tmp_path, journal.JOURNAL_BYTES)
    assert forger.open(store.meta.store_id)
    forger.append(journal.Record(2, 2, b"forged", b"meta"))
    forger.close()
    forged = (tmp_path / JOURNAL_NAME).read_bytes()[journal.BLOCK_BYTES : 2 * journal.BLOCK_BYTES]
    left = killed(store, tmp_path / "left")
    data = bytearray((left / JOURNAL_NAME).read_bytes())
    at = data.index(bytes(journal.BLOCK_BYTES), journal.BLOCK_BYTES)  # after the newest record
    at = -(-at // journal.BLOCK_BYTES) * journal.BLOCK_BYTES
    data[at : at + len(forged)] = forged
    (left / JOURNAL_NAME).write_bytes(data)
    found = LmdbStore(left)
    assert positions(found) == [1]
    found.close()
    store.close()


def test_a_received_store_has_no_log_before_its_checkpoint(tmp_path: Path) -> None:
    """A donor that thought otherwise would offer a log that is not there."""
    store = LmdbStore(tmp_path / "one", FRESH)
    staging = store.stage(40)
    staging.add([b"state"])
    staging.finish(replace(store.meta, position=40))
    assert store.log_begins() == 41
    commit(store)
    assert (store.log_begins(), positions(store, after=40)) == (41, [41])
    left = LmdbStore(killed(store, tmp_path / "left"))
    assert (left.meta.position, left.log_begins()) == (41, 41)
    left.close()
    store.close()


def test_a_journal_removed_under_its_store_is_detected(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    assert not store.misplaced()
    (tmp_path / JOURNAL_NAME).rename(tmp_path / "gone")
    assert "journal" in store.misplaced()
    shutil.copy(tmp_path / "gone", tmp_path / JOURNAL_NAME)
    assert "is not the file that this broker has open" in store.misplaced()
    store.close()
    assert not LmdbStore(tmp_path).misplaced()


def test_a_store_with_a_new_id_gets_a_new_journal(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 2)
    store.put_meta(replace(store.meta, store_id="0ther"))
    commit(store)
    left = LmdbStore(killed(store, tmp_path / "left"))
    assert (left.meta.store_id, positions(left)) == ("0ther", [1, 2, 3])
    left.close()
    store.close()


def test_inspection_repeats_when_the_journal_is_overwritten_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of what it read is older; that is not damage."""
    store = filled(tmp_path / "one", 3)
    early = killed(store, tmp_path / "early")
    store.put_meta(store.meta)
    commit(store)
    commit(store)
    late = killed(store, tmp_path / "late")
    store.close()
    halves = (early / JOURNAL_NAME).read_bytes(), (late / JOURNAL_NAME).read_bytes()
    cut = 2 * journal.BLOCK_BYTES
    torn, looks = halves[0][:cut] + halves[1][cut:], [0]
    monkeypatch.setattr(journal, "content", lambda _path: (torn, halves[1])[bool(looks[0])])
    decode = schema.decode_meta

    def decoded(value: bytes, path: str) -> Meta:
        looks[0] += 1
        return decode(value, path)

    monkeypatch.setattr(schema, "decode_meta", decoded)
    assert inspect(late).position == 5
    assert looks[0] > 1


def test_a_store_in_use_is_inspected_and_copied_with_its_journal(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 4)
    program = (
        "import sys, pathlib; one, copy = map(pathlib.Path, sys.argv[1:])\n"
        "from store.backups import copy_store; from store.lmdb_environment import inspect\n"
        "print(inspect(one).position, copy_store(one, copy).position)"
    )
    arguments = [sys.executable, "-c", program, str(store.path), str(tmp_path / "copy")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "4"]
    copied = LmdbStore(tmp_path / "copy", journal_bytes=0)
    assert positions(copied) == [1, 2, 3, 4]
    copied.close()
    assert not (tmp_path / "copy" / JOURNAL_NAME).exists()
    commit(store)
    assert positions(store) == [1, 2, 3, 4, 5]
    store.close()


def test_a_failed_write_ends_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether the data is there."""
    store = filled(tmp_path, 2)

    def fails(_self: Journal, _entry: journal.Record) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Journal, "append", fails)
    with pytest.raises(StoreFailed, match="Input/output error"):
        commit(store)
    with pytest.raises(StoreFailed):
        store.meta  # noqa: B018
    store.close()
    monkeypatch.undo()
    again = LmdbStore(tmp_path)
    assert again.meta.position == 2
    again.close()


def test_without_room_for_a_journal_commits_go_to_lmdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "has_room_for", lambda _directory, _size: False)
    store = filled(tmp_path, 2)
    assert in_lmdb(tmp_path) == (False, 2)
    assert not (tmp_path / JOURNAL_NAME).exists()
    store.close()


def test_readers_see_a_whole_log_while_commits_go_on(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, FRESH, journal_bytes=1 << 15)
    wrong: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                known = store.meta.position
                assert positions(store)[:known] == list(range(1, known + 1))
                assert store.log_begins() == 1
                store.bytes_to_start()
        except BaseException as error:  # whatever it is
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(150):
        commit(store)
    over.set()
    for reader in readers:
        reader.join()
    store.close()
    assert not wrong, wrong[0]
