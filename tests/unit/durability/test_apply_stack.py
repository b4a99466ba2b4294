"""Applying with pages on disk: a command may pause midway, and its result is the same.

docs/decisions/0060-applying-waits-for-the-disk.md.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial

import pytest
from greenlet import getcurrent, greenlet

from broker.durability.pages import ApplyStack
from broker.machine import commands as c
from broker.machine.image.scrub import Scrub
from broker.machine.machine import Machine
from broker.waiting.pager import COUNTERS, PageLost, Pager, Place, Work
from tests.properties.models.memory_shelf import MemoryShelf
from tests.properties.test_machine_slices import LIMITS, Clients
from tests.support.three_machines import Rig


class LateDisk(MemoryShelf):
    """A shelf whose reads complete when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: deque[Work] = deque()
        self.fails = False
        self.woken = 0
        self.pager = Pager(self, 0, self.asked.append, _do, dict.fromkeys(COUNTERS, 0))
        self.stack = ApplyStack(self._wake)

    def get(self, place: Place) -> bytes:
        if self.fails:
            raise OSError("nothing comes back")
        return super().get(place)

    def _wake(self) -> None:
        self.woken += 1

    def answer(self) -> None:
        """Complete the oldest read."""
        self.asked.popleft()()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)


def _do(work: Work) -> None:
    work()


def filled(disk: LateDisk, messages: int = 40) -> tuple[Rig, Machine]:
    """A queue with most of its messages on disk, and a consumer's log behind it."""
    rig = Rig()
    client = rig.client()
    client.queue("q")
    for number in range(messages):
        client.publish("q", bytes([number]))
    machine = Machine("a", disk.pager)
    for entry in rig.log:
        machine.apply(*entry)
    disk.pager.settle()
    assert disk.pager.pages == messages // 4 - 1
    return rig, machine


def test_a_command_pauses_at_each_page_and_ends_as_without() -> None:
    disk = LateDisk()
    rig, machine = filled(disk)
    before, there = machine.root(), len(rig.log)
    rig.client().consume("q", prefetch=20)
    for one in rig.log[there:-1]:
        assert disk.stack.run(disk.pager, partial(machine.apply, *one)), "it needed a page"
    outcomes: list[int] = []
    last = rig.log[-1]
    assert not disk.stack.run(disk.pager, lambda: outcomes.append(machine.apply(*last)))
    assert not disk.stack.ready
    assert not outcomes
    pauses = 1
    while True:
        while not disk.stack.ready:
            disk.answer()
        if disk.stack.resume():
            break
        pauses += 1
    assert outcomes == [c.OK]
    assert before != machine.root() == rig.machine.root()
    assert pauses >= 1
    assert disk.woken >= 1, "the waiting caller is told"
    assert not disk.pager.counters["at_once"]


def test_an_exception_of_a_page_read_reaches_the_loop() -> None:
    disk = LateDisk()
    rig, machine = filled(disk)
    there = len(rig.log)
    rig.client().consume("q", prefetch=20)
    for one in rig.log[there:-1]:
        machine.apply(*one)
    assert not disk.stack.run(disk.pager, partial(machine.apply, *rig.log[-1]))
    disk.fails = True
    while not disk.stack.ready:
        disk.answer()
    with pytest.raises(PageLost, match="nothing comes back"):
        disk.stack.resume()
    disk.fails = False
    assert disk.stack.run(disk.pager, lambda: None), "the stack goes on"


def test_dropped_work_never_resumes() -> None:
    disk = LateDisk()
    rig, machine = filled(disk)
    there = len(rig.log)
    rig.client().consume("q", prefetch=20)
    for one in rig.log[there:-1]:
        machine.apply(*one)
    went_on: list[int] = []
    assert not disk.stack.run(disk.pager, lambda: went_on.append(machine.apply(*rig.log[-1])))
    disk.stack.drop()
    assert not went_on
    assert disk.stack.run(disk.pager, lambda: went_on.append(1))
    assert went_on == [1]


def test_a_page_another_reader_took_is_requested_again() -> None:
    """A checkpoint passes the page that the head of the queue waits for."""
    disk = LateDisk()
    rig, machine = filled(disk)
    block = machine.vhosts["/"].queues["q"].ready.blocks[0]
    there = len(rig.log)
    rig.client().consume("q", prefetch=6)
    for one in rig.log[there:-1]:
        machine.apply(*one)
    assert not disk.stack.run(disk.pager, partial(machine.apply, *rig.log[-1]))
    while not disk.stack.ready:
        disk.answer()
    assert block.found() is not None
    assert disk.stack.ready, "nobody reads it for this command now: it must ask itself"
    while not disk.stack.resume():
        while not disk.stack.ready:
            disk.answer()
    assert machine.root() == rig.machine.root()


