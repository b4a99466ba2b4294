"""Nodes of RabbitMQ on loopback, from the packages on this machine.

All their files and processes (data, logs, cookie, ports, the port mapper epmd) are separate and in
one folder, so that a RabbitMQ that runs here as a service is not touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from broker.options.addresses import Address
from tools.cli.failures import ToolError
from tools.demo.local_cluster import HOST, free_ports

START_S, STOP_S = 120.0, 30.0
NODES = ("rabbit-1", "rabbit-2", "rabbit-3")
MANAGEMENT = "rabbitmq_management"
MIRRORED = "mirrored"
"""Queues whose names begin so are on all nodes; a queue of the type `quorum` is in any case."""


def scripts(given: str = "") -> Path:
    """The folder of RabbitMQ's own scripts: packages put wrappers before them that need root."""
    found = shutil.which("rabbitmq-server")
    places = [Path(given)] if given else sorted(Path("/usr/lib/rabbitmq/lib").glob("*/sbin"))[-1:]
    if not given and found:
        places.append(Path(found).resolve().parent)
    for place in places:
        if (place / "rabbitmq-defaults").exists() and (place / "rabbitmq-server").exists():
            return place
    if given:
        raise ToolError(f"--rabbitmq: {given} has no rabbitmq-server and rabbitmq-defaults")
    raise ToolError(
        "RabbitMQ is not installed here: apt-get install rabbitmq-server, or name the folder of its"
        " scripts with --rabbitmq, or measure our own brokers alone with --system ours"
    )


class RabbitCluster:
    """Some nodes; their creator must close them."""

    def __init__(
        self, folder: Path, sbin: Path, count: int = len(NODES), plugins: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True)
        self._nodes = NODES[:count]
        self.version = sbin.parent.name.rpartition("-")[2]
        self._folder, self._sbin, self._plugins = folder, sbin, plugins
        mapper, api, *ports = free_ports(2 + 2 * count)
        self.addresses = tuple(Address(HOST, port) for port in ports[:count])
        self.management = Address(HOST, api)
        """The address of the first node's management API, if it has the plug-in."""
        self._children: list[subprocess.Popen[bytes]] = []
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (folder / "plugins").write_text(f"[{','.join(plugins)}].\n")
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RUNNING_UNDER_SYSTEMD": "1",  # the started process is then the node
        }
        try:
            self._run(["epmd", "-port", str(mapper), "-address", HOST], {})
            for index, name in enumerate(self._nodes):
                self._start(name, self.addresses[index].port, ports[count + index])
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [child.pid for child in self._children[1:]]

    def close(self) -> None:
        """End all remaining processes."""
        for child in reversed(self._children):
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in reversed(self._children):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _start(self, name: str, port: int, between_nodes: int) -> None:
        lines = [
            f"listeners.tcp.1 = {HOST}:{port}",
            "log.file.level = warning",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{i} = {n}@localhost" for i, n in
              enumerate(self._nodes, 1)),
        ]  # fmt: skip
        if MANAGEMENT in self._plugins and name == self._nodes[0]:
            lines += [
                f"management.tcp.ip = {HOST}",
                f"management.tcp.port = {self.management.port}",
            ]
        config = self._folder / f"{name}.conf"
        config.write_text("\n".join((*lines, "")))
        own = {
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(between_nodes),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_PID_FILE": str(self._folder / f"{name}.pid"),
        }
        self._run([str(self._sbin / "rabbitmq-server")], own)

    def _run(self, command: list[str], own: dict[str, str]) -> None:
        with (self._folder / "output").open("ab") as output:
            child = subprocess.Popen(
                command,
                env=self._environment | own,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._children.append(child)

    def _wait(self) -> None:
        """Wait until all serve together, with the policy of mirrored queues."""
        deadline = time.monotonic() + START_S
        mirror = '{"ha-mode":"all","ha-sync-mode":"automatic"}'
        for words in (
            ["await_startup", "--timeout", str(int(START_S))],
            ["await_online_nodes", str(len(self._nodes)), "--timeout", str(int(START_S))],
            ["set_policy", "mirrored", f"^{MIRRORED}", mirror, "--apply-to", "queues"],
        ):
            while True:
                asked = self.control(*words)
                if asked.returncode == 0:
                    break
                gone = [c.returncode for c in self._children if c.poll() is not None]
                if gone or time.monotonic() > deadline:
                    said = (asked.stdout + asked.stderr).strip()[-600:]
                    output = (self._folder / "output").read_text(errors="replace")[-600:]
                    raise ToolError(f"RabbitMQ did not start ({words[0]}): {said}\n{output}")
                time.sleep(0.5)

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its `rabbitmqctl` at the first node."""
        return subprocess.run(
            [str(self._sbin / "rabbitmqctl"), "--node", f"{self._nodes[0]}@localhost", *words],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
