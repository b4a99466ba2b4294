"""qpid-cluster-verify as a command: text, JSON, exit codes, and its requirements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from click.testing import CliRunner, Result

from broker.memberlog.records import Durable
from tests.system.verify.corruption.corrupt_logs import change_an_outcome
from tests.system.verify.support.make_logs import good_history
from tests.system.verify.support.spark_session import shared_session
from tools.commands import qpid_cluster_verify
from tools.verify import job, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def run(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(qpid_cluster_verify.qpid_cluster_verify, list(arguments))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the session that all tests share."""

    @contextmanager
    def ours(_master: str, _verbose: bool) -> Iterator[SparkSession]:
        yield shared_session()

    monkeypatch.setattr(qpid_cluster_verify, "spark_session", ours)


@pytest.mark.usefixtures("shared")
class TestVerdicts:
    @pytest.mark.parametrize("master", [[], ["--master", "local[2]"]])
    def test_consistent(self, tmp_path: Path, master: list[str]) -> None:
        """Small logs need no Spark; the result with Spark is the same."""
        good_history().write(tmp_path)
        result = run(str(tmp_path), *master)
        assert result.exit_code == 0
        assert "members 3, incarnations 4" in result.output
        assert "consistent: G1, G2" in result.output
        assert "note: c (incarnation 1)" in result.output

    def test_not_consistent(self, tmp_path: Path) -> None:
        maker = good_history()
        promise, member, position = change_an_outcome(maker)
        maker.write(tmp_path)
        result = run("--json", str(tmp_path))
        assert result.exit_code == 1
        document = json.loads(result.stdout)
        assert document["consistent"] is False
        assert document["counts"]["members"] == 3
        named = [(f["property"], f["member"], f["position"]) for f in document["findings"]]
        assert (promise, member, position) in named
        assert {f["title"] for f in document["findings"]} == {"same state everywhere"}

    def test_an_error_in_the_check_gives_no_verdict(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("division by zero")

        good_history().write(tmp_path)
        monkeypatch.setattr(job, "verify", broken)
        result = run("--json", str(tmp_path))
        assert result.exit_code == 2
        assert json.loads(result.stdout)["consistent"] is None
        assert "the check itself failed: division by zero" in result.stderr

    @pytest.mark.parametrize("closed", [True, False])
    def test_an_unwritable_report_is_no_failure_of_the_check(
        self, tmp_path: Path, *, closed: bool
    ) -> None:
        """On a full disk the sentence is that of every command; a closed pipe needs none."""
        good_history().write(tmp_path)
        reader, output = os.pipe()
        os.close(reader)
        if not closed:
            os.close(output)
            output = os.open("/dev/full", os.O_WRONLY)
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "tools.commands.qpid_cluster_verify", str(tmp_path)],
                stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            os.close(output)
        sentence = "qpid-cluster-verify: output: no space left on device\n"
        assert (ended.returncode, ended.stderr) == (2, "" if closed else sentence)

    def test_a_page_with_pictures(self, tmp_path: Path) -> None:
        good_history().write(tmp_path)
        result = run(str(tmp_path), "--html", str(tmp_path / "report.html"))
        assert result.exit_code == 0
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert text.count("<svg") == 3  # members, lags, messages
        assert "c (incarnation 2)" in text
        assert "takes the state at position" in text
        assert "epoch 3" in text

    def test_checking_continues_from_a_saved_checkpoint(self, tmp_path: Path) -> None:
        logs, point, export = tmp_path / "logs", tmp_path / "point", tmp_path / "export"
        maker = good_history(12)
        c = "c", 2  # a and b are a majority without it
        on_disk = [r for r in maker.logs[c] if not (isinstance(r, Durable) and r.position > 60)]
        maker.logs[c] = on_disk
        maker.write(logs, segment_bytes=1500)
        first = run("--json", "--save", str(point), "--export", str(export), str(logs))
        assert first.exit_code == 0, first.output
        files = list(export.glob("member=*/incarnation=*/*.parquet"))
        assert {file.parent.parent.name[-1] for file in files} == {"a", "b", "c"}
        exported = pyarrow.dataset.dataset(export, partitioning="hive").to_table(["file", "kind"])
        held = {Path(file).name for file in exported["file"].to_pylist()}
        assert held == {path.name for path in logs.rglob("*.qml")}  # unclosed ones, too
        again = run("--json", "--since", str(point), str(logs))
        assert again.exit_code == 0, again.output
        one, two = (json.loads(result.stdout)["counts"] for result in (first, again))
        assert two["segments"] < one["segments"]
        assert two["batches"] < one["batches"]
        assert (two["records"], two["epochs"], two["lives"]) == (
            one["records"], one["epochs"], one["lives"],
        )  # fmt: skip
        assert run("--export", str(export), str(logs)).exit_code == 2  # it exists

    def test_no_verdict(self, tmp_path: Path) -> None:
        result = run("--json", str(tmp_path))
        assert result.exit_code == 2
        assert "there is no member log" in json.loads(result.stdout)["error"]
        assert json.loads(result.stdout)["consistent"] is None
        assert result.stderr.startswith("qpid-cluster-verify: there is no member log")


def test_usage() -> None:
    assert run().exit_code == 2
    text = run("--help").output
    for promise in ("G1 ", "G2 ", "G6 ", "G7 ", "G8 ", "G9 ", "G10", "G14"):
        assert promise in text


class TestRequirements:
    def test_without_pyspark_the_extra_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good_history().write(tmp_path)
        monkeypatch.setattr(spark_session, "find_spec", lambda name: None)
        result = run(str(tmp_path))
        assert result.exit_code == 2
        assert "pip install 'qpid-cluster-py[verify]'" in result.stderr


def test_the_command_itself_is_quiet(tmp_path: Path) -> None:
    good_history().write(tmp_path)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.commands.qpid_cluster_verify",
            "--master",
            "local[2]",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=590,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "consistent" in done.stdout
