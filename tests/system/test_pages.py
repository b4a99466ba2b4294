"""Pages for operators, followed word by word: a shell is given what stands in their blocks.

Only addresses and directories are replaced, as others may use those of the pages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import HOST, ROOT, command, free_ports
from tools.demo.stream import Arrivals, write_input

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

DONE = "the block is done"


def blocks_of(heading: str) -> list[str]:
    """The indented blocks of one chapter of docs/OPERATIONS.md."""
    page = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    chapter = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n|(?<=\n)\n(?=    ))+", chapter, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip() for block in blocks]


class Shell:
    """A shell as an operator uses one: it is given block after block, and ends at a failure."""

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PATH": path}, cwd=ROOT,
        )  # fmt: skip

    def run(self, block: str) -> str:
        """Run a block to its end, and return what it printed; fails where a command fails."""
        for word, instead in self._words.items():
            block = re.sub(rf"\b{re.escape(word)}\b", instead, block)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{block}\necho\necho {DONE}\n")
        self._process.stdin.flush()
        printed = ""
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise AssertionError(f"a command failed in:\n{block}\nafter it printed:\n{printed}")
            if line.strip() == DONE:
                return printed
            printed += line

    def close(self) -> None:
        """End the shell; brokers that it started go on."""
        self._process.communicate(timeout=10)


@contextmanager
def shell_in(folder: Path, addresses: dict[str, str]) -> Iterator[Shell]:
    """A shell for a page that keeps its files in /var/tmp; its brokers are gone at the end."""
    shell = Shell(addresses | {"var/tmp": str(folder).lstrip("/")})
    try:
        yield shell
    finally:
        for file in folder.glob("*.pid"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                continue
        shell.close()


def test_a_rolling_restart_as_the_page_has_it(tmp_path: Path) -> None:
    """G8, G11, G12: under a confirmed stream; what was confirmed is there, in order."""
    count = 30_000
    source, output = tmp_path / "input.txt", tmp_path / "output.jsonl"
    digest = write_input(source, count)
    ports = free_ports(6)
    words = ("25672", "25673", "25674", "5672", "5673", "5674")
    start, restarts, draining = blocks_of("Maintenance and rolling restarts")
    brokers = ",".join(f"{HOST}:{port}" for port in ports[3:])
    with shell_in(tmp_path, dict(zip(words, map(str, ports), strict=True))) as shell:
        shell.run(start)
        before = {name: (tmp_path / f"{name}.pid").read_text() for name in "abc"}
        drain = subprocess.Popen(
            [*command("drain"), "-b", brokers, "-q", "q", "--format", "json", "--output",
             str(output), "--count", str(count), "--unique", "--timeout", "60"],
            cwd=ROOT,
        )  # fmt: skip
        spout = subprocess.Popen(
            [*command("spout"), "-b", brokers, "-q", "q", "--file", str(source), "--sequence",
             "--window", "20"],
            cwd=ROOT,
        )  # fmt: skip
        try:
            arrivals = Arrivals(output)

            def flows() -> bool:
                arrivals.read()
                return arrivals.count > 100

            wait_until(flows, 60, "the stream")
            shell.run(restarts)
            after = {name: (tmp_path / f"{name}.pid").read_text() for name in "abc"}
            assert all(before[name] != after[name] for name in "abc")
            assert spout.wait(120) == 0
            assert drain.wait(120) == 0
        finally:
            spout.kill()
            drain.kill()
        arrivals.read()
        assert arrivals.different == count
        assert arrivals.first_digest.hexdigest() == digest
        shell.run(draining)
