"""What a broker refuses at start: one sentence, its own exit code, and nothing changed on disk."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from tests.system.support.undisturbed import Undisturbed
from tools.demo.local_cluster import HOST, ROOT, LocalCluster, command, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow]


def qpidd(*arguments: str) -> tuple[int, str]:
    """Start a broker that should refuse; return its exit code and stderr.

    Ports derived from ``--port`` may lie in the range of outgoing connections and be taken.  So
    there is no management API, and a test that names a cluster names its ring's port.
    """
    ended = subprocess.run(
        [*command("qpidd"), "--log-level", "warning", "--management-port", "off", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def one_sentence(stderr: str) -> bool:
    """Whether this is a single line from the command itself, not a traceback."""
    return stderr.startswith("qpidd: ") and stderr.count("\n") == 1


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its content; for a lock, its holder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "lock" not in path.name
    }


def free_port() -> str:
    """A free port as an option."""
    return str(free_ports(1)[0])


def test_a_port_in_use(cluster: LocalCluster, tmp_path: Path) -> None:
    data = tmp_path / "data"
    code, said = qpidd("--port", str(cluster[0].address.port), "--data-dir", str(data))
    assert code == Exit.UNAVAILABLE, said
    assert one_sentence(said), said
    assert f"{cluster[0].address}" in said
    assert not data.exists()


def test_a_ring_port_in_use(cluster: LocalCluster, tmp_path: Path) -> None:
    taken = cluster[0].status().members[0].id
    data = tmp_path / "data"
    code, said = qpidd(
        "--port", free_port(), "--data-dir", str(data),
        "--cluster-name", "other", "--cluster-bind", taken,
    )  # fmt: skip
    assert code == Exit.UNAVAILABLE, said
    assert one_sentence(said), said
    assert taken in said


def test_settings_that_must_be_equal(cluster: LocalCluster, tmp_path: Path) -> None:
    """A newcomer is told both values; the others do not even change their view (G15)."""
    voters = cluster[0].status().raw["voters"]
    port, ring = free_ports(2)
    with Undisturbed(cluster):
        code, said = qpidd(
            "--port", str(port), "--data-dir", str(tmp_path / "data"), "--cluster-name", "test",
            "--cluster-bind", f"{HOST}:{ring}", "--cluster-size", "2", "--clock-bound", "5",
            "--cluster-nodes", ",".join(member.id for member in cluster[0].status().members),
        )  # fmt: skip
    assert code == Exit.PROTOCOL, said
    assert "settings differ that must be equal: cluster-size is 2 here and 3 at" in said
    assert cluster[0].status().raw["voters"] == voters


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    code, said = qpidd("--interface", "203.0.113.1", "--port", free_port(), "--data-dir", str(data))
    assert code == Exit.UNAVAILABLE, said
    assert one_sentence(said), said
    assert not data.exists()


def test_a_data_directory_in_use(cluster: LocalCluster) -> None:
    member = cluster[1]
    before = fingerprint(member.data_dir / "store").keys()
    code, said = qpidd(
        "--port", free_port(), "--data-dir", str(member.data_dir),
        "--cluster-name", "test", "--cluster-bind", f"{HOST}:{free_port()}",
    )  # fmt: skip
    assert code == Exit.BUSY, said
    assert one_sentence(said), said
    assert str(member.pid) in said
    assert fingerprint(member.data_dir / "store").keys() == before


@pytest.mark.parametrize("where", ["file", "below a file", "/proc/qpidd"])
def test_an_impossible_data_directory(tmp_path: Path, where: str) -> None:
    blocking = tmp_path / "file"
    blocking.write_text("mine")
    data = {"file": blocking, "below a file": blocking / "data"}.get(where, Path(where))
    code, said = qpidd("--port", free_port(), "--data-dir", str(data))
    assert code == Exit.CANNOT_CREATE, said
    assert one_sentence(said), said
    assert str(data) in said
    assert blocking.read_text() == "mine"


def test_a_store_of_another_cluster(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1, "ours") as ours:
        ours.start()
        assert ours[0].terminate() == Exit.OK
        data = ours[0].data_dir
        before = fingerprint(data)
        theirs = ("--cluster-name", "theirs", "--cluster-bind", f"{HOST}:{free_port()}")
        for arguments in ((), theirs):
            code, said = qpidd("--port", free_port(), "--data-dir", str(data), *arguments)
            assert code == Exit.DATA, said
            assert one_sentence(said), said
            assert "ours" in said
            assert fingerprint(data) == before
        ours.start()


def test_a_damaged_store(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1, "ours") as ours:
        ours.start()
        assert ours[0].terminate() == Exit.OK
        store = ours[0].data_dir / "store" / "data.mdb"
        store.write_bytes(b"this is no store" * 4096)
        ours[0].start()
        assert ours[0].wait() == Exit.DATA
        log = ours[0].log_path.read_text()
        assert "Traceback" not in log
        *_, last = log.splitlines()
        assert last.count(str(store.parent)) == 1
        assert "start with --truncate" in last
