"""qpid-cluster-verify apart from Spark: what it refuses before it starts, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.system.verify.support.make_logs import good_history
from tools.commands import qpid_cluster_verify
from tools.verify import job
from tools.verify.report import html
from tools.verify.report.result import Counts, Report


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of logs."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    good_history(1).write(tmp_path / "logs")
    return tmp_path / "logs"


def run(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(qpid_cluster_verify.qpid_cluster_verify, list(map(str, arguments)))


class TestBeforeSpark:
    """Unusable paths are named at once, not after minutes of checking."""

    @pytest.fixture(autouse=True)
    def _without_spark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(qpid_cluster_verify, "spark_session", None)

    @pytest.mark.parametrize("option", ["--html", "--save", "--export"])
    @pytest.mark.parametrize("parent", ["no", "file"])
    def test_an_unwritable_path_is_refused(self, logs: Path, option: str, parent: str) -> None:
        (logs / "file").write_text("")
        said = run(logs, option, logs / parent / "output")
        assert said.exit_code == 2
        assert f"{option} {logs / parent / 'output'}: {logs / parent} cannot be" in said.output

    def test_an_existing_export_directory_is_refused(self, logs: Path) -> None:
        said = run(logs, "--export", logs)
        assert said.exit_code == 2
        assert f"{logs} exists already: name a new directory" in said.output

    @pytest.mark.parametrize("follow", [[], ["--follow"]])
    def test_an_invalid_saved_checkpoint_is_refused(self, logs: Path, follow: list[str]) -> None:
        (logs / "point").write_text("{}")
        said = run(logs, "--since", logs / "point", *follow)
        assert said.exit_code == 2
        assert "is not a verified point of --save" in said.output


class TestEndings:
    """Only a verdict has the exit status of a verdict."""

    @pytest.fixture(autouse=True)
    def _without_spark(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        @contextmanager
        def scratch(*_: object, **__: object) -> Iterator[None]:
            with tempfile.TemporaryDirectory(dir=tmp_path, prefix="scratch"):
                yield

        monkeypatch.setattr(qpid_cluster_verify, "spark_session", scratch)
        monkeypatch.setattr(qpid_cluster_verify, "progress", scratch)

    @pytest.mark.parametrize("option", [["--master", "local[2]"], [], ["--follow"]])
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_signal_is_no_verdict_and_leaves_no_files(
        self, logs: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, option: list[str]
    ) -> None:
        def killed(*_: object) -> None:
            assert "--master" not in option or any(logs.parent.glob("scratch*"))
            os.kill(os.getpid(), number)

        monkeypatch.setattr(job, "verify", killed)
        monkeypatch.setattr(qpid_cluster_verify, "alert", killed)
        # A shell makes background commands ignore SIGINT, and perhaps these tests too.
        before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        inherited = signal.signal(number, before)
        try:
            assert run(logs, *option).exit_code == code
            assert signal.getsignal(number) == before
        finally:
            signal.signal(number, inherited)
        assert not list(logs.parent.glob("scratch*"))

    def test_a_query_that_a_signal_interrupts_is_no_failure_of_the_check(
        self, logs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DuckDB raises an error of its own in the place of what the signal's handler raised."""

        def killed(*_: object) -> None:
            try:
                signal.raise_signal(signal.SIGTERM)
            except SystemExit:
                raise RuntimeError("Query interrupted") from None

        monkeypatch.setattr(job, "verify", killed)
        said = run(logs)
        assert (said.exit_code, said.output) == (143, "")

    @pytest.mark.parametrize("why", [OSError(28, "No space left"), ValueError("no such lane")])
    def test_a_failure_to_write_the_page_keeps_the_verdict(
        self, logs: Path, monkeypatch: pytest.MonkeyPatch, why: Exception
    ) -> None:
        def fails(*_: object) -> str:
            raise why

        monkeypatch.setattr(job, "verify", lambda *_: Report(Counts(), [], []))
        monkeypatch.setattr(html, "page", fails)
        said = run(logs, "--html", logs / "page.html")
        assert said.exit_code == 0
        assert f"cannot write {logs / 'page.html'}: " in said.stderr
        assert "no such lane" in said.stderr or "No space left" in said.stderr


WITHOUT_THE_EXTRA = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyarrow", "pyspark", "duckdb", "pandas", "numpy"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from tools.commands.qpid_cluster_verify import main
main()
"""


@pytest.mark.parametrize("option", ["--help", "--fast"])
def test_commands_that_need_no_extra_run_without_it(logs: Path, option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA, option, str(logs)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("Usage: " if option == "--help" else "fast: members 3")
