"""Process groups on the ring: who is in which group, and messages to a group, in one order for all.

A *process* is one participant of a group, at some member, with a number that the member chose.
Joins and leaves are ordered messages like any other, so their place among the data is the same
everywhere.  The layer has no state of its own to recover: after a view change

- the processes of members that did not come along are removed, by each member from its own view
  (NODEDOWN);
- each member multicasts the list of its own processes, and that list is the truth about them
  (NODEUP for those unknown, PROCDOWN for those that it does not name).

There is no barrier.  A member's joins, leaves, lists and data leave in the order in which it made
them, so its list is right at its place in the order, whichever ring it is ordered in; and data from
a process not known yet proves that it is in the group, so nothing is dropped for coming early.

Obligations of the caller: hand every output of the node to `on_output`, in order, and carry out
nothing else with the node's payloads: the layer owns them.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, Protocol

from vsync.errors import FrameError
from vsync.events import Deliver, Output, View
from vsync.types import NO_RING, Guarantee, Member, RingId

GROUP_NAME_BYTES_MAX = 128
_HEAD = Struct("<BQB")  # kind, process number, length of the group's name
_LIST = Struct("<BQQBI")  # kind, ring seq, rep incarnation, length of rep's name, entries
_ENTRY = Struct("<QB")


class Process(NamedTuple):
    """One participant: a process of one life of one member."""

    member: Member
    number: int

    def __str__(self) -> str:
        return f"{self.member.name}:{self.number}"


class Cause(IntEnum):
    """Why a process came or went."""

    JOIN = 1
    LEAVE = 2
    NODEDOWN = 3
    NODEUP = 4
    PROCDOWN = 5


class GroupMessage(NamedTuple):
    """Data for the local processes `to` of a group."""

    group: str
    to: tuple[int, ...]
    sender: Process
    payload: bytes
    guarantee: Guarantee
    transitional: bool
    ring: RingId
    seq: int


class GroupChange(NamedTuple):
    """The group's new list, for the local processes `to`; those that left are not in it."""

    group: str
    to: tuple[int, ...]
    members: tuple[Process, ...]
    joined: tuple[tuple[Process, Cause], ...]
    left: tuple[tuple[Process, Cause], ...]


class Synced(NamedTuple):
    """Every member of `ring` has told its processes."""

    ring: RingId


GroupEvent = GroupMessage | GroupChange | Synced


class Port(Protocol):
    """What this layer needs of a node."""

    me: Member

    def submit(self, payload: bytes, now: float, guarantee: Guarantee = ...) -> bool: ...


class _Kind(IntEnum):
    JOIN = 1
    LEAVE = 2
    DOWN = 3
    DATA = 4
    LIST = 5


