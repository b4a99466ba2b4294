"""Members in their own network namespaces, with a real network between them that can be cut.

Each member gets a namespace with an interface for each network; a bridge joins those of one
network.  Clients connect over the member's own loopback, where a broker admits its default user,
through a `Window`.  To cut one direction between two members, the sender is given an unused
hardware address for the other: its packets leave and reach nobody, as if a packet filter dropped
them, but none need be installed.  To cut off a whole member, its interfaces are taken down.

This needs the right to create namespaces; `why_not` says what is missing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import secrets
import socket
import subprocess
import threading
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.options.addresses import Address
from tests.system.support.tcp_relay import Route
from tools.demo.local_cluster import HOST, BrokerProcess, LocalCluster

NETS = ("10.213.77", "10.213.78")
"""The first three numbers of every member's address, by network."""
NOBODY = "02:00:00:00:00:fe"
RING_PORT, CLIENT_PORT = 7000, 5672
CLONE_NEWNET = 0x40000000


def run(*words: str) -> None:
    """Run one command of iproute2.  Raises CalledProcessError, with its error output in
    `stderr`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@cache
def why_not() -> str:
    """Return why namespaces cannot be used here, "" if they can.  Tries, and cleans up."""
    try:
        with Network(1):
            return ""
    except FileNotFoundError:
        return "the command ip (iproute2) is not installed"
    except subprocess.CalledProcessError as refused:
        return f"{' '.join(refused.cmd)}: {refused.stderr.strip()}"


class Network:
    """One network or two, each a bridge, with this many namespaces on them.

    Removed at the end of the block.
    """

    def __init__(self, size: int, networks: int = 1) -> None:
        # Not this process's number: an aborted run may have left those of another process.
        tag = secrets.token_hex(4)
        self.size = size
        self.nets = range(networks)
        self.spaces = [f"qpid-{tag}-{place}" for place in range(size)]
        # In a namespace too, so that the machine's own packet filter does not apply.
        self._switch = f"qpid-{tag}-switch"

    def __enter__(self) -> Self:
        try:
            self._add_switch()
            for place, space in enumerate(self.spaces):
                run("netns", "add", space)
                run("-n", space, "link", "set", "lo", "up")
                for net in self.nets:
                    cable = self._lay_cable(place, net)
                    run("-n", space, "address", "add", f"{host(place, net)}/24", "dev", cable)
                    run("-n", space, "link", "set", cable, "up")
        except BaseException:
            self.close()
            raise
        return self

    def _add_switch(self) -> None:
        """Make what the cables end in."""
        run("netns", "add", self._switch)
        for net in self.nets:
            run("-n", self._switch, "link", "add", f"bridge{net}", "type", "bridge")
            run("-n", self._switch, "link", "set", f"bridge{net}", "up")

    def _lay_cable(self, place: int, net: int) -> str:
        """Make a member's interface; return its name in the member's namespace."""
        end, cable = _end(place, net), _cable(net)
        run(
            "-n", self._switch, "link", "add", end,
            "type", "veth", "peer", "name", cable, "netns", self.spaces[place],
        )  # fmt: skip
        run("-n", self._switch, "link", "set", end, "master", f"bridge{net}", "up")
        return cable

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything.  Safe if parts of it were never made."""
        for space in [*self.spaces, self._switch]:  # interfaces are removed with their namespace
            _try("netns", "delete", space)

    def cut(self, source: int, target: int, net: int = 0) -> None:
        """Let nothing that `source` sends over this network reach `target`."""
        run(
            "-n", self.spaces[source], "neighbour", "replace", host(target, net),
            "lladdr", NOBODY, "dev", _cable(net), "nud", "permanent",
        )  # fmt: skip

    def mend(self, source: int, target: int, net: int = 0) -> None:
        """Undo `cut`: the address is looked up again."""
        words = ["neighbour", "delete", host(target, net), "dev", _cable(net)]
        run("-n", self.spaces[source], *words)

    def part(self, one: int, other: int, net: int = 0) -> None:
        """Cut both directions between two members."""
        self.cut(one, other, net)
        self.cut(other, one, net)

    def join(self, one: int, other: int, net: int = 0) -> None:
        """Undo `part`."""
        self.mend(one, other, net)
        self.mend(other, one, net)

    def pull(self, place: int, net: int = 0) -> None:
        """Pull a member's cable: nobody reaches it, and it notices that."""
        run("-n", self._switch, "link", "set", _end(place, net), "down")

    def plug(self, place: int, net: int = 0) -> None:
        """Undo `pull`."""
        run("-n", self._switch, "link", "set", _end(place, net), "up")


