"""One contract, two stores: every test runs against LMDB and against the in-memory fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.api import Marker, Meta, Store
from store.errors import StoreBusy, StoreCorrupt, StoreFailed, StoreMissing
from store.lmdb_store import LmdbStore
from tests.support.stores.memory import MemoryDisk, MemoryStore

FRESH = Meta(cluster_name="prod", member="a", store_id="5eed")
Opener = Callable[..., Store]


@pytest.fixture(params=["lmdb", "memory"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens the same place again and again."""
    disks: dict[str, MemoryDisk] = {"store": MemoryDisk()}
    opened: list[Store] = []

    def open_lmdb(name: str = "store", create: Meta | None = FRESH, kept: int = 0) -> Store:
        opened.append(LmdbStore(tmp_path / name, create, log_bytes_kept=kept))
        return opened[-1]

    def open_memory(name: str = "store", create: Meta | None = FRESH, kept: int = 0) -> Store:
        disk = disks.setdefault(name, MemoryDisk())
        opened.append(MemoryStore(disk, create, log_bytes_kept=kept))
        return opened[-1]

    yield open_lmdb if request.param == "lmdb" else open_memory
    for store in opened:
        store.close()


def fill(store: Store, *sizes: int) -> None:
    """Commit one entry for each size; an entry's bytes name its positions."""
    for size in sizes:
        first = store.meta.position + 1
        last = first + size - 1
        store.commit(f"{first}..{last}".encode(), first, last, replace(store.meta, position=last))


class TestMeta:
    def test_a_new_store_is_empty(self, opener: Opener) -> None:
        store = opener()
        assert store.meta == FRESH
        assert store.meta.marker is Marker.EMPTY
        assert list(store.log(0)) == []
        assert store.checkpoint() is None

    def test_meta_survives_reopening(self, opener: Opener) -> None:
        store = opener()
        full = replace(
            FRESH,
            cluster_id="ab" * 16,
            incarnation=7,
            voters=("a", "b", "c"),
            promised_epoch=9,
            state_epoch=8,
            chain=b"\x00\xff" * 8,
            order=b"o" * 16,
            marker=Marker.CLEAN,
            shutdown_id="s1",
            note="ö",
        )
        store.put_meta(full)
        store.close()
        assert opener().meta == full

    def test_nothing_opens_unless_created(self, opener: Opener) -> None:
        with pytest.raises(StoreMissing):
            opener(create=None)

    def test_a_second_opener_is_refused(self, opener: Opener) -> None:
        opener()
        with pytest.raises(StoreBusy):
            opener()

    def test_meta_alone_does_not_move_the_position(self, opener: Opener) -> None:
        with pytest.raises(AssertionError):
            opener().put_meta(replace(FRESH, position=1))


class TestLog:
    def test_committed_entries_are_there(self, opener: Opener) -> None:
        store = opener()
        fill(store, 3, 1, 2)
        store.close()
        store = opener()
        assert store.meta.position == 6
        assert list(store.log(0)) == [(1, b"1..3"), (4, b"4..4"), (5, b"5..6")]

    @pytest.mark.parametrize(
        ("after", "firsts"),
        [(0, [1, 4, 5]), (2, [1, 4, 5]), (3, [4, 5]), (5, [5]), (6, []), (9, [])],
    )
    def test_reading_starts_with_the_entry_that_reaches_beyond(
        self, opener: Opener, after: int, firsts: list[int]
    ) -> None:
        store = opener()
        fill(store, 3, 1, 2)
        assert [first for first, _ in store.log(after)] == firsts

    def test_long_logs_are_read_in_order(self, opener: Opener) -> None:
        store = opener()
        entry = bytes(1_500_000)
        for position in range(1, 9):  # more than two slices
            store.commit(entry, position, position, replace(store.meta, position=position))
        assert [first for first, _ in store.log(2)] == [3, 4, 5, 6, 7, 8]

    @pytest.mark.parametrize(("first", "last", "said"), [(2, 2, 2), (1, 0, 0), (1, 2, 3)])
    def test_entries_must_be_contiguous(
        self, opener: Opener, first: int, last: int, said: int
    ) -> None:
        store = opener()
        with pytest.raises(AssertionError):
            store.commit(b"x", first, last, replace(FRESH, position=said))
        fill(store, 1)
        assert list(store.log(0)) == [(1, b"1..1")]


