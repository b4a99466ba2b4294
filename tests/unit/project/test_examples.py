"""The examples of the documentation run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from tests.unit.vsync.cpg.test_cpg import Office
from tools.demo.local_cluster import HOST, free_ports
from vsync.cpg.events import GroupMessage, GroupView

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "replicated_dict.py"
ReplicatedDict: Callable[..., Any] = runpy.run_path(str(EXAMPLE))["ReplicatedDict"]


def test_the_example_stays_small() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


class Shop:
    """Replicated dictionaries over simulated rings: the example's own code, without sockets."""

    def __init__(self, names: str) -> None:
        self.office = Office(names)
        self.shared: dict[str, Any] = {}
        self._at: dict[str, int] = {}

    def open(self, name: str) -> None:
        layer = self.office.layers[name]

        async def mcast(payload: bytes) -> None:
            assert layer.mcast("g", payload)
            self.office.net.flush(name)

        self.shared[name] = ReplicatedDict(SimpleNamespace(me=layer.me, mcast=mcast))
        self._at[name] = len(self.office.events[name])
        self.office.join(name)

    async def run(self) -> None:
        for _ in range(60):
            self.office.run(0.02)
            for name, shared in self.shared.items():
                new = self.office.events[name][self._at[name] :]
                self._at[name] += len(new)
                for event in new:
                    if isinstance(event, GroupView):
                        shared.on_view(event)
                    elif isinstance(event, GroupMessage):
                        shared.on_message(event)
            await asyncio.sleep(0)  # the tasks that send a state

    async def write(self, name: str, key: str, value: str) -> None:
        await self.shared[name].write(key, value)


def test_joiners_get_the_state_and_the_larger_side_wins_a_merge() -> None:
    async def main() -> None:
        shop = Shop("abcde")
        for name in "cde":
            shop.open(name)
        await shop.run()
        await shop.write("d", "colour", "red")
        await shop.run()
        # The joiners have lower names, and changes come while the state is being sent.
        shop.open("a")
        shop.open("b")
        for number in range(30):
            await shop.write("e", f"key{number}", "has words")
        await shop.run()
        assert [len(shop.shared[n].items) for n in "abcde"] == [31] * 5
        net = shop.office.net
        net.split("ab", "cde")
        shop.office.settle("ab", "cde")
        await shop.write("a", "colour", "lost with the smaller side")
        await shop.write("d", "colour", "blue")
        await shop.run()
        net.split()
        shop.office.settle("abcde")
        await shop.run()
        await shop.write("b", "end", "yes")
        await shop.run()
        assert shop.shared["a"].items["colour"] == "blue"
        held = [shop.shared[n].items for n in "abcde"]
        assert all(one == held[0] for one in held)
        assert not any(shop.shared[n].lacking for n in "abcde")

    asyncio.run(main())


def test_the_senior_member_dies_before_it_sent_the_state() -> None:
    async def main() -> None:
        shop = Shop("abc")
        for name in "ab":
            shop.open(name)
            await shop.run()
        await shop.write("a", "colour", "red")
        await shop.run()
        shop.open("c")
        shop.office.run(0.02)
        shop.office.net.crash("a")
        del shop.shared["a"]
        shop.office.settle("bc")
        await shop.run()
        assert shop.shared["c"].items == {"colour": "red"}

    asyncio.run(main())


@pytest.fixture
def addresses() -> list[str]:
    """Three free ports."""
    return [f"{HOST}:{port}" for port in free_ports(3)]


class Process:
    """The example as a user starts it."""

    def __init__(self, name: str, *addresses: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "docs.examples.replicated_dict", name, *addresses],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def write(self, key: str, value: str) -> tuple[int, dict[str, str]]:
        """Type one line; return the number of members, and what they hold."""
        typed, shown = cast("IO[str]", self.child.stdin), cast("IO[str]", self.child.stdout)
        typed.write(f"{key} {value}\n")
        typed.flush()
        count, _, items = shown.readline().partition(" members hold ")
        return int(count), json.loads(items.replace("'", '"'))


@pytest.fixture
def processes(addresses: list[str]) -> Iterator[list[Process]]:
    """Three real members."""
    started = [
        Process(name, addresses[n], *addresses[:n], *addresses[n + 1 :])
        for n, name in enumerate("abc")
    ]
    yield started
    for one in started:
        one.child.kill()
        one.child.wait()
        for pipe in (one.child.stdin, one.child.stdout):
            if pipe is not None:
                pipe.close()


def test_three_processes_hold_the_same(processes: list[Process]) -> None:
    a, b, c = processes
    count = tries = 0
    while count < 3:
        count, _ = a.write("tries", str(tries))
        tries += 1
    for one, name in zip(processes, "abc", strict=True):
        one.write(name, "was here")
    _, items = b.write("last", "b")
    _, others = c.write("last", "b")
    assert items == others
    assert items.keys() == {"tries", "a", "b", "c", "last"}
    typed = cast("IO[str]", c.child.stdin)
    typed.close()  # c leaves in order
    assert c.child.wait(30) == 0
    while count != 2:
        count, _ = a.write("tries", "again")


@pytest.mark.parametrize(
    ("example", "typed"),
    [
        ("replicated_dict.py", ["a"]),
        ("publish_once.py", ["queue"]),
        ("publish_once.py", ["queue", "localhost:5672"]),
        ("read_stream.py", ["stream", "file", "localhost:5672"]),
        ("auth_server.py", ["http"]),
        ("auth_server.py", ["99999"]),
    ],
)
def test_an_example_called_wrongly_says_how_it_is_called(example: str, typed: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLE.with_name(example), *typed], cwd=ROOT, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode in (1, 2)
    assert re.search("usage: |replicated_dict a 127|cannot listen on port", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_the_first_steps_of_the_page_run_as_written(addresses: list[str]) -> None:
    page = (ROOT / "docs" / "VSYNC.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert code.count("127.0.0.1:5401") == code.count("127.0.0.1:5402") == 1
    code = code.replace("127.0.0.1:5401", addresses[0]).replace("127.0.0.1:5402", addresses[1])
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        shown = [child.stdout.readline() for _ in range(2)]
        child.kill()
    assert shown == ["members: ['a']\n", "2 a b'hello'\n"]
