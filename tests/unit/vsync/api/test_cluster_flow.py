"""Back-pressure at both ends of the library: refused sends, and events nobody reads."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vsync.api.test_cluster import CONFIG, read_messages, run, together
from vsync import AGREED, Cluster, ClusterClosed, PayloadTooLarge


def test_a_full_member_refuses_or_queues_in_order() -> None:
    async def main() -> None:
        async with together("ab") as (a, b):
            group = await a.join("g")
            reader = await b.join("g")
            await a.until(lambda: len(group.members) == 2)
            accepted = []
            while (one := group.try_mcast(bytes(200_000))) is not None:
                accepted.append(one)
            assert len(accepted) > 30
            waiting = [asyncio.ensure_future(group.mcast(b"%d" % n * 100_000)) for n in range(9)]
            given_up = asyncio.ensure_future(group.mcast(b"never"))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(PayloadTooLarge, match="at most"):
                group.try_mcast(bytes(65 << 20))
            positions = [*[await one for one in accepted], *[await one for one in waiting]]
            assert positions == sorted(positions)
            seen = await read_messages(reader, len(positions))
            assert [m.payload[:1] for m in seen[-9:]] == [b"%d" % n for n in range(9)]

    run(main)


def test_a_slow_reader_pauses_and_resumes_the_member() -> None:
    async def main() -> None:
        async with together("ab", unread_bytes_max=300_000) as (a, b):
            group = await a.join("g", lambda _: None)
            lazy = await b.join("g")
            sent = [asyncio.ensure_future(group.mcast(bytes(50_000), AGREED)) for _ in range(12)]
            await b.until(lambda: b._driver.paused)
            seen = await read_messages(lazy, 12)
            assert [m.position for m in seen] == [await one for one in sent]
            assert not b._driver.paused

    run(main)


def test_unread_events_of_a_left_group_no_longer_count() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG, unread_bytes_max=2000) as alone:
            for _ in range(10):
                group = await alone.join("g")
                await group.mcast(bytes(500))
                await group.leave()
                assert len([event async for event in group]) == 3
                assert alone._unread_bytes == 0
            group = await alone.join("g")
            await group.leave()
            assert not alone._driver.paused

    run(main)


def test_a_reader_that_never_reads_ends_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vsync.api.cluster.PAUSE_S_MAX", 0.05)

    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG, unread_bytes_max=1000) as alone:
            group = await alone.join("g")

            async def flood() -> None:
                while True:
                    await group.mcast(bytes(300))

            with pytest.raises(ClusterClosed, match="read every group that was joined"):
                await flood()

    run(main)
