"""What the documentation shows must run."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Callable
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "replicated_dict.py"


async def until(condition: Callable[[], bool]) -> None:
    """Bounded, so that a hang becomes a failure; asserts nothing about time."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the conditions are the product's own state
            await asyncio.sleep(0.01)


def test_members_of_the_replicated_dictionary_hold_the_same() -> None:
    replicated_dict = runpy.run_path(str(EXAMPLE))["ReplicatedDict"]

    async def main() -> None:
        a = replicated_dict("a", "127.0.0.1:0", [])
        address = a.driver.transport.address
        b = replicated_dict("b", "127.0.0.1:0", [address])
        a.driver.add_peer(b.driver.transport.address)
        await until(lambda: a.members == b.members == ("a", "b"))
        for number in range(50):
            assert a.write("last", f"a{number}")
            assert b.write("last", f"b{number}")
            assert b.write(f"key{number}", "has words")
        await until(lambda: len(a.items) == len(b.items) == 51)
        await until(lambda: bool(a.items == b.items))
        assert a.items["key7"] == "has words"
        b.driver.leave()
        await until(lambda: a.members == ("a",))
        for one in (a, b):
            one.driver.stop()

    asyncio.run(main())


def test_the_example_stays_small() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
