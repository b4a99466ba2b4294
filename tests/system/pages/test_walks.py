"""The walk of each mode's chapter, word by word (G8, G25, G28), and those of links (G24, G27, G35).

Brokers are started, the serving one is killed, and another one has the confirmed messages; or two
brokers are linked, and messages published at one arrive at the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.system.pages.page_shell import Shell, blocks_of, serves, shell_in
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import HOST, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]
LOOKS = "qpid-ha"
CLIENTS, RINGS = ("5672", "5673", "5674"), ("25672", "25673", "25674")
APIS = ("15672", "15673", "15674")
WALKS = (
    ("One member takes the clients", r"status --all", r"^127.0.0.1:25673 active$", 1),
    ("A replica of one queue", r"seq 100", r"^/ orders: 'orders' of amqp://.*: level$", 2),
    ("Two members: HAC", r"localhost:5672 query", r"^Went on alone: +yes$", 1),
    ("Master and slave", r"spout", r"^Standing: +active: the master is", 1),
    ("A shared store", r"spout", r"^ *Shared store: .*led since", 1),
    ("Shovels", r"set_parameter shovel", r"to-far.*running", 2),
    ("Federation", r"add exchange", r"news.*running", 2),
)
"""For each walk: its chapter, its first command once the brokers serve, a line that it prints, and
the number of serving brokers."""


def ports_with_rings() -> list[int]:
    """Free ports for clients, with free ports for the rings and APIs that follow from them."""
    found: list[int] = []
    for ring in free_ports(200):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((HOST, ring - 20_000))
            tried.close()
            with socket.socket() as api:
                api.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                api.bind((HOST, ring - 10_000))
            found.append(ring - 20_000)
    return sorted(port for port in found if port > 1_024)[:3]  # sorted like the names on the page


def walk(
    shell: Shell, starts: list[str], rest: str, last: str, ports: list[int], serving: int
) -> str:
    """Start the brokers of each block once those before serve, and run the other blocks.

    The last command, if it only reads, may be repeated until it prints the `last` line: a member
    that has just become active recovers for a moment, while it already serves clients.
    """
    brokers = list[int]()
    try:
        for count, start in enumerate(starts, 1):
            shell.run(start)
            brokers = [int(pid) for pid in shell.run("jobs -p").split()]
            wanted = min(count, serving)
            wait_until(lambda n=wanted: sum(map(serves, ports)) >= n, 60, f"{wanted} to serve")  # type: ignore[misc]
        printed = shell.run(rest)
        *_, look = rest.strip().splitlines()

        def has_come() -> bool:
            nonlocal printed
            if not re.search(last, printed, re.MULTILINE):
                printed += shell.run(look)
            return bool(re.search(last, printed, re.MULTILINE))

        if look.startswith(LOOKS):
            wait_until(has_come, 30, f"{last} behind {look}")
        return printed
    finally:
        for pid in brokers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("chapter", "begins", "last", "serving"), WALKS)
def test_the_walk_of_a_chapter(
    tmp_path: Path, chapter: str, begins: str, last: str, serving: int
) -> None:
    ports = ports_with_rings()
    words = dict(zip(CLIENTS, map(str, ports), strict=True))
    for names, offset in ((RINGS, 20_000), (APIS, 10_000)):
        words |= {name: str(port + offset) for name, port in zip(names, ports, strict=True)}
    walks = [
        one.split("\n\n") for one in blocks_of(chapter) if "/var/tmp" in one and "qpidd" in one
    ]
    ((*starts, rest),) = [one for one in walks if re.search(begins, one[-1].splitlines()[0])]
    for word, instead in words.items():
        last = last.replace(word, instead)
    with shell_in(tmp_path, words) as shell:
        printed = walk(shell, starts, rest, last, ports, serving)
    assert "100" in printed.splitlines()
    assert re.search(last, printed, re.MULTILINE), printed
