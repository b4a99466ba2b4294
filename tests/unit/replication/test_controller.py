"""Which view goes on, from which state; what happens to what was under way (G7, G8, G9, G14)."""

from __future__ import annotations

import msgpack

from broker.machine.commands import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    CONSUME,
    GET,
    PUBLISH,
    QUEUE_DECLARE,
    ChannelOpen,
    Command,
    ConnectionOpen,
    Consume,
    DigestClaim,
    Get,
    Publish,
    QueueDeclare,
)
from broker.machine.effects import Confirm, DeliverEffect, GetOk
from tests.support.scripted_views import Bus
from vsync.primary.events import ACTIVATE
from vsync.totem.events import Deliver, Marks, Transitional, View
from vsync.types import Guarantee, RingId

CLAIMS = 2
"""After an activation each of two level voters says what it computed (G10)."""


def hello() -> list[Command]:
    return [
        ConnectionOpen(CONNECTION_OPEN, 1, "/", "guest", "p:1"),
        ChannelOpen(CHANNEL_OPEN, 1, 1),
        QueueDeclare(QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {}),
    ]


def publish(number: int) -> Command:
    return Publish(PUBLISH, 1, 1, number, "", "q", 4, b"", b"m%d" % number)


def formed(size: int = 3) -> Bus:
    bus = Bus()
    names = "a b c"
    for name in names.split():
        bus.start(name, size=size)
    bus.view(names)
    bus.run(names)
    return bus


def same_everywhere(bus: Bus, names: str) -> None:
    points = {str(bus.cores[n].replica.history) for n in names.split()}
    roots = {bus.cores[n].replica.machine.root() for n in names.split()}
    assert len(points) == 1
    assert len(roots) == 1


def agree(bus: Bus, names: str) -> None:
    """Deliver what is under way, but no activation: disks and transfers are instant."""
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


def test_three_empty_members_form_a_cluster_and_serve() -> None:
    bus = formed()
    for name in "abc":
        core = bus.cores[name]
        assert core.serving
        assert core.primary.has_caught_up
        assert core.promise.voters == ("a", "b", "c")
        assert bus.shells[name].sessions
    same_everywhere(bus, "a b c")


def test_two_of_three_empty_members_wait() -> None:
    bus = Bus()
    bus.start("a")
    bus.start("b")
    bus.view("a b")
    bus.run("a b")
    assert not bus.cores["a"].serving
    assert "2 of 3" in bus.cores["a"].primary.reason


def test_commands_give_the_same_state_and_only_their_own_member_speaks() -> None:
    """G14: same commands, same root."""
    bus = formed()
    bus.cores["a"].admit([*hello(), publish(1)])
    bus.run("a b c")
    same_everywhere(bus, "a b c")
    confirms = [e for _, e in bus.shells["a"].spoken if isinstance(e, Confirm)]
    assert [c.publish_no for c in confirms] == [1]
    assert not bus.shells["b"].spoken[1:]


def test_a_confirm_is_released_only_when_a_majority_is_durable() -> None:
    """G9: the mark of one member of three is not enough."""
    bus = formed()
    a = bus.shells["a"]
    before = a.released
    bus.cores["a"].admit([*hello(), publish(1)])
    while bus.queue:
        bus.deliver("a b c", *bus.queue.pop(0))
    position = bus.cores["a"].replica.history.position
    bus.give("a", Marks({"a": position, "b": before, "c": before}))
    assert a.released == before
    bus.give("a", Marks({"a": position, "b": before, "c": position}))
    assert a.released == position


def test_a_member_dies_and_the_others_go_on_with_their_sessions() -> None:
    bus = formed()
    bus.cores["b"].admit(hello())
    bus.run("a b c")
    bus.change("b c")
    assert bus.cores["b"].serving
    assert len(bus.shells["b"].sessions) == 1
    bus.cores["b"].admit([publish(1)])
    bus.run("b c")
    same_everywhere(bus, "b c")


def test_a_minority_stops_speaking() -> None:
    """G7."""
    bus = formed()
    bus.change("a")
    assert not bus.cores["a"].serving
    position = bus.cores["a"].replica.history.position
    bus.cores["a"].admit(hello())
    bus.run("a")
    assert bus.cores["a"].replica.history.position == position


def test_what_was_ordered_outside_a_primary_is_submitted_again_exactly_once() -> None:
    """G5: the origin's blobs are applied once and in order over a view change."""
    bus = formed()
    bus.cores["b"].admit(hello())
    bus.run("a b c")
    bus.transitional("b c")
    for number in (1, 2, 3):
        bus.cores["b"].admit([publish(number)])
    assert not bus.queue
    bus.view("b c")
    bus.run("b c")
    queue = [e.publish_no for _, e in bus.shells["b"].spoken if isinstance(e, Confirm)]
    assert queue == [1, 2, 3]
    same_everywhere(bus, "b c")


