"""Output of --follow: lines for people, JSON lines for scripts, and refused options."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.commands.qpid_cluster_verify import qpid_cluster_verify
from tools.verify.findings import Finding
from tools.verify.live import alert as alert_module
from tools.verify.live.alert import final_line, result_lines, status, stop_signals
from tools.verify.live.follow import FollowResult
from tools.verify.live.metrics import FollowMetrics
from tools.verify.live.progress import LogProgress, MemberLag

FOUND = Finding("G14", "b", 1, 90, "another chain after PUBLISH")
BEHIND = MemberLag("c", 2, 900, 100, 1.25, live=True)
LAGS = [
    MemberLag("a", 1, 1000, 0, 0.0, live=True),
    BEHIND,
    MemberLag("d", 1, 10, 990, 99.0, live=False),
]
RESULT = FollowResult(LogProgress(1000, 900, LAGS, ["e (incarnation 1)"]), [FOUND], 5000)


def test_people_get_lines() -> None:
    assert list(result_lines(RESULT, None, as_json=False)) == [
        "ALERT G14 (same state everywhere): member b (incarnation 1) at position 90: "
        "another chain after PUBLISH",
        "note: e (incarnation 1) is in the primary view, but no log of it is here",
    ]
    behind = replace(RESULT.progress, unknown=["c (incarnation 2): what was before is not known"])
    assert list(result_lines(FollowResult(behind), RESULT, as_json=False)) == [
        "note: c (incarnation 2): what was before is not known"
    ]
    calm = FollowResult(RESULT.progress, [], 5000)
    assert list(result_lines(calm, RESULT, as_json=False)) == []  # recorded once


def test_the_status_names_members_that_lag() -> None:
    assert status(RESULT) == "verified 900, 100 behind 1,000: a =, c -100 (1.2 s)"
    late = FollowResult(RESULT.progress, [], 5000, unread_bytes=12_345)
    assert status(late).startswith("verified 900, 100 behind 1,000, 12,345 bytes to read: a =")


def test_scripts_get_one_document_a_line() -> None:
    finding, lag = (json.loads(line) for line in result_lines(RESULT, None, as_json=True))
    assert (finding["event"], finding["property"], finding["position"]) == ("finding", "G14", 90)
    assert finding["title"] == "same state everywhere"
    assert (lag["event"], lag["unverified"]) == ("lag", 100)
    assert lag["members"][1]["behind"] == 100
    assert lag["unread_bytes"] == 0
    end = json.loads(final_line(RESULT, consistent=False, as_json=True))
    assert (end["event"], end["consistent"], end["verified"]) == ("end", False, 900)


def test_the_last_line_has_the_verified_position() -> None:
    line = final_line(RESULT, consistent=True, as_json=False)
    assert line.startswith("consistent so far: 5,000 records, verified up to position 900;")
    assert final_line(RESULT, consistent=False, as_json=False).startswith("NOT CONSISTENT")


def test_a_finding_stays_in_the_verdict_of_later_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = FollowResult(RESULT.progress, [], 5000)
    for looks, consistent in (([RESULT, calm], False), ([calm, calm], True)):
        monkeypatch.setattr(alert_module, "follow", lambda *_, looks=looks: iter(looks))
        assert alert_module.alert([], True, [], [], FollowMetrics([])) is consistent


@pytest.mark.parametrize("one", [signal.SIGINT, signal.SIGTERM])
def test_signals_request_the_end(one: signal.Signals) -> None:
    before = signal.getsignal(one)
    with stop_signals() as stop:
        os.kill(os.getpid(), one)
        assert stop.wait(10)
    assert signal.getsignal(one) is before


@pytest.mark.parametrize("more", [["--html", "x"], ["--save", "x"], ["--export", "x"], ["--fast"]])
def test_contradicting_options_are_refused(tmp_path: Path, more: list[str]) -> None:
    result = CliRunner().invoke(qpid_cluster_verify, ["--follow", str(tmp_path), *more])
    assert result.exit_code == 2
    assert "Usage" in result.output


@pytest.mark.parametrize("more", ["--alert-command", "--alert-url", "--metrics-port"])
def test_options_of_follow_are_refused_without_it(tmp_path: Path, more: str) -> None:
    result = CliRunner().invoke(qpid_cluster_verify, [str(tmp_path), more, "1"])
    assert result.exit_code == 2
    assert "need --follow" in result.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--alert-url", "ftp://x"], "begins with http:// or https://"),
        (["--alert-command", "'"], "No closing quotation"),
        (["--alert-command", "/nonexistent -v"], "there is no program /nonexistent"),
        (["--alert-command", "cat >> told"], "write sh -c 'cat >> told'"),
        (["--metrics-port", "http"], "give PORT or HOST:PORT"),
    ],
)
def test_unusable_targets_are_refused_before_spark_starts(
    tmp_path: Path, more: list[str], said: str
) -> None:
    result = CliRunner().invoke(qpid_cluster_verify, ["--follow", str(tmp_path), *more])
    assert result.exit_code == 2
    assert said in result.output