class TestCheckpoint:
    def test_it_replaces_what_it_covers(self, opener: Opener) -> None:
        store = opener()
        fill(store, 2, 2, 2)
        meta = replace(store.meta, note="checked")
        store.write_checkpoint(4, [b"one", b"", b"two"], meta)
        store.close()
        store = opener()
        kept = store.checkpoint()
        assert kept is not None
        assert (kept[0], list(kept[1])) == (4, [b"one", b"", b"two"])
        assert list(store.log(4)) == [(5, b"5..6")]
        assert store.meta == meta
        with pytest.raises(StoreCorrupt):
            list(store.log(0))

    def test_an_entry_that_reaches_beyond_it_stays(self, opener: Opener) -> None:
        store = opener()
        fill(store, 2, 4)
        store.write_checkpoint(3, [b"x"], store.meta)
        assert list(store.log(3)) == [(3, b"3..6")]

    def test_the_next_one_replaces_it(self, opener: Opener) -> None:
        store = opener()
        fill(store, 1)
        store.write_checkpoint(1, [b"old"] * 5, store.meta)
        fill(store, 1)
        store.write_checkpoint(2, [b"new"], store.meta)
        kept = store.checkpoint()
        assert kept is not None
        assert (kept[0], list(kept[1])) == (2, [b"new"])
        assert not store.trim()

    def test_a_transferred_state_moves_the_position(self, opener: Opener) -> None:
        store = opener()
        store.write_checkpoint(100, [b"state"], replace(FRESH, position=100, marker=Marker.DIRTY))
        fill(store, 2)
        store.close()
        store = opener()
        assert store.meta.position == 102
        assert list(store.log(100)) == [(101, b"101..102")]

    def test_a_producer_that_fails_leaves_the_old_one(self, opener: Opener) -> None:
        def broken() -> Iterator[bytes]:
            yield b"half"
            raise ValueError("no more")

        store = opener()
        store.write_checkpoint(0, [b"old"], store.meta)
        with pytest.raises(ValueError, match="no more"):
            store.write_checkpoint(0, broken(), store.meta)
        kept = store.checkpoint()
        assert kept is not None
        assert list(kept[1]) == [b"old"]

    def test_entries_may_be_committed_while_it_is_written(self, opener: Opener) -> None:
        store = opener()
        fill(store, 2)
        staging = store.stage(2)
        staging.add([b"a"])
        fill(store, 3)
        store.trim()
        staging.add([b"b"])
        staging.finish()
        assert store.meta.position == 5
        while store.trim():
            pass
        kept = store.checkpoint()
        assert kept is not None
        assert (kept[0], list(kept[1])) == (2, [b"a", b"b"])
        assert list(store.log(2)) == [(3, b"3..5")]

    def test_an_unfinished_one_is_invisible(self, opener: Opener) -> None:
        store = opener()
        store.stage(0).add([b"a", b"b"])
        store.close()
        store = opener()
        assert store.checkpoint() is None
        store.write_checkpoint(0, [b"c"], store.meta)
        kept = store.checkpoint()
        assert kept is not None
        assert list(kept[1]) == [b"c"]

    def test_trimming_is_bounded(self, opener: Opener) -> None:
        store = opener()
        fill(store, 1, 1, 1)
        staging = store.stage(3)
        staging.add([b"x"])
        staging.finish()
        assert store.trim(entries_max=2)
        assert not store.trim(entries_max=2)
        assert not store.trim(entries_max=2)

    def test_it_may_not_forget_entries(self, opener: Opener) -> None:
        store = opener()
        fill(store, 5)
        with pytest.raises(AssertionError):
            store.write_checkpoint(3, [], replace(store.meta, position=3))


