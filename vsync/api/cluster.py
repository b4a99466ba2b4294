"""One member of a cluster and its groups, for asyncio programs.

    async with Cluster("shop", "a", "10.0.0.1:5401", ["10.0.0.2:5401"]) as cluster:
        group = await cluster.join("orders")
        position = await group.mcast(b"hello", SAFE)
        async for event in group:
            ...

This is the shell around `vsync.cpg.groups`: it owns sockets, clock and futures, and takes no
decisions. docs/VSYNC.md is the user's manual. Everything runs on one event loop and one thread.

The future of an accepted message always completes, also at a view change and at `close`: with the
message's position, or with an error that says why it has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from vsync.admin.protocol import Op
from vsync.admin.views import groups_reply, quorum_reply
from vsync.api.endpoint import Endpoint
from vsync.api.group import Group, Received
from vsync.api.pending import Accepted, PendingCalls
from vsync.cpg.events import Cause, Failed, GroupEvent, GroupMessage, GroupSent, GroupView, Synced
from vsync.cpg.groups import Groups
from vsync.errors import ClusterClosed, ConfigError, GroupError, VsyncError
from vsync.io import diagnosis
from vsync.io.discovery import Beacon, Discovery, StaticPeers, look_up
from vsync.io.security import Curve, Security
from vsync.io.traced_driver import TracedDriver, Tracer, trace_op
from vsync.io.transport import ZmqTransport
from vsync.quorum.voter_set import Electorate, parse
from vsync.totem.config import RingConfig
from vsync.totem.events import Output
from vsync.totem.node import Node
from vsync.types import Member, RingId
from vsync.wire.codec import wire_bytes_max

UNREAD_BYTES_MAX: Final = 64 << 20
"""Unread bytes, in all groups of the application, at which this member pauses."""
PAUSE_S_MAX: Final = 10.0
"""How long it may stay paused before it fails."""
LEAVE_LINGER_MS: Final = 100
RING_NAME: Final = "groups of "
"""Prefix that keeps these rings apart from rings of other layers, whose members never pass the
barrier."""
MEMBER_NAME_BYTES_MAX: Final = 255
NOT_STARTED: Final = "this cluster is not started: use `async with Cluster(...)`"


class Cluster:
    """One incarnation of one member, and its groups. Use it with `async with`.

    - `cluster`: the name that all members share. `member`: this member's name.
    - `bind`: address of its ring socket.
    - `peers`: addresses of other members; one that is running is enough. None: find them by
      multicast.
    - `config`: the same at all members.
    - `voters`: voter terms for `quorate`, see `vsync.quorum.voter_set`.
    - `security`: keys for the ring's connections. Without them every process that reaches the
      ring's port may take part.
    - `manage`: address for the tools' queries, "127.0.0.1:PORT" or "unix:/a/path".
    - `trace`: file for a trace of the protocol.
    """

    def __init__(
        self,
        cluster: str,
        member: str,
        bind: str = "127.0.0.1:0",
        peers: Sequence[str] | None = (),
        *,
        config: RingConfig | None = None,
        voters: Iterable[str] = (),
        security: Security | None = None,
        manage: str = "",
        trace: str | Path = "",
        unread_bytes_max: int = UNREAD_BYTES_MAX,
    ) -> None:
        if not cluster or not member or not (cluster + member).isprintable():
            raise ConfigError(f"{cluster!r}, {member!r}: both need names that can be printed")
        if (size := len(member.encode())) > MEMBER_NAME_BYTES_MAX:
            most = MEMBER_NAME_BYTES_MAX
            raise ConfigError(f"the name of a member has at most {most} bytes, not {size}")
        for what, given in (("peers", peers), ("voters", voters)):
            if isinstance(given, str):
                raise ConfigError(f"{what} are a list of texts, not one: [{given!r}]")
        if isinstance(security, Curve) and security.own.name != member:
            raise ConfigError(
                f"the key is of member {security.own.name!r}, and this is member {member!r}: the "
                "others drop what comes under another name than the key's"
            )
        self.name = cluster
        self.config = config if config is not None else RingConfig()
        self.voters: Electorate = parse(tuple(voters))
        self._member, self._bind, self._peers, self._security = member, bind, peers, security
        self._me: Member | None = None
        self._endpoint = Endpoint(manage, self._ops()) if manage else None
        self._trace = Path(trace) if trace else None
        self._unread_max, self._unread_bytes = unread_bytes_max, 0
        self._core: Groups | None = None
        self._joined: dict[str, Group] = {}
        self._closing = False
        self._over = False
        self._failed: ClusterClosed | None = None
        self._pause_limit: asyncio.TimerHandle | None = None
        self._discovery: Discovery | None = None

    # -- start and close -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self.close(0.0 if error is not None else 5.0)

    async def start(self) -> None:
        """Join the ring; return in the first view, which may consist of this member alone.

        Raises `TransportError` when the address is taken or malformed.
        """
        if self._core is not None:
            raise GroupError("a Cluster starts once; make a new one to start again")
        self._loop = asyncio.get_running_loop()
        self._pending = PendingCalls()
        longest = wire_bytes_max(self.config.frame_bytes_max)
        self._transport = ZmqTransport(self._bind, longest, security=self._security)
        try:
            self._me = Member(self._member, time.time_ns(), self._transport.address)
            self._discovery = self._find()
            self._node = Node(self.me, RING_NAME + self.name, self.config, random.Random())
            tracer = Tracer(self._node, self.name, self._trace, self._loop)
            tracer.switch(self._trace is not None)
            self._driver = TracedDriver(self._node, self._transport, self._on_output, tracer)
            self._core = Groups(
                self.me,
                self._driver,
                payload_bytes_max=self.config.message_bytes_max,
                pending_bytes_max=self.config.queue_bytes_max,
            )
            if self._endpoint is not None:
                await self._endpoint.open()
            self._driver.closed.add_done_callback(self._on_driver_closed)
            self._driver.start()
            self._discovery.start(self.add_peer)
            await self.until(lambda: self.core.synced)
        except BaseException:
            if self._core is None:
                self._transport.close()
            else:
                self._finish(ClusterClosed("the start was given up"))
            raise

    def _find(self) -> Discovery:
        if self._peers is not None:
            return StaticPeers(self._peers, self._warn, partial(look_up, mine=self.me.address))
        interface = self.me.address.rsplit(":", 1)[0]
        return Beacon(self.name, self.me.name, self.me.address, self._warn, interface=interface)

    def _warn(self, sentence: str) -> None:
        self._loop.call_exception_handler({"message": f"vsync: {sentence}"})

    def add_peer(self, address: str) -> None:
        """Add an address at which a member may be. Raises `TransportError` if it is malformed."""
        self._require_start()
        if address != self.me.address:
            self._driver.add_peer(address)

    async def close(self, timeout: float = 5.0) -> None:
        """Leave all groups, behind everything accepted, then the ring.  Idempotent.

        Messages that have not reached their level in `timeout` seconds fail with `ClusterClosed`.
        Returns when it is done, also where another task began it.
        """
        if self._core is None or self._over:
            return
        if self._closing:
            with contextlib.suppress(ClusterClosed):
                await self.wait_closed()
            return
        self._closing = True
        try:
            with contextlib.suppress(TimeoutError, VsyncError):
                async with asyncio.timeout(timeout):
                    await self._drain()
        finally:  # also when this task is cancelled: nobody else does it
            self._finish(ClusterClosed("the cluster was closed here before this was done"))
        await asyncio.sleep(0)  # transports call connection_lost in the loop's next turn

    async def _drain(self) -> None:
        for name in sorted(self._joined):
            with contextlib.suppress(GroupError):  # already leaving it
                while (left := self._take(lambda core: core.leave(name))) is None:  # noqa: B023
                    await self._change()
                left.add_done_callback(_look)
        while len(self._pending):
            await self._change()

    def _finish(self, ended: ClusterClosed) -> None:
        """Release everything, and fail all pending calls with `ended`."""
        if self._over:
            return
        self._closing = self._over = True
        if self._discovery is not None:
            self._discovery.stop()
        if self._pause_limit is not None:
            self._pause_limit.cancel()
        if self._endpoint is not None:
            self._endpoint.close()
        self._driver.leave()
        self._driver.stop(LEAVE_LINGER_MS)
        self.core.drop()
        self._pending.fail_all(ended)
        for group in self._joined.values():
            group.end()

    def _fail(self, failed: ClusterClosed) -> None:
        if self._over:
            return
        self._failed = failed
        self._finish(failed)
        # With a callback the program may make no call that would raise it.
        sentence = f"vsync: member {self._member!r} of {self.name!r} failed: {failed}"
        self._loop.call_exception_handler({"message": sentence, "exception": failed})

    def _on_driver_closed(self, closed: asyncio.Future[None]) -> None:
        error = closed.exception()
        if error is not None:
            failed = ClusterClosed(f"this member failed and left the ring: {error!r}")
            failed.__cause__ = error
            self._fail(failed)

    async def wait_closed(self) -> None:
        """Return when this member is closed; raise `ClusterClosed` when it failed."""
        self._require_start()
        while not self._over:
            with contextlib.suppress(ClusterClosed):
                await self._pending.next_change()
        self.raise_if_failed()

    # -- queries ---------------------------------------------------------------------------------

    @property
    def core(self) -> Groups:
        """The group layer below."""
        if self._core is None:
            raise GroupError(NOT_STARTED)
        return self._core

    def _require_start(self) -> None:
        if self._core is None:
            raise GroupError(NOT_STARTED)

    @property
    def me(self) -> Member:
        """This member."""
        if self._me is None:
            raise GroupError(NOT_STARTED)
        return self._me

    @property
    def address(self) -> str:
        """Address of this member's ring socket, with the port actually bound."""
        return self.me.address

    @property
    def ring(self) -> RingId:
        """The ring installed last."""
        return self.core.ring

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of that ring."""
        return self.core.members

    @property
    def groups(self) -> dict[str, tuple[Member, ...]]:
        """All groups of the ring, including those that this member has not joined."""
        return self.core.views()

    @property
    def quorate(self) -> bool:
        """Whether this view has a quorum of the `voters`; without voters, whether there is one.

        False once this member is closed or has failed: nobody may act on what it saw last.
        """
        if self._over:
            return False
        return not self.voters.sets or self.voters.quorate({m.name for m in self.members})

    async def why_alone(self) -> str:
        """Why this member is alone although it reached others; "" when the reason is unknown."""
        if len(self.members) > 1:
            return ""
        return (await diagnosis.why_alone(self._node, self._transport)).replace(RING_NAME, "")

    def counters(self) -> dict[str, int]:
        """Return all counters, by component."""
        self._require_start()
        parts: dict[str, dict[str, int]] = {
            "ring": self._node.counters,
            "driver": self._driver.counters,
            "transport": self._transport.counters,
            "groups": self.core.counters,
        }
        return {f"{part}.{k}": v for part, found in parts.items() for k, v in found.items()}

    @property
    def manage(self) -> str:
        """Address for the tools' queries, with the port actually bound."""
        return self._endpoint.address if self._endpoint is not None else ""

    def _ops(self) -> dict[str, Op]:
        return {
            "groups": lambda _: groups_reply(
                self.name, self.me, self.ring, self.members, self.groups,
                self.core.position, settled=self.core.synced,
            ),
            "quorum": lambda _: quorum_reply(
                self.name, self.me.name, self.ring, {m.name for m in self.members},
                self.voters, acting=self.quorate,
                reason=self.voters.describe({m.name for m in self.members}),
            ),
            "counters": lambda _: {"counters": self.counters()},
            "trace": lambda request: trace_op(self._driver.tracer)(request),
        }  # fmt: skip

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is evaluated after each event of the ring."""
        self._require_start()
        while not condition():
            await self._change()

    # -- groups ----------------------------------------------------------------------------------

    async def join(self, group: str, on_event: Callable[[Received], None] | None = None) -> Group:
        """Join a group; returns when the join has its place in the order.

        `on_event` is called with each event, on the loop's thread, instead of the iteration, the
        first time before this returns; it must return soon, and an exception from it ends this
        member.
        """
        joined = Group(self, group, on_event)

        def ask() -> Accepted | None:
            asked = self.accept(lambda core: core.join(group))
            if asked is not None:
                self._joined[group] = joined
            return asked

        await self.wait_for_room(ask)
        return joined

    def durable(self, position: int) -> None:
        """Say that everything up to `position`, of all joined groups, is on this member's disk."""
        self._require_loop()
        self.raise_if_closed()
        self.core.set_durable(position)

    # -- for the groups --------------------------------------------------------------------------

    def accept(self, call: Callable[[Groups], int | None]) -> Accepted | None:
        """Make a call that returns a ticket; None when there is no room."""
        self._require_loop()
        self.raise_if_closed()
        return self._take(call)

    def _take(self, call: Callable[[Groups], int | None]) -> Accepted | None:
        ticket = call(self.core)
        if ticket is None:
            return None
        return self._pending.add(ticket)

    async def wait_for_room(self, ask: Callable[[], Accepted | None]) -> int:
        """Call `ask`, in turn with other waiters, until accepted; then wait for the result."""
        self._require_loop()
        return await self._pending.submit(ask)

    def _require_loop(self) -> None:
        """Refuse a call from elsewhere than the loop of `start`: nothing here has a lock."""
        self._require_start()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise GroupError(
                "called from another thread or event loop than this cluster was started in: use "
                "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe"
            )

    async def _change(self) -> None:
        self.raise_if_over()
        await self._pending.next_change()

    def unread(self, more: int) -> None:
        """Count unread bytes; pause this member before they fill the memory."""
        self._unread_bytes += more
        if self._unread_bytes > self._unread_max and not self._driver.paused:
            self._driver.pause()
            self._pause_limit = self._loop.call_later(PAUSE_S_MAX, self._give_up)
        elif self._driver.paused and self._unread_bytes <= self._unread_max // 2:
            if self._pause_limit is not None:
                self._pause_limit.cancel()
            self._driver.resume()

    def _give_up(self) -> None:
        sentence = (
            f"the application left {self._unread_bytes} bytes of events unread for {PAUSE_S_MAX:g} "
            f"s: read every group that was joined, and do not wait for an mcast in the task that "
            f"reads"
        )
        self._fail(ClusterClosed(sentence))

    def raise_if_failed(self) -> None:
        """Raise the failure that ended this member, if any."""
        if self._failed is not None:  # a new one each time: a traceback grows where it is raised
            raise ClusterClosed(*self._failed.args) from self._failed.__cause__

    def raise_if_over(self) -> None:
        """Raise when no further event can come."""
        self.raise_if_failed()
        if self._over:
            raise ClusterClosed("the cluster is closed here")

    def raise_if_closed(self) -> None:
        """Raise when calls are no longer accepted."""
        self.raise_if_over()
        if self._closing:
            raise ClusterClosed("the cluster is being closed here")

    # -- events ----------------------------------------------------------------------------------

    def _on_output(self, output: Output) -> None:
        core = self.core
        before = core.pending
        for event in core.on_output(output):
            self._route(event)
        if core.pending < before:
            self._pending.wake_next()
        self._pending.notify()

    def _route(self, event: GroupEvent) -> None:
        match event:
            case GroupMessage():
                self._joined[event.group].deliver(event)
            case GroupSent() | Failed():
                self._pending.resolve(event)
            case GroupView():
                group = self._joined[event.group]
                group.deliver(event)
                if (self.me, Cause.LEAVE) in event.left:
                    del self._joined[event.group]
                    group.end()
            case Synced():
                pass


def _look(future: Accepted) -> None:
    """Retrieve the exception, so that asyncio does not log it: `close` fails these futures."""
    if not future.cancelled():
        future.exception()
