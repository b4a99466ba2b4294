"""Member logs of real brokers that are cut, compressed and dropped still prove what happened."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.memberlog.archive import VERIFIED
from broker.memberlog.segments import PACKED, segments_in
from tests.system.support.clusters import START_SECONDS, wait_until
from tests.system.verify.support.checks_without_spark import contract_findings, rows_in
from tools.demo.local_cluster import BrokerProcess, LocalCluster, command
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.live import checkpoint

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 45_000  # about 3 MiB of log per member
OPTIONS = {
    "memberlog-segment-size": "1", "memberlog-keep-size": "1MiB", "memberlog-drop-unverified": "no",
}  # fmt: skip


def tool(*arguments: str, given: str = "") -> None:
    subprocess.run(
        [*command(arguments[0]), *arguments[1:]], input=given, stdout=subprocess.PIPE, cwd=ROOT,
        text=True, check=True, timeout=120,
    )  # fmt: skip


def test_cut_and_compressed_logs_still_prove_and_are_dropped_once_verified(
    tmp_path: Path,
) -> None:
    lines = "".join(f"{number} {'x' * 30}\n" for number in range(MESSAGES))
    with LocalCluster(tmp_path / "cluster", 3, "cutting", extra=OPTIONS) as cluster:
        cluster.start(START_SECONDS)
        logs = [member.data_dir / "memberlog" for member in cluster.members]
        tool("spout", "-b", cluster.brokers(), "-q", "flow", "--quiet", given=lines)
        tool("drain", "-b", cluster.brokers(1), "-q", "flow", "--quiet", "--count", str(MESSAGES))

        def compressed() -> int:
            return min(sum(p.suffix == PACKED for p in segments_in(log)) for log in logs)

        wait_until(lambda: compressed() >= 2, 60, "compressed segments")
        for member in cluster.members:
            assert member.terminate(START_SECONDS) == Exit.OK
        rows = rows_in(path for log in logs for path in segments_in(log))
        judged = check_control_rows(rows)
        assert judged.findings == []
        assert contract_findings(rows, judged.epochs) == []
        settled, _ = checkpoint.save(tmp_path / "point", rows)
        assert settled >= 6
        for log in logs:
            (log / VERIFIED).write_bytes((tmp_path / "point").read_bytes())
        before = {log: [path.name for path in segments_in(log)] for log in logs}
        cluster.start(START_SECONDS)  # segments that are due are dropped at the start

        def oldest_gone() -> bool:
            return all(not (log / names[0]).exists() for log, names in before.items())

        wait_until(oldest_gone, 60, "the oldest segment of each member to be dropped")
        for member in cluster.members:  # the line follows the deletion

            def said(member: BrokerProcess = member) -> bool:
                return "dropped: kept for long enough, and verified" in member.log_tail(200)

            wait_until(said, 10, "the line in the log")