def test_blobs_ordered_before_the_activation_are_dropped_and_resent() -> None:
    bus = formed()
    bus.cores["b"].admit(hello())
    bus.run("a b c")
    bus.cores["b"].admit([publish(1)])
    stale = bus.queue.pop()
    bus.transitional("b c")
    bus.view("b c")
    bus.queue.insert(0, stale)
    bus.run("b c")
    confirms = [e.publish_no for _, e in bus.shells["b"].spoken if isinstance(e, Confirm)]
    assert confirms == [1]
    assert bus.cores["c"].primary.counters["app_outside_primary"] == 1
    same_everywhere(bus, "b c")


def test_undecided_messages_that_the_donor_applied_are_applied_by_who_holds_them() -> None:
    """G8: b saw it safe, c only holds it; c gets level without a transfer and keeps its session."""
    bus = formed()
    bus.cores["b"].admit(hello())
    bus.run("a b c")
    bus.cores["b"].admit([publish(1)])
    sender, payload = bus.queue.pop()
    bus.deliver("b", sender, payload)
    bus.seq -= 1
    bus.transitional("b c")
    bus.deliver("c", sender, payload, transitional="c")
    assert bus.cores["c"].replica.history != bus.cores["b"].replica.history
    bus.view("b c")
    bus.run("b c")
    same_everywhere(bus, "b c")
    assert not bus.shells["c"].transfers
    assert len(bus.shells["c"].sessions) == 1


def undecided_when_a_died() -> Bus:
    """a published a message and learnt that it is safe; b and c hold it as a is gone."""
    bus = formed()
    bus.cores["a"].admit(
        [*hello(), Consume(CONSUME, 1, 1, "q", "t", False, False, False, False, {}, 0)]
    )
    bus.run("a b c")
    bus.cores["a"].admit([publish(1)])
    sender, payload = bus.queue.pop()
    bus.deliver("a", sender, payload)
    bus.seq -= 1
    bus.transitional("b c")
    bus.deliver("b c", sender, payload, transitional="b c")
    return bus


def test_the_donor_keeps_what_is_undecided_and_it_is_applied_before_the_activation() -> None:
    """G11: what a told its consumer is delivered a second time, and flagged.

    Decision: docs/decisions/0005-the-donor-keeps-its-undecided-messages.md.
    """
    bus = undecided_when_a_died()
    heard = [e for _, e in bus.shells["a"].spoken if isinstance(e, DeliverEffect)]
    assert [e.body for e in heard] == [b"m1"]
    before = bus.cores["b"].replica.history.position
    bus.view("b c")
    bus.run("b c")
    same_everywhere(bus, "b c")
    assert bus.cores["b"].replica.history.position == before + 2 + CLAIMS
    assert bus.cores["b"].replica.history.order != bus.cores["a"].replica.history.order
    assert bus.shells["c"].decisions == [2]
    bus.cores["b"].admit([*hello()[:2], Get(GET, 1, 1, "q", True)])
    bus.run("b c")
    (again,) = [e for _, e in bus.shells["b"].spoken if isinstance(e, GetOk)]
    assert again.body == b"m1"
    assert again.redelivered


def test_undecided_messages_outlast_a_view_that_may_not_go_on() -> None:
    """b alone is inquorate; with c it is the donor, and c, which is level, learns them from it."""
    bus = formed()
    bus.cores["a"].admit(hello())
    bus.run("a b c")
    bus.cores["a"].admit([publish(1)])
    sender, payload = bus.queue.pop()
    bus.transitional("b")
    bus.deliver("b", sender, payload, transitional="b")
    bus.view("b")
    bus.run("b")
    position = bus.cores["b"].replica.history.position
    assert not bus.cores["b"].serving
    bus.transitional("b")
    bus.transitional("c")
    bus.view("b c")
    bus.run("b c")
    same_everywhere(bus, "b c")
    assert bus.cores["b"].replica.history.position == position + 2 + CLAIMS
    assert not bus.shells["c"].transfers


