"""The client side of the management protocol: one connection, one question, one answer.

`tools/commands/qpid_cluster.py` documents the protocol. This module asks, and validates the
answers; it does not know how they are shown or used.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import field, replace
from itertools import starmap
from typing import Protocol, TypeVar

from tools.cli.answers import Json as Json
from tools.cli.answers import objects
from tools.client import tls as tls_client
from tools.client.broker_url import DEFAULT_USER, NEAR_ONLY, Address
from tools.client.failover import Chosen, MemberAddress, NoneReached
from vsync.types import record

PREAMBLE = b"QPIDMGT1"
POLL_S, ORDER_AGAIN_S = 0.05, 1.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A list of a hundred thousand connections is half of that."""
Answer = TypeVar("Answer")


class ManagementError(Exception):
    """A request was not answered, or refused. The text is for an operator."""


class Unreachable(ManagementError):
    """Nothing listens there, or it is not one of our brokers."""


class NotRunning(Unreachable):
    """No connection can be made."""


class ConnectionAborted(ManagementError):
    """The broker went away between question and answer, as a stopping one does."""


@record
class MemberStatus:
    """One member as the asked broker sees it."""

    id: str
    url: str
    state: str
    voter: bool
    position: int
    local: bool
    votes: int = 1
    arbitrator: bool = False
    received_percent: float | None = None
    """Received part of the state, for a joining member; None: unknown."""


@record
class ClusterStatus:
    """One broker's view of its cluster."""

    cluster: str
    status: str
    size: int
    members: tuple[MemberStatus, ...]
    raw: dict[str, Json]
    """The whole answer, for --json: newer brokers may send more than this client knows."""


class Askable(Protocol):
    """A member that can be asked, with credentials."""

    def ask(self, **request: Json) -> dict[str, Json]:
        """One question."""


RING = b"\xff\0\0\0"
"""The first bytes of a ring's port, which speaks ZMTP."""
OTHERS = {
    b"AMQP": "an AMQP broker, but not one of this cluster software",
    RING: "the port of a ring, on which members talk: give the client port",
    b"\x15\x03": "a port for TLS: write amqps:// before it",
    b"HTTP/": "a port for HTTP: give the client port, or ask it by qpidctl",
}
"""The first bytes of answers from other kinds of servers, and what they are."""


def _connect(
    place: MemberAddress, timeout_seconds: float | None, tls: ssl.SSLContext | None
) -> socket.socket:
    if isinstance(place, Address):
        return tls_client.connect(place, timeout_seconds, tls)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(str(place))
    except OSError:
        connection.close()
        raise
    return connection


def _greet(place: MemberAddress, patience_s: float, tls: ssl.SSLContext | None) -> None:
    """Provoke any answer, with a line that is not a request and needs no login."""
    with _connect(place, patience_s, tls) as connection:
        connection.sendall(PREAMBLE + b"\n")
        connection.recv(1)


