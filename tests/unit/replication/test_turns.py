"""Turns of a member that is behind: several hand over to store, log and clients together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from broker.replication.member import MERGED_TURNS_MAX, ReplicatedMember
from broker.replication.ports import Ports
from store.api import Meta
from store.memory import MemoryDisk, MemoryStore


class Turns:
    """A member with `items` to apply, of which a slice holds one."""

    def __init__(self, items: int) -> None:
        self.clients, self.host = Mock(), Mock()
        self.clients.take_commands.return_value = ["a command"]
        self.clients.flush.return_value = []
        self.controller: Any = SimpleNamespace(
            busy=items > 0, halted="", replica=Mock(), promise=None, filled=True,
            serving=False, may_serve_soon=False, submissions=Mock(), submit=Mock(),
        )  # fmt: skip
        self.items = items
        self.controller.step = self._step
        meta = Meta("prod", "a", "1")
        self.member: ReplicatedMember[Any, Any] = ReplicatedMember(
            Ports(Mock(), Mock(), Mock(), Mock(), self.clients, Mock(), self.host),
            Mock(), MemoryStore(MemoryDisk(), meta), meta, lambda _shell, _promise: self.controller,
        )  # fmt: skip
        self.keep = Mock()
        self.member.persister.keep = self.keep  # type: ignore[method-assign]

    def _step(self) -> None:
        self.items -= 1
        self.controller.busy = self.items > 0

    def turn(self) -> None:
        slices = iter((True, False))
        self.member.turn(lambda: next(slices))


def test_a_member_that_is_behind_hands_over_once_for_several_turns() -> None:
    """To wake a thread for each costs more than what an item takes."""
    behind = Turns(items=2 * MERGED_TURNS_MAX + 1)
    for number in range(1, 2 * MERGED_TURNS_MAX + 1):
        behind.turn()
        assert behind.keep.call_count == number // MERGED_TURNS_MAX
        assert behind.clients.flush.call_count == number // MERGED_TURNS_MAX
        assert behind.host.schedule.call_count == number, "another turn follows"
        assert behind.controller.submit.call_count == number, "commands wait for nothing"


def test_a_member_that_has_caught_up_hands_over_at_once() -> None:
    behind = Turns(items=2)
    behind.turn()
    behind.keep.assert_not_called()
    behind.turn()
    behind.keep.assert_called_once()
    behind.clients.flush.assert_called_once()
    behind.turn()
    assert behind.keep.call_count == 2, "nothing was applied, but somebody wanted a turn"
