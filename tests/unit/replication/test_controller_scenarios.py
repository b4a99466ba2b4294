"""Views that fell apart at a bad moment: scenarios that once failed (G8, G10, G11)."""

from __future__ import annotations

from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.replica import Replica
from tests.unit.replication.test_controller import agree, formed, hello, publish, same_everywhere
from vsync.totem.events import Transitional


def test_a_replaced_state_means_a_new_session_although_the_view_fell_apart() -> None:
    """Scenario B2: c fetched a state that holds its session; the view ended before the activation.
    In the next view c is level; its old session would go on without the effects that c never made.
    """
    bus = formed()
    bus.cores["c"].admit(hello())
    bus.run("a b c")
    history = bus.cores["c"].replica.history
    other = History(history.epoch, history.position, b"w" * 16, history.order)
    bus.cores["c"].replica.history = other  # c computed something else
    bus.transitional("a b c")
    bus.view("a b c")
    agree(bus, "a b c")
    assert bus.shells["c"].transfers
    bus.change("a b c")
    same_everywhere(bus, "a b c")
    assert bus.cores["c"].serving
    assert len(bus.shells["c"].sessions) == 2
    assert len(bus.shells["a"].sessions) == 1


def test_a_state_from_a_disk_is_cold_although_a_living_member_fetched_it_in_time() -> None:
    """Scenario B3 (G11): a and b come back from their disks, c lives but is behind. Once c had the
    state, and promised before the activation, the start counted as warm: nothing was flagged."""
    bus = formed()
    bus.change("a b")
    bus.cores["a"].admit([*hello(), publish(1)])
    bus.run("a b")
    for name in "ab":
        bus.start(name, incarnation=2, keep=True)
    bus.transitional("c")
    bus.view("a b c")
    while bus.queue:
        bus.deliver("a b c", *bus.queue.pop(0))
    while bus.later:
        call = bus.later.pop(0)
        assert callable(call)
        call()
        for name in "abc":
            bus.work(name)
    bus.queue.sort(key=lambda entry: entry[0].name, reverse=True)  # what c says comes first
    bus.run("a b c")
    activation = bus.cores["a"].primary.activation
    assert activation is not None
    assert activation.cold
    same_everywhere(bus, "a b c")


def test_a_member_that_differs_in_outcomes_alone_is_not_level() -> None:
    """Scenario B4 (G10): c has applied what the donor has, with other outcomes. What it holds
    undecided must not make it level: no message is missing, and its chain is still another."""
    bus = formed()
    bus.cores["b"].admit(hello())
    bus.run("a b c")
    bus.cores["b"].admit([publish(1)])
    sender, payload = bus.queue.pop()
    bus.transitional("b c")
    bus.deliver("b c", sender, payload, transitional="b c")
    replica = bus.cores["c"].replica
    history = replica.history
    replica.history = History(history.epoch, history.position, b"w" * 16, history.order)
    bus.view("b c")
    bus.run("b c")
    assert bus.shells["c"].transfers
    same_everywhere(bus, "b c")


def test_a_state_that_arrives_when_its_view_is_over_brings_its_cluster_along() -> None:
    """Scenario B6: an empty member got the state between the end of a view and the next one. It had
    called itself filled, of no cluster, and was refused as a stranger."""
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


def test_who_waits_long_for_a_state_gives_up_what_it_held_for_a_newer_copy() -> None:
    """Memory stays bounded while a member waits under load, and nothing is lost by it."""
    bus = formed()
    bus.cores["a"].admit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2, held_bytes_max=300)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    waiting, shell = bus.cores["c"], bus.shells["c"]
    early = Replica("c", Machine.restore("c", list(bus.cores["a"].replica.machine.snapshot())),
                    bus.cores["a"].replica.history)  # fmt: skip
    assert waiting.fits(early)
    for number in range(1, 60):
        bus.cores["a"].admit([publish(number)])
        bus.run("a b c")
    assert waiting.counters["catch_ups_begun_anew"] > 1
    assert len(shell.transfers) == 1 + waiting.counters["catch_ups_begun_anew"]
    assert not waiting.fits(early)
    shell.finish_transfer(shell.transfers[-1][0])
    bus.cores["a"].admit([publish(60)])
    bus.run("a b c")
    assert waiting.serving
    assert waiting.primary.has_caught_up
    same_everywhere(bus, "a b c")


def test_nothing_is_spoken_before_the_activation_is_durable() -> None:
    """Oracle seed 161728200976 (G11): a and b delivered, and died before a disk knew of their view;
    c, which had lived through the view before, had it all delivered again, unflagged."""
    bus = formed()
    bus.cores["a"].admit(hello())
    bus.run("a b c")
    bus.transitional("a b")
    bus.view("a b")
    bus.run("a b", disks=False)
    for name in "ab":
        assert bus.cores[name].primary.has_caught_up
        assert not bus.cores[name].serving
    bus.cores["a"].admit([publish(1)])
    bus.run("a b", disks=False)
    assert not bus.cores["a"].serving
    bus.marks("a b")
    assert bus.cores["a"].serving
    assert bus.cores["b"].serving
