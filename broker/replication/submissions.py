"""Submits a member's own commands for ordering: numbered, resent after a view change, never twice.

Every blob of a session has a number; the machine accepts exactly the next one. A blob that was
ordered outside a primary view was dropped by all members, and is submitted again when the session
goes on; a blob that was ordered twice is refused the second time. So a session's commands are
applied exactly once and in order, or its clients are disconnected.

Commands wait in three lanes.  A connection that publishes is *bulk* from its first publish on; all
others (acks of consumers, closes, the member's own commands) are *express* and go first, so that a
deep window of publishes does not starve the acks that make room for deliveries.  Within a
connection order is kept: everything it sent before its first publish went express. A connection is
*large* while parts of a large message from it wait: that lane takes turns with the bulk lane, and
goes no faster than a majority writes it to disk. Only a few blobs are on the ring at a time, since
nothing can overtake there.

An ordered item costs every member as much as some ten commands. So express commands take waiting
bulk commands along where both fit one blob, and while several blobs are under way, one that is not
full waits until one of them is applied.
Decision: docs/decisions/0083-a-busy-member-works-in-runs.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from broker.machine.commands import (
    ACTIVATE,
    BODY_PART,
    CONNECTION_CLOSE,
    PUBLISH,
    TX_COMMIT,
    BodyPart,
    Command,
    Publish,
    TxCommit,
)
from broker.machine.digest import canonical
from broker.machine.requests.properties import HAS_HEADERS

BLOB_BYTES_TARGET = 96_000
"""The target size of a blob of many small commands: a few ring frames.
Decision: docs/decisions/0088-a-run-is-few-steps.md."""
FEW_COMMANDS, FEW_COMMANDS_BYTES_MAX = 64, 4 * BLOB_BYTES_TARGET
"""Up to this many commands with larger bodies share a blob of more frames, since an ordered item
costs every member as much as several commands. The ring also sends larger single commands in
pieces.
Decision: docs/decisions/0047-large-bodies-share-an-item.md."""
COMMAND_OVERHEAD_BYTES = 48
UNIT_BYTES = 8
"""The bytes that each unit of work (`broker.machine.limits`) adds to the size of a command that
costs more than its bytes suggest."""
BLOB_WORK_MAX = 24_000
"""500 commands, or 3,000 units (some six milliseconds), fill a blob, which is applied in one go."""
ON_THE_RING_COMMANDS_MAX = 512
ON_THE_RING_WORK_MAX = 8 * BLOB_WORK_MAX
ON_THE_RING_BYTES_MAX = 4 * FEW_COMMANDS_BYTES_MAX
ON_THE_RING_BLOBS_MIN = 2
"""On the ring nothing can overtake: blobs that wait there lengthen an ack's round trip by the time
that all members take to apply them. That time depends on commands and their work; a body costs only
a copy or two, so more bytes are allowed. These limits are enough for a full token visit, and two
blobs may be under way however large they are."""
UNFILLED_BLOBS_MAX = 4
"""While this many blobs are under way, the next one waits until it is full or one is applied."""
LARGE_ON_THE_RING_MAX = 2
"""The most blobs of large messages' parts on the ring: other commands wait behind no more."""
LARGE_WINDOW_BYTES_MAX = 3_000_000
"""The most bytes of these on their way to the disks of a majority: the ring takes them faster than
disks do, and everything ordered and committed beside them waits for all of them.
Decision: docs/decisions/0137-parts-go-at-the-pace-of-a-majority.md."""
LARGE_LATE_US = 20_000
LARGE_LATE_SHARE = 5, 4
LARGE_ALONE_US_MAX = 1_000_000
"""Clients that wait for a majority beside them should not wait much longer than this; or, where
disks or links are slow, than for one blob that is sent alone."""
LARGE_WINDOW_STEPS = 32
LARGE_WINDOW_CUT = 4
"""Steps from no window to the largest, and the share by which a late mark makes it smaller."""
LARGE_WAITING_BYTES_MAX = 1_000_000
"""Above this many waiting bytes of these, the senders of large messages wait."""
OUTSTANDING_BYTES_MAX = 4_000_000
"""Above this many unapplied bytes publishers wait (their sockets are not read)."""

_HEADERS = HAS_HEADERS >> 8  # in the first octet of properties
_NONE = -1, -1, "", ""  # connection, channel, exchange and key of no publish


class _Blob(NamedTuple):
    number: int
    payload: bytes
    commands: int
    work: int  # as the lanes count both
    size: int
    large: bool  # of the lane of large messages
    sent_us: int


