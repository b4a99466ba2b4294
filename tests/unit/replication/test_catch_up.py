"""Catching up: a state taken amid held items, and members that disagree in a vote."""

from __future__ import annotations

import pytest

from broker.divergence.digest_vote import Value
from broker.machine.commands import DIGEST, SHUTDOWN, DigestClaim, Shutdown
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.controller import DIGEST_INTERVAL, Controller
from broker.replication.replica import Replica
from broker.replication.unapplied import CatchUp
from tests.support.scripted_views import Bus, formed, hello, publish, same_everywhere
from vsync.primary.events import Ordered, Transfer
from vsync.types import Member, RingId


def waiting() -> Bus:
    """Three members in a primary view; c waits for its state and holds what is ordered."""
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    return bus


def go_on(bus: Bus, numbers: range) -> None:
    for number in numbers:
        bus.cores["a"].submit([publish(number)])
        bus.run("a b c")


def copied(bus: Bus) -> Replica:
    """A copy of the state of a as it is now, for c."""
    source = bus.cores["a"].replica
    chunks = list(source.machine.snapshot())
    return Replica("c", Machine.restore("c", chunks), source.history)


def test_a_state_amid_held_items_is_followed_by_the_later_ones() -> None:
    """It already contains the earlier ones, and applying an item twice changes the outcome."""
    bus = waiting()
    go_on(bus, range(1, 4))
    state = copied(bus)
    go_on(bus, range(4, 7))
    core = bus.cores["c"]
    core.state_received(state, counts=True)
    bus.work("c")
    bus.run("a b c")
    assert core.primary.has_caught_up
    same_everywhere(bus, "a b c")


def shut_down_unstably(bus: Bus) -> None:
    """Order the shutdown and two publishes behind it as the view ends, so that the next one decides
    them."""
    for command in (Shutdown(SHUTDOWN, "the end"), publish(1), publish(2)):
        bus.cores["b"].submit([command])
    late, bus.queue = bus.queue, []
    bus.transitional("a b")
    for sender, payload in late:
        bus.deliver("a b", sender, payload, transitional="a b")


def expect_to_meet(bus: Bus) -> None:
    """Give c the state as it is now, and expect that it is level then."""
    core = bus.cores["c"]
    assert core.transfer_donor
    core.state_received(copied(bus), counts=True)
    bus.work("c")
    bus.run("a b c")
    assert core.primary.has_caught_up
    same_everywhere(bus, "a b c")


@pytest.mark.parametrize("incarnation", [1, 2])  # the same process, or a new one
def test_a_state_behind_what_an_unstable_shutdown_left_out_is_met(incarnation: int) -> None:
    """Items behind a shutdown are ordered and applied by nobody, so they are in no state's order:
    a checkpoint taken behind the next activation is at no place that counts them."""
    bus = waiting() if incarnation == 2 else formed()
    bus.shells["c"].instant_transfers = False
    bus.change("a b")
    if incarnation == 1:
        bus.change("c")
    shut_down_unstably(bus)
    if incarnation == 1:
        bus.transitional("c")
    else:
        bus.start("c", incarnation=3)
        bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    expect_to_meet(bus)


def test_a_state_with_what_was_sent_again_after_an_unstable_shutdown_is_met() -> None:
    """A member that restarts in the view that decides the shutdown takes it back, so what was left
    out is ordered again, and applied."""
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    shut_down_unstably(bus)
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    assert bus.cores["a"].replica.history.position == 11, "1 and 2 were applied after that"
    expect_to_meet(bus)


def test_held_items_are_not_dropped_once_they_are_met() -> None:
    """The tail leads past items dropped before that, and ends there: nothing leads past these."""
    kept = CatchUp(Transfer(Member("a", 1, "a:1"), 1, 0, bytes(16)), held_bytes_max=1000)
    assert kept.meet(History(order=bytes(16))) == []
    place = 1, RingId(1, "a", 1)
    items = [Ordered(*place, n, Member("a", 1, "a:1"), bytes(100)) for n in range(30)]
    for item in items:
        kept.hold(item)
    assert [kept.take() for _ in items] == items
    assert kept.level
    assert not kept.counters["given_up"]


def test_a_member_that_has_met_its_held_items_requests_no_other_state() -> None:
    """The timer of a failed attempt may be due after another attempt's tail has arrived."""
    bus = waiting()
    go_on(bus, range(1, 4))
    core, shell = bus.cores["c"], bus.shells["c"]
    core.transfer_failed()
    assert len(shell.transfers) == 2
    state = copied(bus)
    go_on(bus, range(4, 7))
    core.state_received(state, counts=True)
    assert core.transfer_donor, "the held items are still to be applied"
    core.transfer_failed()
    assert len(shell.transfers) == 2


def claimed(core: Controller, *votes: tuple[str, int, Value]) -> None:
    """Order the claims of these members about what they computed."""
    core.replica.digests += [
        (name, DigestClaim(DIGEST, value[0], position, *value[1:]))
        for name, position, value in votes
    ]
    core._count_votes()


def test_a_member_found_right_in_the_next_view_serves_in_it() -> None:
    """Two of three differ; without one of them the others vote again and agree."""
    bus = formed()
    core = bus.cores["a"]
    epoch, position = core.primary.epoch, 2 * DIGEST_INTERVAL
    right, wrong = (epoch, b"right", 1), (epoch, b"wrong", 2)
    later = ("c", position + DIGEST_INTERVAL, right)
    claimed(core, ("a", position, right), ("b", position, wrong), later)
    assert core.halted
    assert not core.serving
    bus.change("a c")
    assert not core.halted
    assert core.serving


def test_a_history_that_is_set_aside_ends_its_session() -> None:
    """G9: a session of the other history may have the same number, and would take up
    these blobs."""
    core = formed().cores["a"]
    core.submissions.open = False
    core.submit(hello())
    assert core.submissions.session
    assert core.submissions.outstanding
    core._set_aside()
    assert not core.submissions.session
    assert not core.submissions.outstanding
    assert not core.submissions.open
