"""One member of a real cluster within this process, and a record of the functions that it calls.

The other members are processes of their own, so every recorded call is this member's: of its event
loop or of one of its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType, FrameType

from broker.durability.data_directory import DataDirectory
from broker.listener.client_listener import ClientListener
from broker.options.broker import broker_options
from broker.process.member import BrokerMember
from broker.process.ring_setup import ring_transport
from tests.architecture import ROOT, Step
from tests.support.amqp_peer import ServerMethod, method, methods_in, opening
from tools.client.management import ManagementError
from tools.demo.local_cluster import HOST, LocalCluster

SETTLE_S = 30.0
TRACED = ("vsync", "store", "broker")
BY_THE_CLOCK = frozenset(("BrokerMember._beat", "ClientListener._sweep", "Observation._step"))
"""Functions that a member calls now and then, whatever else happens."""


class Recorder:
    """The calls of product functions while it is on, in order, by all threads started under it."""

    def __init__(self) -> None:
        self.calls: list[Step] = []
        self.on = False
        self.leaves_out_beats = False
        """Functions that on a slow machine may be called in the middle of anything."""
        self._beating: dict[int, CodeType] = {}  # by thread
        self._known: dict[CodeType, Step | None] = {}

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event not in ("call", "return"):
            return
        code = frame.f_code
        if self.leaves_out_beats and self._in_a_beat(code, event):
            return
        if event != "call":
            return
        if code not in self._known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in TRACED
            place = path.relative_to(ROOT).as_posix() if inside else ""
            self._known[code] = Step(place, code.co_qualname) if inside else None
        if call := self._known[code]:
            self.calls.append(call)

    def _in_a_beat(self, code: CodeType, event: str) -> bool:
        thread = threading.get_ident()
        if event == "call" and code.co_qualname in BY_THE_CLOCK:
            self._beating[thread] = code
        elif event == "return" and self._beating.get(thread) is code:
            del self._beating[thread]
        return thread in self._beating

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Record, also in threads that are started within the block."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def take(self) -> list[Step]:
        """Return the calls since the last look."""
        calls, self.calls = self.calls, []
        return calls


class Client:
    """A connection to the member in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def publishing(cls, port: int) -> AsyncIterator[Client]:
        """A channel with confirms."""
        client = cls(*await asyncio.open_connection(HOST, port))
        try:
            await client.call(opening(), "connection.open-ok")
            await client.call(method(1, "channel.open"), "channel.open-ok")
            await client.call(method(1, "confirm.select", False), "confirm.select-ok")
            yield client
        finally:
            client._writer.close()
            await client._writer.wait_closed()

    async def call(self, data: bytes, until: str) -> ServerMethod:
        """Send, and read until a method of this name arrives."""
        self._writer.write(data)
        received = b""
        while True:
            received += await asyncio.wait_for(self._reader.read(1 << 16), SETTLE_S)
            with contextlib.suppress(AssertionError):
                for one in methods_in(received):
                    if one.method == until:
                        return one


@contextlib.asynccontextmanager
async def member_of(cluster: LocalCluster) -> AsyncIterator[None]:
    """The cluster's first member, run here."""
    words = cluster[0].arguments
    options = broker_options(dict(zip((w[2:] for w in words[::2]), words[1::2], strict=True)))
    loop = asyncio.get_running_loop()
    transport = ring_transport(options, print)
    listener = ClientListener(options.clients, loop)
    assert options.port is not None
    await listener.bind(HOST, options.port)
    identity = DataDirectory(options)
    member = BrokerMember(options, identity, transport, loop, options.cluster_url, listener)
    await listener.serve(member)
    with _collector_as_it_was():
        member.start()
        try:
            yield
        finally:
            member.terminate()
            await asyncio.wait_for(member.done, SETTLE_S)
            await listener.close()


@contextlib.contextmanager
def _collector_as_it_was() -> Iterator[None]:
    """Restore the garbage collector, which a member sets for the rest of its process.

    `tests/properties/test_backlog.py` collects twice: with a member's watch left installed, the
    first collection set its survivors aside if it took long, as on a slow machine.
    """
    watches, thresholds = list(gc.callbacks), gc.get_threshold()
    try:
        yield
    finally:
        gc.callbacks[:] = watches
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def serves(cluster: LocalCluster, size: int) -> None:
    """Wait until the first member serves, in a view of this size."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        with contextlib.suppress(ManagementError):
            status = await asyncio.to_thread(cluster[0].status)  # answered by this thread's loop
            if status.status == "ACTIVE" and status.size == size:
                return
        assert time.monotonic() < deadline, f"it does not serve in a view of {size}"
        await asyncio.sleep(0.02)
