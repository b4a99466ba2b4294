"""The state that the parts of a node share, and the one way to change phase.

`Core` < `Formation` (commit, recovery) < `Gathering` (gather) < `Meeting` (strangers) < `Checking`
(members whose link broke) < `Node` (public face, operational ring): files of one object, cut by
protocol phase.
"""

from __future__ import annotations

import random
from collections import deque

from vsync.totem.config import RingConfig
from vsync.totem.context import Context, Timer, names
from vsync.totem.events import Deliver, Marks, Output, Send
from vsync.totem.membership.compatibility import Handshake, settings_hash, settings_of
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.failure_detector import FailureDetector
from vsync.totem.membership.recovery import Recovery
from vsync.totem.membership.sets import BackedOff, Forming, Gather
from vsync.totem.ordering.lease import Lease
from vsync.totem.ordering.packing import Reassembly, SendQueue
from vsync.totem.ordering.ring import Ring
from vsync.totem.phases import Phase, Reason, after
from vsync.types import NO_RING, Member, RingId
from vsync.wire.codec import HELLO_VERSION, Codec
from vsync.wire.messages import CommitEntry, Content, Data, Message, Token

# To look a member of an enum up costs ten times as much, and a token visit does it often.
OPERATIONAL = Phase.OPERATIONAL
TOKEN_RESEND, TOKEN_LOSS = Timer.TOKEN_RESEND, Timer.TOKEN_LOSS


class Core:
    """State of one member."""

    def __init__(self, me: Member, cluster: str, config: RingConfig, rng: random.Random) -> None:
        self.me = me
        self.config = config
        self.rng = rng
        settings = settings_hash(settings_of(config))
        self.codec = Codec(me, cluster, config.frame_bytes_max, settings)
        self.handshake = Handshake(me, cluster, config, self.codec)
        self.context = Context(self.codec)
        self.counters = self.context.counters
        self.phase = Phase.IDLE
        self.queue = SendQueue(
            config.queue_bytes_max, config.queue_messages_max, config.message_bytes_max
        )
        self.assembly = Reassembly(config.message_bytes_max)
        self.mark = 0
        self.lease = Lease(config.lease_ms / 1000)
        self.current: Ring | None = None  # the ring installed last; frozen while another forms
        # Each of these exists only in the phases it is about.
        self.gather: Gather | None = None
        self.forming: Forming | None = None
        self.recovery: Recovery | None = None
        self.waiting: Token | None = None  # accepted, not yet visited
        self._held = False  # the waiting token is held because nobody has work
        self.throttle_s = 0.0  # how long I keep each token, because I cannot keep up
        self._slowed = False  # the waiting token is kept for that reason
        self.solo: Token | None = None  # the token of a ring of one never leaves home
        self.max_ring_seq = 0  # highest ring seq known to anybody
        self.committed_seq = 0  # highest ring seq that I committed to; never goes back (pitfall 3)
        self.failure_detector = FailureDetector(config.probe_ms / 1000)
        self._farewell_at = 0.0
        self._ears_told: tuple[Member, ...] = ()  # whom I said last that I hear
        self._known_told: tuple[Member, ...] = ()  # whom the shell was told to reach
        self.connectivity = Connectivity(me, config.hearing_ms / 1000)
        self.backed_off = BackedOff(
            config.merge_interval_ms / 1000, config.merge_backoff_max_ms / 1000
        )
        self.past: deque[RingId] = deque(maxlen=32)  # rings that I was in or tried to form
        self._resend: Send | None = None
        self._retransmit = config.token_retransmit_ms / 1000
        self._patience = 0, 0.0  # with so many members a token may be away for so many seconds
        self._marks_shown: tuple[int, ...] = ()

    def _on_misfit(self, frame: bytes, now: float) -> None:
        """A frame of another version, cluster or configuration: tell its sender who I am."""
        if frame[0] == HELLO_VERSION:
            code, hello = self.handshake.on_hello(frame, now)
            self.context.count(code)
        else:
            hello = self.handshake.on_foreign(frame, now)
        if hello is not None:
            self.context.out.append(hello)

    @property
    def ring(self) -> RingId:
        """The ring installed last."""
        return self.current.id if self.current is not None else NO_RING

    @property
    def members(self) -> tuple[Member, ...]:
        return self.current.members if self.current is not None else ()

    def acquaintances(self) -> tuple[Member, ...]:
        """Whom the shell must be able to reach: the members, those I try to form a ring with, and
        those that somebody hears.

        News only with a `phase` or `met` note among the outputs.
        """
        ours = self.gather.candidates() if self.gather is not None else self.members
        return tuple(sorted({*ours, *self._known_told}))

    def take(self) -> list[Output]:
        """The outputs since the last call, in the order in which they happened."""
        out = self.context.out
        self.context.out = []
        return out

    # -- helpers of all phases ---------------------------------------------------------------

    def _move(self, reason: Reason) -> None:
        was, self.phase = self.phase, after(self.phase, reason)
        self.context.count(f"phase_{self.phase.value}")
        self.context.note(
            "phase", was=was.value, now=self.phase.value, why=reason.value, ring=str(self.ring)
        )

    def _pass_on(self, to: Member, message: Message, now: float) -> None:
        """Send a token of either kind, and again until there is a sign that it arrived."""
        self._resend = self.context.send(to, message)
        self.context.due[TOKEN_RESEND] = now + self._retransmit

    def _expect_token(self, members: int, now: float) -> None:
        if members != self._patience[0]:
            self._patience = members, self.config.token_timeout(members)
        self.context.due[TOKEN_LOSS] = now + self._patience[1]

    def _entry(self) -> CommitEntry:
        """What I bring from my old ring."""
        ring = self.current
        if ring is None:
            return CommitEntry(NO_RING, 0, 0, 0, self.mark, ())
        window = ring.window
        return CommitEntry(
            ring.id, window.aru, window.high, ring.safe, self.mark, tuple(sorted(ring.obliged))
        )

    def _emit(self, ring: Ring, frame: Data, transitional: bool) -> None:
        """Hand one ordered frame to the application."""
        sender = ring.members[frame.origin]
        payloads = frame.items
        if frame.content is Content.FRAGMENT:
            payloads, odd = self.assembly.add(sender, payloads)
            if odd:
                self.context.count(odd)
        self.context.out.append(
            Deliver(ring.id, frame.seq, sender, payloads, frame.guarantee, transitional)
        )

    def _deliver(self) -> None:
        ring = self.current
        if ring is not None and self.phase is OPERATIONAL:
            if ring.delivered < ring.window.aru:
                for frame in ring.ready():
                    self._emit(ring, frame, False)
            ring.release()

    def _show_marks(self, ring: Ring) -> None:
        if ring.marks != self._marks_shown:
            self._marks_shown = ring.marks
            named = {m.name: v for m, v in zip(ring.members, ring.marks, strict=True)}
            self.context.out.append(Marks(named))

    def describe(self) -> str:
        return f"{self.me} {self.phase.value} {self.ring} {names(self.members)}"
