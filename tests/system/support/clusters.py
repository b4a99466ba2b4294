"""Clusters of real brokers for system tests: fixtures over `tools.demo.local_cluster`.

Data and logs live in the test's temporary directory; the report of a failing test shows the logs'
ends (see `evidence`).  Every process is gone when the fixture is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tools.client.management import Json, ManagementError
from tools.commands.qpid_cluster import parse_target
from tools.commands.qpid_ha import role_of
from tools.demo.local_cluster import BrokerProcess, LocalCluster

START_SECONDS = 60.0
ADMITTED_SECONDS = 20.0
"""A view change takes a second, on a busy machine some; what lasts longer than this is none."""
PAUSE_SECONDS = 0.1
ASKED_SECONDS = 10.0
MOMENTARY = (
    "320",  # pika and py-amqp: what the broker says
    "got <Connection.Close",  # aiormq: it does not look what is in the close
    "Connection refused",
    "Connect call failed",  # asyncio, of the same
)
"""What the client libraries' errors say when a member does not let a client in at this moment."""

Opened = TypeVar("Opened")


@contextmanager
def running_cluster(
    root: Path, size: int = 3, name: str = "test", *, stores: bool = True, log_level: str = "info"
) -> Iterator[LocalCluster]:
    """A started cluster."""
    with LocalCluster(root, size, name, stores=stores, log_level=log_level) as cluster:
        cluster.start(START_SECONDS)
        yield cluster


def admitted(connect: Callable[[], Opened], seconds: float = ADMITTED_SECONDS) -> Opened:
    """Return what `connect` opens; try again while the member cannot let clients in just now.

    A view change is no fault: whenever the machine gives a member no processor for longer than
    the token timeout, the others form a ring without it.  Who connects meanwhile waits, but not
    for ever: then it is told 320, so that it tries again or elsewhere; so is who comes to a member
    that was left out, before it is back (G7, G15).  A test that means something else than to be
    refused does as every client should.

    Raises what `connect` raises: at once when that says something else than 320 or that nobody
    listens, and the last of them after `seconds`, so that a refusal for good is never hidden.
    `connect` must have no effect that a second call would repeat.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except Exception as error:
            text = repr(error)
            if time.monotonic() > deadline or not any(one in text for one in MOMENTARY):
                raise
        time.sleep(PAUSE_SECONDS)


def role_told(member: BrokerProcess) -> dict[str, Json]:
    """What `qpid-ha status --json` prints of a member, without a process for each question; {}
    where it does not answer.
    """
    try:
        return role_of(parse_target(str(member.address), ASKED_SECONDS))
    except ManagementError:
        return {}


def wait_until(true_now: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll for something that a real process does in its own time."""
    deadline = time.monotonic() + seconds
    while not true_now():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)
