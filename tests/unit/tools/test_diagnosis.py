"""The archive of qpid-cluster --diagnose: its contents, without any secret."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import click
import pytest

from broker.exit_codes import Exit
from store.api import Meta
from store.lmdb_store import LmdbStore
from store.swap import STORE_NAME
from tools.cli.failures import ToolError
from tools.client.management import Json, ManagementError
from tools.stores.diagnosis import (
    LOG_END_BYTES,
    Sought,
    diagnose,
    sought,
    without_secrets,
)


class Member:
    """A member that answers, or one that does not."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    def ask(self, **request: Json) -> dict[str, Json]:
        """Echo the query."""
        if self.away:
            raise ManagementError("no answer in time")
        return {"asked": request["op"]}


def contents(path: Path) -> dict[str, bytes]:
    """The files of an archive by name."""
    found = {}
    with tarfile.open(path) as archive:
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix("diagnosis/")] = file.read()
    return found


def test_an_archive_holds_what_is_available_and_names_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QPIDD_CLUSTER_PASSWORD", "s3cret-of-the-ring")
    monkeypatch.setenv("QPIDD_CLUSTER_URL", "amqp://bob:s3cret-in-a-url@broker")
    data = tmp_path / "data"
    store = LmdbStore(data / STORE_NAME, Meta("shop", "a", "0123"))
    store.close()
    (data / "log").mkdir()
    (data / "log" / "a.1.1.qml").write_bytes(b"old")
    (data / "log" / "a.1.2.qml").write_bytes(b"x" * 300_000 + b"newest")
    config, log = tmp_path / "qpidd.conf", tmp_path / "qpidd.log"
    config.write_text("port = 5672\ncluster-password = s3cret-of-the-ring\n")
    first = b"has an administrator 'admin' with the password s3cret-first; it is kept in x\n"
    log.write_bytes(b"-" * LOG_END_BYTES + b"\n" + first + b"the end\n")
    out = tmp_path / "report.tar.gz"
    missing = tmp_path / "nowhere"
    document = diagnose(
        Sought(out, (data, missing), (log, missing), (config,)),
        {"a": Member(), "b/../c": Member(away=True)},
    )
    found = contents(out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert json.loads(found["members/a/status.json"]) == {"asked": "status"}
    assert json.loads(found["data-dirs/0-data/store.json"])["cluster_name"] == "shop"
    assert found["data-dirs/0-data/member-log-0/a.1.2.qml.end"].endswith(b"newest")
    assert len(found["data-dirs/0-data/member-log-0/a.1.2.qml.end"]) == 256 << 10
    assert found["logs/0-qpidd.log"].endswith(b"the end\n")
    assert LOG_END_BYTES - 100 < len(found["logs/0-qpidd.log"]) <= LOG_END_BYTES
    assert b"with the password (hidden); it is kept" in found["logs/0-qpidd.log"]
    assert b"port = 5672" in found["options/0-qpidd.conf"]
    problems = found["problems.txt"].decode()
    assert "b/../c: status: no answer in time" in problems
    assert f"{missing}: there is no such directory" in problems
    assert f"{missing}: No such file or directory" in problems
    assert document["files"] == sorted(found)
    for name, content in found.items():
        assert b"s3cret" not in content, name


def test_secrets_of_options_are_hidden() -> None:
    given = (
        "cluster-password=a b\n# password = old\nport = 1\nurl = amqp://u:pw@host\n"
        "broker = bob/pw@host:5672\n"
    )
    hidden = without_secrets(given)
    assert "pw" not in hidden.replace("cluster-password", "")
    assert "a b" not in hidden
    assert "old" not in hidden
    assert "port = 1" in hidden


def test_an_unwritable_archive_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be written") as refused:
        diagnose(Sought(tmp_path / "none" / "x.tar.gz"), {})
    assert refused.value.code == Exit.CANNOT_CREATE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".", "n" * 300])
def test_a_name_that_no_archive_can_have_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolError, match="cannot be written"):
        diagnose(Sought(Path(name)), {})
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    """Root may replace /dev/null, and then nothing on the machine works as before."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError, match=r"pipe cannot be written: it is there already") as refused:
        diagnose(Sought(tmp_path / "pipe"), {})
    assert refused.value.code == Exit.CANNOT_CREATE
    assert [one.is_fifo() for one in tmp_path.iterdir()] == [True]


def test_a_directory_that_cannot_be_looked_at_is_one_of_the_problems(tmp_path: Path) -> None:
    document = diagnose(Sought(tmp_path / "x", (tmp_path / ("d" * 300),)), {})
    assert "File name too long" in str(document["problems"])


def test_options_of_diagnose_are_refused_without_it() -> None:
    given = {"diagnose": None, "data_dirs": (Path("x"),), "logs": (), "configs": ()}
    with pytest.raises(click.UsageError, match="go with --diagnose"):
        sought(given)
