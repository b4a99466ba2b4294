"""Operators' pages, followed word by word: a shell runs the blocks of a page.

Only addresses and directories are replaced, as others may use those of the page.
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

from broker.options.addresses import Address
from tests.manual_pages import chapter
from tools.client.amqp_client import AmqpConnection, BrokerRefused, ConnectionLost
from tools.demo.local_cluster import HOST, ROOT

DONE = "the block is done"


def blocks_of(heading: str, page: Path | None = None) -> list[str]:
    """The indented blocks of one chapter of the operators' manual, or of another page."""
    blocks = re.findall(r"(?:^    .*\n|(?<=\n)\n(?=    ))+", chapter(heading, page), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip() for block in blocks]


def serves(port: int) -> bool:
    """Whether the broker at this port admits a client."""
    try:
        AmqpConnection(Address(HOST, port)).close()
    except (ConnectionLost, BrokerRefused):
        return False
    return True


class Shell:
    """An operator's shell: it runs block after block, and ends at a failure."""

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PATH": path}, cwd=ROOT,
        )  # fmt: skip

    def run(self, block: str) -> str:
        """Run a block to its end and return its output; fails if a command fails."""
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
        """End the shell; brokers that it started keep running."""
        self._process.communicate(timeout=60)


@contextmanager
def shell_in(folder: Path, addresses: dict[str, str]) -> Iterator[Shell]:
    """A shell for a page that keeps its files in /var/tmp; its brokers are ended with the block."""
    shell = Shell(addresses | {"var/tmp": str(folder).lstrip("/")})
    try:
        yield shell
    finally:
        for file in folder.rglob("*.pid"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                continue
        shell.close()
