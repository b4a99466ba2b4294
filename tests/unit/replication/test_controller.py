"""The controller between two views: deferred work, and states that arrive late.

`tests/scenarios/broker` shows what happens to a whole cluster when views change.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgpack
import pytest

from broker.machine import commands
from broker.replication import submissions, unapplied
from broker.replication.replica import Replica
from broker.replication.unapplied import DRAIN, ITEM_COST
from broker.waiting.pager import Pager
from broker.watchdogs.disk_lag import NO_LAG, DiskLag, PageLag
from broker.watchdogs.watchdogs import BEAT_S
from tests.support.scripted_views import Bus, formed, hello, publish, same_everywhere
from vsync.primary.events import ACTIVATE
from vsync.totem.events import Deliver, Marks, Transitional, View
from vsync.types import Guarantee, RingId


def agree(bus: Bus, names: str) -> None:
    """Deliver everything in flight except activations; disks and transfers are instant."""
    while bus.queue or bus.later:
        if bus.later:
            call = bus.later.pop(0)
            assert callable(call)
            call()
            for name in names.split():
                bus.work(name)
            continue
        sender, payload = bus.queue.pop(0)
        if payload[:1] != ACTIVATE:
            bus.deliver(names, sender, payload)
        else:
            bus.withheld.append((sender, payload))


def test_deferred_work_is_done_before_a_new_views_state_report() -> None:
    """Scenario S1: a shell that applies in slices had reported an old position."""
    bus = formed()
    bus.cores["b"].submit(hello())
    sender, payload = bus.queue.pop()
    core = bus.cores["b"]
    core.on_output(Deliver(bus.ring, bus.seq + 1, sender, [payload], Guarantee.SAFE, False))
    assert core.unapplied.busy
    before = core.replica.history.position
    core.on_output(Transitional(bus.ring, bus.members("b c")))
    core.on_output(View(RingId(9, "b", 1), bus.members("b c"), (), ()))
    assert core.replica.history.position == before + 3
    state = core.primary.take_outgoing()[-1]
    assert msgpack.packb(core.replica.history.position) in state
    assert core.replica.history.chain in state


def test_work_a_full_ring_refused_is_sent_later_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = formed()
    core, refused = bus.cores["b"], list[bytes]()

    def is_full(payload: bytes, *, urgent: bool = True) -> bool:
        refused.append(payload)
        return False

    with monkeypatch.context() as full:
        full.setattr(bus.shells["b"], "multicast", is_full)
        core.on_output(Transitional(bus.ring, bus.members("b c")))
        core.on_output(View(RingId(9, "b", 1), bus.members("b c"), (), ()))
        core.flush()
        core.patience_ended()  # it reports again
    before = len(bus.queue)
    core.flush()
    sent = [payload for _, payload in bus.queue[before:]]
    assert len(sent) == 2
    assert set(refused) == {sent[0]}
    core.flush()
    assert len(bus.queue) == before + 2


class SlowDisk:
    """An executor whose every piece of work first needs a page."""

    def __init__(self) -> None:
        self.ready, self.dropped = False, 0
        self._work: Callable[[], None] | None = None

    def run(self, _pager: Pager | None, work: Callable[[], None]) -> bool:
        self.ready, self._work = False, work
        return False

    def resume(self) -> bool:
        assert self._work is not None
        self._work()
        return True

    def drop(self) -> None:
        self.dropped += 1


def test_a_new_view_waits_for_work_that_waits_for_the_disk() -> None:
    """The loop reads nothing itself; what follows the view waits behind it."""
    bus = formed()
    core, disk = bus.cores["b"], SlowDisk()
    core.submit(hello())
    sender, payload = bus.queue.pop()
    core.on_output(Deliver(bus.ring, bus.seq + 1, sender, [payload], Guarantee.SAFE, False))
    core.unapplied.execution._executor = disk
    before, ring = core.replica.history.position, core.primary.ring
    core.step()
    assert core.unapplied.waits_for_disk
    assert not core.unapplied.busy
    core.on_output(Transitional(bus.ring, bus.members("b c")))
    core.on_output(View(RingId(9, "b", 1), bus.members("b c"), (), ()))
    core.on_output(Marks({}))
    assert len(core.unapplied.held_back) == 2
    assert (core.replica.history.position, core.primary.ring) == (before, ring)
    disk.ready = True
    assert core.unapplied.busy
    while core.unapplied.busy:
        core.step()
    assert core.replica.history.position == before + 3
    assert core.primary.ring == RingId(9, "b", 1)
    assert not core.unapplied.held_back
    assert msgpack.packb(core.replica.history.position) in bus.queue[-1][1], "its state report"


def test_a_read_that_never_returns_is_bounded_by_the_disk_watchdog() -> None:
    """The ring goes on, so deliveries are accepted however full the work queue is. Each counts for
    the memory it takes, and the member leaves when the sum is too large, even if nobody else makes
    anything durable either and no time limit is exceeded."""
    bus = formed()
    core, now = bus.cores["b"], 0.0
    core.unapplied.execution._executor = SlowDisk()
    lag, disk = PageLag(lambda: core.unapplied, lambda: now), DiskLag(30.0, 4 << 20, lambda _: None)
    bus.cores["a"].submit([publish(1)])
    sender, payload = bus.queue.pop()
    leaves, work, beat = "", core.unapplied.work, 100 * (len(payload) + ITEM_COST)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    while not leaves:
        for _ in range(100):
            bus.seq += 1
            copied = [bytes(bytearray(payload))]
            core.on_output(Deliver(bus.ring, bus.seq, sender, copied, Guarantee.SAFE, False))
            if core.unapplied.busy:
                core.step()
        now += BEAT_S
        leaves = disk.look(NO_LAG, now, stuck_s=now, pages=lag.look())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "--disk-backlog-max" in leaves
    assert core.unapplied.waits_for_disk
    assert work.full
    assert 4 << 20 < work.bytes <= (4 << 20) + beat
    assert taken - before < work.bytes, "what an item counts for is no less than what it takes"
    assert not core.unapplied.held_back


def test_a_received_state_replaces_one_that_waits_for_the_disk() -> None:
    bus = formed()
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    agree(bus, "a b c")
    core, disk = bus.cores["c"], SlowDisk()
    core.unapplied.execution._executor = disk
    went_on: list[str] = []
    core.unapplied.execution.do(None, lambda: "half", went_on.append)
    assert core.unapplied.waits_for_disk
    bus.shells["c"].finish_transfer(bus.shells["c"].transfers[0][0])
    assert disk.dropped == 1
    assert not core.unapplied.execution.under_way
    assert not went_on


def test_a_state_that_arrives_after_its_view_brings_its_cluster() -> None:
    """Scenario B6: an empty member received the state between two views. It reported a filled store
    of no cluster, and was refused as a stranger."""
    bus = formed()
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    agree(bus, "a b c")
    bus.transitional("a b")
    core = bus.cores["c"]
    core.on_output(Transitional(bus.ring, bus.members("c")))  # its work waits for its slice
    bus.shells["c"].finish_transfer(bus.shells["c"].transfers[0][0])
    bus.work("c")
    bus.view("a b c")
    bus.run("a b c")
    assert bus.shells["c"].stopped is None
    assert core.serving
    same_everywhere(bus, "a b c")


def test_a_promise_survives_a_received_state() -> None:
    """G7: whoever received the promise relies on it, whichever state the member continues from."""
    bus = formed()
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    agree(bus, "a b c")
    core = bus.cores["c"]
    core.promise = replace(core.promise, promised_epoch=9)  # to a view that came to nothing
    bus.shells["c"].finish_transfer(bus.shells["c"].transfers[0][0])
    assert core.replica.history.epoch < 9
    assert core.promise.promised_epoch == 9


def test_a_member_that_waits_long_for_a_state_drops_held_items() -> None:
    """Its memory stays bounded under load and nothing is lost: the tail that it fetches leads past
    the dropped items, and no transfer starts again."""
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2, held_bytes_max=300)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    waiting, shell = bus.cores["c"], bus.shells["c"]
    for number in range(1, 60):
        bus.cores["a"].submit([publish(number)])
        bus.run("a b c")
    assert len(shell.transfers) == 1
    history = bus.shells["a"].log
    shell.tail.extend(history[:20])
    waiting.tail_is_here()
    bus.work("c")
    assert waiting.transfer_donor
    shell.tail.extend(history[20:])
    waiting.tail_is_here()
    bus.work("c")
    assert not waiting.transfer_donor
    assert waiting.counters["held_given_up"] > 1
    assert shell.decisions == [bus.cores["a"].primary.epoch]
    bus.cores["a"].submit([publish(60)])
    bus.run("a b c")
    assert waiting.serving
    assert waiting.primary.has_caught_up
    same_everywhere(bus, "a b c")


@pytest.mark.parametrize(("owed_max", "at_once"), [(0, DRAIN), (1 << 20, 0)])
def test_the_load_slows_for_a_catching_up_member_only_when_it_falls_back(
    monkeypatch: pytest.MonkeyPatch, owed_max: int, at_once: int
) -> None:
    """Its tail is applied in slices, two bytes for each byte ordered meanwhile. Only what it owes
    of that beyond a bound is applied before the token is passed on."""
    monkeypatch.setattr(unapplied, "OWED_MAX", owed_max)
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    for number in range(10, 30):
        bus.cores["a"].submit([publish(number)])
        bus.run("a b c")
    waiting, shell = bus.cores["c"], bus.shells["c"]
    history = bus.shells["a"].log
    shell.tail.extend(history)
    waiting.tail_is_here()
    while waiting.replica.history.position < history[-15].last:
        waiting.step()  # its slices: the next items are small and of one size
    before = waiting.replica.history.position
    bus.cores["a"].submit([publish(30)])
    sender, payload = bus.queue.pop(0)
    bus.deliver("a b", sender, payload)
    waiting.on_output(Deliver(bus.ring, bus.seq, sender, [payload], Guarantee.SAFE, False))
    assert waiting.replica.history.position - before == at_once
    bus.work("c")
    bus.run("a b c")
    assert waiting.primary.has_caught_up
    same_everywhere(bus, "a b c")


@pytest.mark.parametrize(("items_max", "bytes_max"), [(8, 1 << 20), (512, 4096)])
def test_a_slow_member_holds_little_and_works_it_off_evenly(
    monkeypatch: pytest.MonkeyPatch, items_max: int, bytes_max: int
) -> None:
    """Its memory is bounded by items and by bytes, and no pause is long: a member that applied half
    of a long queue at once would have no time for the token."""
    monkeypatch.setattr(unapplied, "WORK_ITEMS_MAX", items_max)
    monkeypatch.setattr(unapplied, "WORK_BYTES_MAX", bytes_max)
    monkeypatch.setattr(submissions, "UNFILLED_BLOBS_MAX", 60)  # each publish is one item here
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    core = bus.cores["b"]
    first, size, applied = core.replica.history.position, 0, 0
    for number in range(1, 60):
        bus.cores["a"].submit([publish(number)])
        sender, payload = bus.queue.pop(0)
        size = max(size, len(payload) + unapplied.ITEM_COST)
        before = core.replica.history.position
        core.on_output(
            Deliver(bus.ring, bus.seq + number, sender, [payload], Guarantee.SAFE, False)
        )
        applied = core.replica.history.position - before
        assert applied <= 1, "one for one"
        waiting = first + number - core.replica.history.position
        assert waiting <= items_max + 1
        assert waiting * size <= bytes_max + 2 * size
    assert applied == 1
    bus.work("b")
    assert core.replica.history.position == first + 59


def test_a_cold_start_looks_ahead_in_slices_before_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def look_ahead(replica: Replica) -> Iterator[None]:
        for _ in range(3):
            looked.append(replica.local)
            yield

    bus = formed()
    bus.cores["a"].submit([*hello(), publish(4)])
    bus.run("a b c")
    for name in "abc":
        bus.start(name, incarnation=2, keep=True)
    bus.view("a b c")
    monkeypatch.setattr(Replica, "look_ahead", look_ahead)
    agree(bus, "a b c")
    (activation,) = {payload: sender for sender, payload in bus.withheld}.items()
    core = bus.cores["b"]
    before = core.replica.history
    core.on_output(Deliver(bus.ring, 1, activation[1], [activation[0]], Guarantee.SAFE, False))
    for _ in range(4):
        assert core.unapplied.busy
        assert core.replica.history == before
        core.step()
    assert looked == ["b", "b", "b"]
    core.step()
    assert core.replica.history.position == before.position + 1
    # As always, everything is applied before a new view.
    other = bus.cores["c"]
    other.on_output(Deliver(bus.ring, 1, activation[1], [activation[0]], Guarantee.SAFE, False))
    other.step()
    other.on_output(Transitional(bus.ring, bus.members("c")))
    other.on_output(View(RingId(9, "c", 1), bus.members("c"), (), ()))
    assert looked == ["b"] * 3 + ["c"] * 3
    assert other.replica.history == core.replica.history


def test_a_tick_may_come_before_submitted_work() -> None:
    """G17: otherwise whatever this member orders would set all clocks back to an old horizon."""
    core = formed().cores["b"]
    asked: list[int] = []
    core.before_commands = lambda: asked.append(1)
    core.submit([commands.Tick(commands.TICK, 1, 2, 3)])
    assert not asked
    core.submit([commands.DigestClaim(commands.DIGEST, 1, 1, b"", 1)])
    assert asked == [1]
    core.replica.half_way = True
    core.submit([commands.DigestClaim(commands.DIGEST, 1, 1, b"", 1)])
    assert asked == [1], "the state at position 0 has no clock"


def test_parts_of_a_large_message_follow_once_the_last_is_durable() -> None:
    """At any majority, whichever disks those are; so others' publishes do not share larger commits
    with them."""
    bus = formed()
    core = bus.cores["a"]
    core.submissions.pace = submissions.LargePace(0)
    part = commands.BodyPart(commands.BODY_PART, 1, 1, bytes(submissions.FEW_COMMANDS_BYTES_MAX))
    core.submit([*hello(), *[part] * 6])

    def left_when(**marks: int) -> int:
        bus.give("a", Marks(marks))
        bus.run("a b c", disks=False)
        return core.submissions.outstanding

    bus.run("a b c", disks=False)
    at = core.replica.history.position
    assert left_when(a=at, b=0, c=0) == 5
    assert left_when(a=at, b=at - 1, c=0) == 5, "the last part is not durable"
    assert left_when(a=0, b=at, c=at) == 4
