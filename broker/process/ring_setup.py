"""A member's place on the network: its ring socket, and how it finds the others."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from broker.durability.data_directory import DataDirectory
from broker.durability.kept_lease import KeptLease
from broker.exit_codes import Exit
from broker.machine.version import MACHINE_VERSION, MACHINE_VERSION_MIN
from broker.options.broker import BrokerOptions
from broker.options.table import unusual_settings
from broker.watchdogs.reply_lease import ReplyLease
from vsync.io.discovery import PORT as BEACON_PORT
from vsync.io.discovery import Beacon, Discovery, Lacks, StaticPeers, look_up
from vsync.io.keys import KeyFileError
from vsync.io.redundant_transport import SEPARATOR, RedundantTransport
from vsync.io.security import Anonymous, Curve, Plain, Security
from vsync.io.traced_driver import TracedDriver, Tracer
from vsync.io.transport import TransportError
from vsync.primary.component import Primary
from vsync.primary.door import PrimaryDoor, Refusal
from vsync.totem.config import RingConfig
from vsync.totem.events import Output
from vsync.totem.node import Node
from vsync.types import Member
from vsync.wire.codec import wire_bytes_max

log = logging.getLogger("qpidd")

LINKS_S = 0.5
DO_THEY_RUN = (
    "Do the others run, are all addresses of --cluster-nodes and --cluster-bind as meant, and does "
    "a firewall let these ports through?"
)


def _discovery_for(
    options: BrokerOptions, me: Member, warn: Callable[[str], None]
) -> Discovery | None:
    """Return the discovery of the other members; None for a stand-alone broker."""
    if not options.clustered:
        return None
    if options.cluster_nodes:
        look = partial(look_up, mine=me.address)
        return StaticPeers(map(str, options.cluster_nodes), warn, look)
    address = me.address.partition(SEPARATOR)[0]  # a member that reaches it there learns the others
    interface = address.rsplit(":", 1)[0]
    return Beacon(
        options.cluster_name, me.name, address, warn, interface=interface,
        group=options.beacon_group or None, port=options.beacon_port or BEACON_PORT,
    )  # fmt: skip


def ring_security(options: BrokerOptions, warn: Callable[[str], None]) -> Security:
    """Read this member's keys and the allow list. Raises KeyFileError."""
    security = options.security
    if security.mechanism == "PLAIN":
        return Plain(security.username, security.password)
    if security.mechanism == "ANONYMOUS":
        return Anonymous()
    assert security.key is not None
    assert security.allow is not None
    curve = Curve.from_files(security.key, security.allow, warn, log.info)
    own, me = curve.own, str(options.cluster_bind)
    if own.name != me:
        raise KeyFileError(
            f"{security.key} holds the key of member {own.name}, and this is member {me} by its "
            "--cluster-bind; each member needs a key of its own"
        )
    if curve.allowed.names.get(own.public) != me:
        warn(
            f"{security.allow} does not hold the public key of this member, {me} "
            f"({own.public}); the other members will refuse it unless their lists do"
        )
    return curve


class NoRing(Exception):
    """The ring's socket is unavailable; carries the exit code."""

    def __init__(self, code: Exit, error: Exception | str) -> None:
        super().__init__(str(error))
        self.code = code


def ring_transport(options: BrokerOptions, warn: Callable[[str], None]) -> RedundantTransport:
    """Bind the ring's socket; that of a stand-alone broker is unknown to others. Raises NoRing."""
    try:
        return _transport(options, warn)
    except KeyFileError as error:
        raise NoRing(Exit.CONFIG, error) from error
    except TransportError as error:
        raise NoRing(Exit.UNAVAILABLE, f"{error} (--cluster-bind)") from error


def _transport(options: BrokerOptions, warn: Callable[[str], None]) -> RedundantTransport:
    bind = str(options.cluster_bind) if options.clustered else "127.0.0.1:0"
    security = ring_security(options, warn)
    binds = [bind, *map(str, options.cluster_bind_also)]
    return RedundantTransport(binds, wire_bytes_max(RingConfig().frame_bytes_max), security)


def _code_of(refusal: Refusal) -> Exit:
    """Return the exit code of a member that is refused."""
    return Exit.PROTOCOL if refusal.settings else Exit.DATA


class FirstStart:
    """Messages of a member that waits for the first start of its cluster, in its log and on
    request: which members it cannot reach, by `lack`."""

    def __init__(self, lack: Callable[[], str]) -> None:
        self._lack, self._lacks = lack, Lacks()

    @property
    def told(self) -> str:
        """Return the last message; "" while nobody is missing, or not for long yet."""
        return self._lacks.told

    def wake(self, now: float, *, waits: bool) -> None:
        """Look for the members it waits for, if it does; call it about once a second."""
        if news := self._lacks.news(now, self._lack() if waits else ""):
            log.warning("waiting for the first start: %s. %s", news, DO_THEY_RUN)