def test_a_member_that_lives_beats_a_store_that_is_further() -> None:
    """b died after it had applied a message; c holds it undecided, and the one after it, too."""
    bus = formed()
    bus.cores["a"].admit(hello())
    bus.run("a b c")
    bus.cores["a"].admit([publish(1)])
    first = bus.queue.pop()
    bus.cores["a"].admit([publish(2)])
    second = bus.queue.pop()
    bus.deliver("a b", *first)
    bus.deliver("a", *second)
    bus.shells["b"].flush_disk()
    bus.seq -= 2
    bus.transitional("c")
    bus.deliver("c", *first, transitional="c")
    bus.deliver("c", *second, transitional="c")
    bus.start("b", incarnation=2, keep=True)
    assert bus.cores["b"].replica.history.position > bus.cores["c"].replica.history.position
    bus.view("b c")
    bus.run("b c")
    same_everywhere(bus, "b c")
    (queue,) = bus.cores["b"].replica.machine.queue_rows()
    assert queue.ready == 2
    plan = bus.cores["b"].primary.plan
    assert plan is not None
    assert plan.donor == bus.cores["c"].me


def test_an_activation_seen_only_as_its_view_ended_is_kept_with_what_it_decided() -> None:
    """b alone saw the primary of b and c; c has the messages and the activation undecided."""
    bus = undecided_when_a_died()
    bus.view("b c")
    agree(bus, "b c")
    activation = bus.withheld.pop()
    bus.deliver("b", *activation)
    bus.seq -= 1
    bus.transitional("b c")
    bus.deliver("c", *activation, transitional="c")
    assert bus.cores["c"].replica.history.position < bus.cores["b"].replica.history.position
    bus.view("b c")
    bus.run("b c")
    same_everywhere(bus, "b c")
    assert not bus.shells["c"].transfers
    assert bus.cores["c"].primary.epoch == 3


def test_a_returning_member_is_transferred_and_gets_a_new_session() -> None:
    bus = formed()
    bus.cores["c"].admit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.cores["a"].admit(hello())
    bus.run("a b")
    bus.start("c", incarnation=2)
    bus.view("a b c")
    bus.run("a b c")
    same_everywhere(bus, "a b c")
    assert bus.shells["c"].transfers
    assert bus.cores["c"].serving
    assert bus.cores["c"].primary.has_caught_up
    assert bus.shells["c"].sessions
    assert len(bus.shells["a"].sessions) == 1


def test_what_is_ordered_during_a_transfer_is_applied_after_it() -> None:
    bus = formed()
    bus.cores["a"].admit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    bus.cores["a"].admit([publish(1)])
    bus.run("a b c")
    donor, _ = bus.shells["c"].transfers[0]
    assert not bus.cores["c"].serving
    bus.shells["c"].finish_transfer(donor)
    bus.cores["a"].admit([publish(2)])
    bus.run("a b c")
    assert bus.cores["c"].serving
    same_everywhere(bus, "a b c")


def test_the_whole_cluster_comes_back_from_its_disks() -> None:
    """G8, G9: all three die and return; what was durable is there, and only that."""
    bus = formed()
    bus.cores["a"].admit([*hello(), publish(1), publish(2)])
    bus.run("a b c")
    before = bus.cores["a"].replica.history
    for name in "abc":
        bus.start(name, incarnation=2, keep=True)
    bus.view("b c")
    bus.run("b c")
    assert bus.cores["b"].serving
    assert bus.cores["b"].replica.history.position == before.position + 1 + CLAIMS
    activation = bus.cores["b"].primary.activation
    assert activation is not None
    assert activation.cold
    same_everywhere(bus, "b c")


def test_a_member_that_computed_something_else_stops_itself() -> None:
    """G10: the majority's chain wins, the minority is named at the same position everywhere."""
    bus = formed()
    epoch = bus.cores["a"].primary.epoch
    for name, chain in (("a", b"g" * 16), ("b", b"g" * 16), ("c", b"w" * 16)):
        bus.cores[name].admit([DigestClaim(65, epoch, 4096, chain, 1)])
    bus.run("a b c")
    assert bus.shells["c"].stopped is not None
    assert "something else" in bus.shells["c"].stopped[1]
    assert bus.shells["a"].stopped is None
    assert bus.shells["a"].verdicts[-1].divergent == ("c",)


def test_a_view_is_told_the_standing_after_all_deferred_work() -> None:
    """Scenario S1: a shell that applies in slices had told the new view a position of the past."""
    bus = formed()
    bus.cores["b"].admit(hello())
    sender, payload = bus.queue.pop()
    core = bus.cores["b"]
    core.on_output(Deliver(bus.ring, bus.seq + 1, sender, [payload], Guarantee.SAFE, False))
    assert core.busy
    before = core.replica.history.position
    core.on_output(Transitional(bus.ring, bus.members("b c")))
    core.on_output(View(RingId(9, "b", 1), bus.members("b c"), (), ()))
    assert core.replica.history.position == before + 3
    state = core.primary.take_outgoing()[-1]
    assert msgpack.packb(core.replica.history.position) in state
    assert core.replica.history.chain in state
