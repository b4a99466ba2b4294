"""The input of an attempt, and how it opens its ends."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from broker.amqp.handshake import CAPABILITIES
from broker.shovels.amqp_uri import AmqpUri
from broker.shovels.definition import Shovel, ends
from tools.cli.failures import ToolError
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost, Login
from tools.client.tls import TlsFiles, client_context
from vsync.types import record

TURN_S = 1.0
"""The longest wait of a turn: reports and heartbeats are due then."""
_OPTIONS = {
    "--ssl-verify ca": "verify=verify_none", "--ssl-ca FILE": "cacertfile",
    "--ssl-ca": "cacertfile", "--ssl-cert": "certfile", "--ssl-key": "keyfile",
}  # fmt: skip
"""Names in our commands for the parameters of a URI."""


@record
class Task:
    """The task of one attempt."""

    shovel: Shovel
    number: int
    doubtful: dict[str, list[int]]
    cluster: str
    source_descriptor: int | None
    """A socket from the member that starts it; None: the URI gives the source."""
    destination_descriptor: int | None
    cluster_id: str = ""
    here: Mapping[str, object] | None = None
    """A federation link's initial facts about this side (broker/shovels/federation.py)."""


class Failed(Exception):
    """The attempt cannot continue; the text says which end failed, and how."""


def opened(task: Task, which: str) -> AmqpConnection:
    """Connect to one end, `source` or `destination`. Raises our client's exceptions."""
    shovel = task.shovel
    source, destination = ends(shovel, task.number)
    uri = source if which == "source" else destination
    given = task.source_descriptor if which == "source" else task.destination_descriptor
    vhost = uri.vhost if uri.vhost is not None else shovel.vhost
    login = Login(
        uri.user, uri.password, vhost, uri.heartbeat_s, uri.connect_s, _context(uri),
        uri.mechanism, shovel.connection_name,
    )  # fmt: skip
    if given is None:
        assert uri.address is not None
        return AmqpConnection(uri.address, login)
    admitted = AmqpConnection("this cluster", login, socket.socket(fileno=given))
    admitted.capabilities = frozenset(CAPABILITIES)
    return admitted


@contextmanager
def doing_of(which: str, more: Callable[[BrokerRefused], str] = lambda _: "") -> Iterator[None]:
    """Turns an error raised in this block into `Failed`, naming that end. `more` is called for an
    addition to a refusal, and may raise something else."""
    try:
        yield
    except BrokerRefused as refused:
        raise Failed(f"{which}: {refused}{more(refused)}") from None
    except (ConnectionLost, ToolError) as problem:
        raise Failed(f"{which}: {_in_words_of_uris(str(problem))}") from None


def _in_words_of_uris(text: str) -> str:
    """Our client's TLS errors, with the parameters of a URI in place of a command's options."""
    for option, parameter in _OPTIONS.items():
        text = text.replace(option, parameter)
    return text


def _context(uri: AmqpUri) -> ssl.SSLContext | None:
    if not uri.tls:
        return None
    ca, certificate, key = (
        Path(one) if one else None for one in (uri.ca, uri.certificate, uri.key)
    )
    return client_context(TlsFiles(ca, certificate, key, "full" if uri.verify else "none"))


def poll_of(control: int, *connections: AmqpConnection) -> select.poll:
    """The poll object of `turn`: for both ends, and for `control`."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    for one in connections:
        poll.register(one.fileno(), 0)
    return poll


def turn(
    poll: select.poll,
    source: AmqpConnection,
    destination: AmqpConnection,
    of: Callable[[str], AbstractContextManager[None]],
    *,
    reading: bool,
) -> Iterator[None]:
    """Wait for both ends, do what their sockets are ready for, and keep them alive; yield each time
    the control is readable. The source is read if `reading`; `of` handles errors of an end."""
    out_of = select.POLLOUT
    poll.modify(source.fileno(), select.POLLIN * reading | out_of * bool(source.out))
    poll.modify(destination.fileno(), select.POLLIN | out_of * bool(destination.out))
    for descriptor, what in poll.poll(TURN_S * 1000):
        if descriptor == source.fileno():
            with of("source"):
                _pump(source, what)
        elif descriptor == destination.fileno():
            with of("destination"):
                _pump(destination, what)
        else:
            yield
    with of("source"):
        source.keep_alive(reading=reading)
    with of("destination"):
        destination.keep_alive()


def _pump(connection: AmqpConnection, what: int) -> None:
    """Do what poll reported for its socket."""
    if what & select.POLLOUT:
        connection.send_now()
    if what & (select.POLLIN | select.POLLHUP | select.POLLERR):
        connection.receive_now()
