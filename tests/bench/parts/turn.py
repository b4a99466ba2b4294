"""The cost of one small message at a time for a member: publish, confirm, deliver and ack.

    python -m tests.bench.parts.turn [messages]

Prints JSON: function calls and microseconds of processor time per message, in all and by stage.
Calls are equal in each run, whatever else the machine does, so they distinguish builds.  It is one
member alone, without sockets and threads: its clients, its submissions, which a ring orders at
once, its applying, its store and its log are the real parts, except for the disk.  The figures do
not include the ring, or the cost of waking threads.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

from broker.access.backends import Backends
from broker.amqp import codec
from broker.amqp.fields import Value
from broker.durability.recovery import recover
from broker.frontend.connections import ClientLink, Connections
from broker.memberlog.recorder import Recorder
from broker.memberlog.segment_file import Step
from broker.memberlog.writer import MemberLogWriter
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits
from broker.replication.controller import Controller
from broker.replication.member import ReplicatedMember
from broker.replication.ports import Ports
from store.api import Meta
from store.commit_queue import CommitQueue, Task, Wake
from tests.bench.edge import BODY, PROPERTIES, opening
from tests.bench.support.numbers import numbers
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.totem.events import Deliver, Marks, Output, View
from vsync.types import Guarantee, Member, RingId


class LateLog(MemberLogWriter):
    """A log that is written when the bench lets it, as one with a thread is."""

    def __init__(self, directory: Path) -> None:
        self._due: list[Step] = []
        super().__init__(directory, "bench", "", "a", 1, lambda: 1)

    def _write(self, steps: list[Step]) -> None:
        self._due += steps

    def carry_out(self) -> bool:
        """Write due records; False if there were none."""
        due, self._due = self._due, []
        self._file.carry_out(due)
        self.written = self._lsn
        return bool(due)


class Bench:
    """The member; the bench plays its ring, its process and its client."""

    stopping = False

    def __init__(self, folder: Path) -> None:
        self.me = Member("a", 1, "tcp://127.0.0.1:1")
        self.ring = RingId(1, "a", 1)
        self._outputs: deque[Output] = deque([View(self.ring, (self.me,), (self.me,), ())])
        self._scheduled = False
        self._seq = 0
        self.stages: dict[str, list[float]] = {}
        self.calls: Counter[str] = Counter()
        self._stage = ""
        store = MemoryStore(MemoryDisk(), Meta("bench", "a", "store-a"))
        replica = recover("a", store)
        options = Mock(access=AccessOptions(), clients=ClientLimits(), cluster_name="bench")
        ports = Mock(backends=Backends(), negotiate_s=10.0, log=None)
        self.clients = Connections(
            "a", options, self.schedule, Mock(), ports, Mock(),
            lambda: self.member.controller.replica.machine,
        )  # fmt: skip
        self._log = LateLog(folder)
        recorder = Recorder(self._log)
        recorder.start(replica.history, replica.machine)
        lease, clock = Mock(holds=lambda ring: True), Mock(now_us=lambda: 1, when_right=_now)
        lease.silent_in.return_value = 0.0
        clock.later = lambda delay_s, call: call() if not delay_s else None
        self.member: ReplicatedMember[Any, Any] = ReplicatedMember(
            Ports(cast("Any", self), lease, clock, Mock(), self.clients, recorder, self._host()),
            cast("Any", self), store, store.meta,
            lambda shell, promise: Controller(
                self.me, shell, promise, replica=replica, filled=False, size=1,
                proposal="bench", patient=False, label="a",
            ),
        )  # fmt: skip
        self.writer: CommitQueue = self.member.persister.writer

    def _host(self) -> Mock:
        return Mock(stopping=False, schedule=self.schedule, session_commands=list, failed=_raise)

    # -- the ring, the store's device and the process --------------------------------------------

    def submit(self, payload: bytes, guarantee: Guarantee, *, urgent: bool = True) -> bool:
        self._seq += 1
        self._outputs.append(
            Deliver(self.ring, self._seq, self.me, [payload], guarantee, transitional=False)
        )
        return True

    def set_mark(self, mark: int) -> None:
        self._outputs.append(Marks({"a": mark}))

    def expect_mark(self, mark: int) -> None:
        """The token would wait for it."""

    def open_writer(self, store: MemoryStore, on_durable: Callable[[int], None]) -> CommitQueue:
        wake = cast("Wake", nullcontext(enter_result=True))
        wake.notify = lambda: None  # type: ignore[method-assign]
        return CommitQueue(store, wake, time.monotonic, on_durable, _raise, lambda: False)

    def schedule(self) -> None:
        self._scheduled = True

    # -- what happens, one thing after the other -------------------------------------------------

    def work(self, stage: str, do: Callable[..., object], *args: object) -> None:
        """Run it as a part of this stage."""
        self._stage = stage
        began = time.process_time()
        do(*args)
        self.stages.setdefault(stage, []).append(time.process_time() - began)
        self._stage = ""

    def count(self, _frame: object, event: str, _about: object) -> None:
        """A function for `sys.setprofile`."""
        if self._stage and event in ("call", "c_call"):
            self.calls[self._stage] += 1

    def settle(self) -> None:
        """Run all that follows, in the order in which a loop would."""
        task: Task | None
        while True:
            if self._outputs:
                output = self._outputs.popleft()
                kind = "ordered" if isinstance(output, Deliver) else "marks"
                self.work(kind, self.member.on_output, output)
            elif self._scheduled:
                self._scheduled = False
                busy = self.member.controller.unapplied.busy
                self.work("turn with work" if busy else "turn", self.member.turn, _always)
            elif self._log.carry_out():
                if self.member.awaits_log:
                    self.work("logged", self.member.log_written)
            elif (task := self.writer.take()) is not None:
                for call in task.write():
                    self.work("durable", call)
            else:
                return

    def connect(self) -> ClientLink:
        """Open a connection that publishes on channel 1 and consumes on channel 2."""
        self.settle()
        transport = Mock(is_closing=lambda: False)
        transport.get_extra_info.return_value = None
        transport.write = _take
        link = self.clients.connect("127.0.0.1:1", transport)
        out = bytearray(opening(1, 2))
        declare: tuple[Value, ...] = ("q", False, True, False, False, False, {})
        codec.append_method(out, 1, "queue.declare", declare)
        consume: tuple[Value, ...] = ("q", "t", False, False, False, False, {})
        codec.append_method(out, 2, "basic.consume", consume)
        link.data_received(bytes(out))
        self.settle()
        return link

    def message(self, link: ClientLink, publish: bytes, number: int) -> None:
        """Publish one, and ack it when all else is done."""
        ack = bytearray()
        self.work("read", link.data_received, publish)
        self.settle()
        codec.append_method(ack, 2, "basic.ack", (number, False))
        self.work("read", link.data_received, bytes(ack))
        self.settle()


def _now(call: Callable[[], None]) -> None:
    call()


def _always() -> bool:
    return True


def _take(_data: bytes) -> None:
    """A socket that takes all."""


def _raise(error: Exception) -> None:
    raise error


def run(folder: Path, count: int, *, profiled: bool) -> Bench:
    """Run this many messages, one after the other."""
    bench = Bench(folder)
    link = bench.connect()
    publish = bytearray()
    codec.append_publish(publish, 1, "", "q", PROPERTIES, BODY)
    bench.stages.clear()
    if profiled:
        sys.setprofile(bench.count)
    for number in range(1, count + 1):
        bench.message(link, bytes(publish), number)
    sys.setprofile(None)
    assert bench.clients.confirmed == count, "each was confirmed"
    return bench


def main() -> None:
    (count,) = numbers(__doc__, messages=2_000)
    with tempfile.TemporaryDirectory() as folder:
        timed = run(Path(folder) / "timed", count, profiled=False)
        profiled = run(Path(folder) / "profiled", count, profiled=True)
    micros = {name: sum(took) / count * 1e6 for name, took in timed.stages.items()}
    calls = {name: made / count for name, made in profiled.calls.items()}
    figures = {
        name: {"calls": round(calls[name], 2), "us": round(us, 1)} for name, us in micros.items()
    }
    whole = {"calls": round(sum(calls.values()), 2), "us": round(sum(micros.values()), 1)}
    about = {"python": platform.python_version(), "messages": count}
    sys.stdout.write(json.dumps({"whole": whole, **figures, **about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