def _cable(net: int) -> str:
    """The interface of a member."""
    return f"eth{net}"


def _end(place: int, net: int) -> str:
    """The other end of a member's cable."""
    return f"port{place}-{net}"


def _try(*words: str) -> None:
    subprocess.run(["ip", *words], check=False, capture_output=True, timeout=30)


def host(place: int, net: int = 0) -> str:
    """Return the address of the member at this place."""
    return f"{NETS[net]}.{place + 2}"


class Window:
    """A port on this side that leads to the client port on the loopback of a namespace.

    A socket stays where it was created: the listening socket is created here, and the window's
    thread dials from inside the namespace, which it has entered.
    """

    def __init__(self, space: str) -> None:
        self._space = Path("/run/netns") / space
        self._door = socket.create_server((HOST, 0))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._failed: list[OSError] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"window {space}", daemon=True)
        self.address = Address(HOST, self._door.getsockname()[1])

    def open(self) -> None:
        """Start.  Raises OSError if the namespace cannot be entered."""
        self._thread.start()
        self._ready.wait()
        if self._failed:
            raise self._failed[0]

    def close(self) -> None:
        """Stop; connections through the window end too."""
        if self._thread.is_alive() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(30.0)
        self._door.close()

    def _run(self) -> None:
        try:
            enter(self._space)
            asyncio.run(self._serve())
        except OSError as refused:
            self._failed.append(refused)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        route = Route(f"{HOST}:{CLIENT_PORT}", random.Random(0))
        server = await asyncio.start_server(route.serve, sock=self._door)
        self._ready.set()
        await self._ending.wait()
        server.close()


def enter(space: Path) -> None:
    """Move this thread, and only this one, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns comes with Python 3.12
    with space.open() as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(space))


class SpacedBroker(BrokerProcess):
    """A broker in its own namespace."""

    def __init__(self, root: Path, place: int, network: Network) -> None:
        label = f"broker-{place + 1}"
        space = network.spaces[place]

        def rings(of: int) -> str:
            return ",".join(f"{host(of, net)}:{RING_PORT}" for net in network.nets)

        options = {
            "cluster-name": "spaced",
            "cluster-size": str(network.size),
            "cluster-bind": rings(place),
            "cluster-nodes": ",".join(rings(other) for other in range(network.size)),
            "port": str(CLIENT_PORT),
            "cluster-mechanism": "ANONYMOUS",  # nobody else is on this network
            "interface": HOST,
            "data-dir": str(root / label),
        }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        super().__init__(label, root, CLIENT_PORT, arguments)
        self.window = Window(space)
        self.address = self.window.address
        self._space = space

    def program(self) -> list[str]:
        """Return the command within the namespace; `ip` becomes it, so signals reach it."""
        return ["ip", "netns", "exec", self._space, *super().program()]


class SpacedCluster(LocalCluster):
    """A `LocalCluster` whose members share nothing but the network."""

    def __init__(
        self, root: Path, network: Network, broker: type[SpacedBroker] = SpacedBroker
    ) -> None:
        super().__init__(root, network.size, "spaced")
        self.network = network
        self._spaced = [broker(root, place, network) for place in range(network.size)]
        self.members = [*self._spaced]

    def __enter__(self) -> SpacedCluster:
        self.network.__enter__()
        try:
            for member in self._spaced:
                member.window.open()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill all remaining processes, then remove the network."""
        super().close()
        for member in self._spaced:
            member.window.close()
        self.network.close()
