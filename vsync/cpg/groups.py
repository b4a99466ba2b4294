"""Process groups on the ring: group membership and group messages, in one order for all members.

Joins, leaves and data are ordered messages, so every member sees them at the same place. This layer
adds virtual synchrony at the level of groups: the members of a group know one another before any
message of a view reaches them.

- *Barrier.* After a view with new members each member multicasts the list of its own groups. When
  the last list is delivered, all members hold the same lists and the same position; each
  application gets one `GroupView` per group, and messages follow. After a view without new members
  all members have the lists already, and those that left are removed at once.
- *Sending view.* A payload counts only if it is ordered in the ring in which it was sent, and
  before the barrier a member sends nothing but its list. So the lists precede every message of a
  ring in the order, and no receiver ever has to hold anything back. A payload in flight when the
  ring breaks may be ordered in the next ring, where all members treat it as void; its sender sends
  it again, in its place. Hence a payload is delivered once or never, and its sender learns which.

*Position*: every valid join, leave and message takes the next number. After a merge all members
continue from the largest position that any of them had. So members that stay together count alike,
and a member's positions only rise. Two sides of a partition use the same numbers for different
messages.

Obligations of the caller: pass every output of the node to `on_output`, in order, and submit
nothing else to this node, because this layer owns the node's payloads and its mark.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple, Protocol

from vsync.cpg.durability import Durability
from vsync.cpg.events import (
    HEAD_BYTES_MAX,
    KINDS,
    Cause,
    GroupEvent,
    GroupKind,
    GroupList,
    GroupMessage,
    GroupSent,
    GroupView,
    Level,
    Synced,
    group_name,
    history,
    of_ring,
    pack_head,
    pack_list,
    read_head,
    read_list,
    read_name,
)
from vsync.errors import FrameError, GroupError, PayloadTooLarge
from vsync.totem.events import Deliver, Marks, Output, View
from vsync.types import NO_RING, Guarantee, Member

IN_FLIGHT_BYTES_MAX = 2 << 20
"""The bytes that may be submitted to the ring and not yet delivered: two token visits. More would
only become void, and delay the lists, when the ring breaks."""
ITEM_BYTES = 64
"""Added to the size of each accepted payload, so that empty ones are bounded as well."""

_LIST_KIND = bytes([GroupKind.LIST])


class Port(Protocol):
    """This layer's view of the driver; `submit` returns False when the ring has no room."""

    def submit(self, payload: bytes, guarantee: Guarantee) -> bool: ...

    def set_mark(self, mark: int) -> None: ...


class _Item(NamedTuple):
    """An accepted payload that has no place in the order yet."""

    ticket: int
    kind: GroupKind
    group: str
    data: bytes
    level: Level


