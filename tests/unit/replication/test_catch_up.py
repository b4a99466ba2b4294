"""A member that is given a state among what it kept, and one whose members disagree in a vote."""

from __future__ import annotations

from broker.divergence.digest_vote import Value
from broker.machine.commands import DIGEST, DigestClaim
from broker.machine.machine import Machine
from broker.replication.chain import History
from broker.replication.controller import DIGEST_INTERVAL, Controller
from broker.replication.replica import Replica
from broker.replication.unapplied import CatchUp
from tests.support.scripted_views import Bus, formed, hello, publish, same_everywhere
from vsync.primary.events import Ordered, Transfer
from vsync.types import Member, RingId


def waiting() -> Bus:
    """Three members in a primary view, of which c waits for its state and keeps what is ordered."""
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
    """The state of a as it is now, for c."""
    source = bus.cores["a"].replica
    chunks = list(source.machine.snapshot())
    return Replica("c", Machine.restore("c", chunks), source.history)


def test_a_state_from_among_what_was_kept_is_followed_by_what_comes_behind_it() -> None:
    """What lies before it is in it already, and an item applied twice has another outcome."""
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


def test_once_what_it_kept_was_met_none_of_it_is_given_up() -> None:
    """The tail leads past what is given up before that, and ends there: nothing leads past this."""
    kept = CatchUp(Transfer(Member("a", 1, "a:1"), 1, 0, bytes(16)), held_bytes_max=1000)
    assert kept.meet(History(order=bytes(16))) == []
    place = 1, RingId(1, "a", 1)
    items = [Ordered(*place, n, Member("a", 1, "a:1"), bytes(100)) for n in range(30)]
    for item in items:
        kept.hold(item)
    assert [kept.take() for _ in items] == items
    assert kept.level
    assert not kept.counters["given_up"]


def test_who_has_met_what_it_kept_asks_for_no_other_state() -> None:
    """The timer of an attempt that failed may be due when the tail of another one has come."""
    bus = waiting()
    go_on(bus, range(1, 4))
    core, shell = bus.cores["c"], bus.shells["c"]
    core.transfer_failed()
    assert len(shell.transfers) == 2
    state = copied(bus)
    go_on(bus, range(4, 7))
    core.state_received(state, counts=True)
    assert core.transfer_donor, "what was kept is still to be applied"
    core.transfer_failed()
    assert len(shell.transfers) == 2


def claimed(core: Controller, *votes: tuple[str, int, Value]) -> None:
    """These members order what they computed."""
    core.replica.digests += [
        (name, DigestClaim(DIGEST, value[0], position, *value[1:]))
        for name, position, value in votes
    ]
    core._count_votes()


def test_a_member_that_is_found_right_in_the_next_view_serves_in_it() -> None:
    """Two of three differ; without one of them the others vote anew, and agree."""
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
    """G9: one of the other history may have the same number, and would go on with these blobs."""
    core = formed().cores["a"]
    core.submissions.open = False
    core.submit(hello())
    assert core.submissions.session
    assert core.submissions.outstanding
    core._set_aside()
    assert not core.submissions.session
    assert not core.submissions.outstanding
    assert not core.submissions.open
