"""Received states: when the new store counts, and what a failed tail does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.replication.chain import History, Promise
from broker.replication.member import RETRY_DOUBLINGS, ReplicatedMember
from broker.replication.ports import Ports
from broker.replication.unapplied import CatchUp
from store.api import Marker, Meta
from tests.support.scripted_views import Bus, formed, hello
from tests.support.scripted_views import publish as published
from tests.support.stores.memory import MemoryDisk, MemoryStore
from tests.support.stores.poisoned import META, Author, publish
from vsync.primary.events import Transfer
from vsync.types import Member

OWN = Meta("prod", "b", "5eed")


class Rig:
    """A member with stores in memory, whose controller waits for a state."""

    def __init__(self, own: Meta) -> None:
        self.ring, self.transfer, self.clock = Mock(), Mock(), Mock()
        self.controller: Any = SimpleNamespace(
            takes_state=True, transfer_donor="a", state_received=Mock(), halted="",
            unapplied=SimpleNamespace(busy=False),
            replica=Mock(machine=Mock(unfinished_bytes=0)), filled=False,
            promise=Promise(META.cluster_id, META.voters, 1),
            transfer_failed=Mock(), submissions=Mock(),
        )  # fmt: skip
        self.device = Mock()
        host = Mock(stopping=False)
        self.device.switch.side_effect = lambda _writer, received, _current, meta, done: (
            received.put_meta(meta), done(received, received.bytes_to_start()),
        )  # fmt: skip
        self.member: ReplicatedMember[Any, Any] = ReplicatedMember(
            Ports(self.ring, Mock(), self.clock, self.transfer, Mock(), Mock(), host),
            self.device, MemoryStore(MemoryDisk(), own), own,
            lambda _shell, _promise: self.controller,
        )  # fmt: skip

    def receive(self) -> int:
        """Return the position of the received state."""
        author = Author()
        author.submit(publish(1, b"body"))
        received = MemoryStore(MemoryDisk(), replace(META, member="b"))
        author.keep(received)
        self.member.state_received(author.replica, received)
        return author.replica.history.position

    @property
    def reported(self) -> int:
        """The mark that the ring was last given."""
        return int(self.ring.set_mark.call_args.args[0])


def test_a_received_store_without_a_vote_reports_nothing_until_it_counts() -> None:
    """Its report counts for confirms once its member has caught up. Killed before the commit that
    gives the store a vote, it would come back without one, and with it a majority of the disks that
    hold confirmed commands."""
    rig = Rig(OWN)
    position = rig.receive()
    assert rig.member.persister.meta.marker is Marker.JOINING
    assert rig.reported == 0
    rig.controller.replica.cut.return_value = None
    rig.controller.filled = True
    rig.member.state_is_level()
    assert rig.reported == 0
    meta, durable = rig.device.open_writer.return_value.submit_meta.call_args.args
    assert meta.marker is Marker.DIRTY
    durable()
    assert rig.reported == position


def test_a_received_store_with_a_vote_reports_its_position_at_once() -> None:
    own = replace(OWN, marker=Marker.DIRTY, cluster_id=META.cluster_id)
    rig = Rig(own)
    position = rig.receive()
    assert rig.member.persister.meta.marker is Marker.DIRTY
    assert rig.reported == position


def test_a_vote_passes_to_a_state_that_holds_all_confirmed_commands() -> None:
    """After a power loss one voter may be further than the others, which went on without it: what
    only it has was not confirmed, and waiting to reach its end may last for ever (seed 307)."""
    rig = Rig(replace(OWN, marker=Marker.DIRTY, cluster_id=META.cluster_id, position=309))
    catch_up = CatchUp(Transfer(Member("a", 1, "a:1"), 10, 276, bytes(16)))
    rig.controller.holds_all_confirmed = catch_up.is_behind_all
    for epoch, position, may in ((3, 275, False), (3, 276, True), (1, 309, True)):
        assert rig.member.may_replace(History(epoch, position)) == may, (epoch, position)
    rig.controller.holds_all_confirmed = lambda _history: False
    assert rig.member.may_replace(History(1, 309))
    rig.member.persister.meta = replace(OWN, marker=Marker.JOINING, position=309)
    assert rig.member.may_replace(History(1, 1)), "nobody counted on it"


@pytest.mark.parametrize("why", ["it stops", "another one is put in force", "it needs none"])
def test_a_state_that_comes_too_late_is_refused(why: str) -> None:
    rig = Rig(OWN)
    member: Any = rig.member
    member._host.stopping = why == "it stops"
    member.persister.switching = why == "another one is put in force"
    rig.controller.takes_state = why != "it needs none"
    assert not rig.member.state_received(Mock(), MemoryStore(MemoryDisk(), META))
    rig.controller.state_received.assert_not_called()
    rig.device.switch.assert_not_called()


def test_transfers_that_fail_are_tried_less_and_less_often() -> None:
    rig = Rig(OWN)
    for _ in range(RETRY_DOUBLINGS + 2):
        rig.member.transfer_failed("the donor said nothing")
    delays = [one.args[0] for one in rig.clock.later.call_args_list]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0]
    rig.member.transfer_done()
    rig.member.transfer_failed("the next donor said nothing")
    assert rig.clock.later.call_args.args[0] == 0.5


def test_the_log_records_a_received_state_before_the_member_goes_on() -> None:
    """Items applied after the state are recorded after it: a reader of the log follows
    the chain."""
    rig = Rig(OWN)
    order = Mock()
    member: Any = rig.member
    member._log.snapshot = order.snapshot
    rig.controller.state_received = order.goes_on
    rig.receive()
    assert [call[0] for call in order.mock_calls] == ["snapshot", "goes_on"]


def test_nothing_of_the_old_store_is_reported_until_the_new_is_in_force() -> None:
    """The old store may be of another history while its member is level and counts for confirms;
    before the disk has switched stores, a confirm would be on no disk of the new history."""
    own = replace(OWN, marker=Marker.DIRTY, cluster_id=META.cluster_id, position=4)
    rig = Rig(own)
    rig.member._on_durable(4)
    switches: list[Any] = []
    rig.device.switch.side_effect = lambda *switch: switches.append(switch)
    position = rig.receive()
    assert rig.reported == 0
    _, received, _, meta, done = switches.pop()
    received.put_meta(meta)
    done(received, received.bytes_to_start())
    assert rig.reported == position


def test_a_failed_tail_is_dropped_before_it_is_requested_again() -> None:
    rig = Rig(OWN)
    rig.member.tail_failed("this member's own state is wrong")
    rig.clock.when_right.call_args.args[0]()
    rig.transfer.abort.assert_called_once_with()
    assert rig.clock.later.call_count == 1


def test_only_the_failed_attempt_is_retried() -> None:
    """A view changes while a member waits to retry. (Regression: the old attempt's timer ended the
    transfer from the new donor and started it again.)"""
    rig = Rig(OWN)
    rig.clock.when_right.side_effect = lambda call: call()
    donor = Member("a", 1, "a:1")
    rig.member.begin_transfer(donor, 5)
    rig.member.transfer_failed("the donor said nothing")
    _, first = rig.clock.later.call_args.args
    rig.member.begin_transfer(Member("c", 1, "c:1"), 7)
    first()
    assert not rig.controller.transfer_failed.called
    rig.member.transfer_failed("nor did this one")
    _, second = rig.clock.later.call_args.args
    second()
    rig.controller.transfer_failed.assert_called_once_with()


def test_a_transfer_that_waits_for_the_clock_is_not_the_failed_one() -> None:
    """A second transfer is ordered and waits for this member's clock to be known right, while
    the first one fails. (Regression: the failure was taken for that of the second, which was
    ordered again.)"""
    rig = Rig(OWN)
    rig.clock.when_right.side_effect = lambda call: call()
    rig.member.begin_transfer(Member("a", 1, "a:1"), 5)
    waiting: list[Any] = []
    rig.clock.when_right.side_effect = waiting.append
    rig.member.begin_transfer(Member("c", 1, "c:1"), 7)
    rig.member.transfer_failed("the donor said nothing")
    _, again = rig.clock.later.call_args.args
    again()
    assert not rig.controller.transfer_failed.called
    waiting.pop()()
    rig.transfer.begin.assert_called_with(Member("c", 1, "c:1"), 7)
    rig.member.transfer_failed("nor did this one")
    _, again = rig.clock.later.call_args.args
    again()
    rig.controller.transfer_failed.assert_called_once_with()


def test_a_member_drops_a_received_state_it_no_longer_needs() -> None:
    """An earlier view may have left a received state, or part of one, on its disk and in
    its memory."""
    rig = Rig(OWN)
    rig.member.activated(Mock(), None)
    rig.transfer.done.assert_called_once_with()


def waiting_behind(items: int) -> Bus:
    """Member c waits for a tail of `count` items."""
    bus = formed()
    bus.cores["a"].submit(hello())
    bus.run("a b c")
    bus.change("a b")
    bus.start("c", incarnation=2)
    bus.shells["c"].instant_transfers = False
    bus.view("a b c")
    bus.run("a b c")
    for number in range(1, items + 1):
        bus.cores["a"].submit([published(number)])
        bus.run("a b c")
    return bus


def test_a_state_that_proved_wrong_executes_nothing_more() -> None:
    """Regression: it executed the next command, which could raise there, so that an innocent
    command was quarantined (G16) for the fault of a state that is replaced anyway."""
    bus = waiting_behind(20)
    core, shell = bus.cores["c"], bus.shells["c"]
    tail = list(bus.shells["a"].log)
    wrong = tail[3]._replace(chain=bytes(16))
    shell.tail.extend([*tail[:3], wrong, *tail[4:]])
    core.tail_is_here()
    bus.work("c")
    assert core.replica.broken
    there = core.replica.history
    for _ in range(3):
        core.tail_is_here()
        bus.work("c")
    assert core.replica.history == there
    assert core.counters["tails_diverged"] == 1


def test_a_promise_waits_until_no_member_of_an_older_view_may_reply() -> None:
    """G7: a member that was left out may reply under its lease for a while."""
    rig = Rig(OWN)
    member: Any = rig.member
    member._lease.silent_in.return_value = 0.7
    rig.controller.primary = SimpleNamespace(members=(Member("b", 1, "b:1"),))
    acknowledged = Mock()
    member._promise_durable(3, acknowledged)
    member._lease.silent_in.assert_called_once_with(rig.controller.primary.members)
    delay_s, silent = rig.clock.later.call_args.args
    assert delay_s == 0.7
    acknowledged.assert_not_called()
    silent()
    acknowledged.assert_called_once_with()


def test_a_promise_goes_behind_everything_applied() -> None:
    """G8: one that is durable says that the state up to it is durable here, too."""
    rig, order = Rig(OWN), Mock()
    rig.clock.when_right.side_effect = lambda call: call()
    persister: Any = rig.member.persister
    persister.keep, persister.promise = order.keep, order.promise
    rig.member.persist_promise(rig.controller.promise, Mock())
    assert [one[0] for one in order.mock_calls] == ["keep", "promise"]
    assert order.keep.call_args.kwargs == {"counts": True}


def test_an_abandoned_history_is_shown_to_nobody_and_has_no_vote() -> None:
    """G9: the other history has something else at the same positions."""
    rig, done = Rig(replace(OWN, marker=Marker.DIRTY, cluster_id="c")), Mock()
    member: Any = rig.member
    member._unlogged.append((8, [(1, "made and not written to the log")]))
    member._made.append((2, "made in this turn"))
    kept = rig.member.persister.keep = Mock()  # type: ignore[method-assign]
    rig.member.set_aside(done)
    member._clients.set_aside.assert_called_once_with()
    assert not member._made
    assert not member.awaits_log
    kept.assert_called_once()
    meta, durable = rig.device.open_writer.return_value.submit_meta.call_args.args
    assert meta.marker is Marker.JOINING
    done.assert_not_called()
    durable()
    done.assert_called_once_with()


def test_output_for_a_former_sessions_clients_never_reaches_the_next() -> None:
    """Those clients are gone, and the output may contain the start of that ended session."""
    rig = Rig(OWN)
    member: Any = rig.member
    member._log.written = 7
    member._unlogged.append((8, [(1, "made and not written to the log")]))
    member._made.append((2, "made in this turn"))
    rig.controller.submit = Mock()
    member.session_started(2)
    member._log.written = member._log.flush.return_value = 9
    rig.controller.serving = rig.controller.may_serve_soon = False
    member.reply()
    member._clients.effects.assert_not_called()
