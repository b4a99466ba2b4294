"""qpid-cluster-store: what it shows, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
from click.testing import CliRunner, Result

from store.api import Marker, Meta
from store.lmdb_store import LmdbStore
from tools.commands.qpid_cluster_store import qpid_cluster_store

META = Meta(
    "prod", "a:5672", "5eed", cluster_id="ab" * 16, incarnation=7, voters=("a:5672", "b:5672"),
    promised_epoch=5, state_epoch=4, chain=b"\x01" * 16, marker=Marker.DIRTY,
)  # fmt: skip


def run(*arguments: str) -> Result:
    """Run the tool in this process."""
    return CliRunner().invoke(qpid_cluster_store, list(arguments))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with a dirty store at position 3."""
    store = LmdbStore(tmp_path / "store", META)
    store.commit(b"x", 1, 3, replace(META, position=3))
    store.close()
    return tmp_path


def test_it_shows_what_a_choice_of_store_needs(data_dir: Path) -> None:
    for place in (data_dir, data_dir / "store"):
        result = run(str(place))
        assert result.exit_code == 0
        for said in ("dirty", "abab", "a:5672, incarnation 7", "4, promised 5", "b:5672", "0101"):
            assert said in result.output
        assert "position:    3\n" in result.output


def test_json_is_one_document(data_dir: Path) -> None:
    document = json.loads(run("--json", str(data_dir)).output)
    assert (document["marker"], document["epoch"], document["position"]) == ("dirty", 4, 3)
    assert document["voters"] == ["a:5672", "b:5672"]
    assert document["digest"] == "01" * 16
    assert (document["in_use"], document["pid"], document["changed"]) == (False, None, False)


def test_marking_clean_raises_the_incarnation_and_is_noted(data_dir: Path) -> None:
    result = run("-c", str(data_dir))
    assert result.exit_code == 0
    assert "marked clean" in result.output
    first = json.loads(run("--json", str(data_dir)).output)
    assert (first["marker"], first["incarnation"]) == ("clean", 8)
    assert "declared this dirty store clean at position 3 of epoch 4" in first["note"]
    assert len(first["shutdown_id"]) == 32
    again = run("-c", "--json", str(data_dir))
    assert again.exit_code == 0
    assert json.loads(again.output) == first
    assert first["voters"] == ["a:5672", "b:5672"]


def test_the_last_store_may_go_on_alone(data_dir: Path) -> None:
    assert run("-c", str(data_dir)).exit_code == 0
    assert run("-c", "--sole-voter", "-f", str(data_dir)).exit_code == 0
    document = json.loads(run("--json", str(data_dir)).output)
    assert document["voters"] == ["a:5672"]
    assert "the voters were a:5672, b:5672" in document["note"]
    assert run("--sole-voter", str(data_dir)).exit_code == 2


def test_it_asks_whether_the_others_are_gone_for_good(data_dir: Path) -> None:
    """Two stores told to go on alone become two clusters."""
    for typed, code in (("\n", 1), ("no\n", 1), ("", 1), ("Yes\n", 0)):
        before = json.loads(run("--json", str(data_dir)).output)
        result = CliRunner().invoke(
            qpid_cluster_store, ["-c", "--sole-voter", str(data_dir)], input=typed
        )
        assert result.exit_code == code
        assert "Warning: b:5672 will have no vote any more" in result.output
        assert "Are they gone for good? [N]: " in result.output
        changed = json.loads(run("--json", str(data_dir)).output) != before
        assert changed is (code == 0)
        assert ("Operation canceled" in result.output) is (code == 1)


def test_for_a_pair_it_asks_about_the_peer_and_stays_a_pair(tmp_path: Path) -> None:
    """The peer gets its state from here; the pair's rule is a voter term, not a voter that
    is gone."""
    LmdbStore(
        tmp_path / "store", replace(META, voters=("a:5672", "b:5672", "@pair=b:5672"))
    ).close()
    result = CliRunner().invoke(
        qpid_cluster_store, ["-c", "--sole-voter", str(tmp_path)], input="y\n"
    )
    asked = result.output.partition(" [N]: ")[0]
    assert asked.startswith("Warning: what only b:5672 confirmed is given up: if it is started")


@pytest.mark.parametrize("other", [("--backup", "b"), ("--skip-quarantined",), ("-l",)])
def test_one_thing_is_done_at_a_time(data_dir: Path, other: tuple[str, ...]) -> None:
    result = run("-c", *other, str(data_dir))
    assert (result.exit_code, "Only one command option" in result.stderr) == (2, True)


@pytest.mark.parametrize("marker", [Marker.EMPTY, Marker.JOINING])
def test_a_store_without_a_state_cannot_be_kept(tmp_path: Path, marker: Marker) -> None:
    LmdbStore(tmp_path / "store", replace(META, marker=marker)).close()
    result = run("-c", str(tmp_path))
    assert result.exit_code == 1
    assert marker.value in result.stderr
    assert json.loads(run("--json", str(tmp_path)).output)["marker"] == marker.value


def test_a_store_that_was_set_aside_may_be_the_last_one(tmp_path: Path) -> None:
    """G28: the store of a pair's member that met its peer's history, which has since been lost."""
    voters = ("a:5672", "b:5672", "@pair=b:5672")
    for name, away, code in (("mine", "b:5672", 0), ("being received", "a:5672", 1)):
        meta = replace(META, marker=Marker.JOINING, voters=(*voters, f"@away={away}"))
        store = LmdbStore(tmp_path / name / "store", meta)
        store.commit(b"x", 1, 3, replace(meta, position=3))
        store.close()
        assert run("-c", str(tmp_path / name)).exit_code == 1
        assert run("-c", "--sole-voter", "-f", str(tmp_path / name)).exit_code == code
    found = json.loads(run("--json", str(tmp_path / "mine")).output)
    assert found["voters"] == [*voters, "@away=b:5672", "@declared"]


def test_an_inconsistent_store_may_be_the_last_one(tmp_path: Path) -> None:
    meta = replace(META, marker=Marker.INCONSISTENT, note="out-voted at position 9")
    LmdbStore(tmp_path / "store", meta).close()
    assert run("-c", str(tmp_path)).exit_code == 0
    note = json.loads(run("--json", str(tmp_path)).output)["note"]
    assert note.startswith("out-voted at position 9\n")


def test_nothing_there(tmp_path: Path) -> None:
    result = run(str(tmp_path))
    assert result.exit_code == 3
    assert "no store" in result.stderr


def test_something_else_there(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"zebra", b"1")
    assert run(str(tmp_path)).exit_code == 4
    (tmp_path / "data.mdb").write_bytes(b"garbage" * 5000)
    assert run(str(tmp_path)).exit_code == 4


def test_usage() -> None:
    assert run().exit_code == 2
    assert run("--nonsense", "x").exit_code == 2
    text = run("--help").output
    assert "Never do this to two stores" in text
    assert "Exit status" in text


def test_a_store_in_use_can_be_read_and_not_marked(data_dir: Path) -> None:
    root = Path(__file__).parents[3]
    script = (
        "import sys; from pathlib import Path; from store.lmdb_store import LmdbStore\n"
        "store = LmdbStore(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(data_dir / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        shown = run("--json", str(data_dir))
        marked = run("-c", str(data_dir))
        holder.communicate()
    assert shown.exit_code == 0
    assert json.loads(shown.output)["pid"] == holder.pid
    assert marked.exit_code == 5
    assert f"in use by process {holder.pid}" in marked.stderr
    assert json.loads(run("--json", str(data_dir)).output)["marker"] == "dirty"
