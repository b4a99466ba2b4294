"""Decides which message of a queue with message groups may go next, and to which consumer.

Keys are 16 bytes, or empty for the messages without a group, which form one group, too. The first
waiting message of each group may go: to the holder of the group's messages, or, while there is
none, to any consumer. All of this follows from waiting and held messages, so it is no state of its
own.
Decision: docs/decisions/0087-a-group-has-one-holder.md.

In a queue that *keeps* its groups, a group stays with the first consumer that gets a message of it
until that consumer is gone. That is state: `kept`. To bound it, keys are then numbers below
`KEPT_GROUPS_MAX`, and messages without a group go to any consumer, each by itself. Decision:
docs/decisions/0094-a-kept-group-stays-with-its-consumer.md.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from broker.waiting.places import Places

_C = TypeVar("_C")

KEPT_GROUPS_MAX = 1024
"""The most groups of a queue that keeps them: those with the same number are one. A power of two.
"""


class Group(Generic[_C]):
    """The messages with one key."""

    __slots__ = ("held", "holder", "key", "places")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.places: list[int] = []  # of those that wait, a heap
        self.held = 0  # messages that a channel holds
        # By this consumer, or it is kept for it; None, and some held: by a get.
        self.holder: _C | None = None


class Groups(Generic[_C]):
    """The groups of a queue; a step costs hardly more with a million groups than with one."""

    __slots__ = (
        "by_key", "free", "header", "held", "keeps", "kept", "kept_by", "loose", "pending",
        "raw_header", "wanted",
    )  # fmt: skip

    def __init__(self, header: str, *, keeps: bool) -> None:
        self.header, self.keeps = header, keeps  # whose value is the key
        name = header.encode()
        self.raw_header = bytes((len(name),)) + name
        self.by_key: dict[bytes, Group[_C]] = {}  # of which something waits, is held, or kept
        self.held: dict[bytes, Group[_C]] = {}  # those of which something is
        # By the places of their first messages: the groups that nobody holds, and of each consumer
        # those that it holds and of which more waits.
        self.free: Places[Group[_C]] = Places()
        self.wanted: dict[_C, Places[Group[_C]]] = {}
        self.loose: Group[_C] = Group(b"")  # stands in `free` for each message without a group
        self.kept: dict[bytes, _C] = {}  # the consumers with which groups stay
        self.kept_by: dict[_C, list[bytes]] = {}
        # Consumers that may have credit and something of their own to get: this command's, and none
        # of an earlier one but those without credit, or of a late queue, which say nothing.
        self.pending: dict[_C, None] = {}

    def waits(self, key: bytes, place: int) -> _C | None:
        """A message waits at this place; return the holder or keeper of its group."""
        if self.keeps and not key:
            self.free.put(place, self.loose)
            return None
        group = self._group(key)
        self._unlist(group)
        heappush(group.places, place)
        self._list(group)
        return group.holder

    def leaves(self, key: bytes, place: int) -> None:
        """The first waiting message of its group does not wait any more."""
        if self.keeps and not key:
            self.free.remove(place)
            return
        group = self.by_key[key]
        self._unlist(group)
        first = heappop(group.places)
        assert first == place, "a group is served in its order"
        self._list(group)

    def hold(self, key: bytes, holder: _C | None) -> None:
        """A consumer, or a get, has taken a message of the group."""
        if self.keeps and not key:
            return
        group = self._group(key)
        self._unlist(group)
        if not group.held:
            group.holder, self.held[key] = holder, group
        group.held += 1
        self._list(group)

    def let_go(self, key: bytes) -> bool:
        """A message of the group is not held any more, whether it comes back or not. Return whether
        others may now get the waiting ones."""
        if self.keeps and not key:
            return False
        group = self.held[key]
        self._unlist(group)
        group.held -= 1
        if not group.held:
            del self.held[key]
            if key not in self.kept:
                group.holder = None
        self._list(group)
        return group.holder is None and not group.held and bool(group.places)

    def keep(self, key: bytes, consumer: _C) -> bool:
        """The group stays with this consumer, which holds messages of it; False if it did."""
        if not self.keeps or not key or key in self.kept:
            return False
        group = self._group(key)
        self._unlist(group)
        group.holder = self.kept[key] = consumer
        self.kept_by.setdefault(consumer, []).append(key)
        self._list(group)
        return True

    def keep_no_more(self, consumer: _C) -> list[bytes]:
        """The consumer is gone, though it may still hold messages; return the groups it kept."""
        keys = self.kept_by.pop(consumer, [])
        for key in keys:
            group = self.by_key[key]
            self._unlist(group)
            del self.kept[key]
            if not group.held:
                group.holder = None
            self._list(group)
        return keys

    def count_kept_by(self, consumer: _C) -> int:
        """The number of groups that stay with this consumer."""
        return len(self.kept_by.get(consumer, ()))

    def next_of(self, consumer: _C | None) -> int | None:
        """The place of the next message for this consumer, or for a get (None); None if none."""
        own = self.wanted.get(consumer) if consumer is not None else None
        if own is None:
            return self.free.first_place if self.free else None
        return min(own.first_place, self.free.first_place) if self.free else own.first_place

    def turns_of(self, consumers: Iterable[_C]) -> None:
        """Of these consumers with credit, those with something of their own to get are next."""
        self.pending = {one: None for one in consumers if one in self.wanted}

    def forget_waiting(self) -> tuple[dict[bytes, Group[_C]], Places[Group[_C]]]:
        """Nothing waits any more; return the structures to be freed."""
        gone = self.by_key, self.free
        stay = {**self.held, **{key: self.by_key[key] for key in self.kept}}
        self.by_key, self.free = stay, Places()
        self.wanted.clear()
        for group in stay.values():
            group.places = []
        return gone

    def _group(self, key: bytes) -> Group[_C]:
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = Group(key)
        return found

    def _list(self, group: Group[_C]) -> None:
        if not group.places:
            if not group.held and group.holder is None:
                del self.by_key[group.key]
        elif group.holder is not None:
            if group.holder not in self.wanted:
                self.wanted[group.holder] = Places()
            self.wanted[group.holder].put(group.places[0], group)
        elif not group.held:
            self.free.put(group.places[0], group)

    def _unlist(self, group: Group[_C]) -> None:
        if not group.places:
            return
        if group.holder is not None:
            wanted = self.wanted[group.holder]
            wanted.remove(group.places[0])
            if not wanted:
                del self.wanted[group.holder]
        elif not group.held:
            self.free.remove(group.places[0])
