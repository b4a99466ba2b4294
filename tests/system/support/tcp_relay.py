"""A relay between the members of a cluster that holds, cuts or delays frames.

Every ordered pair of members has its own listening port here, so each direction can fail by itself:
data from member a to b travel only over the route (a, b).  A route is open; held (bytes wait and
arrive when it opens again, as behind a packet filter, where TCP resends them); slow (every piece
waits for a random time, so that routes overtake each other); or confused: whole frames arrive
twice, or late, behind others that were sent after them.  TCP does neither, but the ring promises to
tolerate it, so the relay reads the framing of ZMTP 3 (RFC 23), in which each frame after the
greeting has its length.  That needs connections without keys, which would notice.  `sever` resets
the connections of a route and loses the data under way.

The relay accepts connections even while the member behind it is dead: a refusal would be evidence
about that member which a network in between could not give.  So a member that dies behind it is
detected by its silence, as if its machine had died.

The random times are seeded for each route; the operating system decides when bytes arrive, so two
runs with one seed are similar but not equal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from tools.demo.local_cluster import HOST, BrokerProcess, LocalCluster

PIECE_BYTES = 64 * 1024
GREETING_BYTES, GREETING_BEGINS = 64, b"\xff"
LONG, COMMAND = 2, 4
LATE_S = 0.05
"""The longest delay of a confused frame: some rotations of the token."""
ANSWER_S = 10.0
"""How long the relay's thread may take to carry out a call; it only sets variables."""


