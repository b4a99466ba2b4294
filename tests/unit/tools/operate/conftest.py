"""Runs commands against canned answers of the management API."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from tests.support.dashboard.canned_api import CannedApi
from tests.unit.tools.operate.commands import Ended, Run
from tools.cli.options import run_command


@pytest.fixture(scope="module")
def canned() -> Iterator[CannedApi]:
    """One API for all tests of this file."""
    found = CannedApi()
    yield found
    found.close()


@pytest.fixture
def api(canned: CannedApi) -> CannedApi:
    """The API with its canned answers unchanged."""
    canned.changes.clear()
    canned.refusals.clear()
    canned.failures.clear()
    return canned


@pytest.fixture
def run(api: CannedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as its user would, against the API."""
    monkeypatch.setenv("QPID_BROKER", f"127.0.0.1:{api.port}")
    monkeypatch.setenv("QPID_USER", "ada")
    monkeypatch.setenv("QPID_PASSWORD", "pw")

    def command(what: click.Command, *arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            run_command(what, arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    return command
