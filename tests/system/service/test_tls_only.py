"""A cluster without a plain port: everything that operators and tools do goes over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Files
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import HOST, ROOT, LocalCluster, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow]
WAIT_S = 60.0
MODULES = {
    name: f"tools.commands.{name.replace('-', '_')}"
    for name in ("spout", "drain", "qpid-cluster", "cpgtool", "quorumtool")
} | {
    name: f"tools.operate.{name.replace('-', '_')}"
    for name in ("qpidctl", "qpid-stat", "qpid-config")
}


class Secured(LocalCluster):
    """Three members that listen with TLS only, each with a management API over TLS."""

    def __init__(self, root: Path, files: Files) -> None:
        super().__init__(root, extra={"port": "none", "tls-cert": str(files.certificate),
                                      "tls-key": str(files.key)})  # fmt: skip
        self.files = files
        self.apis = free_ports(3)
        for member, api in zip(self.members, self.apis, strict=True):
            member.arguments += (
                "--tls-port", str(member.address.port), "--management-tls-port", str(api),
            )  # fmt: skip

    def urls(self) -> list[str]:
        return [f"amqps://{member.address}" for member in self.members]

    def run(self, name: str, *arguments: str, typed: str = "") -> str:
        """Run one command that must succeed; return its output."""
        ended = subprocess.run(
            [sys.executable, "-m", MODULES[name], *arguments],
            cwd=ROOT, input=typed, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "SSL_CERT_FILE": str(self.files.ca)},
        )  # fmt: skip
        assert ended.returncode == 0, (name, arguments, ended.stderr)
        return ended.stdout

    def status(self, url: str) -> dict[str, object]:
        found = json.loads(self.run("qpid-cluster", "--json", url))
        assert isinstance(found, dict)
        return found


def test_a_cluster_is_filled_drained_rebalanced_and_stopped_over_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", HOST)
    cluster = Secured(tmp_path / "cluster", files)
    with cluster:
        for member in cluster.members:
            member.start()
        first, second, third = cluster.urls()
        for url in cluster.urls():
            wait_until(lambda at=url: serves(cluster, at), WAIT_S, f"{url} serves")  # type: ignore[misc]
        shown = cluster.run("qpid-cluster", "--ssl-ca", str(files.ca), first)
        assert f"URL=amqp:ssl:{cluster.members[1].address}" in shown
        assert "test" not in cluster.run(
            "cpgtool", "--names", f"amqp:ssl:{cluster.members[2].address}"
        )
        assert "Quorate:          Yes" in cluster.run("quorumtool", second)

        lines = "".join(f"line {number} {'x' * 300}\n" for number in range(5000))
        cluster.run("spout", "-b", f"{first},{second}", "-q", "q", "--quiet", typed=lines)
        drained = cluster.run("drain", "-b", third, "-q", "q", "--count", "5000", "--quiet")
        assert drained == lines

        api = f"https://{HOST}:{cluster.apis[1]}"
        assert cluster.run("qpidctl", "-q", "--broker", api, "list_vhosts") == "name\n/\n"
        assert "Total Queues: 1" in cluster.run("qpid-config", "-a", api)
        assert " q " in cluster.run("qpid-stat", "-q", api)

        ids = [str(one["id"]) for one in members(cluster, first)]
        cluster.run("qpid-cluster", "--drain", ids[1], first)
        wait_until(
            lambda: cluster.status(third)["drained"] == [ids[1]], WAIT_S, "the third to show it"
        )
        cluster.run("qpid-cluster", "--undrain", ids[1], third)
        assert "no member has more" in cluster.run("qpid-cluster", "--rebalance", first)
        archive = tmp_path / "report.tar.gz"
        said = cluster.run("qpid-cluster", "--diagnose", str(archive), first)
        assert said == f"{archive} is written\n"
        cluster.run("qpid-cluster", "-k", "-f", "-t", "60", first)
        for member in cluster.members:
            assert member.wait(WAIT_S) == 0


def members(cluster: Secured, url: str) -> list[dict[str, object]]:
    found = cluster.status(url)["members"]
    assert isinstance(found, list)
    return found


def serves(cluster: Secured, url: str) -> bool:
    """Whether a member sees three that are ACTIVE."""
    try:
        found = members(cluster, url)
    except AssertionError:
        return False
    return [one["state"] for one in found] == ["ACTIVE"] * 3
