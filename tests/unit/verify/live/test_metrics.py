"""Metrics of --follow: every family that the alerts query, served only where configured."""

from __future__ import annotations

import http.client
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.promql import Query, Scrape
from tools.verify.findings import BadInput, Finding
from tools.verify.live.follow import FollowResult
from tools.verify.live.metrics import FollowMetrics, serving
from tools.verify.live.notify import Receiver
from tools.verify.live.progress import LogProgress, MemberLag

CONF = Path(__file__).resolve().parents[4] / "conf" / "prometheus"
FOUND = Finding("G14", "b", 1, 90, "another chain after PUBLISH")
LAGS = [
    MemberLag("a", 1, 1000, 0, 0.0, live=True),
    MemberLag('c"\\', 2, 900, 100, 1.25, live=True),
    MemberLag("d", 1, 10, 990, 99.0, live=False),
]
CALM = FollowResult(LogProgress(1000, 900, LAGS[:1]), [], 5000)
TROUBLED = FollowResult(LogProgress(1000, 900, LAGS, ["e (incarnation 1)"]), [FOUND], 6000, 77)


def taken(*results: FollowResult, lost: int = 0) -> Scrape:
    receiver = Receiver("--alert-url", lambda _: None)
    receiver.lost = lost
    metrics, registry = FollowMetrics([receiver]), CollectorRegistry()
    for one in results:
        metrics.take(one)
    receiver.close(30)
    registry.register(metrics)
    return {
        (one.name, tuple(sorted((*one.labels.items(), ("job", "qpid-cluster-verify"))))): one.value
        for family in registry.collect()
        for one in family.samples
    }


def value(scrape: Scrape, name: str, **labels: str) -> float:
    found = tuple(sorted((*labels.items(), ("job", "qpid-cluster-verify"))))
    return scrape[f"qpid_cluster_verify_{name}", found]


def test_findings_and_progress_are_reported() -> None:
    scrape = taken(CALM, TROUBLED, CALM, lost=3)
    assert value(scrape, "consistent") == 0  # once broken, it stays broken
    assert value(scrape, "findings_total", promise="G14") == 1
    assert value(scrape, "findings_total", promise="G8") == 0
    scrape = taken(TROUBLED, lost=3)
    assert value(scrape, "records_total") == 6000
    assert value(scrape, "unread_bytes") == 77
    assert value(scrape, "newest_position") == 1000
    assert value(scrape, "verified_position") == 900
    assert value(scrape, "unverified_positions") == 100
    assert value(scrape, "absent_logs") == 1
    assert value(scrape, "member_behind", member='c"\\') == 100
    assert value(scrape, "member_behind_seconds", member='c"\\') == 1.25
    assert value(scrape, "alerts_lost_total", receiver="url") == 3
    assert not [key for key in scrape if ("member", "d") in key[1]]  # it is gone


def test_alerts_are_silent_in_a_calm_cluster_and_fire_in_trouble() -> None:
    text = (CONF / "verify-alerts.yml").read_text(encoding="utf-8")
    alerts = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text))
    assert len(alerts) == text.count("- alert:")
    up = ("up", (("instance", "x"), ("job", "qpid-cluster-verify")))
    late = [one._replace(seconds=100.0) for one in LAGS]
    trouble = FollowResult(LogProgress(9, 1, late, ["e"]), [FOUND], 5, unread_bytes=10**9)
    calm = {**taken(CALM), up: 1.0}
    bad = {**taken(trouble, lost=1), up: 0.0}
    for name, expression in alerts.items():
        assert Query(expression, calm, calm, 15.0).value() == {}, name
        assert Query(expression, bad, bad, 15.0).value() != {}, name


def test_metrics_are_served_on_the_loopback_address() -> None:
    metrics = FollowMetrics([])
    metrics.take(CALM)
    with serving("0", metrics) as port:
        assert port is not None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200
        assert answer.getheader("Content-Type", "").startswith("text/plain; version=")
        assert "qpid_cluster_verify_verified_position 900.0\n" in text
        connection.close()
        with (
            pytest.raises(BadInput, match=r"--metrics-port \d+: Address already in use"),
            serving(str(port), metrics),
        ):
            pass


@pytest.mark.parametrize("where", ["", "x", "70000", "host:", ":9419", "-1", "[::1"])
def test_an_invalid_port_is_refused(where: str) -> None:
    with (
        pytest.raises(BadInput, match="give PORT or HOST:PORT"),
        serving(where, FollowMetrics([])),
    ):
        pass


@pytest.mark.parametrize("host", ["\u00e4..b", "\u00e4" * 64, "\udcff"])
def test_an_impossible_host_is_refused(host: str) -> None:
    """It ended in a traceback, as encoding it failed, not resolving it."""
    with (
        pytest.raises(BadInput, match=f"--metrics-port {host}:9419: that is no name of a host"),
        serving(f"{host}:9419", FollowMetrics([])),
    ):
        pass