@record
class Target:
    """The broker to ask, and the user."""

    address: MemberAddress
    user: str = "guest"
    password: str = "guest"
    timeout_seconds: float | None = 10.0
    """How long to wait for an answer, and for the effect of an order; None: for ever."""
    tls: ssl.SSLContext | None = None
    others: tuple[MemberAddress, ...] = ()
    """The brokers to ask when nobody answers at `address`."""
    _chosen: Chosen = field(default_factory=Chosen, init=False, repr=False, compare=False)

    def ask(self, **request: Json) -> dict[str, Json]:
        """Send one request to it. Returns the answer; a refusal raises ManagementError."""
        login: dict[str, Json] = {"user": self.user, "password": self.password}
        question = json.dumps(request | login).encode() + b"\n"
        try:
            broker, connection = self._chosen.reach(
                (self.address, *self.others),
                lambda place, patience_s: _connect(place, patience_s, self.tls),
                lambda place, patience_s: _greet(place, patience_s, self.tls),
                self.timeout_seconds,
            )
        except NoneReached as problem:
            kind = NotRunning if problem.is_down else Unreachable
            raise kind("; ".join(starmap(_unreachable, problem.failures))) from None
        with connection:
            try:
                connection.settimeout(self.timeout_seconds)
                connection.sendall(PREAMBLE + question)
                line = _read_line(connection)
            except TimeoutError:
                raise ManagementError(f"{broker} did not answer in time") from None
            except OSError as problem:
                why = tls_client.reason(problem, broker)
                raise ConnectionAborted(f"connection aborted: {why}") from None
        if not line:
            hint = "" if self.tls else "; if this is a port for TLS, write amqps:// before it"
            raise ConnectionAborted(
                f"connection aborted: {broker} closed it without an answer{hint}"
            )
        for beginning, what in OTHERS.items():
            if line.startswith(beginning):
                raise Unreachable(f"{broker} is {what}")
        return _answer(line, broker)

    def alone(self) -> Target:
        """Return the broker of the list that answered last, without the others."""
        place = (self.address, *self.others)[self._chosen.at]
        return replace(self, address=place, others=())

    def status(self) -> ClusterStatus:
        """Ask for its view of the cluster."""
        answer = self.ask(op="status")
        members = answer.get("members")
        if not isinstance(members, list):
            raise ManagementError("the broker answered without a list of members")
        return ClusterStatus(
            cluster=str(answer.get("cluster", "")),
            status=str(answer.get("status", "UNKNOWN")),
            size=_as_int(answer.get("size")),
            members=tuple(map(_member, objects(members))),
            raw=answer,
        )


def wait_for(
    answer: Callable[[], Answer | None],
    timeout_s: float | None,
    otherwise: Callable[[], str],
    order: Callable[[], object] = lambda: None,
) -> Answer:
    """Return the first answer that is not None; after the time ManagementError with `otherwise`.

    `order` is repeated meanwhile, because it may be lost on its way to another member.
    """
    began, due = time.monotonic(), 0.0
    while (found := answer()) is None:
        passed = time.monotonic() - began
        if timeout_s is not None and passed > timeout_s:
            raise ManagementError(otherwise())
        if passed >= due:
            order()
            due = passed + ORDER_AGAIN_S
        time.sleep(POLL_S)
    return found


def _unreachable(broker: MemberAddress, problem: OSError) -> str:
    """What is wrong, and what an operator should check next."""
    why = tls_client.reason(problem, broker)
    text = f"cannot connect to {broker}: {why}"
    if isinstance(problem, ConnectionRefusedError):
        return f"{text}; does the broker run, and is this its --port (amqps://: its --tls-port)?"
    if isinstance(problem, socket.gaierror):
        return f"{text}; write the name as the broker's machine is known here, or its number"
    if isinstance(problem, TimeoutError):
        return f"{text}; is a firewall in between, and is --interface of the broker that address?"
    return text


def _member(fields: dict[str, Json]) -> MemberStatus:
    received = fields.get("received_percent")
    return MemberStatus(
        id=str(fields.get("id", "")),
        url=str(fields.get("url", "")),
        state=str(fields.get("state", "")),
        voter=fields.get("voter") is True,
        position=_as_int(fields.get("position")),
        local=fields.get("local") is True,
        votes=_as_int(fields.get("votes")),
        arbitrator=fields.get("arbitrator") is True,
        received_percent=received if isinstance(received, int | float) else None,
    )


def _as_int(value: Json | None) -> int:
    return value if isinstance(value, int) else 0


def _answer(line: bytes, broker: MemberAddress) -> dict[str, Json]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"{broker} does not speak the management protocol")
    if answer.get("ok") is not True:
        error = answer.get("error", "the broker refused without a reason")
        more = NEAR_ONLY if error == f"the login of user '{DEFAULT_USER}' was refused" else ""
        raise ManagementError(f"{error}{more}")
    return answer


def _read_line(connection: socket.socket) -> bytes:
    """Up to the first newline, or everything if the peer closes before it."""
    chunks: list[bytes] = []
    held = 0
    while held < ANSWER_BYTES_MAX:
        chunk = connection.recv(65536)
        if not chunk:
            break
        chunks.append(chunk)
        held += len(chunk)
        if b"\n" in chunk or chunks[0].startswith(tuple(OTHERS)):
            break
    return b"".join(chunks).partition(b"\n")[0]
