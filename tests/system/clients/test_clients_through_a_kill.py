"""Third-party clients while their member is killed and rejoins: confirmed messages arrive.

Each fails over as its manual says (`failing_over.py`).  A number may arrive twice, if its confirm
or its ack was lost with the connection.  A confirmed number arrives at least once (G1), and all
clients continue, without the member and when it is back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.system.clients.failing_over import (
    PAUSE_S,
    Numbers,
    aio_pika_runs,
    kombu_consumes,
    kombu_publishes,
    pika_consumes,
    pika_publishes,
)
from tests.system.clients.test_clients_node import amqplib
from tests.system.support.clusters import START_SECONDS, running_cluster, wait_until
from tools.demo.local_cluster import ROOT

__all__ = ["amqplib"]  # the fixture

pytest.importorskip("celery", reason="celery is not installed: pip install -e .[test]")
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

MORE = 40
"""This many numbers must arrive before, during and after the absence of the member."""
STEP_S = 120.0
NODE = """
const amqp = require('amqplib');
const urls = process.argv.slice(2);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (what) => console.log(JSON.stringify(what));
let turn = 0;
let enough = false;
process.stdin.once('data', () => { enough = true; });
// Who gets no answer for so long goes to another member.
const answered = (promise) => Promise.race([promise, new Promise((_, refuse) => {
  setTimeout(() => refuse(new Error('no answer')), 10000).unref();
})]);
const connect = async () => {
  for (;;) {
    try {
      const connection = await amqp.connect(urls[turn % urls.length]);
      connection.on('error', () => {});
      return connection;
    } catch (error) { turn++; await pause(100); }
  }
};
const publish = async () => {
  let next = 0;
  while (!enough) {
    const connection = await connect();
    try {
      const channel = await answered(connection.createConfirmChannel());
      channel.on('error', () => {});
      await answered(channel.assertQueue('node', { durable: true }));
      while (!enough) {
        channel.sendToQueue('node', Buffer.from(String(next)), { persistent: true });
        await answered(channel.waitForConfirms());
        say({ confirmed: next++ });
        await pause(10);
      }
    } catch (error) { turn++; connection.connection.stream.destroy(); }
  }
};
const consume = async () => {
  for (;;) {
    const connection = await connect();
    try {
      const ended = new Promise((resolve) => connection.on('close', resolve));
      const channel = await answered(connection.createChannel());
      channel.on('error', () => {});
      await answered(channel.assertQueue('node', { durable: true }));
      await answered(channel.prefetch(10));
      await answered(channel.consume('node', (message) => {
        if (message === null) return;
        say({ arrived: Number(message.content) });
        channel.ack(message);
      }));
      await ended;
    } catch (error) { turn++; connection.connection.stream.destroy(); }
  }
};
publish();
consume();
"""


class Clients:
    """The running clients, and the numbers of each."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.numbers: dict[str, Numbers] = {}
        self._threads: list[threading.Thread] = []

    def run(self, name: str, *programs: Callable[[Numbers], None]) -> Numbers:
        """Start a client's programs."""
        numbers = self.numbers.setdefault(name, Numbers(self.urls))

        def guarded(program: Callable[[Numbers], None]) -> None:
            try:
                program(numbers)
            except BaseException as error:
                numbers.ended = error
                raise

        for program in programs:
            thread = threading.Thread(target=guarded, args=[program], name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return numbers

    def stop(self) -> None:
        """End all programs."""
        for numbers in self.numbers.values():
            numbers.enough.set()
            numbers.stop.set()
        for thread in self._threads:
            thread.join(STEP_S)

    def wait(self, true_now: Callable[[Numbers, int], bool], what: str) -> None:
        """Wait until this holds for all clients; it gets the counts at the call."""
        before = {name: len(numbers.arrived) for name, numbers in self.numbers.items()}

        def all_now() -> bool:
            for name, numbers in self.numbers.items():
                assert numbers.ended is None, (what, name, numbers.ended)
            return all(true_now(numbers, before[name]) for name, numbers in self.numbers.items())

        try:
            wait_until(all_now, STEP_S, what)
        except AssertionError as error:
            now = {name: (len(n.confirmed), len(n.arrived)) for name, n in self.numbers.items()}
            raise AssertionError(f"{error}: {before} had arrived, now {now}") from error


def more_came(numbers: Numbers, before: int) -> bool:
    return len(numbers.arrived) >= before + MORE


@contextmanager
def process(
    log: Path, program: list[str], pipes: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is ended with the block; the reader of its output (`told`) closes
    that."""
    with log.open("w") as errors:
        running = subprocess.Popen(
            program, cwd=ROOT, text=True, stdin=pipes, stdout=pipes, stderr=errors
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def told(running: subprocess.Popen[str], numbers: Numbers, places: dict[str, int]) -> None:
    """Read a program's output until it ends: numbers, and the ports of its connections; tell it to
    stop publishing when there is enough."""
    assert running.stdout is not None
    assert running.stdin is not None
    with running.stdout as lines:
        for line in lines:
            ((what, number),) = json.loads(line).items()
            if what == "confirmed":
                numbers.confirmed.add(number)
            elif what == "arrived":
                numbers.arrived.add(number)
            else:
                places[what] = number
            if numbers.enough.is_set() and not running.stdin.closed:
                with suppress(BrokenPipeError):
                    running.stdin.write("enough\n")
                    running.stdin.close()
    with suppress(BrokenPipeError):
        running.stdin.close()


def celery_calls(numbers: Numbers) -> None:
    """Call tasks; a process is their worker."""
    from tests.system.clients.celery_tasks import note

    while not numbers.enough.wait(PAUSE_S):
        number = numbers.next()
        note.apply_async((number,), retry=True)
        numbers.confirmed.add(number)


def celery_done(done: Path, numbers: Numbers) -> None:
    """Read what the worker recorded."""
    while not numbers.stop.wait(0.1):
        numbers.arrived |= {int(line) for line in done.read_text().split()}


def test_confirmed_messages_arrive_whichever_member_is_killed(
    amqplib: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(tmp_path / "cluster"))
        urls = [f"amqp://guest:guest@{member.address}" for member in cluster.members]
        clients = Clients(urls)
        stack.callback(clients.stop)  # after the processes have ended
        clients.run("pika", pika_publishes, pika_consumes)
        clients.run("kombu", kombu_publishes, kombu_consumes)
        script = amqplib / "failing-over.js"
        script.write_text(NODE)
        node = stack.enter_context(process(tmp_path / "node.log", ["node", str(script), *urls]))
        clients.run("amqplib", lambda numbers: told(node, numbers, {}))
        done = tmp_path / "done"
        done.touch()
        monkeypatch.setenv("CELERY_URLS", ";".join(urls))
        monkeypatch.setenv("CELERY_DONE", str(done))
        celery = [sys.executable, "-m", "celery", "-A", "tests.system.clients.celery_tasks",
                  "worker", "--pool=solo", "--without-gossip", "--without-mingle"]  # fmt: skip
        stack.enter_context(process(tmp_path / "celery.log", celery, subprocess.DEVNULL))
        clients.run("celery", celery_calls, lambda numbers: celery_done(done, numbers))
        # The robust connection waits for the member that it was connected to.
        patient = clients.run("aio-pika", aio_pika_runs)
        clients.wait(more_came, "the beginning")
        cluster[0].kill()
        clients.wait(
            lambda numbers, before: numbers is patient or more_came(numbers, before),
            "continuing without the member",
        )
        cluster.start(START_SECONDS)
        clients.wait(more_came, "continuing with the member")
        for numbers in clients.numbers.values():
            numbers.enough.set()
        clients.wait(
            lambda numbers, _: numbers.confirmed <= numbers.arrived, "all confirmed numbers"
        )
