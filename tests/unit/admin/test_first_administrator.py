"""The first administrator of a new cluster."""

from __future__ import annotations

import asyncio
import os
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.admin.definitions import Definitions, Outcome
from broker.admin.first_administrator import FILE, USER, password_in, see_to_it
from broker.machine.commands import Table
from broker.machine.handlers.definitions import FIRST_ADMINISTRATOR
from broker.replication.controller import Controller


class Cluster:
    """The definitions that all members see: the first administrator to be defined is the only
    one."""

    def __init__(self) -> None:
        self.parameters: dict[tuple[str, str], Table] = {}
        self.passwords: list[object] = []
        self.arbitrators: frozenset[str] = frozenset()
        self.events: list[str] = []
        self.machine = SimpleNamespace(definitions={"global_parameter": self.parameters})

    def member(self, name: str, *voices: str) -> Controller:
        primary = SimpleNamespace(
            caught_up_names=frozenset(voices), mark=SimpleNamespace(without_data=self.arbitrators)
        )
        return cast(
            "Controller",
            SimpleNamespace(
                me=SimpleNamespace(name=name), serving=True, primary=primary,
                replica=SimpleNamespace(machine=self.machine),
            ),
        )  # fmt: skip

    async def define(self, what: str, vhost: str, name: str, body: Table, by: str) -> Outcome:
        assert (what, vhost, name, body["first"]) == ("user", "", USER, True)
        self.events.append("define")
        await asyncio.sleep(0)
        if self.parameters:
            return Outcome(409, "")
        self.passwords.append(body["password"])
        self.parameters["", FIRST_ADMINISTRATOR] = {"value": (name, by)}
        return Outcome(201, "")

    async def start(self, data_dir: Path, name: str, *voices: str) -> None:
        definitions = cast("Definitions", self)
        await see_to_it(self.member(name, *voices), definitions, data_dir, kept=True)


def test_it_is_created_once_and_its_password_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    asyncio.run(cluster.start(tmp_path, "a", "a", "b"))
    file = tmp_path / FILE
    password = password_in(file)
    assert cluster.passwords == [password]
    assert len(password) == 20
    assert file.stat().st_mode & 0o777 == 0o600
    assert password not in caplog.text
    assert f"its password is in {file}" in caplog.text
    caplog.clear()
    asyncio.run(cluster.start(tmp_path, "a", "a", "b"))
    assert password_in(file) == password
    assert not caplog.text


def test_two_members_that_do_not_know_of_each_other_create_one(tmp_path: Path) -> None:
    cluster = Cluster()
    a, b = tmp_path / "a", tmp_path / "b"

    async def both() -> None:
        a.mkdir()
        b.mkdir()
        await asyncio.gather(cluster.start(a, "a", "a"), cluster.start(b, "b", "b"))

    asyncio.run(both())
    assert len(cluster.passwords) == 1
    assert (a / FILE).exists() != (b / FILE).exists()


def test_a_password_stored_before_a_crash_is_used(tmp_path: Path) -> None:
    cluster = Cluster()
    password = password_in(tmp_path / FILE)
    asyncio.run(cluster.start(tmp_path, "a", "a"))
    assert cluster.passwords == [password]


def test_a_torn_file_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("user admin pass")
    assert len(password_in(tmp_path / FILE)) == 20


def test_the_password_is_on_the_disk_before_the_user_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power failure could leave an administrator whose password nobody knows."""
    cluster = Cluster()
    of = "broker.admin.first_administrator"
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size > len(f"user {USER} password ")
        cluster.events.append("file")
        fsync(descriptor)

    monkeypatch.setattr(f"{of}.os.fsync", noted)
    monkeypatch.setattr(f"{of}.sync_directory", lambda _: cluster.events.append("directory"))
    asyncio.run(cluster.start(tmp_path, "a", "a"))
    assert cluster.events == ["file", "directory", "define"]


def test_no_arbitrator_is_waited_for(tmp_path: Path) -> None:
    """It has no state, and so defines nobody."""
    cluster = Cluster()
    cluster.arbitrators = frozenset("a")
    asyncio.run(cluster.start(tmp_path, "b", "a", "b"))
    assert cluster.passwords == [password_in(tmp_path / FILE)]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_password_is_shown_on_a_terminal_but_not_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", shown)
    cluster = Cluster()
    asyncio.run(cluster.start(tmp_path, "a", "a"))
    line = f"qpidd: user admin, password {cluster.passwords[0]} (shown once)\n"
    assert shown.getvalue() == (line if is_terminal else "")
