"""One member of the ring, without I/O: frames and times go in, outputs come out.

Obligations of the caller: hand in every received frame (`receive`), say when there is no more
(`drained`: only then a token is used, because frames that still sit in a socket look lost), call
`wake` at or soon after `next_timer`, which may change with every call, and `take` the outputs after
each of these calls and work through them in order.  `now` never goes back.

The node routes: frames by kind to handlers, tokens to the ring, timers to their phase.  It knows
the operational phase itself; `formation` holds the other three.
"""

from __future__ import annotations

import random

from vsync.errors import FrameError, PayloadTooLarge
from vsync.totem.config import RingConfig
from vsync.totem.context import Timer
from vsync.totem.events import Broadcast, Direct
from vsync.totem.membership.compatibility import FOREIGN
from vsync.totem.membership.probing import Checking
from vsync.totem.membership.sets import Gather
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Phase, Reason
from vsync.totem.state import OPERATIONAL, TOKEN_LOSS, TOKEN_RESEND
from vsync.types import Guarantee, Member
from vsync.wire.messages import (
    Alive,
    CommitToken,
    Data,
    Datagram,
    FrameKind,
    Join,
    Merge,
    Probe,
    Token,
    Wake,
)

_DATA, _TOKEN = FrameKind.DATA, FrameKind.TOKEN