class Lane:
    """Waiting commands, cut into batches as they are added."""

    def __init__(self) -> None:
        self.batches: deque[list[Command]] = deque()
        self.bytes_waiting = 0
        self.cut = self.taken = 0  # batches, since the beginning
        self._sizes: deque[int] = deque()
        self._works: deque[int] = deque()  # their sizes without client data

    def add(self, command: Command, work: int, payload: int) -> None:
        """Append one command that carries `payload` bytes of client data."""
        size = work + payload
        self.bytes_waiting += size
        if self.batches:
            batch, heavy, whole = self.batches[-1], self._works[-1] + work, self._sizes[-1] + size
            most = FEW_COMMANDS_BYTES_MAX if len(batch) < FEW_COMMANDS else BLOB_BYTES_TARGET
            if whole <= most and heavy <= BLOB_WORK_MAX:
                batch.append(command)
                self._sizes[-1], self._works[-1] = whole, heavy
                return
        self.cut += 1
        self.batches.append([command])
        self._sizes.append(size)
        self._works.append(work)

    @property
    def next_size(self) -> int:
        """The size of the oldest batch."""
        return self._sizes[0]

    @property
    def next_work(self) -> int:
        """Its work."""
        return self._works[0]

    def take(self) -> tuple[list[Command], int, int]:
        """Return the oldest batch, its work and its size."""
        self.taken += 1
        size = self._sizes.popleft()
        self.bytes_waiting -= size
        return self.batches.popleft(), self._works.popleft(), size

    def clear(self) -> None:
        """Forget everything."""
        self.batches.clear()
        self._sizes.clear()
        self._works.clear()
        self.bytes_waiting = 0
        self.taken = self.cut


class LargeLane:
    """Commands of connections while parts of their large messages wait.

    The lane takes turns with the bulk lane. A connection enters with its first part and leaves when
    none of its commands wait here. To keep a connection's commands in order, a batch waits until
    everything that was in the other lanes when it was made has been sent.
    """

    def __init__(self, others: tuple[Lane, ...]) -> None:
        self.lane = Lane()
        self.connections: dict[int, int] = {}  # how many commands of each wait
        self._others = others
        self._after: deque[tuple[int, ...]] = deque()  # batches of the other lanes, for each batch

    def add(self, conn: int, command: Command, work: int, payload: int) -> None:
        """Append one command of a connection."""
        self.connections[conn] = self.connections.get(conn, 0) + 1
        before = len(self.lane.batches)
        self.lane.add(command, work, payload)
        if len(self.lane.batches) == before:
            self._after.pop()
        self._after.append(tuple(lane.cut for lane in self._others))

    @property
    def is_ready(self) -> bool:
        """Whether the oldest batch may be sent."""
        return bool(self._after) and all(
            lane.taken >= cut for lane, cut in zip(self._others, self._after[0], strict=True)
        )

    def take(self) -> tuple[list[Command], int, int]:
        """Return the oldest batch, its work and its size."""
        self._after.popleft()
        commands, work, size = self.lane.take()
        for command in commands:
            conn = cast("int", command[1])
            self.connections[conn] -= 1
            if not self.connections[conn]:
                del self.connections[conn]
        return commands, work, size

    def clear(self) -> None:
        """Forget everything."""
        self.lane.clear()
        self.connections.clear()
        self._after.clear()


