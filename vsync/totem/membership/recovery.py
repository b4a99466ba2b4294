"""Recovery: completes the old ring's messages before the new ring is installed (EVS).

While the new ring's token already circulates, the members of the same old ring exchange the old
ring's frames over it, wrapped as frames of the new ring. Once all of them have all frames, each
member closes the old ring in one step.

The old ring's own state is not touched until then: received frames are kept separately (`found`).
If the attempt is aborted, they are added to the old ring: another member may have installed the new
ring and delivered these frames as safe, so they must not be forgotten again (the obligation of
extended virtual synchrony). For the same reason `obliged` survives aborted attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from vsync.errors import FrameError
from vsync.totem.context import Context
from vsync.totem.events import Broadcast, Transitional
from vsync.totem.ordering.application import Delivery, Intake
from vsync.totem.ordering.packing import Packed
from vsync.totem.ordering.ring import Ring
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.types import NO_RING, Guarantee, Member
from vsync.wire.messages import CommitEntry, Content, Data, Token


class Closing(NamedTuple):
    """The old ring's last deliveries: those before and after the transitional configuration."""

    regular: list[Data]
    transitional: list[Data]
    skipped: int


class Exchange:
    """One attempt to go from `old` to `ring`; also the source of the frames to be sent for it."""

    def __init__(self, ring: Ring, old: Ring | None, entries: tuple[CommitEntry, ...]) -> None:
        self.ring = ring
        self.old = old
        self.found: dict[int, Data] = {}
        self._seen: set[int] = set()  # old frames that were already sent on the new ring
        self._queue: deque[int] = deque()
        self._raised = False  # this member set the token's `recovering`
        self._rounds_clear = 0
        self._rounds_full = 0
        self._install_seq = 0
        # Members of the same old ring, compared by its whole identity, never by name.
        mine = entries[ring.index]
        came = [
            (member, entry)
            for member, entry in zip(ring.members, entries, strict=True)
            if member == ring.me
            or (
                old is not None
                and entry.old_ring == old.id
                and mine.old_ring != NO_RING
                and member in old.members
            )
        ]
        self.trans = tuple(member for member, _ in came)
        self._safe = max(entry.safe for _, entry in came)
        self.obliged = {*self.trans, *(m for _, entry in came for m in entry.obliged)}
        if old is None or len(came) == 1:
            return
        low = min(entry.aru for _, entry in came)
        assert low >= old.window.released, (low, old.describe())
        if any(entry.aru != low or entry.high != low for _, entry in came):
            held = old.window
            self._queue.extend(s for s in range(low + 1, held.high + 1) if held.get(s) is not None)

    # -- the source of frames ------------------------------------------------------------------

    def backlog(self, room: int) -> int:
        return len(self._queue)

    def next(self, room: int) -> Packed | None:
        """The next old frame that no member has sent yet.

        It may exceed the frame limit by one header: the codec allows for that (pitfall 13).
        """
        assert self.old is not None or not self._queue
        while self._queue and self.old is not None:
            seq = self._queue.popleft()
            if seq in self._seen:
                continue
            self._seen.add(seq)
            frame = self.old.window.get(seq)
            assert frame is not None, seq
            return Content.RECOVERED, Guarantee.AGREED, [bytes(frame.body)]
        return None

    # -- the exchange ------------------------------------------------------------------------

    def absorb(self, inner: Data) -> str:
        """Take an old frame from the new ring; "" or the counter of the reason for refusal."""
        old = self.old
        if old is None or inner.ring != old.id:
            return "recovered_other_ring"
        if inner.origin >= len(old.members) or inner.content is Content.RECOVERED:
            return "recovered_field"
        seq = inner.seq
        if seq > old.window.released + 2 * old.window.limit:
            return "recovered_beyond_store"
        self._seen.add(seq)
        if seq <= old.window.aru or old.window.get(seq) is not None or seq in self.found:
            return "recovered_again"
        self.found[seq] = inner
        return ""

    def flag(self, token: Token) -> Token:
        """Set the token's flag while this member still has frames to send (retrans_flg).

        Only a member that found it lowered raises it, and lowers it again: a flag that several
        members lower would show one member a rotation without frames, while another has some.
        """
        while self._queue and self._queue[0] in self._seen:
            self._queue.popleft()
        if self._queue:
            if token.recovering:
                return token
            self._raised = True
            return token._replace(recovering=True)
        if self._raised:
            self._raised = False
            return token._replace(recovering=False)
        return token

    def complete(self, token: Token, aru_before: int) -> bool:
        """Is the exchange complete, by the forwarded token?  `aru_before`: its aru at arrival.

        Two rotations in which no member has frames to send fix the last frame of the exchange; two
        successive arrivals with an aru at or above it prove that all members have all frames.
        """
        self._rounds_clear = 0 if token.recovering else self._rounds_clear + 1
        if self._rounds_clear < 2:
            self._rounds_full = 0
            return False
        if self._rounds_clear == 2:
            self._install_seq = token.seq
        if self.ring.window.aru >= self._install_seq and self.old is not None:
            # From here on another member may install the ring and rely on this one.
            self.old.oblige(self.obliged)
        if self._rounds_clear >= 3 and aru_before >= self._install_seq:
            self._rounds_full += 1
        else:
            self._rounds_full = 0
        return self._rounds_full >= 2

    # -- both ends ---------------------------------------------------------------------------

    def abort(self) -> None:
        """End the attempt: frames found are kept with the old ring."""
        if self.old is not None:
            for seq in sorted(self.found):
                self.old.window.add(self.found[seq], self.old.window.limit)

    def close(self) -> Closing:
        """Close the old ring. All members of `trans` get the same result from the same frames.

        Regular part: in order, until the first hole or the first safe frame that is not known to be
        safe in the old ring (the best knowledge among those that come along).  Transitional part:
        the rest; behind a hole only frames of senders in `obliged`.
        """
        old = self.old
        assert old is not None
        self.abort()
        window = old.window
        regular: list[Data] = []
        rest: list[Data] = []
        seq = old.delivered + 1
        while (frame := window.get(seq)) is not None:
            if frame.guarantee is Guarantee.SAFE and seq > self._safe:
                break
            regular.append(frame)
            seq += 1
        hole = False
        skipped = 0
        for seq in range(seq, window.high + 1):  # noqa: B020 -- goes on where the loop stopped
            frame = window.get(seq)
            if frame is None:
                hole = True
            elif hole and old.members[frame.origin] not in self.obliged:
                skipped += 1
            else:
                rest.append(frame)
        return Closing(regular, rest, skipped)

    def invariants(self) -> None:
        assert self.ring.me in self.trans
        assert set(self.trans) <= self.obliged
        if self.old is not None:
            self.old.window.invariants()


