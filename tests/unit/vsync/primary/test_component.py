"""What a view's members decide, message by message, over an order that loses nothing (G7).

Scenarios and the simulator run a real ring under this layer; here it is a list.
"""

from __future__ import annotations

import msgpack
import pytest

from tests.unit.vsync.primary.test_settings import VOTERS, A, B, C, member
from vsync.primary.component import Primary
from vsync.primary.events import (
    ACTIVATE,
    APP,
    REPROPOSED,
    STATE,
    Activated,
    Activation,
    Inquorate,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    PrimaryPhase,
    StateReport,
    Suspended,
    Transfer,
    Unstable,
    decode,
)
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Deliver, Transitional, View
from vsync.types import Guarantee, Member, RingId

PAIR = ("a", "b", "@pair=b")


def ring_of(sequence: int) -> RingId:
    """The ring of a view; its name does not matter here."""
    return RingId(sequence, A.name, A.incarnation)


class App:
    """A replicated state, as far as the layer looks at it."""

    def __init__(self, voters: Terms) -> None:
        self.report = member(position=9, ran=True)._replace(voters=voters)

    def state_report(self) -> StateReport:
        """As a member would report it."""
        return self.report

    def reaches(self, payloads: list[bytes | Activation], order: bytes) -> int:
        """No missed message leads to another state here."""
        return -1

    def follow(self, event: PrimaryEvent) -> None:
        """Promise and enter epochs."""
        if isinstance(event, PersistEpoch):
            self.report = self.report._replace(promised_epoch=event.epoch)
        elif isinstance(event, Activated):
            self.report = self.report._replace(state_epoch=event.activation.epoch)


class Order:
    """Members, and the order of what they send, which all members of a view receive."""

    def __init__(self, voters: Terms = VOTERS, names: tuple[Member, ...] = (A, B, C)) -> None:
        self.apps = {one: App(voters) for one in names}
        self.members = {one: Primary(one, app) for one, app in self.apps.items()}
        self.events: dict[Member, list[PrimaryEvent]] = {one: [] for one in names}
        self.sequence, self.seq = 0, 0

    def view(self, *names: Member) -> RingId:
        """These form a ring; let everything follow from that, with fast disks."""
        self.sequence += 4
        ring = ring_of(self.sequence)
        for one in names:
            self.members[one].on_output(View(ring, names, (), ()))
        self.settle(*names)
        return ring

    def settle(self, *names: Member) -> None:
        """Order messages until nobody sends any."""
        while sent := [
            (one, payload) for one in names for payload in self.members[one].take_outgoing()
        ]:
            for sender, payload in sent:
                self.deliver(sender, payload, names)

    def deliver(
        self, sender: Member, payload: bytes, to: tuple[Member, ...], *, transitional: bool = False
    ) -> None:
        """Deliver one message to these members."""
        self.seq += 1
        for one in to:
            primary = self.members[one]
            primary.on_output(
                Deliver(primary.ring, self.seq, sender, [payload], Guarantee.SAFE, transitional)
            )
            self.take(one)

    def take(self, one: Member) -> None:
        """Record what a member outputs; a promise is durable at once."""
        for event in self.members[one].take():
            self.events[one].append(event)
            self.apps[one].follow(event)
            if isinstance(event, PersistEpoch):
                self.members[one].persisted(event.request)

    def ends(self, *names: Member) -> None:
        """End the view of these members."""
        for one in names:
            primary = self.members[one]
            primary.on_output(Transitional(primary.ring, names))
            self.take(one)

    def applies(self, one: Member) -> list[tuple[bytes | Activation, int]]:
        """What a member was told to apply, and the epoch that decided it."""
        return [
            (event.payload if isinstance(event, Ordered) else event.activation, event.decided_by)
            for event in self.events[one]
            if isinstance(event, Ordered | Activated)
        ]


def test_members_with_one_state_form_a_primary_view() -> None:
    order = Order()
    order.view(A, B, C)
    (activation,) = {one for name in order.members for one, _ in order.applies(name)}
    assert isinstance(activation, Activation)
    assert (activation.epoch, activation.voters) == (3, VOTERS)
    assert all(one.has_caught_up for one in order.members.values())
    order.deliver(B, Primary.wrap(b"x"), (A, B, C))
    assert all(order.applies(one)[-1] == (b"x", 0) for one in (A, B, C))


def test_messages_not_known_to_be_safe_are_applied_before_activation() -> None:
    """All apply them as the donor has them; the others had none."""
    order = Order()
    order.view(A, B, C)
    order.ends(A, B, C)
    order.deliver(C, Primary.wrap(b"late"), (A,), transitional=True)
    assert order.applies(A)[-1][0] != b"late"
    order.view(A, B)
    for one in (A, B):
        *_, late, activation = order.applies(one)
        assert late == (b"late", 4), one
        assert isinstance(activation[0], Activation)
        assert (activation[0].epoch, activation[0].keeps) == (4, True)
    assert not any(isinstance(event, Transfer) for event in order.events[B])


