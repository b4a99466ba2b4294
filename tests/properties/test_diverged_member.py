"""One member is wrong in some way at some time: the next vote names it alone (G10).

Cores on a scripted ring, each with its own store, which is really re-executed when votes split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.divergence.digest_vote import DigestVerdict
from broker.divergence.split_vote import report_of
from broker.exit_codes import Exit
from broker.machine import commands as c
from broker.machine.digest import MASK
from broker.machine.machine import Machine
from broker.machine.state import BODY
from broker.selfcheck.reexecution import reexecute
from broker.waiting.backlog import Backlog
from store.api import Meta
from tests.support.replaced_message import replace_message
from tests.support.scripted_views import Bus, RigShell, hello, publish
from tests.support.stores.memory import MemoryDisk, MemoryStore

NAMES = ("a", "b", "c", "d", "e")


class ReexecutingBus(Bus):
    """A bus whose members keep stores, and re-execute them when they must."""

    def __init__(self, size: int, present: int) -> None:
        super().__init__()
        self.stores: dict[str, MemoryStore] = {}
        for name in NAMES[:size]:
            self.start(name, size=size)
            self.stores[name] = MemoryStore(MemoryDisk(), Meta("cluster", name, name))
        self.present = " ".join(NAMES[:size])
        self.view(self.present)
        self.run(self.present)
        if present < size:
            self.present = " ".join(NAMES[:present])
            self.change(self.present)
        self.cores["a"].submit(hello())
        self.run(self.present)

    def keep(self, name: str) -> None:
        """Commit what was applied to the store."""
        commit = self.cores[name].replica.cut()
        if commit is not None:
            h, store = commit.history, self.stores[name]
            meta = Meta(
                "cluster", name, name, position=h.position, chain=h.chain, order=h.order,
                state_epoch=h.epoch,
            )  # fmt: skip
            store.commit(commit.entry, commit.first, commit.last, meta)
            self.shells[name].disk_history = h

    def on_split(self, name: str, verdict: DigestVerdict) -> None:
        """Do what the supervisor does."""
        self.keep(name)
        core = self.cores[name]
        found = reexecute(name, self.stores[name], verdict.position, core.judgement.agreed)
        report = report_of(verdict.position, found.verdict, found.chain, found.root)
        self.later.append(lambda: core.submit([report]))

    def vote(self) -> None:
        for name in self.present.split():
            self.cores[name]._claim()
        self.run(self.present)

    def stopped(self) -> list[str]:
        return [name for name in self.present.split() if self.shells[name].stopped is not None]


@pytest.fixture(autouse=True, scope="module")
def real_disks() -> Iterator[None]:
    """Let the rig's shells write stores, and re-execute them when votes are split."""
    patch = pytest.MonkeyPatch()
    flush, voted = RigShell.flush_disk, RigShell.voted

    def flush_disk(self: RigShell) -> None:
        if isinstance(self.bus, ReexecutingBus):
            self.bus.keep(self.me.name)
        else:
            flush(self)

    def on_verdict(self: RigShell, verdict: DigestVerdict) -> None:
        voted(self, verdict)
        if verdict.split and isinstance(self.bus, ReexecutingBus):
            self.bus.on_split(self.me.name, verdict)

    patch.setattr(RigShell, "flush_disk", flush_disk)
    patch.setattr(RigShell, "voted", on_verdict)
    yield
    patch.undo()


def flip_a_bit(machine: Machine) -> None:
    """Flip a bit of a waiting message; it is found as the message is acked."""
    ready = machine.vhosts["/"].queues["q"].ready
    if ready:
        message = ready.first
        body = bytes([bytes(message[BODY])[0] ^ 4]) + bytes(message[BODY])[1:]
        replace_message(ready, 0, (*message[:BODY], body))
    else:
        flip_the_root(machine)


def swap_messages(machine: Machine) -> None:
    ready = machine.vhosts["/"].queues["q"].ready
    if len(ready) > 1:
        first, second = list(ready)[:2]
        replace_message(ready, 0, second)
        replace_message(ready, 1, first)
    else:
        flip_the_root(machine)


def flip_the_root(machine: Machine) -> None:
    machine.digest = (machine.digest + (1 << 17)) & MASK


def forget_a_binding(machine: Machine) -> None:
    """From here on this member has other outcomes."""
    machine.vhosts["/"].queues["q"].ready = Backlog()
    machine.vhosts["/"].queues["q"].ready_sum = 0
    del machine.vhosts["/"].queues["q"]
    machine.vhosts["/"].routes.clear()


FAULTS: list[Callable[[Machine], None]] = [
    flip_a_bit, swap_messages, flip_the_root, forget_a_binding,
]  # fmt: skip
SHAPES = [(3, 3), (3, 2), (5, 5), (5, 4), (5, 3), (2, 2)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.sampled_from(SHAPES),
    fault=st.sampled_from(FAULTS),
    diverged_member=st.integers(0, 4),
    before=st.integers(1, 4),
    after=st.integers(0, 3),
    votes_first=st.booleans(),
)
def test_only_the_wrong_member_is_named(
    shape: tuple[int, int], fault: Callable[[Machine], None], diverged_member: int, before: int,
    after: int, votes_first: bool,
) -> None:  # fmt: skip
    """G10: whether a majority outvotes it or not, with and without a voter that is down."""
    size, present = shape
    bus = ReexecutingBus(size, present)
    names = bus.present.split()
    wrong = names[diverged_member % present]
    submit = bus.cores["a"].submit
    submit([publish(number) for number in range(1, before + 1)])
    bus.run(bus.present)
    if votes_first:
        bus.vote()
    assert not bus.stopped()
    fault(bus.cores[wrong].replica.machine)
    get = c.Get(c.GET, 1, 1, "q", False)
    submit([publish(before + 1), *[get] * (before + 1), c.Ack(c.ACK, 1, 1, 0, True)])
    submit([publish(before + 2 + number) for number in range(after)])
    bus.run(bus.present)
    assert not bus.stopped()
    bus.vote()
    assert bus.stopped() == [wrong]
    stopped = bus.shells[wrong].stopped
    assert stopped is not None
    assert stopped[0] is Exit.INTERNAL
    rest = [name for name in names if name != wrong]
    assert not any(bus.cores[name].halted for name in rest)
    assert len({bus.cores[name].replica.machine.root() for name in rest}) == 1
    bus.change(" ".join(rest))
    serving = 2 * len(rest) > size
    assert all(bus.cores[name].serving == serving for name in rest)


@pytest.mark.parametrize("present", [2, 3])
def test_if_the_machine_is_nondeterministic_no_member_goes_on(
    present: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: each member computes something of its own, again and again: real nondeterminism."""
    bus = ReexecutingBus(3, present)
    apply = Machine.apply

    def differs(self: Machine, position: int, session: int, time: int, command: c.Command) -> int:
        outcome = apply(self, position, session, time, command)
        return 600 + ord(self.local) if command[0] == c.PUBLISH else outcome

    monkeypatch.setattr(Machine, "apply", differs)
    bus.cores["a"].submit([publish(1)])
    bus.run(bus.present)
    bus.vote()
    assert not bus.stopped()
    for name in bus.present.split():
        assert "not deterministic" in bus.cores[name].halted
        assert not bus.cores[name].serving
