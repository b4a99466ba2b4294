"""Backups: numbered, listed, compared, restored without a vote, copied live, made a new cluster."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner, Result

from broker.replication.chain import item_hash, next_order
from broker.replication.replica import RECORD_VERSION
from store import swap
from store.api import Marker, Meta
from store.backups import copy_store, list_backups
from store.errors import StoreError
from store.files.directory_lock import DirectoryLock
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore
from tests.unit.store.crashing_renames import crash_behind
from tools.commands.qpid_cluster_store import BUSY, MISSING, qpid_cluster_store
from vsync.primary.state_exchange import ZERO_CHAIN

META = Meta(
    "prod", "a:5672", "5eed", cluster_id="ab" * 16, incarnation=7, voters=("a:5672", "b:5672"),
    promised_epoch=5, state_epoch=4, marker=Marker.DIRTY,
)  # fmt: skip


def run(*arguments: str | Path, said: str = "") -> Result:
    """Run the tool in this process."""
    return CliRunner().invoke(qpid_cluster_store, [str(one) for one in arguments], input=said)


def make(path: Path, bodies: Sequence[bytes], meta: Meta = META) -> Meta:
    """Make a store with one entry for each item and position, and a chain of its own."""
    store = LmdbStore(path, replace(meta, position=0))
    order = ZERO_CHAIN
    for first, body in enumerate(bodies, 1):
        order = next_order(order, item_hash(body))
        chain = b"%016d" % hash_of(bodies[:first])
        place = (4, (4, "a", 1), first, "a")
        entry = msgpack.packb((RECORD_VERSION, first, 0, *place, body, first, chain))
        now = replace(meta, position=first, order=order, chain=chain)
        store.commit(entry, first, first, now)
    last = store.meta
    store.close()
    return last


def hash_of(bodies: Sequence[bytes]) -> int:
    return sum(body[0] * (at + 1) for at, body in enumerate(bodies))


def test_a_backups_number_is_hexadecimal_and_the_next_free(tmp_path: Path) -> None:
    make(tmp_path / "_cluster.bak.0009", [b"a"])
    make(tmp_path / "store", [b"a", b"b"])
    assert swap.set_aside(tmp_path).name == "_cluster.bak.000a"
    make(tmp_path / "_cluster.bak.ffff", [b"a"])
    make(tmp_path / "store", [b"a"])
    with pytest.raises(StoreError, match="ffff is taken"):
        swap.set_aside(tmp_path)


def test_the_list_shows_what_a_choice_needs_and_unreadable_ones(tmp_path: Path) -> None:
    assert run("-l", tmp_path).output == f"{tmp_path} has no backups\n"
    make(tmp_path / "_cluster.bak.0001", [b"a", b"b"])
    (tmp_path / "_cluster.bak.0002").mkdir()
    document = json.loads(run("--list", "--json", tmp_path).output)["backups"]
    assert [one["number"] for one in document] == ["0001", "0002"]
    assert (document[0]["epoch"], document[0]["position"]) == (4, 2)
    assert (document[0]["marker"], document[0]["cluster_id"]) == ("dirty", "ab" * 16)
    assert "no store" in document[1]["trouble"]
    lines = run("-l", tmp_path).output.splitlines()
    assert lines[0].split()[:4] == ["number", "epoch", "position", "marker"]
    assert lines[1].split()[:4] == ["0001", "4", "2", "dirty"]
    assert "unreadable" in lines[2]


@pytest.mark.parametrize("data_dir", ["data", "new"])
def test_restoring_a_copy_names_the_option_for_copies(tmp_path: Path, data_dir: str) -> None:
    """An operator who used --backup finds --restore first, while the loss is still to be mended."""
    make(tmp_path / "data" / "store", [b"a"])
    copy = tmp_path / "monday"
    assert run("--backup", copy, tmp_path / "data").exit_code == 0
    ended = run("--restore", copy, tmp_path / data_dir)
    assert ended.exit_code == MISSING
    told = f"--restore-as NAME --member HOST:PORT --into NEWDIR {copy}"
    assert told in ended.output


def test_the_list_says_what_a_broker_will_remove(tmp_path: Path) -> None:
    for number in range(1, 6):
        make(tmp_path / f"_cluster.bak.{number:04x}", [b"a", b"b"])
        os.utime(tmp_path / f"_cluster.bak.{number:04x}" / "data.mdb", (1, 1))
    make(tmp_path / "store", [b"a", b"b"])

    def why() -> list[str]:
        listed = json.loads(run("-l", "--json", tmp_path).output)["backups"]
        assert [one["stays"] for one in listed] == [one["why"] != "no: removed" for one in listed]
        return [one["why"] for one in listed]

    due, stays = "no: removed", "by number"
    assert why() == [due, due, stays, stays, "the newest"]
    assert run("-l", tmp_path).output.count(due) == 2
    shutil.rmtree(tmp_path / "store")  # now they are the only copies
    assert why() == ["not all in the store"] * 4 + ["the newest"]


@pytest.mark.parametrize(
    ("other", "relation", "newer"),
    [
        ([b"a", b"b"], "same", None),
        ([b"a"], "continues", "here"),
        ([b"x"], "diverged", "here"),
        ([b"a", b"x"], "diverged", None),
        ([b"a", b"b", b"c"], "continues", "there"),
        ([b"a", b"x", b"c"], "diverged", "there"),
        ([], "continues", "here"),
    ],
)
def test_backups_are_compared_by_position_and_chain(
    tmp_path: Path, other: list[bytes], relation: str, newer: str | None
) -> None:
    make(tmp_path / "store", [b"a", b"b"])
    make(tmp_path / "_cluster.bak.0001", other)
    found = json.loads(run("--json", "--compare", "1", tmp_path).output)
    assert found["relation"] == relation
    assert found["newer_holds_all"] == (relation != "diverged")
    places = {"here": tmp_path / "store", "there": tmp_path / "_cluster.bak.0001", None: None}
    assert found["newer"] == (None if newer is None else str(places[newer]))
    by_path = run("--json", "--compare", tmp_path / "_cluster.bak.0001", tmp_path)
    assert json.loads(by_path.output) == found


def test_an_impossible_comparison_is_reported(tmp_path: Path) -> None:
    make(tmp_path / "store", [b"a", b"b"])
    make(tmp_path / "_cluster.bak.0001", [b"a"], replace(META, cluster_id="cd" * 16))
    assert "different clusters" in run("--compare", "0001", tmp_path).output
    missing = run("--compare", "0002", tmp_path)
    assert (missing.exit_code, "there are: 0001" in missing.stderr) == (3, True)
    assert run("--compare", tmp_path / "store", tmp_path).exit_code == 1


def test_a_restored_past_has_no_vote_and_keeps_its_promises(tmp_path: Path) -> None:
    """G8: a member that goes back must not elect a primary without what it confirmed."""
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    make(tmp_path / "store", [b"a", b"b"], replace(META, promised_epoch=9, incarnation=30))
    assert run("--restore", "0001", tmp_path, said="n\n").exit_code == 1
    assert inspect(tmp_path / "store").position == 2
    done = run("--restore", "0001", tmp_path, said="y\n")
    assert done.exit_code == 0
    assert "has no vote" in done.output
    meta = inspect(tmp_path / "store")
    assert (meta.position, meta.marker) == (1, Marker.BACKUP)
    assert (meta.promised_epoch, meta.incarnation) == (9, 31)
    assert [(one.name, one.path.name) for one in list_backups(tmp_path)] == [
        ("0002", "_cluster.bak.0002")
    ]
    # Restored forward again, it is behind nothing, so it counts.
    assert run("-f", "--restore", "0002", tmp_path).exit_code == 0
    meta = inspect(tmp_path / "store")
    assert (meta.position, meta.marker, meta.incarnation) == (2, Marker.DIRTY, 32)


@pytest.mark.parametrize("emptied", [False, True])
def test_a_past_has_no_vote_whatever_is_in_its_place(tmp_path: Path, emptied: bool) -> None:
    """G8: what the member confirmed last is in a store that was set aside: by an earlier restore,
    or by --truncate. The one in place was older, and the past got its vote back."""
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    make(tmp_path / "_cluster.bak.0002", [b"a", b"b"])
    last = replace(META, promised_epoch=9, incarnation=30)
    if emptied:
        make(tmp_path / "_cluster.bak.0003", [b"a", b"b", b"c"], last)
        make(tmp_path / "store", [], Meta("prod", "a:5672", "new"))
    else:
        make(tmp_path / "store", [b"a", b"b", b"c"], last)
        assert run("-f", "--restore", "0001", tmp_path).exit_code == 0
    assert run("-f", "--restore", "0002", tmp_path).exit_code == 0
    meta = inspect(tmp_path / "store")
    assert (meta.position, meta.marker, meta.promised_epoch) == (2, Marker.BACKUP, 9)
    assert meta.incarnation > 30
    assert run("-f", "--restore", "0003", tmp_path).exit_code == 0
    meta = inspect(tmp_path / "store")
    assert (meta.position, meta.marker) == (3, Marker.DIRTY), "the newest has it"


def test_a_store_of_another_cluster_says_nothing_of_this_one(tmp_path: Path) -> None:
    make(tmp_path / "_cluster.bak.0001", [b"a", b"b"], replace(META, cluster_id="cd" * 16))
    make(tmp_path / "_cluster.bak.0002", [b"a"])
    make(tmp_path / "store", [], Meta("prod", "a:5672", "new"))
    assert run("-f", "--restore", "0002", tmp_path).exit_code == 0
    assert inspect(tmp_path / "store").marker is Marker.DIRTY


def test_a_copy_of_the_present_state_has_its_vote(tmp_path: Path) -> None:
    for name in ("_cluster.bak.0001", "store"):
        make(tmp_path / name, [b"a"])
    assert run("-f", "--restore", "0001", tmp_path).exit_code == 0
    assert inspect(tmp_path / "store").marker is Marker.DIRTY


def test_a_copy_has_what_is_only_in_the_journal(tmp_path: Path) -> None:
    make(tmp_path / "one", [b"a"])
    store = LmdbStore(tmp_path / "one")
    store.commit(b"x", 2, 2, replace(store.meta, position=2))
    shutil.copytree(tmp_path / "one", tmp_path / "store")  # LMDB opens a file once in a process
    store.close()
    assert copy_store(tmp_path / "store", tmp_path / "copy").position == 2
    copied = LmdbStore(tmp_path / "copy")
    assert [first for first, _ in copied.log(0)] == [1, 2]
    copied.close()


def test_without_the_store_nobody_knows_what_it_confirmed(tmp_path: Path) -> None:
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    (tmp_path / "_cluster.bak.0002").mkdir()  # unreadable
    assert run("-f", "--restore", "1", tmp_path).exit_code == 0
    assert inspect(tmp_path / "store").marker is Marker.BACKUP
    assert run("-c", tmp_path).exit_code == 0
    assert inspect(tmp_path / "store").marker is Marker.CLEAN


def test_a_restored_store_that_no_cluster_used_is_still_empty(tmp_path: Path) -> None:
    make(tmp_path / "_cluster.bak.0001", [], Meta("prod", "a:5672", "new"))
    assert run("-f", "--restore", "1", tmp_path).exit_code == 0
    assert inspect(tmp_path / "store").marker is Marker.EMPTY


def test_a_store_in_use_is_not_replaced(tmp_path: Path) -> None:
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    make(tmp_path / "store", [b"a", b"b"])
    store = LmdbStore(tmp_path / "store")
    refused = run("-f", "--restore", "0001", tmp_path)
    store.close()
    assert refused.exit_code == 5
    assert inspect(tmp_path / "_cluster.bak.0001").marker is Marker.DIRTY


@pytest.mark.parametrize("renames", [0, 1])
def test_an_interrupted_restore_is_completed_or_undone(tmp_path: Path, renames: int) -> None:
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    make(tmp_path / "store", [b"a", b"b"])
    with crash_behind(renames):
        swap.restore(tmp_path, tmp_path / "_cluster.bak.0001")
    assert swap.recover(tmp_path) == (renames == 1)
    assert inspect(tmp_path / "store").position == (1 if renames else 2)
    left = [one.name for one in list_backups(tmp_path)]
    assert left == (["0002"] if renames else ["0001"])
    # Nothing is left of it that a later start could take for an unfinished switch.
    (tmp_path / "store").rename(tmp_path / "gone")
    assert not swap.recover(tmp_path)


def test_a_start_completes_the_last_restore_that_was_begun(tmp_path: Path) -> None:
    """Two were cut short. The first one's mark remained there, and its number is lower."""
    make(tmp_path / "_cluster.bak.0001", [b"a"])
    make(tmp_path / "_cluster.bak.0002", [b"a", b"b"])
    make(tmp_path / "store", [b"a", b"b", b"c"])
    for renames, number in enumerate(("0001", "0002")):
        with crash_behind(renames):
            swap.restore(tmp_path, tmp_path / f"_cluster.bak.{number}")
    assert swap.recover(tmp_path)
    assert inspect(tmp_path / "store").position == 2
    assert [one.name for one in list_backups(tmp_path)] == ["0001", "0003"]