@dataclass(frozen=True, slots=True)
class RingIdentity:
    """The identity of a process on the ring, and the directory that stores it."""

    name: str
    incarnation: int
    ring_name: str
    data_dir: Path
    transient: bool = False
    """Whether the directory is removed with the process."""
    leads: Callable[[], bool] = lambda: True
    """Whether the store is this process's now, where several share one."""
    unusual: tuple[tuple[str, str], ...] = ()
    """Settings announced to others, see `unusual_settings`."""


def member_identity(options: BrokerOptions, directory: DataDirectory) -> RingIdentity:
    """Return the identity of a member with data."""
    return RingIdentity(
        directory.name, directory.incarnation, directory.ring_name, directory.data_dir,
        directory.temporary, directory.lease.holds, unusual_settings(options.settings),
    )  # fmt: skip


class RingEndpoint:
    """A member or an arbitrator on the ring: its node, its driver, and its discovery of the others.

    Raises TraceError when a trace was requested and its file cannot be written.
    """

    def __init__(
        self,
        options: BrokerOptions,
        identity: RingIdentity,
        transport: RedundantTransport,
        on_output: Callable[[Output], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.transport = transport
        self._loop = loop
        self._stop: Callable[[Exit, str], None] | None = None
        self._links_down: tuple[str, ...] = ()
        self._link_timer: asyncio.TimerHandle | None = None
        self.me = Member(identity.name, identity.incarnation, transport.address)
        config = RingConfig(
            payload_version=MACHINE_VERSION, payload_version_min=MACHINE_VERSION_MIN
        )
        self._kept_lease = KeptLease(identity.data_dir, config, loop)
        self.door = PrimaryDoor(
            self.me, options.cluster_size, options.requested, transient=identity.transient,
            barred=self._barred, unusual=identity.unusual,
        )  # fmt: skip
        self.node = Node(
            self.me, identity.ring_name, config, random.Random(), self._kept_lease.tempo, self.door
        )
        path = options.trace if options.trace is not None else identity.data_dir / "ring.trace"
        tracer = Tracer(self.node, options.cluster_name, path, loop)
        tracer.switch(options.trace is not None)
        self.reply_lease = ReplyLease(self.node.lease, leads=identity.leads)
        self.driver = TracedDriver(self.node, transport, on_output, tracer, loop)
        self._discovery = _discovery_for(options, self.me, log.warning)

    def start(self, primary: Primary, stop: Callable[[Exit, str], None]) -> None:
        """Begin to take part; `stop` is called when the ring fails, or this member may not join."""
        self.door.opens(primary)

        def closed(ended: asyncio.Future[None]) -> None:
            if ended.exception() is not None:
                log.error("the ring failed", exc_info=ended.exception())
                stop(Exit.INTERNAL, "the ring failed here")

        self._stop = stop
        self.driver.closed.add_done_callback(closed)
        self.driver.start()
        self._kept_lease.start()
        self._look_at_links()
        if self._discovery is not None:
            self._discovery.start(self._found)

    def _barred(self, refusal: Refusal) -> None:
        assert self._stop is not None
        # The node is in the middle of a frame.
        self._loop.call_soon(self._stop, _code_of(refusal), f"cannot join: {refusal.why}")

    def _look_at_links(self) -> None:
        """Log lost and restored links of members that are reachable over another link."""
        down = self.transport.links_down
        for link in down:
            if link not in self._links_down:
                log.warning("the link to %s is down; its member has another one", link)
        for link in self._links_down:
            if link not in down:
                log.warning("the link to %s is up again", link)
        self._links_down = down
        self._link_timer = self._loop.call_later(LINKS_S, self._look_at_links)

    def status(self) -> dict[str, list[str] | int]:
        """For operators: the lost links, as in the log, and the encoding of its frames."""
        return {
            "links_down": list(self.transport.links_down),
            "wire_version": self.node.codec.written,
        }

    def lack(self) -> str:
        """Return the members without a connection, in a sentence; "" if there are none."""
        if self._discovery is None:
            return ""
        return self._discovery.lack(self.me.address, self.transport.reached)

    def _found(self, address: str) -> None:
        if address not in self.me.address.split(SEPARATOR):
            self.driver.add_peer(address)

    def leave(self) -> None:
        """End discovery, and send the leave notice."""
        if self._discovery is not None:
            self._discovery.stop()
        self._kept_lease.stop()
        if self._link_timer is not None:
            self._link_timer.cancel()
        self.driver.leave()
