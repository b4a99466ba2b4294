"""Nodes of RabbitMQ from the packages on this machine, on loopback or on hosts of a test.

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
from tests.system.support.network_namespaces import CLIENT_PORT, Network, host
from tools.cli.failures import ToolError
from tools.demo.local_cluster import HOST, free_ports
from vsync.types import record

START_S, STOP_S = 120.0, 30.0
NODES = ("rabbit-1", "rabbit-2", "rabbit-3")
MAPPER_PORT, NODE_PORT = 4369, 25672
"""Of each node that has a host of its own, like its port for clients."""
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


@record
class Node:
    """One node: its name, the words before a command that runs on its host, address and ports."""

    name: str
    place: tuple[str, ...]
    host: str
    port: int
    between: int


class RabbitCluster:
    """Some nodes; their creator must close them."""

    def __init__(
        self,
        folder: Path,
        sbin: Path,
        count: int = len(NODES),
        plugins: Sequence[str] = (),
        hosts: Network | None = None,
    ) -> None:
        """`hosts`: each node runs on one of these, where its loopback has the port for clients."""
        folder.mkdir(parents=True)
        self.version = sbin.parent.name.rpartition("-")[2]
        self._folder, self._sbin, self._plugins = folder, sbin, plugins
        mapper, api, *ports = free_ports(2 + 2 * count)
        if hosts is None:
            self._nodes = [
                Node(f"{name}@localhost", (), HOST, ports[place], ports[count + place])
                for place, name in enumerate(NODES[:count])
            ]
        else:
            mapper = MAPPER_PORT
            self._nodes = [
                Node(f"{name}@host-{place}", ("ip", "netns", "exec", space), host(place),
                     CLIENT_PORT, NODE_PORT)
                for place, (name, space) in enumerate(zip(NODES, hosts.spaces, strict=True))
            ]  # fmt: skip
        self.addresses = tuple(Address(HOST, node.port) for node in self._nodes)
        self.management = Address(HOST, api)
        """The address of the first node's management API, if it has the plug-in."""
        self._mappers: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (folder / "plugins").write_text(f"[{','.join(plugins)}].\n")
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RUNNING_UNDER_SYSTEMD": "1",  # the started process is then the node
        }
        if hosts is not None:
            self._environment["ERL_INETRC"] = str(self._host_names())
        try:
            for node in self._nodes if hosts else self._nodes[:1]:
                command = [*node.place, "epmd", "-port", str(mapper), "-address", node.host]
                self._mappers.append(self._run(command, {}))
            for node in self._nodes:
                self._start(node)
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [child.pid for child in self._started]

    def close(self) -> None:
        """End all remaining processes."""
        children = [*self._started, *self._mappers]
        for child in children:
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _host_names(self) -> Path:
        """A file that tells Erlang the addresses of the hosts."""
        file = self._folder / "inetrc"
        lines = ["{lookup,[file,native]}."]
        for node in self._nodes:
            numbers = node.host.replace(".", ",")
            lines.append(f'{{host,{{{numbers}}},["{node.name.partition("@")[2]}"]}}.')
        file.write_text("\n".join((*lines, "")))
        return file

    def _start(self, node: Node) -> None:
        lines = [
            f"listeners.tcp.1 = {HOST}:{node.port}",
            "log.file.level = warning",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{place} = {other.name}" for place, other in
              enumerate(self._nodes, 1)),
        ]  # fmt: skip
        if MANAGEMENT in self._plugins and node is self._nodes[0]:
            lines += [
                f"management.tcp.ip = {HOST}",
                f"management.tcp.port = {self.management.port}",
            ]
        config = self._folder / f"{node.name}.conf"
        config.write_text("\n".join((*lines, "")))
        own = {
            "ERL_EPMD_ADDRESS": node.host,
            "RABBITMQ_NODENAME": node.name,
            "RABBITMQ_NODE_PORT": str(node.port),
            "RABBITMQ_DIST_PORT": str(node.between),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_PID_FILE": str(self._folder / f"{node.name}.pid"),
        }
        self._started.append(self._run([*node.place, str(self._sbin / "rabbitmq-server")], own))

    def _run(self, command: list[str], own: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                env=self._environment | own,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

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
                gone = [c.returncode for c in self._started if c.poll() is not None]
                if gone or time.monotonic() > deadline:
                    said = (asked.stdout + asked.stderr).strip()[-600:]
                    output = (self._folder / "output").read_text(errors="replace")[-600:]
                    raise ToolError(f"RabbitMQ did not start ({words[0]}): {said}\n{output}")
                time.sleep(0.5)

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its `rabbitmqctl` at the first node."""
        node = self._nodes[0]
        return subprocess.run(
            [*node.place, str(self._sbin / "rabbitmqctl"), "--node", node.name, *words],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