def test_a_copy_has_no_vote_and_is_never_partial(tmp_path: Path) -> None:
    last = make(tmp_path / "store", [b"a", b"b"])
    done = run("--backup", tmp_path / "copy", tmp_path)
    assert (done.exit_code, "position 2 of epoch 4" in done.output) == (0, True)
    meta = inspect(tmp_path / "copy")
    assert (meta.position, meta.chain, meta.marker) == (2, last.chain, Marker.BACKUP)
    again = run("--backup", tmp_path / "copy", tmp_path)
    assert (again.exit_code, "exists" in again.stderr) == (1, True)
    assert not (tmp_path / "copy.partial").exists()
    make(tmp_path / "empty", [], replace(META, marker=Marker.EMPTY))
    with pytest.raises(StoreError, match="holds no state"):
        copy_store(tmp_path / "empty", tmp_path / "other")


def test_a_copy_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "store", [b"a"])
    nearly_full = shutil._ntuple_diskusage(1 << 40, 1 << 40, 63 << 20)
    monkeypatch.setattr("store.backups.shutil.disk_usage", lambda _: nearly_full)
    refused = run("--backup", tmp_path / "copy", tmp_path)
    assert refused.exit_code == 1
    assert "63 MB free" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_new_cluster_from_a_copy_has_its_own_identity(tmp_path: Path) -> None:
    make(tmp_path / "store", [b"a", b"b"])
    into = tmp_path / "new"
    arguments = ("--restore-as", "trial", "--member", "127.0.0.1:26672", "--into", into, tmp_path)
    done = run("--json", *arguments)
    assert done.exit_code == 0, done.stderr
    meta = inspect(into / "store")
    assert (meta.cluster_name, meta.member, meta.voters) == (
        "trial", "127.0.0.1:26672", ("127.0.0.1:26672",)
    )  # fmt: skip
    assert meta.cluster_id == json.loads(done.output)["cluster_id"] != META.cluster_id
    assert (meta.position, meta.promised_epoch, meta.marker) == (2, 5, Marker.CLEAN)
    assert inspect(tmp_path / "store").cluster_name == "prod"
    again = run(*arguments)
    assert (again.exit_code, "has a store" in again.stderr) == (1, True)
    assert run("--restore-as", "trial", tmp_path).exit_code == 2
    assert run("-c", "-l", tmp_path).exit_code == 2