@pytest.mark.parametrize("from_donor", [True, False])
def test_only_the_donor_proposes_a_message_again(*, from_donor: bool) -> None:
    """Another holder may not know that the message was given up."""
    order = Order()
    ring = order.view(A, B, C)
    order.ends(A, B, C)
    order.sequence += 4
    next_ring = ring_of(order.sequence)
    for one in (A, B):
        order.members[one].on_output(View(next_ring, (A, B), (), ()))
    for one in (A, B):
        for payload in order.members[one].take_outgoing():
            order.deliver(one, payload, (A, B))  # the reports: the plan is known, a is the donor
    plan = order.members[B].plan
    assert plan is not None
    assert plan.donor == A
    again = Unstable(3, ring, 77, C, b"again")
    payload = REPROPOSED + msgpack.packb((tuple(next_ring), again))
    order.deliver(A if from_donor else B, payload, (A, B))
    order.settle(A, B)
    for one in (A, B):
        told = [item for item, _ in order.applies(one)]
        assert (b"again" in told) is from_donor, one
        assert order.members[one].counters.get("again_unexpected", 0) == (not from_donor)


@pytest.mark.parametrize("complete", [True, False])
def test_an_activation_is_kept_with_all_that_precedes_it_or_not_at_all(*, complete: bool) -> None:
    """A view ends while it is activated: others may have applied both."""
    order = Order()
    order.view(A, B, C)
    order.ends(A, B, C)
    order.deliver(C, Primary.wrap(b"late"), (A,), transitional=True)
    order.sequence += 4
    for one in (A, B):
        order.members[one].on_output(View(ring_of(order.sequence), (A, B), (), ()))
    activation = b""
    while not activation:
        for one in (A, B):
            for payload in order.members[one].take_outgoing():
                if payload[:1] == ACTIVATE:
                    activation = payload
                elif complete or payload[:1] != REPROPOSED:
                    order.deliver(one, payload, (A, B))
    order.ends(B)
    order.deliver(A, activation, (B,), transitional=True)
    order.sequence += 4
    order.members[B].on_output(View(ring_of(order.sequence), (B, C), (), ()))
    (payload,) = order.members[B].take_outgoing()
    _, report = decode(STATE, payload)
    assert isinstance(report, StateReport)
    assert (report.unstable, report.reach) == ((2, 4) if complete else (0, 3))


def test_messages_the_ring_refused_are_sent_first() -> None:
    primary = Order().members[A]
    primary.put_back([b"3"])
    primary.put_back([b"1", b"2"])
    assert primary.take_outgoing() == [b"1", b"2", b"3"]
    assert primary.take_outgoing() == []


def test_a_member_without_the_state_fetches_it_and_does_not_count() -> None:
    order = Order()
    order.apps[C].report = order.apps[C].report._replace(position=5, chain=b"y" * 16)
    order.view(A, B, C)
    (transfer,) = [one for one in order.events[C] if isinstance(one, Transfer)]
    assert (transfer.donor, transfer.epoch, transfer.base) == (A, 3, 9)
    assert order.members[A].caught_up_names == {"a", "b"}
    assert order.members[C].active
    assert not order.members[C].has_caught_up
    order.members[C].state_replaced()
    order.members[C].caught_up()
    order.settle(A, B, C)
    assert all(one.caught_up_names == {"a", "b", "c"} for one in order.members.values())


def test_a_minority_decides_nothing() -> None:
    order = Order()
    order.view(A, B, C)
    order.ends(A)
    before = order.applies(A)
    order.view(A)
    assert isinstance(order.events[A][-1], Inquorate)
    assert order.members[A].phase is PrimaryPhase.INQUORATE
    order.deliver(A, APP + b"x", (A,))
    assert order.applies(A) == before
    assert order.members[A].counters["app_outside_primary"] == 1


def test_reports_of_another_view_do_not_count() -> None:
    order = Order()
    order.view(A, B, C)
    order.ends(A, B, C)
    order.sequence += 4
    order.members[A].on_output(View(ring_of(order.sequence), (A, B), (), ()))
    (report,) = order.members[A].take_outgoing()
    order.sequence += 4
    order.members[A].on_output(View(ring_of(order.sequence), (A, B), (), ()))
    order.deliver(B, report, (A,))
    assert order.members[A].counters["of_another_view"] == 1
    assert not order.members[A].reports
    assert isinstance(order.events[A][-1], Suspended)


@pytest.mark.parametrize("went_on", ["not", "in a later epoch", "alone"])
def test_a_pairs_vote_goes_to_a_member_that_was_not_overtaken(went_on: str) -> None:
    """Row by row: docs/decisions/0077-a-pair-has-a-vote-that-is-no-machines.md."""
    order = Order(PAIR, (A, B))
    order.view(A, B)
    order.ends(A, B)
    other = order.apps[B].report
    if went_on == "in a later epoch":
        order.apps[B].report = other._replace(state_epoch=other.state_epoch + 1)
    elif went_on == "alone":
        order.apps[B].report = other._replace(voters=(*PAIR, "@away=a"))
    # b's report reaches a, and the view ends before a's own report has come back.
    order.sequence += 4
    for one in (A, B):
        order.members[one].on_output(View(ring_of(order.sequence), (A, B), (), ()))
    for payload in order.members[B].take_outgoing():
        order.deliver(B, payload, (A,))
    order.ends(A)
    order.view(A)
    assert order.members[A].lacks_its_peer is (went_on == "not")
    order.members[A].take_vote()
    order.settle(A)
    assert order.members[A].active is (went_on == "not")
