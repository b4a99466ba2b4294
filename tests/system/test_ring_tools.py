"""quorumtool, cpgtool and ringtrace against real brokers, with and without a quorum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.support.clusters import running_cluster, wait_until
from tests.system.test_operators import run

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_the_ring_tools_show_three_brokers_until_two_are_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        a, b, c = cluster.members
        place = str(a.address)
        wait_until(lambda: run("quorumtool", place)[0] == 0, 20, "the quorum")
        code, shown, said = run("quorumtool", place)
        assert (code, said) == (0, "")
        for line in ("Cluster name:     test", "Quorate:          Yes", "Expected votes:   3"):
            assert line in shown
        code, shown, _ = run("cpgtool", "--json", place)
        assert code == 0
        (group,) = json.loads(shown)["groups"]
        assert group["name"] == "test"
        assert len(group["members"]) == 3
        for member in cluster.members:
            code, shown, _ = run("ringtrace", "--on", str(member.address))
            assert code == 0
            assert shown.startswith(f"{member.address}: on, in ")
        trace = Path(shown.split(" on, in ")[1].strip())
        assert trace.is_file()
        for killed in (b, c):
            killed.kill()
        wait_until(lambda: run("quorumtool", place)[0] == 2, 20, "the loss of the quorum")
        code, shown, _ = run("quorumtool", place)
        assert code == 2
        assert "Activity blocked" in shown
        assert shown.count("  away ") == 2
        run("ringtrace", "--off", place)
        traces = [str(path) for path in tmp_path.rglob("ring.trace")]
        assert len(traces) == 3
        code, shown, said = run("ringtrace", "-k", "view,primary", *traces)
        assert (code, said) == (0, "")
        assert "now=active" in shown
        assert "now=inquorate" in shown
        code, shown, _ = run("ringtrace", "--views", *traces)
        assert "without" in shown
        code, _, said = run("quorumtool", str(b.address))
        assert code == 1
        assert "cannot connect" in said
