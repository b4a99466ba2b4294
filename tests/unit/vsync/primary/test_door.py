"""The ring's door: who is let in before there is a view, and which cards are valid."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import msgpack
import pytest

from broker.options.broker import broker_options
from broker.options.table import unusual_settings
from tests.support.ring.virtual_network import Net
from tests.unit.vsync.primary.test_settings import VOTERS, A, B, C, member
from vsync.primary.component import Primary
from vsync.primary.door import Card, PrimaryDoor, Refusal, card_of, read_card, refusal
from vsync.quorum.voter_set import Terms
from vsync.totem.node import Node
from vsync.types import Member

RUNNING = member(ran=True, position=9)
GUIDE = card_of(RUNNING, {A: RUNNING, B: RUNNING})
COMER = card_of(member(), {})


def test_a_card_round_trips_and_nothing_else_is_one() -> None:
    card = card_of(
        member(4, ran=True, position=9, LIMIT="10"), {A: RUNNING, B: member(5, ran=True)}
    )
    assert read_card(card.encode()) == card
    assert (card.sizes, card.voters) == ((3, 5), VOTERS)
    fields = tuple(card)
    assert read_card(msgpack.packb((*fields, "of a later release", 7))) == card
    odd: tuple[object, ...] = (None, 7.5, "x\n", (1.5,), b"", {}, ((("a",),),))
    broken = [(*fields[:at], one, *fields[at + 1 :]) for at in range(len(fields)) for one in odd]
    for data in (b"", b"\xc1", *map(msgpack.packb, (1, fields[:-1], *broken))):
        assert read_card(data) is None, data
    whole = card.encode()
    for at in range(len(whole)):
        read_card(whole[:at])  # whatever the bytes are, it does not raise
        read_card(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])


def test_a_newcomer_is_told_every_difference_from_a_member_that_has_run() -> None:
    comer = COMER._replace(
        size=1, transient=True, requested=("a=2",), settings=(("LIMIT", "20", True),)
    )
    guide = GUIDE._replace(settings=(("LIMIT", "10", True),))
    found = refusal(comer, "c", guide, "a")
    assert found.settings
    for part in (
        "settings differ that must be equal: cluster-size is 1 here and 3 at a; "
        "LIMIT is 20 here and 10 at a; give all members the same",
        "this member has no data directory, the cluster here keeps its state on disk",
        "this member was started with 2 votes for a, the cluster's voter set has 1",
    ):
        assert part in found.why


@pytest.mark.parametrize(
    ("comer", "guide"),
    [
        (COMER, GUIDE),
        (COMER._replace(size=1), GUIDE._replace(ran=False)),  # nobody knows which is meant
        (COMER._replace(size=1, ran=True), GUIDE),
        (COMER._replace(size=4), GUIDE._replace(sizes=(3, 4))),
        (COMER._replace(size=4), GUIDE._replace(voters=("a", "b", "c", "d"))),
        # It saw a change of the voters that the other one missed.
        (
            COMER._replace(size=4, cluster_id="c1", epoch=3, voters=("a", "b", "c", "d")),
            GUIDE,
        ),
        (COMER, GUIDE._replace(transient=True, arbitrator=True)),
    ],
)
def test_the_door_admits_all_that_the_state_exchange_would(comer: Card, guide: Card) -> None:
    assert refusal(comer, C.name, guide, A.name) == Refusal("", settings=False)


class Doors(Net):
    """A ring of a and b, which have run with size 3, and a newcomer n with another size.

    `voters` are the voters that a and b know.
    """

    def __init__(self, size_of_newcomer: int, voters: Terms = VOTERS) -> None:
        self.told: dict[str, list[Refusal]] = {}
        self.size_of_newcomer, self.voters = size_of_newcomer, voters
        super().__init__("ab")
        self.run(2.0, lambda: all(len(node.members) == 2 for node in self.nodes.values()))
        self.rings = self.rings_now()

    def make(self, me: Member) -> Node:
        report = member(ran=True, position=9)._replace(voters=self.voters)
        if me.name == "n":
            report = member(self.size_of_newcomer)
        told = self.told.setdefault(me.name, [])
        door = PrimaryDoor(me, report.size, (), transient=False, barred=told.append)
        above = SimpleNamespace(app=SimpleNamespace(state_report=lambda: report), reports={})
        door.opens(cast("Primary", above))
        return Node(me, "test", self.config, random.Random(self.rng.random()), door=door)

    def rings_now(self) -> list[object]:
        """The rings of the running members."""
        return [self.nodes[name].ring for name in "ab"]


def test_a_newcomer_with_other_settings_changes_no_view() -> None:
    """G15: the door tells it what differs, and the running members continue as before."""
    net = Doors(2)
    newcomer = net.boot("n")
    net.run(3.0)
    assert net.rings_now() == net.rings
    assert newcomer.members in ((), (newcomer.me,))
    why = net.told["n"][0]
    assert why.settings
    assert "cluster-size is 2 here and 3 at " in why.why
    assert not net.told["a"]


def test_a_newcomer_with_the_changed_voters_in_its_options_joins() -> None:
    """Its options differ from those the running members were started with, and match the voters."""
    net = Doors(4, ("a", "b", "c", "n"))
    net.boot("n")
    net.run(5.0)
    assert all(len(node.members) == 3 for node in net.nodes.values())
    assert not any(net.told.values())


def test_default_settings_do_not_count_in_the_digest() -> None:
    """So the digest is the same in a release that does not know them."""

    def digest(*unusual: tuple[str, str]) -> bytes:
        barred: list[Refusal] = []
        door = PrimaryDoor(A, 3, (), transient=False, barred=barred.append, unusual=unusual)
        return door.digest

    mode = unusual_settings(broker_options({"cluster-name": "c", "no-data-dir": "yes"}).settings)
    assert digest(*mode) == digest()
    given = {"cluster-name": "c", "no-data-dir": "yes", "ha-cluster": "yes"}
    mode = unusual_settings(broker_options(given).settings)
    assert mode == (("ha-cluster", "yes"),)
    assert digest(*mode) != digest()