def test_a_checkpoint_and_a_scrub_wait_for_pages_with_the_same_result() -> None:
    disk = LateDisk()
    _, machine = filled(disk)
    expected = list(machine.snapshot())
    read = disk.pager.counters["at_once"]
    steps, found, waited = machine.snapshot_in_steps(), list[bytes](), 0
    for chunk in steps:
        if chunk is None:
            waited += 1
            disk.answer()
        elif chunk:
            found.append(chunk)
    assert found == expected
    assert waited > 5
    scrub = Scrub(machine)
    for _ in range(100):
        assert scrub.step(7) is None
        if scrub.done:
            break
        if disk.asked:
            disk.answer()
    assert scrub.done
    assert scrub.messages == 40
    assert disk.pager.counters["at_once"] == read


def test_a_scrub_names_a_page_it_cannot_read() -> None:
    disk = LateDisk()
    _, machine = filled(disk)
    scrub = Scrub(machine)
    assert scrub.step(100) is None
    disk.fails = True
    disk.answer()
    with pytest.raises(PageLost, match="nothing comes back"):
        scrub.step(100)


def test_without_pages_there_is_no_second_stack() -> None:
    disk = LateDisk()
    ran: list[greenlet] = []
    assert disk.stack.run(disk.pager, lambda: ran.append(getcurrent()))
    assert disk.stack.run(None, lambda: ran.append(getcurrent()))
    assert ran == [getcurrent()] * 2


def test_no_block_goes_to_disk_while_a_command_runs_on_the_loops_own_stack() -> None:
    """It could need it again, and would have to read it there."""
    disk, rig = LateDisk(), Rig()
    client = rig.client()
    client.queue("q")
    for number in range(40):
        client.publish("q", bytes([number]))
    client.consume("q", prefetch=20)
    machine = Machine("a", disk.pager)

    def work() -> None:
        for entry in rig.log:
            machine.apply(*entry)

    assert disk.stack.run(disk.pager, work)
    assert not disk.pager.counters["at_once"]
    assert machine.root() == rig.machine.root()


def test_what_was_asked_for_and_is_dropped_counts_no_more() -> None:
    """Otherwise nothing but the next block would ever be read ahead again."""
    disk = LateDisk()
    _, machine = filled(disk)
    pager = disk.pager
    for block in machine.vhosts["/"].queues["q"].ready.blocks:
        block.ask()
    assert pager.ahead_bytes
    machine.vhosts["/"].queues["q"].ready.drop(1000)
    del block
    disk.asked.clear()
    pager.settle()
    assert (pager.ahead_bytes, pager.pages) == (0, 0)


def test_with_pages_all_work_is_on_one_other_stack_of_the_same_thread() -> None:
    disk = LateDisk()
    _, machine = filled(disk)
    ran: list[tuple[greenlet, threading.Thread]] = []
    for _ in range(2):
        assert disk.stack.run(
            disk.pager, lambda: ran.append((getcurrent(), threading.current_thread()))
        )
    assert ran[0] == ran[1]
    assert ran[0][0] is not getcurrent()
    assert ran[0][1] is threading.current_thread()
    assert machine.vhosts["/"].queues["q"].ready.blocks[0].on_disk, "the second stack is the reason"


@pytest.mark.parametrize("seed", range(201, 204))
def test_no_command_reads_on_its_own_stack(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever clients do: expiry, dead letters, limits, policies, lost members, cold starts."""
    for limit, value in LIMITS.items():
        monkeypatch.setattr(limit, value)
    clients = Clients(seed)
    client = clients.rig.client()
    for number in range(30):
        client.queue(f"q{number % 3}")
        client.publish(f"q{number % 3}", bytes([number]), flags=c.PERSISTENT)
    for _ in range(150):
        clients.step()
    disk = LateDisk()
    machine, expected = Machine("a", disk.pager), Machine("a")
    paused = 0
    for one in clients.rig.log:
        done = disk.stack.run(disk.pager, partial(machine.apply, *one))
        while not done:
            paused += 1
            while not disk.stack.ready:
                disk.answer()
            done = disk.stack.resume()
        expected.apply(*one)
        assert machine.root() == expected.root()
    assert machine.take_effects() == expected.take_effects()
    assert paused, "nothing was exercised"
    assert not disk.pager.counters["at_once"]


class Fault(Exception):
    """A bug of ours that raises."""


def test_an_exception_is_not_kept_until_the_next_item() -> None:
    """Its traceback may hold pages."""
    disk = LateDisk()
    filled(disk)
    raised: list[weakref.ref[Fault]] = []

    def work() -> None:
        fault = Fault()
        raised.append(weakref.ref(fault))
        try:
            raise fault
        finally:
            del fault

    with pytest.raises(Fault):
        disk.stack.run(disk.pager, work)
    assert raised[0]() is None
