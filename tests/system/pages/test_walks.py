"""The walk of each mode's chapter, word by word (G8, G25, G28).

Brokers are started, the one that serves is killed, and another one has what was confirmed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from broker.options.broker import Address
from tests.system.pages.page_shell import Shell, blocks_of, shell_in
from tests.system.support.clusters import wait_until
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost
from tools.demo.local_cluster import HOST, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]
CLIENTS, RINGS = ("5672", "5673", "5674"), ("25672", "25673", "25674")
WALKS = {
    "One member takes the clients": (r"status --all", r"^127.0.0.1:25673 active$"),
    "Two members: HAC": (r"localhost:5672 query", r"^Went on alone: +yes$"),
    "Master and slave": (r"spout", r"^Standing: +active: the master is"),
    "A store that several brokers share": (r"spout", r"^ *Shared store: .*led since"),
}
"""Of each chapter what the walk begins with when the brokers serve, and a line that it prints."""


def ports_with_rings() -> list[int]:
    """Ports for clients that nobody has, nor those of the rings that follow from them."""
    found: list[int] = []
    for ring in free_ports(200):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((HOST, ring - 20_000))
            found.append(ring - 20_000)
    return sorted(port for port in found if port > 1_024)[:3]  # as the names on the page are


def serves(port: int) -> bool:
    """Whether a client is let in there."""
    try:
        AmqpConnection(Address(HOST, port)).close()
    except (ConnectionLost, BrokerRefused):
        return False
    return True


def walk(shell: Shell, starts: list[str], rest: str, ports: list[int]) -> str:
    """Start the brokers, those of each block when one serves of those before, and do the rest."""
    brokers = list[int]()
    try:
        for start in starts:
            shell.run(start)
            brokers = [int(pid) for pid in shell.run("jobs -p").split()]
            wait_until(lambda: any(map(serves, ports)), 60, "one to serve")
        return shell.run(rest)
    finally:
        for pid in brokers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("chapter", WALKS)
def test_the_walk_of_a_chapter(tmp_path: Path, chapter: str) -> None:
    begins, last = WALKS[chapter]
    ports = ports_with_rings()
    words = dict(zip(CLIENTS, map(str, ports), strict=True))
    words |= {ring: str(port + 20_000) for ring, port in zip(RINGS, ports, strict=True)}
    (block,) = [one for one in blocks_of(chapter) if "/var/tmp" in one and "qpidd" in one]
    *starts, rest = block.split("\n\n")
    assert re.search(begins, rest.splitlines()[0])
    with shell_in(tmp_path, words) as shell:
        printed = walk(shell, starts, rest, ports)
    for word, instead in words.items():
        last = last.replace(word, instead)
    assert "100" in printed.splitlines()
    assert re.search(last, printed, re.MULTILINE), printed
