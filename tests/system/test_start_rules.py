"""How stores begin again: backups, a lost majority, mixed members; what the pages say, typed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.system.support.clusters import running_cluster, wait_until
from tests.system.test_cluster_faults import channel_of, contents, publish, status_word
from tests.system.test_cluster_faults import closed_connections as closed_connections
from tools.demo.local_cluster import HOST, ROOT, BrokerProcess, command, free_ports

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

PAGE = ROOT / "docs" / "OPERATIONS.md"
MARK = "<!-- a test runs these commands -->"


def typed_commands(heading: str) -> list[str]:
    """Return the commands that stand indented behind the mark in one section of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    block = re.match(r"\s*\n((?: {4}.*\n)+)", section.split(MARK, 1)[1])
    assert block is not None
    return [line.strip() for line in block[1].splitlines()]


def run_typed(line: str) -> str:
    """Run one of our commands as it is typed; return what it printed."""
    name, *arguments = shlex.split(line, comments=True)
    done = subprocess.run(
        [*command(name), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def test_the_page_of_backups(tmp_path: Path) -> None:
    """A live copy at one position, and a new cluster of it, typed as the page says."""
    port, ring = free_ports(2)
    with running_cluster(tmp_path / "shop", 3, "shop") as shop:
        publish(channel_of(shop[0]), 1, 30)
        places = {
            "/var/lib/qpidd": str(shop[0].data_dir),
            "/backup": str(tmp_path),
            "/var/lib/trial": str(tmp_path / "new" / "trial"),
            "127.0.0.1:26672": f"{HOST}:{ring}",
            "--port 6672": f"--port {port}",
        }
        lines = typed_commands("Backups")
        for old, new in places.items():
            assert any(old in line for line in lines), f"the page does not name {old} any more"
            lines = [line.replace(old, new) for line in lines]
        *tools, start = lines
        said = [run_typed(line) for line in tools]
        publish(channel_of(shop[0]), 31, 40)  # behind the copy
        assert "marker:      backup" in said[1]
        assert start.startswith("qpidd ")
        assert start.endswith(" &")
        trial = BrokerProcess("trial", tmp_path / "new", port, shlex.split(start[:-1])[1:])
        trial.start()
        try:
            wait_until(lambda: status_word(trial) == "ACTIVE", 20, "the new cluster")
            ids = {str(one.status().raw["cluster_id"]) for one in (trial, shop[0])}
            assert len(ids) == 2
            assert contents(trial) == [(number, True) for number in range(1, 31)]
        finally:
            trial.kill()
        assert [number for number, _ in contents(shop[1])] == list(range(1, 41))
