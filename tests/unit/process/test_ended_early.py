"""A broker that is asked to end before it has a member leaves no temporary directory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.durability.data_directory import DataDirectory
from broker.exit_codes import Exit
from broker.options.broker import broker_options
from store.errors import StoreUnreadable
from store.files.space import Reserve

ASKED_TO_END = """
import pathlib, signal, sys, tempfile
from broker.process import server
from tools.commands.qpidd import main

made, number = server.DataDirectory, int(sys.argv.pop())

def opened(*given):
    found = made(*given)
    assert list(pathlib.Path(tempfile.gettempdir()).glob("qpidd-*"))
    signal.raise_signal(number)
    return found

server.DataDirectory = opened
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_there_is_a_member_waits_for_it(tmp_path: Path, number: int) -> None:
    options = ("--no-data-dir", "--port", "0", "--management-port", "0", str(int(number)))
    ended = subprocess.run(
        [sys.executable, "-c", ASKED_TO_END, *options],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == Exit.OK, ended.stderr
    assert "stopping: " in ended.stderr
    assert not list(tmp_path.glob("qpidd-*"))


def test_a_start_that_fails_removes_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: object) -> None:
        raise StoreUnreadable("full")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Reserve, "demand_room", full)
    with pytest.raises(StoreUnreadable):
        DataDirectory(broker_options({"no-data-dir": "yes"}))
    assert not list(tmp_path.iterdir())