class Node(Checking):
    """A member.  All state is in memory; a restart is a new incarnation, hence a new member."""

    def __init__(self, me: Member, cluster: str, config: RingConfig, rng: random.Random) -> None:
        super().__init__(me, cluster, config, rng)
        self._newest = {me.name: me.incarnation}
        self._late = False  # I was away for long: what queued up meanwhile is history
        self._fresh = False  # heard somebody anew since the receive queue was empty
        self._asked = False  # woke the representative since the last token
        self._on_timer = {
            Timer.SOLO: self._on_solo,
            Timer.HOLD: self._on_hold,
            Timer.TOKEN_RESEND: self._on_token_resend,
            Timer.TOKEN_LOSS: self._on_token_loss,
            Timer.JOIN: self._on_join_timer,
            Timer.LONELY: self._on_lonely,
            Timer.CONSENSUS: self._on_consensus_timer,
            Timer.MERGE: self._on_merge_timer,
            Timer.CHECK: self._check,
        }

    # -- the public face ---------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to look for others.  Once."""
        self._move(Reason.START)
        self.lease.start(now)
        self.gather = Gather(self.me, ())
        self.context.arm(Timer.LONELY, now + self.config.lonely_wait_ms / 1000)
        self._announce(self.gather, now)

    def submit(self, payload: bytes, now: float, guarantee: Guarantee = Guarantee.SAFE) -> bool:
        """Queue a payload for the ring.  False: the queue is full and nothing was taken.

        It is ordered in the ring that is installed when its turn comes, which may be a later one.
        Raises `PayloadTooLarge` for what could never be sent.
        """
        if self.phase is Phase.LEFT or not self.queue.put(payload, guarantee):
            return False
        self._work_arrived(now)
        return True

    def set_mark(self, mark: int, now: float) -> None:
        """Change my own mark; it goes round with the token."""
        assert 0 <= mark < 1 << 64, mark
        if mark != self.mark:
            self.mark = mark
            self._work_arrived(now)

    def set_throttle(self, hold_s: float) -> None:
        """Keep each token so long before the visit, so that nobody sends more than I can take.

        Bounded by the time that an idle ring's token may be held: nobody misses it.
        """
        self.throttle_s = min(max(hold_s, 0.0), self.config.hold_ms / 1000)

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Best effort, outside any order, at most twice a frame."""
        if len(payload) > 2 * self.config.frame_bytes_max:
            raise PayloadTooLarge(f"{len(payload)} bytes in one datagram")
        if to == self.me:
            self.context.out.append(Direct(self.me, payload))
        else:
            self.context.send(to, Datagram(payload))

    def leave(self, now: float) -> None:
        """Go cleanly: the others need not wait for a timeout.  What is still queued is dropped."""
        if self.phase is Phase.LEFT:
            return
        if self.recovery is not None:
            self.recovery.abort()
        self._move(Reason.LEAVE)
        self.gather = self.forming = self.recovery = self.waiting = self.solo = None
        self._held = self._slowed = False
        self.context.due.clear()
        self._say_farewell(now)

    def next_timer(self) -> float | None:
        """When `wake` is due; earlier calls do no harm."""
        due = self.context.due
        return min(due.values()) if due else None

    def wake(self, now: float) -> None:
        """Handle every timer that is due."""
        self._notice_absence(now)
        for timer, due in sorted(self.context.due.items()):
            # An earlier handler of this loop may have moved or cancelled it.
            if due <= now and self.context.due.get(timer) == due:
                del self.context.due[timer]
                self._on_timer[timer](now)
        self._deliver()

    # -- reception ---------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """Take one frame as it came off the wire; anything wrong with it is counted, no more."""
        try:
            envelope = self.codec.open(frame)
            sender = envelope.sender
            self.context.source = sender.name
            if self._newest.get(sender.name) != sender.incarnation and not self._knows(sender):
                return
            if sender == self.me:
                self.context.count("own_echo")
                return
            message = self.codec.decode(frame, envelope)
        except FrameError as err:
            self.context.count(err.code)
            if err.code in FOREIGN:
                self._on_misfit(frame, now)
            return
        if self.failure_detector:
            self.failure_detector.heard(sender, now)
        if self.connectivity.heard(sender, now):
            self._fresh = True
        kind = envelope.kind
        if kind is _DATA:
            assert isinstance(message, Data)
            self._on_data(sender, message, now)
            return
        if kind is _TOKEN and self.phase is OPERATIONAL:
            assert isinstance(message, Token)
            self._on_token(sender, message, now)
            return
        if self.phase is Phase.LEFT or self.phase is Phase.IDLE:
            self._outside(message, now)
            return
        match message:
            case Token():
                self._on_token(sender, message, now)
            case Wake():
                self._on_wake(message, now)
            case Probe():
                self._on_probe(sender)
            case Alive():
                self._on_alive(sender, now)
            case Datagram(payload):
                self.context.out.append(Direct(sender, payload))
            case CommitToken():
                self._on_commit(sender, message, now)
            case Join():
                if not self._was_away(now):
                    self._on_join(sender, message, now)
            case Merge():
                if not self._was_away(now):
                    self._on_merge(sender, message, now)
            case Data():
                raise AssertionError("data has its own path")

    def drained(self, now: float) -> None:
        """Nothing more to receive: use the token if there is one, then deliver."""
        self._late = False
        if self._fresh:
            self._fresh = False
            self._heard_anew(now)
        if self.waiting is not None and not self._held:
            self._turn(self.waiting, now)
        self._deliver()

    def _knows(self, sender: Member) -> bool:
        """A life of `sender` that I have not met: is it news, or the past?"""
        if sender.name == self.me.name:
            self.context.count("name_of_mine")
            return False
        known = self._newest.get(sender.name)
        if known is not None and sender.incarnation < known:
            self.context.count("past_incarnation")
            return False
        if len(self._newest) >= 4096:
            self._newest = {self.me.name: self.me.incarnation}
        self._newest[sender.name] = sender.incarnation
        return True

    def _was_away(self, now: float) -> bool:
        """Was this process stopped?  Then joins in its receive queue are history (pitfall 28)."""
        self._notice_absence(now)
        if self._late:
            self.context.count("control_while_late")
        return self._late

    def _notice_absence(self, now: float) -> None:
        """A timer that is very late shows it, whether frames or `wake` come first."""
        due = self.next_timer()
        if due is not None and now - due > self.config.token_timeout_ms / 2000:
            self._late = True

    def _on_data(self, sender: Member, frame: Data, now: float) -> None:
        phase = self.phase
        ring = self.current
        token = self.waiting or self.solo
        if token is not None and frame.seq > token.seq and frame.ring == token.ring:
            # I have the token: nobody else gave out this number, and I may be about to (fuzzing).
            self.context.count("data_beyond_token")
        elif phase is OPERATIONAL or phase is Phase.GATHER:
            if ring is not None and frame.ring == ring.id:
                # In gather it is kept for the recovery, but nothing is delivered any more.
                if code := ring.add(frame):
                    self.context.count(code)
            else:
                self.context.count("data_other_ring")
        elif self.recovery is not None and frame.ring == self.recovery.ring.id:
            self._data_in_recovery(self.recovery, frame)
        else:
            # In commit: what I hold is already written in the commit token and must not change.
            self.context.count(f"data_in_{phase.value}")

    # -- the token ---------------------------------------------------------------------------

    def _on_token(self, sender: Member, token: Token, now: float) -> None:
        """Check a token and keep it until everything received before it was handled."""
        due = self.context.due
        if self.phase is OPERATIONAL:
            ring = self.current
        elif self.phase is Phase.RECOVERY and self.recovery is not None:
            ring = self.recovery.ring
        else:
            self.context.count(f"token_in_{self.phase.value}")
            return
        assert ring is not None
        code = ring.refuses(token)
        if not code and sender != ring.predecessor:
            code = "token_sender"
        if not code and now > due.get(TOKEN_LOSS, now):
            # I was away: the others have given the ring up.  New frames on it would be mine alone.
            code = "token_late"
        if code:
            # No timer, counter of idleness or bound was touched (pitfalls 5, 6, 7, 37).
            self.context.count(code)
            return
        ring.accept(token)
        self.waiting = token
        self.lease.token(ring.id, ring.members, now)
        self._resend = None
        due.pop(TOKEN_RESEND, None)
        self._expect_token(len(ring.members), now)

    def _turn(self, token: Token, now: float) -> None:
        """It is my turn: visit, unless I am the one who holds an idle ring's token."""
        ring = self.current
        if self.recovery is not None:
            self.waiting = None
            if (stuck := self.recovery.ring.stuck(token, now)) is not None:
                self._give_up_on(stuck, now)
            else:
                self._visit_recovery(self.recovery, token, now)
        elif ring is not None:
            if self.throttle_s:
                if not self._slowed:
                    self._slowed = True
                    self.context.count("token_slowed")
                    self.context.arm(Timer.HOLD, now + self.throttle_s)
            elif (
                ring.index == 0
                and ring.idle >= self.config.idle_visits_before_hold
                and not self.queue
                and self.mark == token.marks[0]
            ):
                self._held = True
                self.context.count("token_held")
                self.context.arm(Timer.HOLD, now + self.config.hold_ms / 1000)
            else:
                self.waiting = None
                self._visit(ring, token, now)

    def _visit(self, ring: Ring, token: Token, now: float) -> None:
        if (stuck := ring.stuck(token, now)) is not None:
            self._give_up_on(stuck, now)
            return
        visit = ring.visit(token, self.queue, self.mark, self.config.accelerated_frames)
        framed, out = self.codec.data_frame, self.context.out
        resent, before, passed, after, asked = visit
        if resent:
            self.context.count("retransmitted", len(resent))
            out.extend([Broadcast(framed(body)) for body in resent])
        if asked:
            self.context.count("asked", asked)
        if before:
            out.extend([Broadcast(framed(body)) for body in before])
        self._pass_on(ring.successor, passed, now)
        if after:
            out.extend([Broadcast(framed(body)) for body in after])
        self._asked = False
        self._show_marks(ring)
        self._merge_if_idle(ring, now)

    def _work_arrived(self, now: float) -> None:
        """There is something for the token: make sure that it is not asleep."""
        ring = self.current
        if ring is None or self.phase is not Phase.OPERATIONAL:
            return
        if self.solo is not None:
            self.context.due.setdefault(Timer.SOLO, now + self.throttle_s)
        elif ring.index == 0:
            ring.idle = 0
            if self._held:
                self._on_hold(now)
        elif not self._asked and ring.idle + 2 >= self.config.idle_visits_before_hold:
            self._asked = True
            self.context.send(ring.members[0], Wake(ring.id))

    def _on_wake(self, message: Wake, now: float) -> None:
        ring = self.current
        if ring is None or self.phase is not Phase.OPERATIONAL or message.ring != ring.id:
            self.context.count("wake_other_ring")
            return
        ring.idle = 0
        if self._held:
            self._on_hold(now)

    # -- timers ------------------------------------------------------------------------------

    def _on_hold(self, now: float) -> None:
        """The held token goes on: because there is work, or so that nobody misses it."""
        self.context.cancel(Timer.HOLD)
        token, ring = self.waiting, self.current
        self.waiting, self._held, self._slowed = None, False, False
        if token is not None and ring is not None and self.phase is Phase.OPERATIONAL:
            self._visit(ring, token, now)

    def _on_solo(self, now: float) -> None:
        """A ring of one: nobody to wait for, everything is safe as soon as it has its place."""
        ring, token = self.current, self.solo
        if ring is None or token is None or self.phase is not Phase.OPERATIONAL:
            return
        ring.accept(token)
        visit = ring.visit(token, self.queue, self.mark, 0)
        self.solo = visit.token
        ring.safe = ring.window.aru
        self._show_marks(ring)
        self._deliver()
        if self.queue:
            self.context.arm(Timer.SOLO, now + self.throttle_s)

    def _on_token_resend(self, now: float) -> None:
        if self._resend is not None:
            self.context.count("token_resent")
            self.context.out.append(self._resend)
            self.context.arm(Timer.TOKEN_RESEND, now + self.config.token_retransmit_ms / 1000)

    def _on_token_loss(self, now: float) -> None:
        self.context.count("token_lost")
        self._announce(self._enter_gather(Reason.TOKEN_LOST), now)

    # -- self-check --------------------------------------------------------------------------

    def invariants(self) -> None:
        """Assert what must hold between any two calls."""
        self.queue.invariants()
        phase, current = self.phase, self.current
        recovering = phase is Phase.RECOVERY
        forming = recovering or phase is Phase.COMMIT
        gathering = forming or phase is Phase.GATHER
        assert (self.gather is not None) == gathering, self.describe()
        assert (self.forming is not None) == forming, self.describe()
        assert (self.recovery is not None) == recovering, self.describe()
        operational = not gathering and phase is Phase.OPERATIONAL
        assert not operational or current is not None, self.describe()
        assert not self._held or self.waiting is not None, self.describe()
        assert self.committed_seq <= self.max_ring_seq, self.describe()
        if operational or gathering:
            assert self.context.due, f"nothing will ever happen: {self.describe()}"
        if current is not None:
            assert current.id.seq <= self.committed_seq, self.describe()
            current.invariants()
        if self.recovery is not None:
            self.recovery.ring.invariants()
            self.recovery.invariants()
        if self.gather is not None:
            self.gather.invariants()
