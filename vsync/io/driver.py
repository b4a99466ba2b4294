"""The I/O driver of one member: runs a node on a transport and an event loop, and decides nothing.

One *turn* reads everything the socket has, lets the node use the token, performs every send, and
only then hands deliveries to the application: the token must not wait for the application (it
rotates in 0.7 ms when passed at once, and in 3.6 ms when each frame is applied first). Deliveries
are handed over in slices; the socket is read again between two slices.

Everything happens on the loop's thread. `on_event` is never called from within `submit` or another
call of the application; `submit` may be called from within `on_event`.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from vsync.io.transport import Transport, TransportError
from vsync.totem.events import Broadcast, Hail, Note, Output, Send
from vsync.types import Guarantee, Member

FRAMES_A_TURN: Final = 64
"""Frames read before the loop's other descriptors are served: one full window of the ring."""
CAPPED_TURNS_MAX: Final = 4
"""After this many full turns in a row the token is used although the socket was never empty."""
SLICE_S: Final = 0.0005
"""How long the application may work before the socket is read again."""
BACKLOG_EVENTS_MAX: Final = 1024
"""With more events than this to hand over the socket is not read. The late token then slows the
whole ring down, so one member's slow application causes back-pressure and does not fill its memory.
"""
BUSY_POLL_S: Final = 0.02
IDLE_POLL_S: Final = 0.3
SOON_S: Final = 0.08
"""A timer due within this time is handled, or postponed, while the process is awake anyway: waking
an idle process costs more than its work then. Longer than the hold of an idle token."""
TICK_S: Final = 0.001
"""Loops round timers to a millisecond, also down; waking twice is worse than waking late."""
BUSY_FRAMES_A_SECOND: Final = 100
FORMER_MEMBERS_MAX: Final = 64