class Cutter:
    """Splits a ZMTP 3 socket's data into whole frames, and tells which are messages.

    Data that do not begin like ZMTP 3 are passed on unchanged.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = self._raw = False
        self._seen = 0  # bytes of the greeting

    def cut(self, piece: bytes) -> list[tuple[bytes, bool]]:
        """Take some bytes; return the frames complete now, in order."""
        if self._raw:
            return [(piece, False)]
        self._rest += piece
        found = []
        if not self._greeted and self._rest[:1] != GREETING_BEGINS:
            self._raw = True
            rest, self._rest = self._rest, b""
            return [(rest, False)] if rest else []
        if not self._greeted:
            # Each side waits for the other's first bytes, so the greeting must not wait until it is
            # whole.
            self._greeted = len(self._rest) >= GREETING_BYTES
            self._seen, seen = min(len(self._rest), GREETING_BYTES), self._seen
            found.append((self._rest[seen : self._seen], False))
            if not self._greeted:
                return found
            self._rest = self._rest[GREETING_BYTES:]
        while (size := self._frame_bytes()) and len(self._rest) >= size:
            found.append((self._rest[:size], not self._rest[0] & COMMAND))
            self._rest = self._rest[size:]
        return found

    def _frame_bytes(self) -> int:
        """The size of the frame that begins now, with its head; 0 if too few bytes are here to
        say."""
        rest = self._rest
        if len(rest) < 2:
            return 0
        if not rest[0] & LONG:
            return 2 + rest[1]
        return 9 + int.from_bytes(rest[1:9], "big") if len(rest) >= 9 else 0


class Route:
    """The data from one member to another, over connections that the first one dials."""

    def __init__(self, target: str, chance: random.Random, *, framed: bool = False) -> None:
        """`framed`: the dialled address speaks ZMTP, so frames may be confused."""
        self.target = target
        self.delay_s = 0.0
        self.confused = 0.0
        self.moved_bytes = 0
        self.doubled = self.overtaken = 0
        self._framed = framed
        self._late: set[asyncio.Task[None]] = set()
        self._chance = chance
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def hold(self) -> None:
        """Let nothing through until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let waiting and new data through at once."""
        self.delay_s = self.confused = 0.0
        self._open.set()

    def sever(self) -> None:
        """Reset all connections of the route; data on them are lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end closes it."""
        ends = [writer]
        self._writers.add(writer)
        try:
            await self._open.wait()
            host, _, port = self.target.rpartition(":")
            behind, onward = await asyncio.open_connection(host, int(port))
            ends.append(onward)
            self._writers.add(onward)
            pumps = [
                asyncio.create_task(self._pump(reader, onward, Cutter() if self._framed else None)),
                asyncio.create_task(self._pump(behind, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # nobody listens behind it: the dialling member sees its connection end
        finally:
            for end in ends:
                self._writers.discard(end)
                end.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cutter: Cutter | None = None,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self._chance.uniform(0.0, self.delay_s))
                await self._open.wait()
                for part, message in cutter.cut(piece) if cutter else [(piece, False)]:
                    self._put(part, writer, message=message)
                self.moved_bytes += len(piece)
                await writer.drain()

    def _put(self, part: bytes, writer: asyncio.StreamWriter, *, message: bool) -> None:
        if message and self._chance.random() < self.confused:
            task = asyncio.create_task(self._put_late(part, writer))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            if self._chance.random() < 0.5:
                self.overtaken += 1
                return
            self.doubled += 1
        writer.write(part)

    async def _put_late(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, LATE_S))
        await self._open.wait()
        if not writer.is_closing():
            writer.write(frame)


class Relay:
    """All routes between members, in its own thread; its methods are called from another."""

    def __init__(self, targets: Sequence[str], seed: int) -> None:
        """`targets` are the members' real addresses, "host:port"."""
        pairs = [(a, b) for a in range(len(targets)) for b in range(len(targets)) if a != b]
        self._loop = asyncio.new_event_loop()
        self._routes = {
            (a, b): Route(targets[b], random.Random(f"{seed} {a} {b}"), framed=True)
            for a, b in pairs
        }
        # Listening from now on, as a merely free port could be taken before the start.
        self._doors = {pair: socket.create_server((HOST, 0)) for pair in pairs}
        self._servers: list[asyncio.Server] = []
        self._targets = tuple(targets)
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        self._wait(asyncio.run_coroutine_threadsafe(self._listen(), self._loop))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop.is_closed():
            return
        self._wait(asyncio.run_coroutine_threadsafe(self._close(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    def detours(self, source: int) -> str:
        """Return the argument of `relayed_broker` for the member at this place."""
        doors = [(b, door) for (a, b), door in self._doors.items() if a == source]
        return ",".join(f"{self._targets[b]}={HOST}:{d.getsockname()[1]}" for b, d in doors)

    def hold(self, source: int, target: int) -> None:
        """Cut one direction."""
        self._loop.call_soon_threadsafe(self._routes[source, target].hold)

    def isolate(self, member: int) -> None:
        """Cut a member off, both ways."""
        for route in self._of(member):
            self._loop.call_soon_threadsafe(route.hold)

    def sever(self, member: int) -> None:
        """Reset every connection to and from a member."""
        for route in self._of(member):
            self._loop.call_soon_threadsafe(route.sever)

    def slow(self, member: int, delay_s: float) -> None:
        """Delay each piece to and from a member by up to `delay_s`."""
        for route in self._of(member):
            route.delay_s = delay_s

    def confuse(self, member: int, share: float) -> None:
        """Repeat or delay this share of the frames to and from a member."""
        for route in self._of(member):
            route.confused = share

    @property
    def doubled(self) -> int:
        """The number of repeated frames."""
        return sum(route.doubled for route in self._routes.values())

    @property
    def overtaken(self) -> int:
        """The number of frames that were overtaken by later ones."""
        return sum(route.overtaken for route in self._routes.values())

    def heal(self) -> None:
        """Open every route and end all delays."""
        for route in self._routes.values():
            self._loop.call_soon_threadsafe(route.release)

    @property
    def moved_bytes(self) -> int:
        """All bytes relayed: if there are none, a run shows nothing."""
        return sum(route.moved_bytes for route in self._routes.values())

    def moved(self, source: int, target: int) -> int:
        """Return the number of bytes relayed over one route."""
        return self._routes[source, target].moved_bytes

    def _of(self, member: int) -> Iterator[Route]:
        return (route for pair, route in self._routes.items() if member in pair)

    async def _listen(self) -> None:
        for pair, route in self._routes.items():
            self._servers.append(await asyncio.start_server(route.serve, sock=self._doors[pair]))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @staticmethod
    def _wait(future: Future[None]) -> None:
        future.result(ANSWER_S)


class DetouredBroker(BrokerProcess):
    """A broker whose connections to other members go through a relay."""

    def __init__(self, plain: BrokerProcess, detours: str) -> None:
        root, port = plain.data_dir.parent, plain.address.port
        super().__init__(plain.label, root, port, plain.arguments)
        self._detours = detours

    def program(self) -> list[str]:
        """Return the wrapper of the command."""
        return [sys.executable, "-m", "tests.system.support.relayed_broker", self._detours]


class RelayedCluster(LocalCluster):
    """A `LocalCluster` with a relay between its members."""

    def __init__(
        self, root: Path, size: int = 3, name: str = "relayed", *, seed: int = 1,
        arbitrator: bool = False, extra: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root, size, name, arbitrator=arbitrator, extra=extra)
        self.relay = Relay([_ring_address(member) for member in self.members], seed)
        self.members = [
            DetouredBroker(member, self.relay.detours(place))
            for place, member in enumerate(self.members)
        ]

    def __enter__(self) -> RelayedCluster:
        self.relay.__enter__()
        return self

    def close(self) -> None:
        """Kill all remaining processes, then end the relay."""
        super().close()
        self.relay.__exit__(None, None, None)


def _ring_address(member: BrokerProcess) -> str:
    arguments = member.arguments
    return arguments[arguments.index("--cluster-bind") + 1]
