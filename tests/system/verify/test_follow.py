"""Following live logs: differences are reported while members write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from broker.memberlog.records import SUFFIX, RecordKind
from broker.memberlog.segments import pack
from tests.system.verify.corruption.corrupt_logs import change_an_outcome
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.live_logs import InBackground, LiveWriters
from tests.system.verify.support.make_logs import good_history
from tools.demo.local_cluster import ROOT, free_ports
from tools.verify.findings import BadInput, Finding
from tools.verify.input.offsets import segments_by_incarnation
from tools.verify.live.follow import FollowResult, follow

pytest.importorskip("duckdb")

RESULTS_MAX = 400


def follow_writers(writers: LiveWriters, logs: Path, until: int) -> list[FollowResult]:
    """Follow while members write, until all have verified a position."""
    seen: list[FollowResult] = []
    background = InBackground(writers, 2, 0.5)
    background.start()
    try:
        stop = lambda: bool(seen) and seen[-1].progress.verified >= until  # noqa: E731
        for result in follow([logs], stop):
            seen.append(result)
            assert len(seen) < RESULTS_MAX
    finally:
        background.stop()
    return seen


@pytest.mark.slow
def test_a_correct_history_is_followed_to_its_end(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    maker = good_history()
    writers = LiveWriters(maker, logs, 1500)
    seen = follow_writers(writers, logs, maker.history.position)
    assert [finding for result in seen for finding in result.findings] == []
    assert len(seen) > 2
    assert [result.progress.verified for result in seen] == sorted(
        result.progress.verified for result in seen
    )
    shown = [(lag.member, lag.incarnation) for lag in seen[-1].progress.lags if lag.live]
    assert shown == [("a", 1), ("b", 1), ("c", 2)]  # c was restarted meanwhile
    document = seen[-1].as_document()
    # The last records may arrive after the look that saw the last batch; all others were read.
    written = sum(path.stat().st_size for path in logs.rglob("*.qml"))
    assert seen[-1].unread_bytes < written / 4
    assert document["newest"] == document["verified"] == maker.history.position


@pytest.mark.slow
def test_a_divergence_is_reported_while_the_members_go_on(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    maker = good_history()
    promise, member, position = change_an_outcome(maker)
    writers = LiveWriters(maker, logs, 1500)
    seen = follow_writers(writers, logs, maker.history.position)
    found: list[Finding] = [finding for result in seen for finding in result.findings]
    assert (promise, member, position) in [(f.property, f.member, f.position) for f in found]
    assert not seen[-1].findings  # reported before the end, and once
    assert len(found) == len(set(found))
    assert {finding.member for finding in found} == {member}


def test_segments_may_be_compressed_and_deleted_while_they_are_followed(tmp_path: Path) -> None:
    """Progress is counted in bytes of the log, whichever file holds, or held, them."""
    maker = good_history()
    writers = LiveWriters(maker, tmp_path, 700)
    found: list[Finding] = []
    verified, deleted, packed = -1, 0, 0
    stop = lambda: verified >= maker.history.position  # noqa: E731
    writers.step(12)
    for number, result in enumerate(follow([tmp_path], stop)):
        assert number < RESULTS_MAX
        found += result.findings
        verified = result.progress.verified
        writers.step(12)
        lags = {lag[:2]: lag.position for lag in result.progress.lags}
        for key, segments in segments_by_incarnation([tmp_path]).items():
            read = lags.get(key[1:], -1)
            for at, path in sorted(segments.items())[:-1]:
                after = segments.get(at + 1)
                ends = (
                    [row.position or 0 for row in rows_in([after]) if row.kind == RecordKind.BATCH]
                    if after
                    else []
                )
                if ends and min(ends) <= read:  # the next one is being read
                    path.unlink()
                    deleted += 1
                elif path.suffix == SUFFIX:
                    path.with_name(f"{path.name}.gz").write_bytes(pack(path.read_bytes()))
                    path.unlink()
                    packed += 1
    assert found == []
    assert deleted > 3
    assert packed > 3


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a directory"):
        list(follow([tmp_path / "none"], lambda: True))


@pytest.mark.slow
def test_the_command_reports_findings_and_ends_with_the_verdict(tmp_path: Path) -> None:
    """A script reads its output, and stops it as Ctrl-C does."""
    logs = tmp_path / "logs"
    maker = good_history()
    promise, member, position = change_an_outcome(maker)
    maker.write(logs)
    told = tmp_path / "told"
    (port,) = free_ports(1)
    words = ["--follow", "--json", str(logs)]
    words += ["--alert-command", f"tee -a '{told}'", "--metrics-port", str(port)]
    scraped = ""
    with subprocess.Popen(
        [sys.executable, "-m", "tools.commands.qpid_cluster_verify", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        documents = []
        for line in command.stdout:
            documents.append(json.loads(line))
            if (
                documents[-1].get("verified") == maker.history.position
                and documents[-1]["event"] == "lag"
            ):
                if not scraped:
                    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                        scraped = answer.read().decode()
                command.send_signal(signal.SIGINT)
        errors = command.stderr.read() if command.stderr is not None else ""
    assert command.returncode == 1, errors
    assert errors == ""
    found = [one for one in documents if one["event"] == "finding"]
    assert (promise, member, position) in [
        (one["property"], one["member"], one["position"]) for one in found
    ]
    assert documents[-1]["event"] == "end"
    assert told.read_text(encoding="utf-8").count('"event": "finding"') == len(found)
    assert "qpid_cluster_verify_consistent 0.0\n" in scraped
    assert f"qpid_cluster_verify_verified_position {float(maker.history.position)}\n" in scraped
    assert documents[-1]["consistent"] is False
