"""Keys, foreign members and incompatible members through `vsync.Cluster`, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ring.ring_over_sockets import KeyDirectory, free_addresses, keys_for, until
from tests.unit.vsync.api.test_cluster import CONFIG, read_messages
from vsync import SAFE, Cluster, Group, RingConfig
from vsync.io.keys import KeyPair, make_pair
from vsync.io.security import Curve, Plain, Security
from vsync.types import Member

pytestmark = pytest.mark.timeout(240)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` under a time limit that turns a hang into a failure; nothing asserts on time."""

    async def bounded() -> None:
        async with asyncio.timeout(200):
            await main()

    asyncio.run(bounded())


class Keys:
    """Three members with a key each, all on one allow list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key_directory = KeyDirectory(folder / "public")
        self.addresses = free_addresses(4)
        self.pairs = keys_for(self.addresses)
        self.files = [self.key_directory.allow(pair) for pair in self.pairs[:3]]

    def member(self, place: int, security: Security | None, **others: object) -> Cluster:
        """The member with index `place`; `others` are the settings that differ."""
        given = {"cluster": "test", "config": CONFIG} | others
        address = self.addresses[place]
        return Cluster(
            given["cluster"], address, address, self.addresses[:3],  # type: ignore[arg-type]
            config=given["config"], security=security,  # type: ignore[arg-type]
        )  # fmt: skip

    def curve(self, pair: KeyPair) -> Curve:
        return self.key_directory.curve(pair)

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[list[Cluster]]:
        """Start all three and wait until they form one ring."""
        async with contextlib.AsyncExitStack() as stack:
            found = [
                await stack.enter_async_context(self.member(place, self.curve(pair)))
                for place, pair in enumerate(self.pairs[:3])
            ]
            await company(found)
            yield found


async def company(members: Sequence[Cluster]) -> None:
    for one in members:
        await one.until(lambda one=one: len(one.members) == len(members))  # type: ignore[misc]


async def lonely(newcomer: Cluster) -> str:
    """Wait until it knows why it is alone, and return the reason."""
    while not (reason := await newcomer.why_alone()):  # noqa: ASYNC110 - the product's own state
        await asyncio.sleep(0.01)
    return reason


async def unharmed(members: Sequence[Cluster], groups: Sequence[Group], rings: set[object]) -> None:
    """The members still deliver, in the ring they had before."""
    for group in groups:
        await group.mcast(b"still here", SAFE)
    for group in groups:
        await read_messages(group, len(groups))
    assert {one.ring for one in members} == rings


@pytest.mark.slow
def test_members_with_keys_form_a_ring_and_others_learn_the_reason(tmp_path: Path) -> None:
    """G15: a newcomer with wrong keys, or another cluster, protocol version, settings or mechanism,
    is told both values, and the running members are not disturbed."""
    keys = Keys(tmp_path)
    foreign = make_pair(keys.addresses[3])
    elsewhere = KeyDirectory(tmp_path / "elsewhere")  # expects other keys of the members
    elsewhere.allow(foreign)
    for address in keys.addresses[:3]:
        elsewhere.allow(make_pair(address))
    fourth = keys.pairs[3]

    async def main() -> None:
        async with keys.together() as members:
            groups = [await one.join("g") for one in members]
            rings = {one.ring for one in members}
            await unharmed(members, groups, set(rings))
            cases: list[tuple[Security | None, tuple[str, ...]]] = [
                (keys.curve(foreign), ("does not allow", foreign.public)),
                (elsewhere.curve(foreign), ("does not own the key",)),
                (None, ("wants mechanism CURVE", "uses ANONYMOUS")),
                (Plain("u", "p"), ("wants mechanism CURVE", "uses PLAIN")),
            ]
            for security, payloads in cases:
                async with keys.member(3, security) as newcomer:
                    said = await lonely(newcomer)
                assert all(payload in said for payload in payloads), said
            keys.key_directory.allow(fourth)
            lists = [one._security.allowed for one in members]  # type: ignore[union-attr]
            await until(lambda: all(fourth.public in one.names for one in lists))
            window = CONFIG.window_frames
            other = replace(CONFIG, window_frames=window // 2)
            slow = RingConfig(token_timeout_ms=50_000, hold_ms=5_000, join_timeout_ms=20)
            for name, config, payloads in (
                ("tset", CONFIG, ("'test'", "'tset'")),
                ("test", other, (f"window_frames {window}", f"with {window // 2}")),
                ("test", slow, ("do not go together", "token_timeout_ms 5000", "with 50000")),
            ):
                async with keys.member(
                    3, keys.curve(fourth), cluster=name, config=config
                ) as newcomer:
                    said = await lonely(newcomer)
                assert all(payload in said for payload in payloads), said
            await unharmed(members, groups, set(rings))
            assert all([not await one.why_alone() for one in members])

    run(main)


@pytest.mark.slow
def test_keys_rotate_member_by_member_without_loss(tmp_path: Path) -> None:
    """Each member gets a new key while the others send; afterwards no old key is accepted."""
    keys = Keys(tmp_path)
    old = list(keys.pairs[:3])

    async def main() -> None:
        async with keys.together() as members, contextlib.AsyncExitStack() as stack:
            for place in range(3):
                others = [one for one in members if one is not members[place]]
                groups = [await one.join(f"round {place}") for one in others]
                fresh = make_pair(keys.addresses[place])
                keys.key_directory.allow(fresh)
                await members[place].close()
                sent = [b"%d.%d" % (place, number) for number in range(20)]
                for number, body in enumerate(sent):
                    await groups[number % 2].mcast(body, SAFE)
                    if number == 5:
                        again = keys.member(place, keys.curve(fresh))
                        members[place] = await stack.enter_async_context(again)
                await company(members)
                keys.files[place].unlink()
                for group in groups:
                    assert [m.payload for m in await read_messages(group, 20)] == sent
            impostor = keys.member(3, keys.curve(old[0]._replace(name=keys.addresses[3])))
            async with impostor:
                assert "does not allow" in await lonely(impostor)

    run(main)


def test_a_running_member_alone_has_no_reason() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as one:
            assert one.members == (Member("a", one.me.incarnation, one.address),)
            assert await one.why_alone() == ""

    run(main)
