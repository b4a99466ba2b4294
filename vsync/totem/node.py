"""One member of the ring, without I/O: frames and times go in, outputs come out.

Obligations of the caller:

- hand in every received frame (`receive`);
- report when there are no more (`drained`). Only then is a token used, because frames that are
  still in a socket look lost;
- call `wake` at or soon after `next_timer`, which may change with every call;
- after each of these calls `take` the outputs and work through them in order.

`now` never goes back.

The node checks envelopes and routes data, tokens and timers to the object of the current phase. The
room `membership` owns the phases, and the messages that move a member between them.
"""

from __future__ import annotations

import random

from vsync.errors import FrameError, PayloadTooLarge
from vsync.totem.config import RingConfig
from vsync.totem.context import Context
from vsync.totem.events import Direct, Output
from vsync.totem.membership.compatibility import (
    FOREIGN,
    Door,
    Handshake,
    OpenDoor,
    settings_hash,
    settings_of,
)
from vsync.totem.membership.protocol import Membership
from vsync.totem.ordering.application import Delivery, Intake
from vsync.totem.ordering.lease import Lease
from vsync.totem.ordering.tempo import Tempo
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member, RingId
from vsync.wire.codec import HELLO_VERSION, Codec, Envelope
from vsync.wire.messages import (
    Alive,
    CommitToken,
    Data,
    Datagram,
    FrameKind,
    Join,
    Merge,
    Message,
    Probe,
    Report,
    Token,
    Wake,
)

_DATA, _TOKEN, _EARLY = FrameKind.DATA, FrameKind.TOKEN, FrameKind.EARLY
_REPORT = FrameKind.REPORT
_SEEKS = (FrameKind.JOIN, FrameKind.MERGE)
OUTDATED_S = 2.0
"""For so long a process seeks others before it is told of as outdated: until then its frames may be
those of a process that ended, late on their way."""
OUTDATED_AGAIN_S = 30.0
OUTDATED_MAX = 64


