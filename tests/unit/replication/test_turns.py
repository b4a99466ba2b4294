"""Turns of a member that lags: several turns hand over to store, log and clients together.

And the marker of its store after the last one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.replication.chain import Promise
from broker.replication.member import MERGED_TURNS_MAX, UNAWAITED_S, ReplicatedMember
from broker.replication.ports import Ports
from store.api import Marker, Meta
from tests.support.stores.memory import MemoryDisk, MemoryStore
from vsync.totem.events import Deliver, Marks, Transitional, View
from vsync.types import Guarantee, Member, RingId


class Turns:
    """A member with `items` to apply, one in each slice."""

    def __init__(self, items: int) -> None:
        self.ring, self.clients, self.clock = Mock(), Mock(), Mock()
        self.host = Mock(stopping=False)
        self.log = Mock(unflushed=False, written=7)
        self.log.flush.return_value = 7
        self.clients.take_commands.return_value = ["a command"]
        self.clients.flush.return_value = []
        self.controller: Any = SimpleNamespace(
            unapplied=SimpleNamespace(busy=items > 0, step=self._step), halted="",
            replica=Mock(), promise=None, filled=True,
            serving=False, may_serve_soon=False, submissions=Mock(full=False), submit=Mock(),
            backups=None,
        )  # fmt: skip
        self.items = items
        meta = Meta("prod", "a", "1")
        self.member: ReplicatedMember[Any, Any] = ReplicatedMember(
            Ports(self.ring, Mock(), self.clock, Mock(), self.clients, self.log, self.host),
            Mock(), MemoryStore(MemoryDisk(), meta), meta, lambda _shell, _promise: self.controller,
        )  # fmt: skip
        self.keep = Mock()
        self.member.persister.keep = self.keep  # type: ignore[method-assign]

    def _step(self) -> None:
        self.items -= 1
        self.controller.unapplied.busy = self.items > 0

    def turn(self) -> None:
        slices = iter((True, False))
        self.member.turn(lambda: next(slices))


def test_a_lagging_member_hands_over_once_for_several_turns() -> None:
    """Waking a thread for each turn costs more than applying an item."""
    behind = Turns(items=2 * MERGED_TURNS_MAX + 1)
    for number in range(1, 2 * MERGED_TURNS_MAX + 1):
        behind.turn()
        assert behind.keep.call_count == number // MERGED_TURNS_MAX
        assert behind.clients.flush.call_count == number // MERGED_TURNS_MAX
        assert behind.host.schedule.call_count == number, "another turn follows"
        assert behind.controller.submit.call_count == number, "commands do not wait"


def test_a_member_that_has_caught_up_hands_over_at_once() -> None:
    behind = Turns(items=2)
    behind.turn()
    behind.keep.assert_not_called()
    behind.turn()
    behind.keep.assert_called_once()
    behind.clients.flush.assert_called_once()
    behind.turn()
    assert behind.keep.call_count == 2, "nothing was applied, but a turn was requested"


@pytest.mark.parametrize("what", ["submitted", "handed over", "written"])
def test_work_made_at_the_end_of_a_turn_causes_another_turn(what: str) -> None:
    """Even if there was none when the turn began: a lone member's own commands are ordered
    at once."""
    idle = Turns(items=0)
    of = {
        "submitted": idle.controller.submit, "handed over": idle.keep,
        "written": idle.clients.flush,
    }  # fmt: skip

    def makes_work(*_: object, **__: object) -> list[int]:
        idle.controller.unapplied.busy = True
        return []

    of[what].side_effect = makes_work
    idle.turn()
    idle.host.schedule.assert_called_once()


def test_a_halted_member_takes_nothing_from_its_clients() -> None:
    """It was outvoted: what its state says may be wrong. Its own votes are still ordered."""
    halted = Turns(items=0)
    halted.controller.halted = "outvoted"
    halted.turn()
    halted.clients.take_commands.assert_not_called()
    halted.controller.submit.assert_not_called()
    assert halted.clients.throttle.call_args.kwargs["full"]


def test_unawaited_items_share_a_commit_with_what_follows() -> None:
    """Separate commits for acks would keep the disk from the publish behind them."""
    acked = Turns(items=3)
    acked.controller.replica = Mock(awaited=False, uncut=True)
    for _ in range(3):
        acked.turn()
    acked.keep.assert_not_called()
    acked.clients.flush.assert_called()
    acked.clock.later.assert_called_once()
    delay_s, keep = acked.clock.later.call_args.args
    assert delay_s == UNAWAITED_S
    keep()
    acked.keep.assert_called_once()
    acked.turn()
    assert acked.clock.later.call_count == 2, "the next ones too"


def test_awaited_items_take_unawaited_ones_along() -> None:
    acked = Turns(items=2)
    acked.controller.replica = Mock(awaited=False, uncut=True)
    acked.turn()
    acked.turn()
    acked.controller.replica = Mock(awaited=True, uncut=True)
    acked.turn()
    acked.keep.assert_called_once()


def test_unawaited_items_are_not_handed_to_a_closed_store() -> None:
    """A stopping member's last commit contains them."""
    acked = Turns(items=1)
    acked.controller.replica = Mock(awaited=False, uncut=True)
    acked.turn()
    acked.host.stopping = True
    acked.clock.later.call_args.args[1]()
    acked.keep.assert_not_called()
    acked.host.failed.assert_not_called()


