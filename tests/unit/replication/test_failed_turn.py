"""An exception in a turn stops the member with the reason, and it sends no reply."""

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
    """A member whose parts do nothing, until a test makes one of them raise."""

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


def test_a_failed_store_stops_the_member_without_a_reply() -> None:
    rig, error = Rig(), StoreFailed("No space left on device")
    rig.member.turn(lambda: True)
    rig.clients.flush.reset_mock()
    rig.member.persister.keep = Mock(side_effect=error)  # type: ignore[method-assign]
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


def test_commands_that_cannot_be_submitted_stop_the_member() -> None:
    """They are already taken from their clients: a member that went on would owe the replies
    for ever."""
    rig, error = Rig(), KeyError("queue")
    rig.clients.take_commands.return_value = [Mock()]
    rig.controller.submit.side_effect = error
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


@pytest.mark.parametrize("part", ["take_commands", "effects", "flush", "throttle"])
def test_an_exception_between_a_member_and_its_clients_stops_it(part: str) -> None:
    rig, error = Rig(), RuntimeError(part)
    rig.member.effects([Mock()])
    getattr(rig.clients, part).side_effect = error
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)


def test_replies_waiting_for_the_log_stop_the_member_if_they_fail() -> None:
    rig, error = Rig(), RuntimeError("flush")
    rig.member.effects([Mock()])
    rig.clients.flush.side_effect = error
    rig.member.reply()
    rig.host.failed.assert_called_once_with(error)


def test_an_exception_as_a_tail_arrives_stops_the_member() -> None:
    """It comes from a thread's callback, where asyncio would only log it."""
    rig, error = Rig(), RuntimeError("a broken history")
    rig.controller.tail_is_here.side_effect = error
    rig.member.tail_is_here()
    rig.host.failed.assert_called_once_with(error)


def test_an_exception_in_a_nested_entry_ends_the_turn() -> None:
    """Otherwise clients would be told what the store does not have."""
    rig, error = Rig(), RuntimeError("a broken history")
    rig.controller.tail_is_here.side_effect = error
    rig.clients.take_commands.side_effect = rig.member.tail_is_here
    rig.member.turn(lambda: True)
    rig.host.failed.assert_called_once_with(error)
    rig.clients.flush.assert_not_called()


def test_a_failed_member_tells_its_clients_nothing_as_it_stops() -> None:
    """The failed reply is lost: a later reply would be taken for it."""
    rig, error = Rig(), RuntimeError("effects")
    rig.member.effects([Mock()])
    rig.clients.effects.side_effect = error
    rig.member.turn(lambda: True)
    rig.clients.effects.side_effect = None
    rig.member.effects([Mock()])
    rig.member.reply()  # as a stopping member does
    rig.host.failed.assert_called_once_with(error)
    assert rig.clients.effects.call_count == 1
    rig.clients.flush.assert_not_called()


def test_a_failed_member_promises_nothing() -> None:
    rig = Rig()
    rig.controller.tail_is_here.side_effect = RuntimeError("a broken history")
    rig.member.tail_is_here()
    done = Mock()
    rig.clock.when_right.side_effect = lambda call: call()
    rig.member.persister.promise = Mock()  # type: ignore[method-assign]
    rig.member.persist_promise(Mock(), done)
    rig.member.persister.promise.assert_not_called()


def test_a_commit_that_cannot_be_reported_stops_the_member() -> None:
    """The store's thread calls back only once: confirms would wait for ever."""
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
    rig.member.tail_is_here()  # the receiver's next call
    rig.controller.tail_is_here.assert_not_called()