class TestKeptLog:
    """A member that comes back finds what it missed in another member's log."""

    def test_a_stated_amount_of_log_before_the_checkpoint_stays(self, opener: Opener) -> None:
        store = opener(kept=12)  # each entry has 4 bytes
        fill(store, 1, 1, 1, 1, 1, 1)
        store.write_checkpoint(6, [b"x"], store.meta)
        assert store.log_begins() == 4
        assert [first for first, _ in store.log(3)] == [4, 5, 6]

    def test_it_is_counted_the_same_after_a_restart(self, opener: Opener) -> None:
        store = opener(kept=12)
        fill(store, 1, 1, 1, 1)
        store.close()
        store = opener(kept=12)
        fill(store, 1, 1)
        store.write_checkpoint(6, [b"x"], store.meta)
        store.close()
        store = opener(kept=12)
        fill(store, 1)
        store.write_checkpoint(7, [b"x"], store.meta)
        assert store.log_begins() == 5

    def test_as_much_log_stays_as_the_checkpoint_is_large(self, opener: Opener) -> None:
        store = opener(kept=1)
        fill(store, 1, 1, 1, 1, 1, 1)
        store.write_checkpoint(6, [b"8 bytes."], store.meta)
        assert store.log_begins() == 5

    def test_log_after_the_checkpoint_stays_whatever_its_size(self, opener: Opener) -> None:
        store = opener(kept=4)
        fill(store, 1, 1, 1, 1)
        store.write_checkpoint(1, [b"x"], store.meta)
        assert store.log_begins() == 2

    def test_without_entries_the_log_begins_past_the_end(self, opener: Opener) -> None:
        store = opener()
        assert store.log_begins() == 1
        fill(store, 3)
        store.write_checkpoint(3, [b"x"], store.meta)
        assert store.log_begins() == 4


class TestPin:
    def test_a_pinned_checkpoint_and_the_log_behind_it_stay(self, opener: Opener) -> None:
        store = opener()
        fill(store, 1, 1)
        store.write_checkpoint(1, [b"one", b"two"], store.meta)
        saved = store.pin()
        assert saved == store.pin()
        assert saved is not None
        assert saved[1:] == (2, 1, 6)
        fill(store, 1)
        store.write_checkpoint(3, [b"new"], store.meta)
        assert list(store.chunks(saved, 1)) == [b"two"]
        assert store.log_begins() == 2
        store.unpin(saved.generation)
        store.trim()
        assert list(store.chunks(saved, 0)) == [b"one", b"two"]
        store.unpin(saved.generation)
        while store.trim():
            pass
        assert store.log_begins() == 4
        with pytest.raises(StoreCorrupt):
            list(store.chunks(saved, 0))

    def test_there_is_none_before_the_first_checkpoint(self, opener: Opener) -> None:
        assert opener().pin() is None


class TestSize:
    def test_size_grows(self, opener: Opener) -> None:
        store = opener()
        before = store.size_bytes()
        store.commit(bytes(100_000), 1, 1, replace(store.meta, position=1))
        assert store.size_bytes() >= before + 90_000


class TestClosed:
    def test_a_closed_store_refuses(self, opener: Opener) -> None:
        store = opener()
        store.close()
        store.close()
        with pytest.raises(StoreFailed):
            store.put_meta(FRESH)
        with pytest.raises(StoreFailed):
            list(store.log(0))
        opener().close()


def test_the_amount_a_start_has_to_read_is_known(opener: Opener) -> None:
    store = opener()
    assert store.bytes_to_start() == (0, 0)
    fill(store, 2, 3)
    entries = len("1..2") + len("3..5")
    assert store.bytes_to_start() == (0, entries)
    store.write_checkpoint(5, [b"state", b"!"], store.meta)
    assert store.bytes_to_start() == (6, 0)
    fill(store, 1, 10)
    assert store.bytes_to_start() == (6, len("6..6") + len("7..16"))
    store.close()
    assert opener().bytes_to_start() == (6, len("6..6") + len("7..16"))
