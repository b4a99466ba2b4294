"""Which message of a queue with message groups may go next, and to whom.

Keys are 16 bytes, or none for the messages without a group, which are one group, too. Of each group
the first message that waits may go: to whoever holds messages of the group, or, while nobody does,
to anybody. All of this follows from what waits and what is held, so it is no state of its own.
Decision: docs/decisions/0087-a-group-has-one-holder.md.
"""

from heapq import heappop, heappush
from typing import Generic, TypeVar

from broker.waiting.places import Places

_C = TypeVar("_C")


class Group(Generic[_C]):
    """The messages with one key."""

    __slots__ = ("held", "holder", "key", "places")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.places: list[int] = []  # of those that wait, a heap
        self.held = 0  # messages that a channel holds
        self.holder: _C | None = None  # by this consumer; None, and some held: by a get


class Groups(Generic[_C]):
    """The groups of a queue; each step costs hardly more with a million of them than with one."""

    __slots__ = ("by_key", "free", "header", "held", "pending", "raw_header", "wanted")

    def __init__(self, header: str) -> None:
        self.header = header  # whose value is the key
        name = header.encode()
        self.raw_header = bytes((len(name),)) + name
        self.by_key: dict[bytes, Group[_C]] = {}  # of which something waits, or is held
        self.held: dict[bytes, Group[_C]] = {}  # those of which something is
        # By the places of their first messages: the groups that nobody holds, and of each consumer
        # those that it holds and of which more waits.
        self.free: Places[Group[_C]] = Places()
        self.wanted: dict[_C, Places[Group[_C]]] = {}
        # Consumers that may have credit and something of their own to get: this command's, and none
        # of an earlier one but those without credit, which say nothing.
        self.pending: dict[_C, None] = {}

    def waits(self, key: bytes, place: int) -> _C | None:
        """A message waits at this place; return who holds others of its group."""
        group = self._group(key)
        self._unlist(group)
        heappush(group.places, place)
        self._list(group)
        return group.holder

    def leaves(self, key: bytes, place: int) -> None:
        """The first of its group does not wait any more."""
        group = self.by_key[key]
        self._unlist(group)
        first = heappop(group.places)
        assert first == place, "a group is served in its order"
        self._list(group)

    def hold(self, key: bytes, holder: _C | None) -> None:
        """A consumer has got a message of the group, or a get."""
        group = self._group(key)
        self._unlist(group)
        if not group.held:
            group.holder, self.held[key] = holder, group
        group.held += 1
        self._list(group)

    def let_go(self, key: bytes) -> None:
        """A message of the group is not held any more, whether it comes back or not."""
        group = self.held[key]
        self._unlist(group)
        group.held -= 1
        if not group.held:
            group.holder = None
            del self.held[key]
        self._list(group)

    def next_of(self, consumer: _C | None) -> int | None:
        """The place of what this consumer may get next; None stands for a get, and for nothing."""
        own = self.wanted.get(consumer) if consumer is not None else None
        if own is None:
            return self.free.first_place if self.free else None
        return min(own.first_place, self.free.first_place) if self.free else own.first_place

    def forget_waiting(self) -> tuple[dict[bytes, Group[_C]], Places[Group[_C]]]:
        """Nothing waits any more; return what is to be let go of."""
        gone = self.by_key, self.free
        self.by_key, self.free = self.held.copy(), Places()
        self.wanted.clear()
        for group in self.held.values():
            group.places = []
        return gone

    def _group(self, key: bytes) -> Group[_C]:
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = Group(key)
        return found

    def _list(self, group: Group[_C]) -> None:
        if not group.places:
            if not group.held:
                del self.by_key[group.key]
        elif not group.held:
            self.free.put(group.places[0], group)
        elif group.holder is not None:
            if group.holder not in self.wanted:
                self.wanted[group.holder] = Places()
            self.wanted[group.holder].put(group.places[0], group)

    def _unlist(self, group: Group[_C]) -> None:
        if not group.places:
            return
        if not group.held:
            self.free.remove(group.places[0])
        elif group.holder is not None:
            wanted = self.wanted[group.holder]
            wanted.remove(group.places[0])
            if not wanted:
                del self.wanted[group.holder]