class Node:
    """A member. All state is in memory; a restart is a new incarnation, hence a new member."""

    def __init__(
        self,
        me: Member,
        cluster: str,
        config: RingConfig,
        rng: random.Random,
        tempo: Tempo | None = None,
        door: Door | None = None,
    ) -> None:
        self.me = me
        self.config = config
        door = door if door is not None else OpenDoor()
        settings = settings_hash(settings_of(config), door.digest)
        versions = config.wire_versions
        self.codec = Codec(me, cluster, config.frame_bytes_max, settings, versions)
        self.handshake = Handshake(me, cluster, config, self.codec, door)
        self.context = Context(me, config, rng, self.codec)
        self.counters = self.context.counters
        self.lease = Lease(config.lease_max_ms)
        self.tempo = tempo if tempo is not None else Tempo(config)
        self.intake = Intake(config)
        self.delivery = Delivery(self.context)
        tokens = TokenPassing(self.context, self.lease, self.tempo)
        self.membership = Membership(self.context, self.intake, self.delivery, tokens)
        self._connectivity = self.membership.connectivity
        self._failure_detector = self.membership.prober.detector
        self._newest = {me.name: me}
        self._outdated: dict[Member, tuple[float, float]] = {}  # since when, and when told of
        self._late = False  # this process was stopped: frames that queued up are outdated
        self._fresh = False  # a member was received from anew since the receive queue was empty

    # -- the public face ---------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to look for others. Call it once."""
        self.lease.start(now, self.tempo.former_ms)
        self.membership.start(now)

    def submit(
        self,
        payload: bytes,
        now: float,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool:
        """Queue a payload for the ring. False: the queue is full and nothing was taken.

        The payload is ordered in the ring installed when its turn comes, which may be a later one.
        One that is not urgent does not end a rest of the token, which lasts some milliseconds.
        Raises `PayloadTooLarge` for a payload that could never be sent.
        """
        if self.phase is Phase.LEFT or not self.intake.put(payload, guarantee, urgent=urgent):
            return False
        if self.membership.operational is not None:
            self.membership.operational.work_arrived(now, urgent=urgent)
        return True

    def set_mark(self, mark: int, now: float) -> None:
        """Change this member's mark; it goes round with the token."""
        if self.intake.set_mark(mark) and self.membership.operational is not None:
            self.membership.operational.mark_changed(now)

    def expect_mark(self, mark: int) -> None:
        """Announce that the mark will soon change to this one: the token may wait for it."""
        self.intake.expect_mark(mark)

    def set_throttle(self, hold_s: float) -> None:
        """Keep each token this long before its visit, which slows down the whole ring."""
        self.intake.set_throttle(hold_s)

    def send_direct(self, to: Member, payload: bytes) -> None:
        """Send a datagram of at most two frames' size: best effort, outside any order."""
        if len(payload) > 2 * self.config.frame_bytes_max:
            raise PayloadTooLarge(f"{len(payload)} bytes in one datagram")
        if to == self.me:
            self.context.out.append(Direct(self.me, payload))
        else:
            self.context.send(to, Datagram(payload))

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        """The link to `address` broke; or, `refused`, nobody listens there any more."""
        self.membership.prober.suspect(address, now, refused=refused)

    def leave(self, now: float) -> None:
        """Leave, so that the others need not wait for a timeout. Queued payloads are dropped."""
        if self.phase is not Phase.LEFT:
            self.membership.leave(now)

    def next_timer(self) -> float | None:
        """When `wake` is due; earlier calls are harmless."""
        due = self.context.due
        return min(due.values()) if due else None

    def wake(self, now: float) -> None:
        """Handle every timer that is due."""
        self._notice_absence(now)
        for timer, due in sorted(self.context.due.items()):
            # An earlier handler of this loop may have moved or cancelled it.
            if due <= now and self.context.due.get(timer) == due:
                del self.context.due[timer]
                if (handler := self.membership.on_timer.get(timer)) is not None:
                    handler(now)
        self._deliver()

    def take(self) -> list[Output]:
        """The outputs since the last call, in the order in which they happened."""
        return self.context.take()

    @property
    def mark(self) -> int:
        return self.intake.mark

    @property
    def phase(self) -> Phase:
        return self.membership.phase

    @property
    def ring(self) -> RingId:
        """The ring installed last."""
        return self.membership.ring

    @property
    def members(self) -> tuple[Member, ...]:
        return self.membership.members

    def known_members(self) -> tuple[Member, ...]:
        """Members that the shell must be able to reach: ring members, candidates, other known ones.

        They change only with a `phase` or `met` note among the outputs.
        """
        return self.membership.known_members()

    def hears(self, name: str, now: float) -> bool:
        """Whether a frame of a member of this name came in lately, from whatever ring."""
        return any(member.name == name for member in self.membership.connectivity.reception(now))

    def describe(self) -> str:
        return self.membership.describe()

    def invariants(self) -> None:
        """Assert what must hold between any two calls."""
        self.intake.queue.invariants()
        self.membership.invariants()

    def _deliver(self) -> None:
        if self.membership.operational is not None:
            self.membership.operational.deliver()

    # -- reception ---------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """Handle one received frame; anything wrong with it is only counted."""
        try:
            envelope = self.codec.open(frame)
            sender = envelope.sender
            self.context.receiving(sender.name)
            # The codec has one object for all frames of a sender.
            if self._newest.get(sender.name) is not sender and not self._admits(envelope, now):
                return
            message = self.codec.decode(frame, envelope)
        except FrameError as err:
            self.context.count(err.code)
            if err.code in FOREIGN:
                self._on_misfit(frame, now)
            return
        if self._failure_detector.checks:
            self._failure_detector.on_frame(sender, now)
        if self._connectivity.on_frame(sender, now):
            self._fresh = True
        kind, operational = envelope.kind, self.membership.operational
        if kind is _DATA or kind is _EARLY:
            assert isinstance(message, Data)
            if operational is not None:
                operational.on_data(message, early=kind is _EARLY)
            else:
                self.membership.data_while_forming(message)
        elif kind is _TOKEN and operational is not None:
            assert isinstance(message, Token)
            operational.on_token(sender, message, now)
        elif kind is _REPORT and operational is not None:
            assert isinstance(message, Report)
            operational.on_report(sender, message, now)
        elif self.phase is Phase.LEFT or self.phase is Phase.IDLE:
            self.context.count(f"frame_in_{self.phase.value}")
            if self.phase is Phase.LEFT and isinstance(message, Join):
                self.membership.on_late_join(message, now)
        else:
            self._on_control(sender, message, now)

    def _on_control(self, sender: Member, message: Message, now: float) -> None:
        membership = self.membership
        match message:
            case Token():
                membership.token_while_forming(sender, message, now)
            case Wake():
                membership.on_wake(message, now)
            case Report():
                self.context.count("report_other_ring")  # none is installed
            case Probe():
                membership.prober.on_probe(sender)
            case Alive():
                membership.prober.on_alive(sender, now)
            case Datagram(payload):
                self.context.out.append(Direct(sender, payload))
            case CommitToken():
                membership.on_commit(sender, message, now)
            case Join():
                if not self._was_away(now):
                    membership.on_join(sender, message, now)
            case Merge():
                if not self._was_away(now):
                    membership.on_merge(sender, message, now)
            case Data():
                raise AssertionError("data has its own path")

    def drained(self, now: float) -> None:
        """Nothing more to receive: use the token if there is one, then deliver."""
        self._late = False
        if self._fresh:
            self._fresh = False
            self.membership.on_new_reception(now)
        if self.membership.operational is not None:
            self.membership.operational.turn(now)
        else:
            self.membership.turn_while_forming(now)
        self._deliver()

    def _admits(self, envelope: Envelope, now: float) -> bool:
        """Is this another member than this one, and no incarnation older than the known one?"""
        sender, me = envelope.sender, self.me
        if sender.name == me.name:
            ours = sender.incarnation == me.incarnation
            self.context.count("own_echo" if ours else "name_of_mine")
            return False
        known = self._newest.get(sender.name)
        if known is not None and sender.incarnation < known.incarnation:
            self.context.count("past_incarnation")
            if envelope.kind in _SEEKS:
                self._on_outdated(sender, known, now)
            return False
        if len(self._newest) >= 4096:
            self._newest = {me.name: me}
        self._newest[sender.name] = sender
        if known is None or sender.incarnation != known.incarnation:
            self.membership.wire_versions.heard(sender.name, envelope.versions)
        return True

    def _on_outdated(self, sender: Member, known: Member, now: float) -> None:
        """Tell of a process that goes on seeking under a name that is known with a later start: its
        clock was set back, or it should have ended. Which of the two nobody here knows, so that its
        frames stay dropped."""
        since, told = self._outdated.get(sender, (now, now - OUTDATED_AGAIN_S))
        if now - since >= OUTDATED_S and now - told >= OUTDATED_AGAIN_S:
            told = now
            self.context.note(
                "outdated", member=sender.name, address=sender.address,
                incarnation=sender.incarnation, known=known.incarnation,
            )  # fmt: skip
        if len(self._outdated) >= OUTDATED_MAX:
            self._outdated.clear()
        self._outdated[sender] = since, told

    def _was_away(self, now: float) -> bool:
        """Was this process stopped?  Then joins in its receive queue are outdated (pitfall 28)."""
        self._notice_absence(now)
        if self._late:
            self.context.count("control_while_late")
        return self._late

    def _notice_absence(self, now: float) -> None:
        """A timer that is very late shows that this process was stopped."""
        due = self.next_timer()
        if due is not None and now - due > self.config.token_timeout_ms / 2000:
            self._late = True

    def _on_misfit(self, frame: bytes, now: float) -> None:
        """A frame of another version, cluster or configuration: send a hello if one is due."""
        if frame[0] == HELLO_VERSION:
            code, hello = self.handshake.on_hello(frame, now)
            self.context.count(code)
            for sender, versions in self.handshake.take_accepted():
                # A late one may be of a former incarnation, and that of another release.
                known = self._newest.get(sender.name)
                if known is None or sender.incarnation >= known.incarnation:
                    self.membership.wire_versions.heard(sender.name, versions)
        else:
            hello = self.handshake.on_foreign(frame, now)
        if hello is not None:
            self.context.out.append(hello)