def test_unawaited_records_share_a_write_with_what_follows() -> None:
    """Waking the log's thread takes processor time from what a client waits for."""
    idle = Turns(items=0)
    idle.log.unflushed = True
    for _ in range(3):
        idle.turn()
    idle.log.flush.assert_not_called()
    idle.clients.flush.assert_called()
    idle.clock.later.assert_called_once()
    delay_s, hand_over = idle.clock.later.call_args.args
    assert delay_s == UNAWAITED_S
    hand_over()
    idle.log.flush.assert_called_once()
    idle.turn()
    assert idle.clock.later.call_count == 2, "the next ones too"


def test_a_waiting_client_has_the_log_written_at_once() -> None:
    behind = Turns(items=0)
    behind.log.unflushed = True
    behind.turn()
    behind.member.effects([Mock()])
    behind.turn()
    behind.log.flush.assert_called_once()
    behind.clients.effects.assert_called_once()


def test_an_idle_members_log_is_checked_at_each_turn() -> None:
    """Its segment may be old, and no timer checks that."""
    idle = Turns(items=0)
    idle.turn()
    idle.log.flush.assert_called_once()
    idle.clock.later.assert_not_called()


def test_the_ring_is_told_which_commits_have_begun() -> None:
    """Except by a store that does not count: its mark stays where it is."""
    member = Turns(items=0)
    member.turn()
    member.ring.expect_mark.assert_called_once_with(member.member.persister.meta.position)
    member.controller.filled = False
    member.turn()
    member.member.persister.switching = member.controller.filled = True
    member.turn()
    member.ring.expect_mark.assert_called_once()


def test_primary_messages_go_out_at_once_and_applying_waits_for_its_slice() -> None:
    turns, ring = Turns(items=3), RingId(1, "a", 1)
    turns.controller.on_output, turns.controller.flush = Mock(), Mock()
    turns.member.on_output(View(ring, (), (), ()))
    turns.member.on_output(Transitional(ring, ()))
    assert [one.kwargs["regular"] for one in turns.log.view.call_args_list] == [True, False]
    assert turns.controller.flush.call_count == 2
    sender = Member("a", 1, "127.0.0.1:1")
    item = Deliver(ring, 1, sender, [b""], Guarantee.SAFE, False)
    turns.member.on_output(item)
    assert turns.controller.flush.call_count == 2
    assert (turns.items, turns.host.schedule.call_count) == (3, 3)
    turns.controller.unapplied.busy = False  # it was of the primary layer
    turns.member.on_output(item)
    assert (turns.controller.flush.call_count, turns.host.schedule.call_count) == (3, 4)


@pytest.mark.parametrize("what", ["written", "gone"])
def test_an_idle_member_frees_the_memory_of_written_pages(what: str) -> None:
    """No item follows that would do it."""
    turns = Turns(items=0)
    pager = turns.controller.replica.machine.pager = Mock(written=(), gone=())
    turns.turn()
    pager.settle.assert_not_called()
    setattr(pager, what, ["a page"])
    turns.turn()
    pager.settle.assert_called_once()


def test_a_member_that_waits_for_a_backup_checks_each_mark_and_the_time() -> None:
    turns = Turns(items=0)
    turns.controller.on_output = turns.controller.flush = Mock()
    turns.member.on_output(Marks({}))
    turns.host.schedule.assert_not_called()
    turns.controller.backups = Mock(timeout_s=8.0, STEPS=16)
    turns.controller.release_late = Mock(return_value=True)
    turns.turn()
    turns.turn()
    turns.clock.later.assert_called_once()
    delay_s, again = turns.clock.later.call_args.args
    assert delay_s == 0.5
    turns.member.on_output(Marks({}))
    assert turns.host.schedule.call_count == 1
    again()
    assert turns.host.schedule.call_count == 2
    turns.controller.release_late.return_value = False
    turns.turn()
    turns.member.on_output(Marks({}))
    assert (turns.host.schedule.call_count, turns.clock.later.call_count) == (2, 1)


@pytest.mark.parametrize(
    ("facts", "voters", "marker"),
    [
        ("clean whole", "a b", Marker.CLEAN),
        ("whole", "a b", Marker.DIRTY),  # it ends for another reason than the shutdown of all
        ("clean", "a b", Marker.DIRTY),  # it ends alone, and the others go on
        ("clean whole overdue", "a b", Marker.DIRTY),  # another member may lack the shutdown
        ("inconsistent", "a b", Marker.INCONSISTENT),
        ("clean whole inconsistent", "a b", Marker.INCONSISTENT),
        ("inconsistent", "a", Marker.DIRTY),  # nobody else can give it a state
        ("inconsistent", "", Marker.DIRTY),
        ("inconsistent", "b", Marker.INCONSISTENT),
    ],
)
def test_the_marker_of_an_ended_members_store(facts: str, voters: str, marker: Marker) -> None:
    ended = Turns(items=0)
    ended.controller.me = Member("a", 1, "a:1")
    ended.controller.promise = Promise("c", tuple(voters.split()), 1)
    ended.controller.shutdown_position = 7 if "whole" in facts else 0
    ended.controller.shutdown_overdue = "overdue" in facts
    inconsistent = "inconsistent" in facts
    assert ended.member.last_marker(clean="clean" in facts, inconsistent=inconsistent) is marker
