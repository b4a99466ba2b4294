"""Real members, one of them killed, and real clients: members' logs have their operations."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from broker.memberlog.client_history import ClientHistory
from tests.system.support.clusters import running_cluster, wait_until
from tests.system.verify.support.spark_session import shared_session
from tools.demo.local_cluster import ROOT, LocalCluster, command

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.system, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900),
]  # fmt: skip

COUNT = 6_000
SECONDS = 120.0


def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a client."""
    return subprocess.Popen(
        [*command(name), *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def stream(cluster: LocalCluster, root: Path, histories: Path) -> None:
    """Publish at one member, consume at another, and kill the first in between."""
    text, output = root / "input.txt", root / "output.txt"
    text.write_text("".join(f"line {number % 5000}\n" for number in range(COUNT)))
    shared = ("-q", "work", "--quiet", "--history", str(histories))
    drain = start(
        "drain", "-b", cluster.brokers(2), *shared, "--create", "--count", str(COUNT), "--unique",
        "--format", "json", "--output", str(output), "--timeout", "60",
    )  # fmt: skip
    spout = start(
        "spout", "-b", cluster.brokers(0), *shared, "--file", str(text), "--sequence",
        "--window", "200",
    )  # fmt: skip
    wait_until(lambda: _size(output) > 100_000, SECONDS, "a part of the stream")
    cluster[0].kill()
    time.sleep(0.2)
    cluster[0].start()
    assert spout.wait(SECONDS) == 0
    assert drain.wait(SECONDS) == 0
    cluster.wait_active(timeout_seconds=SECONDS)


def test_members_logs_have_the_clients_confirms_and_deliveries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8, G11, G20: all are found, except the made-up confirm."""
    from tools.verify.job import verify
    from tools.verify.sql import exchange

    histories = tmp_path / "clients"
    with running_cluster(tmp_path / "members") as cluster:
        stream(cluster, tmp_path, histories)
        for member in cluster.members:
            assert member.terminate(SECONDS) == 0
    false_client = ClientHistory(histories, "liar", 1, lambda: 1)
    session = false_client.session("work")
    session.published(1, b"nobody has this")
    session.confirmed(1)
    false_client.close()
    report = verify(shared_session(), [tmp_path])
    monkeypatch.setattr(exchange, "BINS_HERE", 0)
    assert verify(shared_session(), [tmp_path]).as_document() == report.as_document()
    assert [one.property for one in report.findings] == ["G8"], report.findings
    assert "client liar (connection 1)" in report.findings[0].what
    assert report.clients is not None
    counts, outcomes = report.clients.counts, report.clients.outcomes
    assert counts.confirmed == COUNT + 1
    assert counts.received >= COUNT
    assert outcomes is not None
    assert outcomes.confirmed == COUNT
    assert outcomes.ends["settled"] + outcomes.ends["still there"] == COUNT