class RecoveryPhase:
    """Token visits on the ring under way, whose frames carry the old ring's.

    Methods that return a bool return True when the new ring must be installed.
    `failed_to_receive` is called with a member that holds the recovery back; that ends the attempt.
    """

    def __init__(
        self,
        context: Context,
        exchange: Exchange,
        intake: Intake,
        tokens: TokenPassing,
        failed_to_receive: Callable[[Member, float], None],
    ) -> None:
        self.exchange = exchange
        self.ring = exchange.ring
        self.waiting: Token | None = None  # accepted, not yet visited
        self.originated = False  # the representative made the first token (once, pitfall 25)
        self._context = context
        self._intake = intake
        self._tokens = tokens
        self._failed_to_receive = failed_to_receive

    def originate(self, now: float) -> bool:
        """The commit token made its second rotation: make the first regular token, and visit."""
        self.originated = True
        token = self.ring.first_token()
        self._tokens.accepted(self.ring, token, now)
        return self._visit(token, now)

    def on_token(self, sender: Member, token: Token, now: float) -> None:
        """Check a token and keep it until everything received before it has been handled."""
        if self._tokens.accept(self.ring, sender, token, now):
            self.waiting = token

    def on_data(self, frame: Data) -> None:
        token = self.waiting
        if frame.ring != self.ring.id:
            code = "data_in_recovery"
        elif token is not None and frame.seq > token.seq:
            code = "data_beyond_token"  # the token is here: nobody else gave out this number
        else:
            code = self.ring.add(frame)
            if not code and frame.content is Content.RECOVERED:
                try:
                    code = self.exchange.absorb(self._context.codec.data(frame.items[0]))
                except FrameError as err:
                    code = err.code
        if code:
            self._context.count(code)

    def turn(self, now: float) -> bool:
        """Visit the waiting token, if any."""
        token = self.waiting
        if token is None:
            return False
        self.waiting = None
        if (late := self.ring.failed_to_receive(token, now)) is not None:
            self._failed_to_receive(late, now)
            return False
        return self._visit(token, now)

    def _visit(self, token: Token, now: float) -> bool:
        ring, exchange, context = self.ring, self.exchange, self._context
        visit = ring.visit(token, exchange, self._intake.mark, 0)
        framed = context.codec.data_frame
        context.out.extend(Broadcast(framed(body)) for body in visit.resent)
        context.out.extend(Broadcast(framed(body)) for body in visit.before)
        forward = exchange.flag(visit.token)
        self._tokens.pass_on(ring.successor, forward, now)
        if visit.before:
            context.count("recovered_sent", len(visit.before))
        ring.consume_recovered()
        ring.release()
        return exchange.complete(forward, token.aru)

    def close(self, old: Ring, delivery: Delivery) -> None:
        """Deliver the rest of the old ring, with the transitional configuration."""
        closing, out = self.exchange.close(), self._context.out
        for frame in closing.regular:
            delivery.emit(old, frame, False)
        out.append(Transitional(old.id, self.exchange.trans))
        for frame in closing.transitional:
            delivery.emit(old, frame, True)
        self._context.note(
            "closing", ring=str(old.id), regular=len(closing.regular),
            transitional=len(closing.transitional), skipped=closing.skipped,
        )  # fmt: skip
        if closing.skipped:
            self._context.count("closing_skipped", closing.skipped)
