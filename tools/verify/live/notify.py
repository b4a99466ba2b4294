"""Alerts of --follow to a command and to a webhook, each from its own thread.

The check never waits for them. An alert that a receiver cannot take in time waits in a bounded
queue, is tried a bounded number of times, and is then counted as lost and named on stderr. The
lines of the check contain every finding in any case.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import SEEK_END
from queue import Empty, Full, Queue
from tempfile import TemporaryFile
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

import click

from tools.verify.findings import PROPERTIES, BadInput, Finding, shown

WAITING_MAX = 1000  # alerts of one receiver
WAITS_S = (1.0, 5.0, 15.0, 30.0)  # between tries: one more try than waits
TRY_S = 15.0
END_S = 20.0  # at the end of the command, for the remaining alerts
LOOK_S = 0.2
_OF_SHELLS = frozenset(("|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&"))
_SAID_BYTES = 1000  # of the last output of a failed command

Deliver = Callable[[bytes], None]


class NotDelivered(Exception):
    """A receiver did not accept an alert."""


def as_document(finding: Finding) -> dict[str, object]:
    """Return a finding as plain values for JSON; `text` has it in one line."""
    title = PROPERTIES[finding.property]
    return {"event": "finding", **finding._asdict(), "title": title, "text": str(finding)}


class Receiver:
    """One receiver of alerts, with its queue and its thread."""

    def __init__(
        self, name: str, deliver: Deliver, waits: Sequence[float] = WAITS_S, most: int = WAITING_MAX
    ) -> None:
        self.name = name
        self.told = self.lost = 0
        self._deliver, self._waits = deliver, waits
        self._queue: Queue[bytes] = Queue(most)
        self._ending = Event()
        self._lock = Lock()  # both threads count lost alerts
        self._thread = Thread(target=self._run, name=f"alerts to {name}", daemon=True)
        self._thread.start()

    def tell(self, document: bytes) -> None:
        """Take an alert; never blocks."""
        try:
            self._queue.put_nowait(document)
        except Full:
            self._lose(f"{self._queue.maxsize} alerts wait already")

    def close(self, seconds: float) -> None:
        """Continue with the waiting alerts, without pauses between tries, for a limited time."""
        self._ending.set()
        self._thread.join(seconds)
        if left := self._queue.unfinished_tasks:
            self._lose(f"{left} alerts were not told before the end", left)

    def _run(self) -> None:
        while True:
            try:
                document = self._queue.get(timeout=LOOK_S)
            except Empty:
                if self._ending.is_set():
                    return
                continue
            self._try(document)
            self._queue.task_done()

    def _try(self, document: bytes) -> None:
        for wait in (*self._waits, None):
            try:
                self._deliver(document)
            except NotDelivered as error:
                if wait is None:
                    self._lose(str(error))
                else:
                    self._ending.wait(wait)
            else:
                self.told += 1
                return

    def _lose(self, why: str, number: int = 1) -> None:
        with self._lock:
            self.lost += number
        click.echo(f"qpid-cluster-verify: alert not told to {self.name}: {shown(why)}", err=True)


def tell(receivers: Iterable[Receiver], finding: Finding) -> None:
    """Tell all receivers of a finding; never blocks."""
    document = json.dumps(as_document(finding)).encode()
    for one in receivers:
        one.tell(document)


@contextmanager
def receiving(command: str | None, url: str | None) -> Iterator[list[Receiver]]:
    """Yield the receivers that the options name; at the end send them the waiting alerts.

    Raises `BadInput` for an impossible command or URL.
    """
    found: dict[str, Deliver] = {}
    if command is not None:
        found["--alert-command"] = to_command(command)
    if url is not None:
        found["--alert-url"] = to_webhook(url)
    receivers = [Receiver(*one) for one in found.items()]
    try:
        yield receivers
    finally:
        until = time.monotonic() + END_S
        for one in receivers:
            one.close(max(until - time.monotonic(), 0.0))


def to_command(command: str) -> Deliver:
    """Return a function that runs a command for each alert, with the JSON document as input."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"--alert-command {command}: {error}") from error
    if not words:
        raise BadInput("--alert-command is empty: name a program, with its arguments if any")
    if found := _OF_SHELLS.intersection(words):
        raise BadInput(
            f"--alert-command {command}: no shell reads it, so {min(found)} would be an argument; "
            f"write sh -c {shlex.quote(command)}"
        )

    def deliver(document: bytes) -> None:
        # No pipes: processes that the command leaves in the background would hold them open.
        try:
            with TemporaryFile() as errors:
                done = subprocess.run(
                    words, input=document, stdout=subprocess.DEVNULL, stderr=errors, check=False,
                    timeout=TRY_S, start_new_session=True,
                )  # fmt: skip
                errors.seek(max(errors.seek(0, SEEK_END) - _SAID_BYTES, 0))
                said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotDelivered(str(error)) from error
        if done.returncode:
            raise NotDelivered(f"{words[0]} ended with {done.returncode} {said}".rstrip())

    return deliver


def to_webhook(url: str, try_s: float = TRY_S) -> Deliver:
    """Return a function that sends JSON to a URL with POST; each try ends within `try_s`."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"--alert-url: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadInput(f"--alert-url {url}: give a URL that begins with http:// or https://")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput("--alert-url: encode spaces and what is not ASCII, as %20")
    if parts.username is not None:
        raise BadInput("--alert-url: a URL with user and password is not supported")
    where = f"{parts.scheme}://{parts.netloc}"  # paths of webhooks are secrets
    from aiohttp import ClientError  # late: a quarter of a second that most checks need not spend

    def deliver(document: bytes) -> None:
        try:
            status, reason = asyncio.run(_post(url, document, try_s))
        except TimeoutError as error:
            raise NotDelivered(f"{where}: no whole answer in {try_s:g} s") from error
        except (OSError, ValueError, ClientError) as error:
            why = str(error).replace(url, where)
            raise NotDelivered(f"{where}: {why}") from error
        if not 200 <= status < 300:  # a redirected POST would become a GET without the alert
            raise NotDelivered(f"{where} answered {status} {reason}")

    return deliver


async def _post(url: str, document: bytes, within_s: float) -> tuple[int, str]:
    """Send a document; return status and reason of the answer."""
    from aiohttp import ClientSession, ClientTimeout
    from yarl import URL

    headers = {"Content-Type": "application/json", "User-Agent": "qpid-cluster-verify"}
    limit = ClientTimeout(total=within_s)  # of the whole: single bytes may drip for ever
    async with (
        ClientSession(timeout=limit, trust_env=True) as session,
        session.post(
            URL(url, encoded=True), data=document, headers=headers, allow_redirects=False
        ) as answer,
    ):
        return answer.status, answer.reason or ""