def test_a_new_cluster_cannot_replace_a_broker_that_just_started(tmp_path: Path) -> None:
    """The broker locks the directory before it makes a store there, which this would set aside."""
    make(tmp_path / "store", [b"a"])
    into = tmp_path / "new"
    into.mkdir()
    lock = DirectoryLock(into)
    arguments = ("--restore-as", "trial", "--member", "127.0.0.1:26672", "--into", into, tmp_path)
    refused = run(*arguments)
    assert refused.exit_code == BUSY
    assert f"{into} is in use by process {os.getpid()}" in refused.stderr
    lock.release()
    assert run(*arguments).exit_code == 0


def test_a_new_cluster_can_be_begun_again_after_it_was_cut_short(tmp_path: Path) -> None:
    make(tmp_path / "old" / "store", [b"a"])
    (tmp_path / "new" / "store.restoring").mkdir(parents=True)
    given = ("--restore-as", "a b", "--member", "z:1", "--into", tmp_path / "new")
    result = run(*given, tmp_path / "old")
    assert result.exit_code == 0, result.output
    assert "start it: qpidd --cluster-name 'a b' --cluster-bind z:1" in result.output


@pytest.mark.parametrize("option", ["--backup", "--restore", "--compare"])
def test_a_variable_that_is_not_set_is_no_success(tmp_path: Path, option: str) -> None:
    """`--backup "$TO"` would print the store, and make no backup."""
    make(tmp_path / "store", [b"a"])
    result = run(option, "", tmp_path)
    assert (result.exit_code, f"{option} is given nothing" in result.output) == (2, True)
