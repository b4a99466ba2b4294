"""The asyncio interface over real sockets: every accepted call gets a result, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest

import vsync
from vsync import (
    AGREED,
    DURABLE,
    SAFE,
    Cause,
    Cluster,
    ClusterClosed,
    ConfigError,
    Group,
    GroupError,
    GroupMessage,
    GroupView,
    NotDurable,
    RingConfig,
    TransportError,
)
from vsync.api.group import Received
from vsync.io.driver import Driver
from vsync.io.transport import ZmqTransport
from vsync.totem.node import Node
from vsync.types import Member

CONFIG = RingConfig(
    token_timeout_ms=5_000, probe_ms=50, hold_ms=20, join_timeout_ms=20, merge_interval_ms=50
)
"""The loss of a token is far away: a machine that is busy elsewhere changes no view."""


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` under a time limit that turns a hang into a failure; nothing asserts on time."""

    async def bounded() -> None:
        async with asyncio.timeout(40):
            await main()

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def together(
    names: str, voters: Iterable[str] = (), unread_bytes_max: int = 64 << 20
) -> AsyncIterator[list[Cluster]]:
    """Start members and wait until they form one ring."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[Cluster] = []
        for name in names:
            peers = [c.address for c in found]
            one = Cluster(
                "test", name, peers=peers, config=CONFIG,
                voters=voters, unread_bytes_max=unread_bytes_max,
            )  # fmt: skip
            found.append(await stack.enter_async_context(one))
        for one in found:
            await one.until(lambda one=one: len(one.members) == len(names))  # type: ignore[misc]
        yield found


async def kill(one: Cluster) -> None:
    """End a member without a leave notice, as a killed process would."""
    one._driver.stop()
    await one.close(0)


async def read(group: Group, count: int) -> list[Received]:
    """Read the next `count` events."""
    return [await anext(group) for _ in range(count)]


async def read_messages(group: Group, count: int) -> list[GroupMessage]:
    """Read events until `count` messages have come; return the messages."""
    found: list[GroupMessage] = []
    while len(found) < count:
        event = await anext(group)
        if isinstance(event, GroupMessage):
            found.append(event)
    return found


def test_every_public_name_exists() -> None:
    assert sorted(vsync.__all__) == sorted(n for ns in vsync._HOMES.values() for n in ns)
    for name in vsync.__all__:
        assert getattr(vsync, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Klaster'"):
        importlib.import_module("vsync").Klaster  # noqa: B018


def test_positions_agree_on_all_members_and_groups_are_separate() -> None:
    async def main() -> None:
        async with together("abc") as members:
            groups = [await one.join("g") for one in members]
            other = await members[0].join("h")
            sent = [await g.mcast(b"from %d" % n, SAFE) for n, g in enumerate(groups)]
            assert sent == sorted(sent)
            seen = [await read_messages(g, 3) for g in groups]
            assert [m.position for m in seen[0]] == sent
            assert seen[0] == seen[1] == seen[2]
            await other.mcast(b"to h", AGREED)
            view, message = await read(other, 2)
            assert isinstance(view, GroupView)
            assert view.joined == ((members[0].me, Cause.JOIN),)
            assert isinstance(message, GroupMessage)
            assert (message.group, message.payload) == ("h", b"to h")
            assert set(members[2].groups) == {"g", "h"}
            assert groups[2].members == groups[0].members
            # A leave ends the iteration after everything that was sent before it.
            last = asyncio.ensure_future(groups[2].mcast(b"last"))
            await groups[2].leave()
            assert last.done()
            rest = [event async for event in groups[2]]
            assert isinstance(rest[-1], GroupView)
            assert rest[-1].left == ((members[2].me, Cause.LEAVE),)
            with pytest.raises(GroupError, match="not in group 'g'"):
                await groups[2].mcast(b"")
            assert (await members[2].join("g")) is not groups[2]

    run(main)


def test_a_close_and_a_failure_have_different_causes() -> None:
    async def main() -> None:
        async with together("abc") as (a, b, c):
            group = await a.join("g")
            await b.join("g")
            await c.join("g")
            await a.until(lambda: len(group.members) == 3)
            await b.close()
            await kill(c)
            await a.until(lambda: len(group.members) == 1)
            causes = [
                (m.name, cause)
                for event in await read(group, 5)
                if isinstance(event, GroupView)
                for m, cause in event.left
            ]
            assert causes == [("b", Cause.LEAVE), ("c", Cause.NODEDOWN)]

    run(main)


def test_callbacks_receive_the_same_events() -> None:
    async def main() -> None:
        heard: list[Received] = []
        async with together("ab") as (a, b):
            group = await a.join("g", heard.append)
            assert isinstance(heard[0], GroupView)
            talker = await b.join("g")
            accepted = talker.try_mcast(b"hello", SAFE)
            assert accepted is not None
            position = await accepted
            await a.until(lambda: any(e.position == position for e in heard))
            assert isinstance(heard[-1], GroupMessage)
            with pytest.raises(GroupError, match="go to a callback"):
                await anext(group)

    run(main)


def test_a_callback_that_raises_ends_the_member_with_its_reason() -> None:
    def stumble(event: Received) -> None:
        if isinstance(event, GroupMessage):
            raise RuntimeError("no such key")

    async def main() -> None:
        async with together("ab") as (a, b):
            await a.join("g", stumble)
            group = await b.join("g")
            other = await a.join("h")
            reading = asyncio.ensure_future(read(other, 5))
            await group.mcast(b"")
            with pytest.raises(ClusterClosed, match="no such key"):
                await reading
            with pytest.raises(ClusterClosed, match="no such key"):
                await a.join("i")
            await b.until(lambda: b.members == (b.me,))

    run(main)


def test_durable_needs_a_majority_of_disks() -> None:
    async def main() -> None:
        async with together("abc") as members:
            groups = [await one.join("g") for one in members]
            waiting = asyncio.ensure_future(groups[0].mcast(b"precious", DURABLE))
            (message,) = await read_messages(groups[1], 1)
            assert not waiting.done()
            groups[1].durable(message.position)
            await members[0].until(lambda: members[0].core.position >= message.position)
            members[0].durable(message.position)
            assert await waiting == message.position
            with pytest.raises(GroupError, match="not delivered yet"):
                groups[1].durable(message.position + 100)
            hopeless = asyncio.ensure_future(groups[0].mcast(b"lost", DURABLE))
            await read_messages(groups[0], 2)
            for one in members[1:]:
                await kill(one)
            with pytest.raises(NotDurable, match="2 of 3"):
                await hopeless

    run(main)


def test_results_nobody_fetched_are_reported_at_close() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as alone:
            group = await alone.join("g")
            ordered = group.try_mcast(b"in time")
            never = group.try_mcast(b"durable where?", DURABLE)
            assert ordered is not None
            assert never is not None
            reading = asyncio.ensure_future(read(group, 4))
            await alone.close(timeout=0.2)
            assert ordered.result()
            with pytest.raises(NotDurable, match="1 of 1"):
                await never
            assert len(await reading) == 4
            with pytest.raises(ClusterClosed, match="closed here"):
                await group.mcast(b"")
            with pytest.raises(ClusterClosed):
                await alone.until(lambda: False)
            await alone.close()

    run(main)


def test_calls_without_a_result_fail_at_close() -> None:
    async def main() -> None:
        async with together("ab") as (a, b):
            group = await a.join("g")
            await b.join("g")
            never = group.try_mcast(b"durable where?", DURABLE)
            assert never is not None
            turn = asyncio.ensure_future(a.until(lambda: False))
            await a.close(timeout=0.2)
            for one in (never, turn):
                with pytest.raises((ClusterClosed, NotDurable)):
                    await one

    run(main)


def test_a_payload_of_many_frames_survives_a_merge() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as a:
            early = await a.join("g")
            large = asyncio.ensure_future(early.mcast(b"L" * 3_000_000))
            async with Cluster("test", "b", peers=[a.address], config=CONFIG) as b:
                await b.until(lambda: len(b.members) == 2)
                late = await b.join("g")
                await large
                position = await early.mcast(b"end")
                assert (await read_messages(early, 2))[1].position == position
                assert (await read_messages(late, 1))[-1].position <= position

    run(main)


@pytest.mark.parametrize("seconds", [0.0, 0.01], ids=["opening", "opened"])
def test_a_cancelled_start_leaves_nothing_behind(seconds: float) -> None:
    """A ring of the same name with other settings does not block the start at the
    barrier either."""

    async def main() -> None:
        transport = ZmqTransport("127.0.0.1:0", 3 * CONFIG.frame_bytes_max)
        node = Node(Member("z", 1, transport.address), "test", CONFIG, random.Random(1))
        other = Driver(node, transport, lambda _: None)
        other.start()
        impatient = Cluster("test", "a", manage="127.0.0.1:0", config=CONFIG)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await impatient.start()
        assert impatient._driver.closed.done()
        with pytest.raises(ClusterClosed, match="closed here"):
            await impatient.join("g")
        async with Cluster("test", "a", peers=[transport.address], config=CONFIG) as a:
            other.add_peer(a.address)
            for _ in range(10):
                await (await a.join("g", lambda _: None)).leave()
            assert a.members == (a.me,)
        other.stop()

    run(main)


def test_quorate_counts_the_voters() -> None:
    async def main() -> None:
        async with together("ab", voters=("a", "b", "c")) as (a, b):
            assert a.quorate
            await b.close()
            await a.until(lambda: len(a.members) == 1)
            assert not a.quorate
            assert a.counters()["ring.phase_operational"]

    run(main)


def test_wrong_calls_are_refused_with_a_reason() -> None:
    async def main() -> None:
        for cluster, member in (("", "a"), ("test", ""), ("test", "\0")):
            with pytest.raises(ConfigError, match="need names that can be printed"):
                Cluster(cluster, member)
        unstarted = Cluster("test", "a")
        with pytest.raises(GroupError, match="not started"):
            _ = unstarted.members
        await unstarted.close()
        with pytest.raises(TransportError, match="'nowhere' is not a ring address"):
            await Cluster("test", "a", "nowhere").start()
        async with Cluster("test", "a", config=CONFIG) as a:
            with pytest.raises(GroupError, match="starts once"):
                await a.start()
            with pytest.raises(TransportError, match="another program listens there"):
                await Cluster("test", "b", a.address).start()
            group = await a.join("g")
            with pytest.raises(GroupError, match="a member of it"):
                await a.join("g")
            await anext(group)
            reading = asyncio.ensure_future(anext(group))
            await asyncio.sleep(0)
            with pytest.raises(GroupError, match="another task"):
                await anext(group)
            reading.cancel()

    run(main)
