"""A program's mistake is reported at once, by the call that made it, and harms nothing else."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import vsync
from tests.support.ring.ring_over_sockets import KeyDirectory, keys_for
from tests.unit.vsync.api.test_cluster import CONFIG, run, together
from vsync import (
    Cluster,
    ClusterClosed,
    ConfigError,
    Curve,
    Group,
    GroupError,
    GroupMessage,
    KeyFileError,
)
from vsync.api.group import Received
from vsync.io.keys import secret_text


def test_help_shows_the_public_names() -> None:
    assert set(vsync.__all__) <= set(dir(vsync))


@pytest.mark.parametrize("payload", ["text", bytearray(b"x"), None, 7])
def test_a_payload_that_is_not_bytes_is_refused(payload: object) -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as alone:
            group = await alone.join("g", lambda _: None)
            with pytest.raises(TypeError, match=f"bytes.*{type(payload).__name__}"):
                await group.mcast(cast("bytes", payload))
            assert await group.mcast(b"good") == 2
            assert await group.leave() == 3

    run(main)


def test_a_level_or_name_of_a_wrong_type_is_refused() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as alone:
            group = await alone.join("g", lambda _: None)
            with pytest.raises(TypeError, match="AGREED, SAFE or DURABLE"):
                await group.mcast(b"x", cast("vsync.Level", 2))
            with pytest.raises(TypeError, match=r"name is a str.*bytes"):
                await alone.join(cast("str", b"h"))
            assert await group.mcast(b"good") == 2

    run(main)


def test_a_failed_callback_ends_the_member_and_is_reported_once() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about))

        def on_event(event: Received) -> None:
            if isinstance(event, GroupMessage):
                raise RuntimeError("boom")

        async with Cluster("test", "a", config=CONFIG, voters=("a",)) as alone:
            group = await alone.join("g", on_event)
            assert alone.quorate
            group.try_mcast(b"x")
            with pytest.raises(ClusterClosed, match="boom"):
                await alone.wait_closed()
            assert not alone.quorate
            told = [about for about in told if "vsync" in about["message"]]
            assert len(told) == 1
            assert "member 'a' of 'test' failed" in told[0]["message"]
            assert isinstance(told[0]["exception"], ClusterClosed)
            assert isinstance(told[0]["exception"].__cause__, RuntimeError)

    run(main)


def test_the_error_of_a_failed_member_does_not_grow_per_call() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG, unread_bytes_max=1000) as alone:
            group = await alone.join("g")
            alone._give_up()
            lengths = set()
            for _ in range(3):
                with pytest.raises(ClusterClosed) as caught:
                    await group.mcast(b"x")
                lengths.add(len(traceback.format_exception(caught.value)))
            assert len(lengths) == 1

    run(main)


def test_wait_closed_returns_after_a_local_close() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as alone:
            waiting = asyncio.ensure_future(alone.wait_closed())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        await alone.wait_closed()
        assert not alone.quorate

    run(main)


def test_a_second_close_waits_for_the_first() -> None:
    async def main() -> None:
        async with together("ab") as (a, b):
            group = await a.join("g", lambda _: None)
            await b.join("g", lambda _: None)
            await a.until(lambda: len(group.members) == 2)
            last = asyncio.ensure_future(group.mcast(b"last"))
            await asyncio.sleep(0)
            first = asyncio.ensure_future(a.close())
            await asyncio.sleep(0)
            await a.close()
            assert last.done()
            await first

    run(main)


USES: dict[str, Callable[[Cluster], object]] = {
    "me": lambda one: one.me,
    "address": lambda one: one.address,
    "counters": lambda one: one.counters(),
    "add_peer": lambda one: one.add_peer("127.0.0.1:1"),
    "until": lambda one: one.until(lambda: False),
    "why_alone": lambda one: one.why_alone(),
    "wait_closed": lambda one: one.wait_closed(),
    "join": lambda one: one.join("g"),
    "durable": lambda one: one.durable(1),
}


async def used(use: Callable[[Cluster], object], one: Cluster) -> None:
    result = use(one)
    if isinstance(result, Awaitable):
        await result


@pytest.mark.parametrize("use", USES)
def test_a_call_before_the_start_says_so(use: str) -> None:
    async def main() -> None:
        with pytest.raises(GroupError, match="not started"):
            await used(USES[use], Cluster("test", "a"))

    run(main)


def test_a_call_from_another_thread_is_refused() -> None:
    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG) as alone:
            group = await alone.join("g", lambda _: None)
            with pytest.raises(GroupError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(group.try_mcast, b"x")
            with pytest.raises(GroupError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(asyncio.run, elsewhere(group))
            loop = asyncio.get_running_loop()

            def ask() -> int:
                return asyncio.run_coroutine_threadsafe(group.mcast(b"x"), loop).result(10)

            assert await asyncio.to_thread(ask) == 2

    run(main)


async def elsewhere(group: Group) -> int:
    return await group.mcast(b"x")


def test_a_string_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"voters.*list"):
        Cluster("test", "a", voters="abc")
    with pytest.raises(ConfigError, match=r"peers.*list"):
        Cluster("test", "a", "127.0.0.1:0", "127.0.0.1:5401")


def test_a_name_too_long_for_a_frame_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="at most 255 bytes, not 300"):
        Cluster("test", "a" * 300)


def test_another_members_key_is_refused_at_once(tmp_path: Path) -> None:
    pair = keys_for(["127.0.0.1:5401"])[0]
    directory = KeyDirectory(tmp_path / "public")
    directory.allow(pair)
    with pytest.raises(ConfigError, match=r"key.*'127\.0\.0\.1:5401'.*'a'"):
        Cluster("test", "a", security=directory.curve(pair))


def test_a_refusal_names_both_clusters_as_their_programs_do() -> None:
    async def main() -> None:
        async with (
            Cluster("shop", "a", config=CONFIG) as older,
            Cluster("stop", "b", peers=[older.address], config=CONFIG) as newer,
        ):
            while not (reason := await newer.why_alone()):  # noqa: ASYNC110 - its own state
                await asyncio.sleep(0.01)
            assert "'shop'" in reason
            assert "'stop'" in reason

    run(main)


def test_keys_are_read_from_the_files_the_tool_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = keys_for(["127.0.0.1:5401"])[0]
    public = KeyDirectory(tmp_path / "public").allow(pair)
    secret = tmp_path / "own.key_secret"
    secret.write_text(secret_text(pair))
    secret.chmod(0o600)
    curve = Curve.from_files(str(secret), tmp_path / "public")
    assert (curve.own, curve.allowed.names) == (pair, {pair.public: pair.name})
    public.write_text("no key")
    assert not curve.refresh(10.0)
    assert "the allow list stays as it was" in caplog.text
    with pytest.raises(KeyFileError, match="lacking"):
        Curve.from_files(tmp_path / "lacking", tmp_path / "public")