class Groups:
    """All groups of one member's ring. Sans-I/O: outputs of the node in, events out."""

    def __init__(
        self,
        me: Member,
        port: Port,
        *,
        payload_bytes_max: int = 64 << 20,
        pending_bytes_max: int = 8 << 20,
    ) -> None:
        self.me = me
        self.position = 0
        self.ring = NO_RING
        self.members: tuple[Member, ...] = ()
        self.synced = False
        self.counters: Counter[str] = Counter()
        self._port = port
        self._payload_max = payload_bytes_max - HEAD_BYTES_MAX
        self._pending_max = pending_bytes_max
        self._pending = 0  # groups this member asked to join (False: to leave)
        self._groups: dict[str, dict[Member, None]] = {}  # in the order of joining
        self._joined: dict[
            str, bool
        ] = {}  # groups this member asked to join; False: asked to leave
        self._heads: dict[tuple[GroupKind, str], bytes] = {}  # of this ring
        self._names: dict[bytes, str] = {}
        self._lists: dict[Member, GroupList] = {}
        self._list_due = False
        self._barrier = NO_RING  # the ring of the last passed barrier
        self._history = b""  # since then; empty while synced
        self._outbox: deque[_Item] = deque()  # accepted, in order
        self._in_flight: deque[_Item] = deque()  # sent in this ring, not delivered here yet
        self._in_flight_bytes = 0
        self._tickets = 0
        self._durability = Durability()
        self._events: list[GroupEvent] = []

    # -- calls: return a ticket, or None when there is no room and nothing was accepted --------

    def join(self, group: str) -> int | None:
        """Join; completes with this member's own GroupView. Messages may be sent at once."""
        group_name(group)
        if group in self._joined:
            still = "a member of it" if self._joined[group] else "still leaving it"
            raise GroupError(f"cannot join group {group!r}: this member is {still}")
        ticket = self._accept(GroupKind.JOIN, group, b"", Level.AGREED)
        if ticket is not None:
            self._joined[group] = True
        return ticket

    def leave(self, group: str) -> int | None:
        """Leave, after everything sent before."""
        self._require_membership(group)
        ticket = self._accept(GroupKind.LEAVE, group, b"", Level.AGREED)
        if ticket is not None:
            self._joined[group] = False
        return ticket

    def mcast(self, group: str, payload: bytes, level: Level = Level.SAFE) -> int | None:
        """Send to the group, this member included; `GroupSent` with this ticket completes it."""
        self._require_membership(group)
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload is bytes, and this is a {type(payload).__name__}")
        if not isinstance(level, Level):
            raise TypeError(f"a level is AGREED, SAFE or DURABLE of vsync, and not {level!r}")
        if len(payload) > self._payload_max:
            raise PayloadTooLarge(f"{len(payload)} bytes, at most {self._payload_max}")
        return self._accept(GroupKind.DATA, group, payload, level)

    def set_durable(self, position: int) -> None:
        """Say that everything of all joined groups up to `position` is on this member's disk."""
        if position > self.position:
            raise GroupError(f"position {position} is not delivered yet, {self.position} is")
        self._port.set_mark(position)

    def views(self) -> dict[str, tuple[Member, ...]]:
        """Return the members of every group of the ring, in order of seniority."""
        return {g: tuple(self._groups[g]) for g in sorted(self._groups)}

    @property
    def pending(self) -> int:
        """Number of accepted payloads that have no place in the order yet."""
        return len(self._outbox) + len(self._in_flight)

    def drop(self) -> list[int]:
        """Give up every payload below its level; return the tickets. Called at the end."""
        tickets = [item.ticket for item in (*self._in_flight, *self._outbox)]
        self._outbox.clear()
        self._in_flight.clear()
        self._pending = self._in_flight_bytes = 0
        return tickets + self._durability.drop()

    # -- from the node -------------------------------------------------------------------------

    def on_output(self, output: Output) -> list[GroupEvent]:
        """Take one output of the node; return the events that follow from it, in order."""
        if isinstance(output, Deliver):
            for payload in output.payloads:
                try:
                    self._on_payload(output, payload)
                except FrameError as err:
                    self.counters[err.code] += 1
        elif isinstance(output, Marks):
            self._events += self._durability.on_marks(output.marks)
        elif isinstance(output, View):
            self._on_view(output)
        self.pump()
        events, self._events = self._events, []
        return events

    def pump(self) -> None:
        """Submit as much as the ring has room for; called again after each delivery."""
        if self._list_due:
            mine = [(g, list(m).index(self.me)) for g, m in self.views().items() if self.me in m]
            packed = pack_list(self.ring, self.position, self._history, mine)
            self._list_due = not self._port.submit(packed, Guarantee.AGREED)
        while self.synced and self._outbox and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX:
            item = self._outbox[0]
            head = self._heads.get((item.kind, item.group))
            if head is None:
                head = pack_head(item.kind, self.ring, group_name(item.group))
                self._heads[item.kind, item.group] = head
            # Recorded before it is submitted: a ring of one may order it at once.
            self._in_flight.append(self._outbox.popleft())
            self._in_flight_bytes += len(item.data)
            if not self._port.submit(head + item.data, item.level.guarantee):
                self._outbox.appendleft(self._in_flight.pop())
                self._in_flight_bytes -= len(item.data)
                return

    # -- views -----------------------------------------------------------------------------------

    def _on_view(self, view: View) -> None:
        # A payload not delivered by now was not ordered in the old ring, and is void in the new
        # one.
        self.counters["sent_again"] += len(self._in_flight)
        self._outbox.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._heads.clear()
        self._durability.new_ring()
        self._events += self._durability.gone(view.left)
        self.ring, self.members = view.ring, view.members
        if self.synced and not view.joined:
            here = frozenset(view.members)
            kept = {g: [m for m in members if m in here] for g, members in self._groups.items()}
            self._pass_barrier(kept, frozenset())
            return
        if not self._history:
            self._history = history(self._barrier, view.ring)
        self.synced = False
        self._list_due = True
        self._lists = {}

    def _on_list(self, frame: Deliver, payload: bytes) -> None:
        listed = read_list(payload)
        if self.synced or not of_ring(listed.ring, frame.ring) or frame.sender in self._lists:
            self.counters["list_void"] += 1
            return
        self._lists[frame.sender] = listed
        if len(self._lists) == len(self.members):
            self.position = max(self.position, *(one.position for one in self._lists.values()))
            others = {m for m, one in self._lists.items() if one.history != self._history}
            self._pass_barrier(self._merged(), frozenset(others))

    def _merged(self) -> dict[str, list[Member]]:
        """Return each group's members in the order of seniority that `GroupView` defines."""
        sides: dict[str, dict[bytes, list[tuple[int, Member]]]] = {}
        for member, listed in sorted(self._lists.items()):
            for group, rank in listed.groups:
                side = sides.setdefault(group, {}).setdefault(listed.history, [])
                side.append((rank, member))
        return {
            group: [
                member
                for side in sorted(found.values(), key=lambda s: (-len(s), min(m for _, m in s)))
                for _, member in sorted(side)
            ]
            for group, found in sides.items()
        }

    def _pass_barrier(self, groups: dict[str, list[Member]], others: frozenset[Member]) -> None:
        """Install the lists of all members: one view per group for all changes since the last one.

        `others` delivered other messages since then, even if they are in the old list here.
        """
        held = self._groups
        self._groups = {g: dict.fromkeys(members) for g, members in groups.items() if members}
        self.synced, self._barrier, self._history = True, self.ring, b""
        names = {m.name for m in self.members}
        for group in sorted({*held, *self._groups}):
            before, after = held.get(group, {}), self._groups.get(group, {})
            left = []
            for member in before:
                if member in others or member not in after:
                    restarted = member not in self.members and member.name in names
                    left.append((member, Cause.PROCDOWN if restarted else Cause.NODEDOWN))
            joined = [(m, Cause.NODEUP) for m in after if m in others or m not in before]
            self._emit_view(group, joined, left)
        self._events.append(Synced(self.ring, self.members, self.position))

    # -- ordered payloads ------------------------------------------------------------------------

    def _on_payload(self, frame: Deliver, payload: bytes) -> None:
        if payload[:1] == _LIST_KIND:
            self._on_list(frame, payload)
            return
        kind, ring, end = read_head(payload)
        if not of_ring(ring, frame.ring):
            self.counters["void"] += 1  # its sender sends it again
            return
        if not self.synced:
            # Its sender had passed the barrier, so this member must have: the sender is faulty.
            raise FrameError("group_before_barrier")
        named = payload[:end]
        group = self._names.get(named)
        if group is None:
            if kind not in KINDS:
                raise FrameError("group_kind")
            group = read_name(payload, end)
            if len(self._names) >= 1024:
                self._names.clear()
            self._names[named] = group
        sender = frame.sender
        if kind == GroupKind.DATA:
            members = self._groups.get(group)
            if members is None or sender not in members:
                raise FrameError("group_stranger")
            self.position += 1
            if self.me in members:
                safe = frame.guarantee is Guarantee.SAFE
                self._events.append(
                    GroupMessage(
                        group, sender, payload[end:], self.position,
                        Level.SAFE if safe else Level.AGREED, frame.transitional,
                    )
                )  # fmt: skip
        else:
            self.position += 1
            self._on_change(KINDS[kind], group, sender)
        if sender == self.me:
            self._ordered(KINDS[kind], group)

    def _on_change(self, kind: GroupKind, group: str, sender: Member) -> None:
        members = self._groups.setdefault(group, {})
        if kind is GroupKind.JOIN:
            if sender not in members:
                members[sender] = None
                self._emit_view(group, [(sender, Cause.JOIN)], [])
        elif sender in members:
            del members[sender]
            self._emit_view(group, [], [(sender, Cause.LEAVE)])
            self._events += self._durability.gone([sender], group)
            if sender == self.me:
                self._joined.pop(group, None)
                self._durability.close(group)
        if not members:
            del self._groups[group]

    def _emit_view(
        self, group: str, joined: list[tuple[Member, Cause]], left: list[tuple[Member, Cause]]
    ) -> None:
        """Emit the new view if this member is in the group, or has just left it."""
        members = self._groups.get(group, {})
        if (joined or left) and (self.me in members or any(m == self.me for m, _ in left)):
            self._events.append(
                GroupView(group, tuple(members), tuple(joined), tuple(left), self.position)
            )

    # -- sending ---------------------------------------------------------------------------------

    def _require_membership(self, group: str) -> None:
        if not self._joined.get(group, False):
            leaving = ": it is leaving it" if group in self._joined else ""
            raise GroupError(f"this member is not in group {group!r}{leaving}")

    def _accept(self, kind: GroupKind, group: str, data: bytes, level: Level) -> int | None:
        size = len(data) + ITEM_BYTES
        # With nothing pending any payload is accepted, or one above the bound never could be.
        if self._pending and self._pending + size > self._pending_max:
            return None
        self._pending += size
        self._tickets += 1
        self._outbox.append(_Item(self._tickets, kind, group, data, level))
        if len(self._outbox) == 1:
            self.pump()
        return self._tickets

    def _ordered(self, kind: GroupKind, group: str) -> None:
        """This member's next payload has its place in the order: FIFO, nothing between (G5)."""
        item = self._in_flight.popleft()
        assert item.kind is kind, (item, kind)
        assert item.group == group, (item, group)
        self._in_flight_bytes -= len(item.data)
        self._pending -= len(item.data) + ITEM_BYTES
        if item.level is Level.DURABLE:
            members = tuple(self._groups.get(group, ()))
            self._durability.add(item.ticket, self.position, group, members)
        else:
            self._events.append(GroupSent(item.ticket, self.position))

    def invariants(self) -> None:
        """Assert what must hold between any two calls."""
        items = (*self._in_flight, *self._outbox)
        assert self._pending == sum(len(i.data) + ITEM_BYTES for i in items), "pending drifted"
        assert [i.ticket for i in items] == sorted(i.ticket for i in items), "not in order"
        assert self.synced or not self._in_flight, "sent before the barrier"
        assert self.synced or self._history or self.ring == NO_RING, self.describe()
        if self.synced:
            here = frozenset(self.members)
            assert all(m in here for g in self._groups.values() for m in g), self.describe()

    def describe(self) -> str:
        """Return the state as a trace prints it."""
        state = "synced" if self.synced else "at the barrier"
        lists = " ".join(
            f"{g}{{{','.join(m.name for m in members)}}}" for g, members in self.views().items()
        )
        return f"{self.me} ring {self.ring} position {self.position} {state} {lists}"
