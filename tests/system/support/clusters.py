"""Clusters of real brokers for system tests: fixtures over `tools.demo.local_cluster`.

Data and logs are in the test's temporary directory; the report of a failed test shows the ends of
the logs (see `evidence`).  Every process ends with its fixture.
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
"""A view change takes a second, on a busy machine several; nothing longer than this is one."""
PAUSE_SECONDS = 0.1
ASKED_SECONDS = 10.0
MOMENTARY = (
    "320",  # pika and py-amqp: the broker's code
    "got <Connection.Close",  # aiormq does not look into the close
    "Connection refused",
    "Connect call failed",  # asyncio, for the same
)
"""The errors of the client libraries when a member does not admit a client at the moment."""

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
    """Return what `connect` opens; retry while the member cannot admit clients at the moment.

    A view change is no fault: whenever the machine gives a member no processor for longer than the
    token timeout, the others form a ring without it.  A client that connects meanwhile waits, but
    not without limit: then it gets 320, so that it retries there or elsewhere; so does a client of
    an excluded member before that is back (G7, G15).  A test that is not about refusals does as
    every client should.

    Raises what `connect` raises: at once if that is neither 320 nor a refused connection, and the
    last error after `seconds`, so that a permanent refusal is never hidden.  `connect` must have no
    effect that a second call would repeat.
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
    """Return what `qpid-ha status --json` prints for a member, without a process for each question;
    {} if it does not answer.
    """
    try:
        return role_of(parse_target(str(member.address), ASKED_SECONDS))
    except ManagementError:
        return {}


def wait_until(true_now: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until a real process has done something."""
    deadline = time.monotonic() + seconds
    while not true_now():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.02)