class Groups:
    """All groups, as one member sees them."""

    def __init__(self, node: Port) -> None:
        self._node = node
        self.me = node.me
        self.counters: Counter[str] = Counter()
        self._groups: dict[str, set[Process]] = {}
        # Local processes by what I have said of them, and by what came back in order.
        self._said: dict[tuple[str, int], bool] = {}  # False: leave is under way
        self._here: dict[str, set[int]] = {}
        self._ring = NO_RING
        self._awaited: set[Member] = set()
        self._list_due = False
        self._events: list[GroupEvent] = []

    # -- calls: False means that the ring's queue is full and nothing happened -----------------

    def join(self, group: str, number: int, now: float) -> bool:
        """Take part.  Complete when the own GroupChange comes; data may be sent at once."""
        if len(group.encode()) > GROUP_NAME_BYTES_MAX or not group:
            raise ValueError(f"group name of {len(group.encode())} bytes")
        if (group, number) in self._said:
            raise ValueError(f"{number} is in {group}, or still leaving it")
        if not self._say(_Kind.JOIN, group, number, b"", Guarantee.AGREED, now):
            return False
        self._said[group, number] = True
        return True

    def leave(self, group: str, number: int, now: float, *, died: bool = False) -> bool:
        """Stop taking part; `died`: on behalf of a process that is gone."""
        if not self._said.get((group, number), False):
            raise ValueError(f"{number} is not in {group}")
        kind = _Kind.DOWN if died else _Kind.LEAVE
        if not self._say(kind, group, number, b"", Guarantee.AGREED, now):
            return False
        self._said[group, number] = False
        return True

    def mcast(
        self,
        group: str,
        number: int,
        payload: bytes,
        now: float,
        guarantee: Guarantee = Guarantee.AGREED,
    ) -> bool:
        """Send to the group, the sender included."""
        if not self._said.get((group, number), False):
            raise ValueError(f"{number} is not in {group}")
        return self._say(_Kind.DATA, group, number, payload, guarantee, now)

    def members(self, group: str) -> tuple[Process, ...]:
        return tuple(sorted(self._groups.get(group, ())))

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    # -- what the node said --------------------------------------------------------------------

    def on_output(self, output: Output, now: float) -> list[GroupEvent]:
        """Work in one output of the node; what it means for the local processes, in order."""
        if isinstance(output, Deliver):
            for payload in output.payloads:
                try:
                    self._on_payload(output, payload)
                except FrameError as err:
                    self.counters[err.code] += 1
        elif isinstance(output, View):
            self._on_view(output)
        self._tell_list(now)
        events, self._events = self._events, []
        return events

    def _on_view(self, view: View) -> None:
        gone = frozenset(view.left)
        for group in self.groups():
            left = [(p, Cause.NODEDOWN) for p in self.members(group) if p.member in gone]
            self._change(group, [], left)
        self._ring = view.ring
        self._awaited = set(view.members) if view.joined else set()
        # Nobody is new: everybody knows everything, at each member alike.
        self._list_due = bool(view.joined)
        if not view.joined:
            self._events.append(Synced(view.ring))

    def _on_payload(self, frame: Deliver, payload: bytes) -> None:
        if payload[:1] == bytes((_Kind.LIST,)):
            ring, named = _read_list(payload)
            self._on_list(frame.sender, ring, named)
            return
        kind, group, number, data = _read(payload)
        process = Process(frame.sender, number)
        mine = frame.sender == self.me
        if kind is _Kind.JOIN:
            if mine:
                self._here.setdefault(group, set()).add(number)
            self._change(group, [(process, Cause.JOIN)], [])
        elif kind is _Kind.DATA:
            self._change(group, [(process, Cause.NODEUP)], [])
            to = tuple(sorted(self._here.get(group, ())))
            if to:
                self._events.append(
                    GroupMessage(
                        group, to, process, data,
                        frame.guarantee, frame.transitional, frame.ring, frame.seq,
                    )
                )  # fmt: skip
        else:
            cause = Cause.LEAVE if kind is _Kind.LEAVE else Cause.PROCDOWN
            self._change(group, [], [(process, cause)])
            if mine:
                self._here.get(group, set()).discard(number)
                self._said.pop((group, number), None)

    def _on_list(self, sender: Member, ring: RingId, named: list[tuple[str, int]]) -> None:
        truth: dict[str, set[int]] = {}
        for group, number in named:
            truth.setdefault(group, set()).add(number)
        for group in sorted({*self._groups, *truth}):
            numbers = truth.get(group, set())
            known = {p.number for p in self._groups.get(group, ()) if p.member == sender}
            joined = [(Process(sender, n), Cause.NODEUP) for n in sorted(numbers - known)]
            left = [(Process(sender, n), Cause.PROCDOWN) for n in sorted(known - numbers)]
            self._change(group, joined, left)
        if ring == self._ring and sender in self._awaited:
            self._awaited.discard(sender)
            if not self._awaited:
                self._events.append(Synced(ring))

    def _change(
        self,
        group: str,
        joined: list[tuple[Process, Cause]],
        left: list[tuple[Process, Cause]],
    ) -> None:
        """Change one group's list, and tell if that was a change."""
        held = self._groups.get(group, set())
        joined = [(p, cause) for p, cause in joined if p not in held]
        left = [(p, cause) for p, cause in left if p in held]
        if not joined and not left:
            return
        held = self._groups.setdefault(group, held)
        held |= {p for p, _ in joined}
        held -= {p for p, _ in left}
        if not held:
            del self._groups[group]
        # A local process that leaves still sees its own leave.
        to = tuple(sorted(self._here.get(group, ())))
        if to:
            self._events.append(
                GroupChange(group, to, tuple(sorted(held)), tuple(joined), tuple(left))
            )

    # -- what I say --------------------------------------------------------------------------

    def _say(
        self, kind: _Kind, group: str, number: int, data: bytes, guarantee: Guarantee, now: float
    ) -> bool:
        name = group.encode()
        payload = _HEAD.pack(kind, number, len(name)) + name + data
        return self._node.submit(payload, now, guarantee)

    def _tell_list(self, now: float) -> None:
        """Say which processes I have; again later while the ring's queue is full."""
        if not self._list_due:
            return
        named = [key for key, stays in sorted(self._said.items()) if stays]
        if self._node.submit(_list(self._ring, named), now, Guarantee.AGREED):
            self._list_due = False
        else:
            self.counters["list_delayed"] += 1


def _read(payload: bytes) -> tuple[_Kind, str, int, bytes]:
    try:
        kind, number, size = _HEAD.unpack_from(payload)
        end = _HEAD.size + size
        if end > len(payload) or not size:
            raise FrameError("group_short")
        return _Kind(kind), payload[_HEAD.size : end].decode(), number, payload[end:]
    except (struct_error, ValueError) as err:
        raise FrameError("group_field") from err


def _list(ring: RingId, named: list[tuple[str, int]]) -> bytes:
    rep = ring.rep.encode()
    parts = [_LIST.pack(_Kind.LIST, ring.seq, ring.rep_incarnation, len(rep), len(named)), rep]
    for group, number in named:
        name = group.encode()
        parts += [_ENTRY.pack(number, len(name)), name]
    return b"".join(parts)


def _read_list(payload: bytes) -> tuple[RingId, list[tuple[str, int]]]:
    try:
        _, seq, incarnation, size, count = _LIST.unpack_from(payload)
        at = _LIST.size + size
        ring = RingId(seq, payload[_LIST.size : at].decode(), incarnation)
        named = []
        for _ in range(count):
            number, size = _ENTRY.unpack_from(payload, at)
            at += _ENTRY.size + size
            if at > len(payload):
                raise FrameError("group_short")
            named.append((payload[at - size : at].decode(), number))
    except (struct_error, ValueError) as err:
        raise FrameError("group_field") from err
    if at != len(payload):
        raise FrameError("group_trailing")
    return ring, named
