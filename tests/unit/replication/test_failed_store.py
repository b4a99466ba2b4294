"""The writer of a store fails, and its member has turns before the loop hears of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from broker.replication.member import ReplicatedMember
from broker.replication.ports import Ports
from store.api import Meta
from store.errors import StoreFailed
from store.memory import MemoryDisk, MemoryStore


def test_a_turn_that_finds_the_store_failed_stops_the_member_and_replies_nothing() -> None:
    clients, host = Mock(), Mock()
    controller: Any = SimpleNamespace(
        busy=False, halted="halted", replica=Mock(), promise=None, filled=1
    )
    meta = Meta("prod", "a", "1")
    member: ReplicatedMember[Any, Any] = ReplicatedMember(
        Ports(Mock(), Mock(), Mock(), Mock(), clients, Mock(), host),
        Mock(), MemoryStore(MemoryDisk(), meta), meta, lambda _shell, _promise: controller,
    )  # fmt: skip
    error = StoreFailed("No space left on device")
    member.persister.keep = Mock(side_effect=error)  # type: ignore[method-assign]
    member.turn(lambda: True)
    host.failed.assert_called_once_with(error)
    clients.flush.assert_not_called()