class RingNode(Protocol):
    """The driver's view of `vsync.totem.node.Node`."""

    def start(self, now: float) -> None: ...
    def receive(self, frame: bytes, now: float) -> None: ...
    def drained(self, now: float) -> None: ...
    def next_timer(self) -> float | None: ...
    def wake(self, now: float) -> None: ...
    def submit(
        self,
        payload: bytes,
        now: float,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool: ...
    def set_mark(self, mark: int, now: float) -> None: ...
    def expect_mark(self, mark: int) -> None: ...
    def send_direct(self, to: Member, payload: bytes) -> None: ...
    def leave(self, now: float) -> None: ...
    def suspect(self, address: str, now: float, *, refused: bool) -> None: ...
    def take(self) -> list[Output]: ...
    def known_members(self) -> tuple[Member, ...]: ...


class _Ending:
    """Ends the member if the node fails an assertion; errors of the caller pass through."""

    def __init__(self, end: Callable[[Exception], None]) -> None:
        self._end = end

    def __enter__(self) -> None:
        """Nothing to prepare: one object serves all calls."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, AssertionError):
            self._end(error)


class Driver:
    """Runs one member. `start` once, from the loop; `stop` ends it for good.

    `closed` completes after `stop`, or with the exception that `on_event` or the node raised: that
    ends the member, because its state cannot be trusted any more.
    """

    def __init__(
        self,
        node: RingNode,
        transport: Transport,
        on_event: Callable[[Output], None],
        clock: Callable[[], float] = time.monotonic,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.node = node
        self.transport = transport
        self.loop = loop if loop is not None else asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.counters = {
            "turns": 0,
            "turns_capped": 0,  # more frames waited than one turn may read
            "turns_without_reading": 0,  # the application is behind: the ring is slowed down
            "edges_missed": 0,  # frames that only the safety timer found
            "timer_late_ms_max": 0,
        }
        self._on_event = on_event
        self._clock = clock
        self._configured: set[str] = set()
        self._known: dict[str, str] = {}  # addresses of members and candidates, the latest last
        self._events: deque[Output] = deque()
        self._fd = self._auth_fd = -1
        self.paused = False
        self._running = False
        self._turning = False  # inside a turn, which hands over at its end
        self._scheduled = False  # a turn is scheduled
        self._arming = False  # `_arm` runs before the loop waits
        self._capped = 0
        self._polled_frames = 0  # received since the last poll
        self._ending_on_a_bug = _Ending(self._end)
        self._poll_period = BUSY_POLL_S
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._poll: asyncio.TimerHandle | None = None
        self._poll_at = self._maintained_at = 0.0

    # -- the application's side --------------------------------------------------------------

    def start(self, peers: Iterable[str] = ()) -> None:
        """Start the node. Raises TransportError if a peer is not an address."""
        assert self._fd == -1, "a driver runs once"
        for address in peers:
            self.add_peer(address)
        self._running = True
        self._fd = self.transport.fileno()
        self.loop.add_reader(self._fd, self._turn)
        self._auth_fd = self.transport.auth_fileno()
        if self._auth_fd >= 0:
            self.loop.add_reader(self._auth_fd, self._maintain)
        self.transport.watch(self.loop, self._maintain, self._on_link)
        self._poll_after(BUSY_POLL_S)
        self.node.start(self._clock())
        self._flush_outside()

    def stop(self, linger_ms: int = 0) -> None:
        """Close everything. Events not yet handed over are dropped. Idempotent.

        After `leave`, `linger_ms` is the time for the leave notice to be sent.
        """
        if self._release(linger_ms):
            self.closed.set_result(None)

    def pause(self) -> None:
        """Read no frames, run no timers and hand over no events until `resume`. Idempotent.

        For an application that does not keep up. A paused member stays in the ring for the token
        timeout; then the others form a ring without it, until it resumes.
        """
        if not self.paused:
            self.paused = True
            self.loop.remove_reader(self._fd)

    def resume(self) -> None:
        """End a `pause`. Idempotent."""
        if self.paused:
            self.paused = False
            if self._running:
                self.loop.add_reader(self._fd, self._turn)
                self._schedule_turn()

    def submit(
        self, payload: bytes, guarantee: Guarantee = Guarantee.SAFE, *, urgent: bool = True
    ) -> bool:
        """Queue a payload. False: no room (or stopped), nothing queued; retry after a delivery."""
        if not self._running:
            return False
        with self._ending_on_a_bug:
            taken = self.node.submit(payload, self._clock(), guarantee, urgent=urgent)
            self._flush_outside()
        return taken

    def set_mark(self, mark: int) -> None:
        """Send this member's new mark with the next token."""
        if self._running:
            with self._ending_on_a_bug:
                self.node.set_mark(mark, self._clock())
                self._flush_outside()

    def expect_mark(self, mark: int) -> None:
        """Let the token wait a little for this mark, which will be set soon."""
        if self._running:
            self.node.expect_mark(mark)

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Send one datagram to one member; it may be lost."""
        if self._running:
            with self._ending_on_a_bug:
                self.node.send_direct(to, payload)
                self._flush_outside()

    def leave(self) -> None:
        """Send the leave notice; call `stop` later."""
        if self._running:
            with self._ending_on_a_bug:
                self.node.leave(self._clock())
                self._flush_outside()

    def add_peer(self, address: str) -> None:
        """Add an address to connect to. Idempotent. Raises TransportError if it is malformed."""
        self.transport.connect(address)
        self._configured.add(address)

    # -- one turn ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Run one turn: the descriptor signalled."""
        self.counters["turns"] += 1
        self._guarded(self._read_and_hand_over)

    def _turn_again(self) -> None:
        """Run a scheduled turn: the turn before left work, or a call from outside did."""
        self._scheduled = False
        self.counters["turns"] += 1
        self._guarded(self._look_and_hand_over)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one callback of the loop; an exception from it ends the member."""
        if not self._running or self.paused:
            return
        self._turning = True
        try:
            step()
        except Exception as error:
            self._end(error)
        finally:
            self._turning = False
            self._arm()

    def _end(self, error: Exception) -> None:
        if self._release(0):
            self.closed.set_exception(error)

    def _look_and_hand_over(self) -> None:
        # Usually there are events left and no frames, unless a turn read as many as it may.
        self._read_and_hand_over(expected=self._capped > 0)

    def _read_and_hand_over(self, *, expected: bool = True) -> None:
        if len(self._events) <= BACKLOG_EVENTS_MAX:
            self._read(expected=expected)
        else:
            self.counters["turns_without_reading"] += 1
        if self._events:
            self._hand_over()

    def _read(self, *, expected: bool = True) -> int:
        """Give the node the received frames, then report that the socket is empty."""
        node, now = self.node, self._clock()
        frames = self.transport.receive(FRAMES_A_TURN, expected=expected)
        receive = node.receive
        for frame in frames:
            receive(frame, now)
        count = len(frames)
        if count < FRAMES_A_TURN:
            self._capped = 0
            node.drained(now)
        else:
            # The descriptor does not signal again for the rest.
            self.counters["turns_capped"] += 1
            self._capped += 1
            self._schedule_turn()
            if self._capped % CAPPED_TURNS_MAX == 0:
                node.drained(now)
        self._polled_frames += count
        self._flush()
        return count

    def _flush(self) -> None:
        """Perform every send now; queue the other outputs for the application, in order."""
        outputs = self.node.take()
        if not outputs:
            return
        transport, events = self.transport, self._events
        for output in outputs:
            if isinstance(output, Send):
                transport.send(output.to.address, output.frame)
            elif isinstance(output, Broadcast):
                transport.broadcast(output.frame)
            elif isinstance(output, Hail):
                transport.hail(output.address, output.frame)
            else:
                if isinstance(output, Note) and output.code in ("phase", "met"):
                    # Before the join that follows: one known address leads to all the others.
                    self._update_peers(self.node.known_members())
                events.append(output)

    def _flush_outside(self) -> None:
        """After a call from outside a turn: send now, and do the rest once for many calls.

        Most submits only join the queue, and there may be thousands between two tokens.
        """
        self._flush()
        if not self._turning and not self._scheduled:
            if self._events:
                self._schedule_turn()
            elif not self._arming and self._is_due_earlier():
                self._arming = True
                self.loop.call_soon(self._arm)

    def _hand_over(self) -> None:
        """Hand events to the application for one slice; the rest waits for the next turn."""
        events, on_event, clock = self._events, self._on_event, self._clock
        end = clock() + SLICE_S
        while events and self._running:
            on_event(events.popleft())
            if clock() >= end:
                break
        if events:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn_again)

    # -- timers ------------------------------------------------------------------------------

    def _is_due_earlier(self) -> bool:
        """Whether the node has a timer that is due before the loop's."""
        due = self.node.next_timer()
        return due is not None and (self._timer is None or due < self._timer_at - TICK_S)

    def _arm(self) -> None:
        """Set one loop timer, at or before the node's.

        Nearly every token postpones the next timeout. So a timer armed for an earlier time stays,
        unless it would soon fire in vain: a busy ring moves it about fifteen times a second instead
        of with each token, an idle ring moves it with each token instead of letting it fire.
        """
        self._arming = False
        if not self._running:
            return
        now = self._clock()
        if self._poll_period == IDLE_POLL_S and self._poll_at - now < SOON_S:
            self._on_poll()
        due = self.node.next_timer()
        if due is None:
            return
        if self._timer is not None:
            at = self._timer_at
            if due >= at - TICK_S and (at - now > SOON_S or due <= at + TICK_S):
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.loop.call_later(due - now + TICK_S if due > now else 0.0, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._guarded(self._wake_if_due)

    def _wake_if_due(self) -> None:
        now = self._clock()
        due = self.node.next_timer()
        if due is None:
            return
        if due > now:
            # The loop may be early: wait one tick more, never spin.
            self._timer_at = max(due, now + TICK_S)
            self._timer = self.loop.call_later(self._timer_at - now, self._on_timer)
            return
        late_ms = int((now - due) * 1000)
        self.counters["timer_late_ms_max"] = max(late_ms, self.counters["timer_late_ms_max"])
        # Read before waking: by its overdue timers the node detects that it was paused, and then
        # discards what queued up meanwhile.
        self._read(expected=False)
        self.node.wake(self._clock())
        self._flush()
        self._hand_over()

    def _on_poll(self) -> None:
        """Poll the socket: a missed edge must delay the ring by milliseconds, not for ever."""
        # An idle token rotates some twenty times a second.
        busy = self._polled_frames > BUSY_FRAMES_A_SECOND * self._poll_period
        self._poll_period = BUSY_POLL_S if busy else IDLE_POLL_S
        self._poll_after(self._poll_period)
        self._polled_frames = 0
        if self._clock() - self._maintained_at >= IDLE_POLL_S - TICK_S:
            self._maintain()  # it is called when a link has events, too
        if not self._scheduled:
            self._guarded(self._poll_once)

    def _poll_after(self, seconds: float) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._poll_at = self._clock() + seconds
        self._poll = self.loop.call_later(seconds, self._on_poll)

    def _maintain(self) -> None:
        if self._running:
            self._maintained_at = self._clock()
            self.transport.maintain(self._maintained_at)

    def _on_link(self, address: str, refused: bool) -> None:
        """Take a hint from the transport: the link broke, or nothing listens at the other end."""

        def suspect() -> None:
            self._read()  # first what that peer may have sent
            self.node.suspect(address, self._clock(), refused=refused)
            self._flush()
            self._hand_over()

        self._guarded(suspect)

    def _poll_once(self) -> None:
        # When the loop was late, timer and descriptor are due together: no edge was missed.
        signalled, _, _ = select.select([self._fd], [], [], 0)
        if self._read(expected=bool(signalled)) and not signalled:
            self.counters["edges_missed"] += 1
        self._hand_over()

    # -- peers and the end -------------------------------------------------------------------

    def _update_peers(self, members: tuple[Member, ...]) -> None:
        """Connect to the configured addresses, the members, and former members.

        Former members stay, up to a bound: after a partition some member must still send to them.
        """
        before = set(self._known.values())
        for member in members:
            self._known.pop(member.name, None)
            self._known[member.name] = member.address
        while len(self._known) > max(FORMER_MEMBERS_MAX, len(members)):
            del self._known[next(iter(self._known))]
        wanted = set(self._known.values())
        for address in sorted(before - wanted - self._configured):
            self.transport.forget(address)
        for address in sorted(wanted - before):
            try:
                self.transport.connect(address)
            except TransportError:  # the address that this member announces is malformed
                del self._known[next(n for n, a in self._known.items() if a == address)]

    def _release(self, linger_ms: int) -> bool:
        """Release loop and sockets; False if they are released already."""
        if self.closed.done():
            return False
        if self._running:
            self._running = False
            self.loop.remove_reader(self._fd)
            if self._auth_fd >= 0:
                self.loop.remove_reader(self._auth_fd)
        for handle in (self._timer, self._poll):
            if handle is not None:
                handle.cancel()
        self._timer = self._poll = None
        self._events.clear()
        self.transport.close(linger_ms)
        return True