class LargePace:
    """Limits the bytes of large messages that are sent and not yet durable at a majority.

    This window grows by a step whenever a majority soon has what filled it, and shrinks by a share
    when the majority is late, once for everything on its way by then. However small the window is,
    the next blob goes when none is on its way.
    """

    def __init__(self, most: int = LARGE_WINDOW_BYTES_MAX) -> None:
        self.window = 0
        self._most = most
        self._bytes = 0  # on their way
        self._applied: deque[tuple[int, int, int]] = deque()  # position, bytes, and when sent
        self._cut_us = 0  # when it was made smaller last
        self._alone_us = self._takes_us = 0  # when one was sent alone, and what such a one takes

    @property
    def is_full(self) -> bool:
        """Whether the next blob waits."""
        return self._bytes > self.window

    @property
    def waits(self) -> bool:
        """Whether `durable` has to be told of anything."""
        return bool(self._applied)

    def sent(self, size: int, now_us: int) -> None:
        """A blob of parts is on its way."""
        if not self._bytes:
            self._alone_us = now_us
        self._bytes += size

    def applied(self, position: int, size: int, sent_us: int) -> None:
        """The blob is applied here, and ends at `position`; 0: its position is not known."""
        if position:
            self._applied.append((position, size, sent_us))
        else:
            self._bytes -= size

    def durable(self, position: int, now_us: int) -> None:
        """A majority has everything up to `position`."""
        applied = self._applied
        if not applied or applied[0][0] > position:
            return
        sent_us = applied[0][2]
        took_us = min(max(0, now_us - sent_us), LARGE_ALONE_US_MAX)
        if sent_us == self._alone_us:
            self._takes_us += (took_us - self._takes_us) // 4
        several, one = LARGE_LATE_SHARE
        if took_us <= max(LARGE_LATE_US, self._takes_us * several // one):
            if self.is_full:
                self.window = min(self._most, self.window + self._most // LARGE_WINDOW_STEPS)
        elif sent_us >= self._cut_us or now_us < self._cut_us:  # the clock was set back
            self._cut_us = now_us
            self.window -= self.window // LARGE_WINDOW_CUT
        while applied and applied[0][0] <= position:
            self._bytes -= applied.popleft()[1]

    def state_replaced(self) -> None:
        """Applied blobs are in another history now: wait for them no more."""
        self._bytes -= sum(size for _, size, _ in self._applied)
        self._applied.clear()

    def clear(self) -> None:
        """Nothing is on its way."""
        self._applied.clear()
        self._bytes = 0


class Submissions:
    """The commands of this member's session that are not applied yet."""

    def __init__(
        self,
        send: Callable[[bytes, bool], bool],
        pack: Callable[[int, int, int, list[Command]], bytes],
        now_us: Callable[[], int],
        weight: Callable[[Command], int],
        is_urgent: Callable[[list[Command]], bool] = lambda _commands: True,
    ) -> None:
        self.session = 0
        self.open = False
        self._send, self._pack, self._now_us, self._weight = send, pack, now_us, weight
        self._is_urgent = is_urgent
        self._next_number = 1
        self._express, self._bulk = Lane(), Lane()
        self._large = LargeLane((self._express, self._bulk))
        self._large_is_next = False  # of the two that take turns
        self._sent_large = 0
        self.pace = LargePace()
        self._publishers: set[int] = set()  # membership only, never iterated
        self._again: deque[_Blob] = deque()  # numbered, but to be sent once more
        self._sent: deque[_Blob] = deque()
        self._sent_bytes = self._sent_commands = self._sent_work = 0

    @property
    def bytes_outstanding(self) -> int:
        """About how many bytes are not applied yet."""
        return self._bytes_of_all + self._large.lane.bytes_waiting

    @property
    def _bytes_of_all(self) -> int:
        return self._express.bytes_waiting + self._bulk.bytes_waiting + self._sent_bytes

    @property
    def full(self) -> bool:
        """Whether publishers should wait."""
        return self._bytes_of_all > OUTSTANDING_BYTES_MAX

    @property
    def large_full(self) -> bool:
        """Whether senders of large messages should wait."""
        return self._large.lane.bytes_waiting > LARGE_WAITING_BYTES_MAX

    @property
    def outstanding(self) -> int:
        """The number of blobs not applied yet, including those without a number."""
        lanes = self._express, self._bulk, self._large.lane
        waiting = sum(len(lane.batches) for lane in lanes)
        return len(self._sent) + len(self._again) + waiting

    def submit(self, commands: list[Command]) -> None:
        """Take commands in order, and send as many as the ring has room for."""
        assert self.session, "no session yet: nobody can have sent commands"
        publishers, express, bulk = self._publishers, self._express, self._bulk
        weight, large = self._weight, self._large
        like, work = _NONE, 0
        for command in commands:
            kind = command[0]
            conn: int = command[1]  # type: ignore[assignment]
            if kind == PUBLISH:
                _, _, chan, _, exchange, key, _, properties, body = cast("Publish", command)
                address, lane = (conn, chan, exchange, key), bulk
                # It weighs as much as the one before, unless either names more keys in its headers.
                named = properties and properties[0] & _HEADERS
                if named or address != like:
                    work = COMMAND_OVERHEAD_BYTES + UNIT_BYTES * weight(command)
                    publishers.add(conn)
                    like = _NONE if named else address
                payload = len(properties) + len(body)
            else:
                like, lane = _NONE, express
                work = COMMAND_OVERHEAD_BYTES + UNIT_BYTES * weight(command)
                payload = _payload_bytes(command)
                if kind == TX_COMMIT:  # each of its publishes is work, however small
                    publishers.add(conn)
                    work += COMMAND_OVERHEAD_BYTES * len(cast("TxCommit", command)[3])
                if kind < ACTIVATE and conn in publishers:
                    lane = bulk
                    if kind == CONNECTION_CLOSE:
                        publishers.discard(conn)
            if kind == BODY_PART or (conn in large.connections and kind < ACTIVATE):
                large.add(conn, command, work, payload)
            else:
                lane.add(command, work, payload)
        self.flush()

    def flush(self) -> None:
        """Send as much as the ring has room for: first resent blobs, then express, then bulk."""
        if not self.open:
            return
        while self._again:
            if not self._send(self._again[0].payload, True):
                return
            self._sent.append(self._again.popleft())
        while (lane := self._next_lane()) is not None:
            if self._fills(lane) or not self._has_room():
                return
            number, large = self._next_number, lane is self._large.lane
            commands, along = lane.batches[0], self._goes_along(lane)
            if along:
                commands = commands + self._bulk.batches[0]
            now_us = self._now_us()
            payload = self._pack(self.session, number, now_us, commands)
            if not self._send(payload, self._is_urgent(commands)):
                return
            _, work, size = self._large.take() if large else lane.take()
            if along:
                _, more_work, more_size = self._bulk.take()
                work, size = work + more_work, size + more_size
            if lane is not self._express or along:
                self._large_is_next = not large
            size = max(size, len(payload))
            blob = _Blob(number, payload, len(commands), work, size, large, now_us)
            if large:
                self._sent_large += 1
                self.pace.sent(size, now_us)
            self._next_number = number + 1
            self._sent.append(blob)
            self._sent_bytes += blob.size
            self._sent_work += blob.work
            self._sent_commands += blob.commands

    def _next_lane(self) -> Lane | None:
        """The lane whose turn it is; None: nothing may be sent now."""
        if self._express.batches:
            return self._express
        bulk = self._bulk if self._bulk.batches else None
        if self._large.lane.batches and (self._large_is_next or bulk is None):
            return self._large.lane if self._large_may_go else bulk
        return bulk

    @property
    def _large_may_go(self) -> bool:
        return (
            self._sent_large < LARGE_ON_THE_RING_MAX
            and not self.pace.is_full
            and self._large.is_ready
        )

    def _fills(self, lane: Lane) -> bool:
        """Whether the lane's batch waits for more commands, as enough is under way without it."""
        under_way = len(self._sent) - self._sent_large
        return (
            len(lane.batches) == 1
            and under_way >= UNFILLED_BLOBS_MAX
            and lane is not self._large.lane
        )

    def _goes_along(self, lane: Lane) -> bool:
        """Whether the oldest bulk batch fits behind all of the express commands."""
        bulk = self._bulk
        return (
            lane is self._express
            and len(lane.batches) == 1
            and bool(bulk.batches)
            and lane.next_size + bulk.next_size <= BLOB_BYTES_TARGET
            and lane.next_work + bulk.next_work <= BLOB_WORK_MAX
            and not (self._large_is_next and self._large_may_go)
        )

    def _has_room(self) -> bool:
        few = self._sent_commands < ON_THE_RING_COMMANDS_MAX
        light = self._sent_work < ON_THE_RING_WORK_MAX
        small = self._sent_bytes < ON_THE_RING_BYTES_MAX
        return (few and light and small) or len(self._sent) < ON_THE_RING_BLOBS_MIN

    def applied(self, number: int, position: int = 0) -> None:
        """Forget everything up to blob `number`: it has its place in the history.

        It ends at `position`, which `durable` is told of later; 0: nothing waits for that.
        """
        for blobs in (self._sent, self._again):
            while blobs and blobs[0].number <= number:
                blob = blobs.popleft()
                self._sent_bytes -= blob.size
                self._sent_work -= blob.work
                self._sent_commands -= blob.commands
                self._sent_large -= blob.large
                if blob.large:
                    self.pace.applied(position, blob.size, blob.sent_us)

    def durable(self, position: int) -> None:
        """A majority has everything up to `position`: send what waited for that."""
        if self.pace.waits:
            self.pace.durable(position, self._now_us())

    def state_replaced(self) -> None:
        """Stop waiting for anything of a state that was replaced."""
        self.pace.state_replaced()

    def suspend(self) -> None:
        """The primary view ended: keep everything, send nothing."""
        self.open = False

    def resume(self, last_applied: int) -> None:
        """The session goes on in a new primary view: send unapplied blobs again."""
        self.applied(last_applied)
        self._again.extendleft(reversed(self._sent))
        self._sent.clear()
        self.open = True
        self.flush()

    def start(self, session: int) -> None:
        """A new session begins; the old one's unapplied commands are gone with its clients."""
        self.session = session
        self._next_number = 1
        for lane in (self._express, self._bulk, self._large):
            lane.clear()
        self._publishers.clear()
        self._sent.clear()
        self._again.clear()
        self._sent_bytes = self._sent_commands = self._sent_work = self._sent_large = 0
        self.pace.clear()
        self.open = True

    def end(self) -> None:
        """There is no session until one starts, with another number or the same."""
        self.start(0)
        self.open = False


def _payload_bytes(command: Command) -> int:
    """Return about how many bytes of client data a command other than Publish carries: publishes, a
    body, arguments, or an operator's definitions."""
    if command[0] == TX_COMMIT:
        _, _, _, publishes, _ = cast("TxCommit", command)
        return sum(len(p) + len(body) for *_, p, body in publishes)
    if command[0] == BODY_PART:
        return len(cast("BodyPart", command)[3])
    table = command[-1]
    return len(canonical(table)) if isinstance(table, dict) and table else 0
