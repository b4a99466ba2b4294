"""Something raises in a turn of a member's work: it stops, with the reason, and replies nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from broker.replication.member import ReplicatedMember
from broker.replication.ports import Ports
from store.api import Meta
from store.errors import StoreFailed
from tests.support.stores.memory import MemoryDisk, MemoryStore


class Rig:
    """A member whose parts do nothing, until a test has one of them raise."""

    def __init__(self) -> None:
        self.clients, self.host, self.controller = Mock(), Mock(), Mock()
        self.ring, self.clock, device = Mock(), Mock(), Mock()
        self.controller.configure_mock(
            unapplied=Mock(busy=False), halted="", replica=Mock(), promise=None, filled=True,
            backups=None, submissions=Mock(full=False, large_full=False),
        )  # fmt: skip
        self.clients.flush.return_value = ()
        log = Mock(written=1)
        log.flush.return_value = 1
        meta = Meta("prod", "a", "1")
        self.member: ReplicatedMember[Any, Any] = ReplicatedMember(
            Ports(self.ring, Mock(), self.clock, Mock(), self.clients, log, self.host),
            device, MemoryStore(MemoryDisk(), meta), meta, lambda _shell, _promise: self.controller,
        )  # fmt: skip
        self.member.persister.keep = Mock()  # type: ignore[method-assign]
        self.durable: Callable[[int], None] = device.open_writer.call_args.args[1]


def test_a_turn_that_finds_the_store_failed_stops_the_member_and_replies_nothing() -> None:
    rig, error = Rig(), StoreFailed("No space left on device")
    rig.member.persister.keep = Mock(side_effect=error)  # type: ignore[method-assign]
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


def test_commands_that_cannot_be_submitted_stop_the_member() -> None:
    """They were taken from their clients already: who went on would owe an answer for ever."""
    rig, error = Rig(), KeyError("queue")
    rig.clients.take_commands.return_value = [Mock()]
    rig.controller.submit.side_effect = error
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


@pytest.mark.parametrize("part", ["take_commands", "effects", "flush", "throttle"])
def test_what_raises_between_a_member_and_its_clients_stops_it(part: str) -> None:
    rig, error = Rig(), RuntimeError(part)
    rig.member.effects([Mock()])
    getattr(rig.clients, part).side_effect = error
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)


def test_replies_that_waited_for_the_log_stop_the_member_when_they_cannot_be_made() -> None:
    rig, error = Rig(), RuntimeError("flush")
    rig.member.effects([Mock()])
    rig.clients.flush.side_effect = error
    rig.member.reply()
    rig.host.failed.assert_called_once_with(error)


def test_what_raises_as_a_tail_comes_stops_the_member() -> None:
    """It comes from a thread's callback, and asyncio would only log what raises there."""
    rig, error = Rig(), RuntimeError("a broken history")
    rig.controller.tail_is_here.side_effect = error
    rig.member.tail_is_here()
    rig.host.failed.assert_called_once_with(error)


def test_nothing_of_a_turn_follows_what_raised_in_an_entry_within_it() -> None:
    """Else clients would be told what the store does not have."""
    rig, error = Rig(), RuntimeError("a broken history")
    rig.controller.tail_is_here.side_effect = error
    rig.clients.take_commands.side_effect = rig.member.tail_is_here
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


def test_a_member_that_failed_tells_its_clients_nothing_as_it_stops() -> None:
    """What raised is lost: a reply after it would be taken for the answer to what came before."""
    rig, error = Rig(), RuntimeError("effects")
    rig.member.effects([Mock()])
    rig.clients.effects.side_effect = error
    rig.member.turn(lambda: True)
    rig.clients.effects.side_effect = None
    rig.member.effects([Mock()])
    rig.member.reply()  # as a member that stops does
    rig.host.failed.assert_called_once_with(error)
    assert rig.clients.effects.call_count == 1
    rig.clients.flush.assert_not_called()


def test_a_member_that_failed_promises_nothing() -> None:
    rig = Rig()
    rig.controller.tail_is_here.side_effect = RuntimeError("a broken history")
    rig.member.tail_is_here()
    done = Mock()
    rig.clock.when_right.side_effect = lambda call: call()
    rig.member.persister.promise = Mock()  # type: ignore[method-assign]
    rig.member.persist_promise(Mock(), done)
    rig.member.persister.promise.assert_not_called()


def test_a_commit_that_cannot_be_reported_stops_the_member() -> None:
    """It is a callback of the store's thread, and is not reported again: confirms would wait."""
    rig, error = Rig(), RuntimeError("the ring")
    rig.ring.set_mark.side_effect = error
    rig.durable(7)
    rig.host.failed.assert_called_once_with(error)


def test_nothing_follows_a_received_state_that_cannot_be_reported() -> None:
    rig, error = Rig(), RuntimeError("the ring")
    rig.host.stopping = False
    rig.ring.set_mark.side_effect = error
    assert rig.member.state_received(Mock(), Mock()) is True
    rig.host.failed.assert_called_once_with(error)
    rig.controller.state_received.assert_not_called()
    rig.host.schedule.assert_not_called()
    rig.member.tail_is_here()  # as who received the state says next
    rig.controller.tail_is_here.assert_not_called()
