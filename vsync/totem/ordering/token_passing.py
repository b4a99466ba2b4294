"""Token passing: sends a token, repeats it until there is an answer, accepts it, and times it out.

The regular token and the commit token are passed alike; the phases decide when.
"""

from __future__ import annotations

from vsync.totem.context import Context, Timer
from vsync.totem.events import Send
from vsync.totem.ordering.lease import Lease
from vsync.totem.ordering.ring import Ring
from vsync.totem.ordering.tempo import Tempo
from vsync.types import NO_RING, Member
from vsync.wire.messages import Message, Token

# Looking up a member of an enum costs ten times as much, and a token visit does it often.
TOKEN_RESEND, TOKEN_LOSS = Timer.TOKEN_RESEND, Timer.TOKEN_LOSS


class TokenPassing:
    """The token timers of one node, the token to resend, and the pace that the token carries."""

    def __init__(self, context: Context, lease: Lease, tempo: Tempo) -> None:
        self.tempo = tempo
        self._context = context
        self._lease = lease
        self._last = NO_RING, 0.0  # the ring of the last token, and when it came
        self._retransmit_s = context.config.token_retransmit_ms / 1000
        self._timeout = (0, 0), 0.0  # by number of members and the token's ms: seconds
        self._resend: Send | None = None

    def pass_on(self, to: Member, message: Message, now: float) -> None:
        """Send a token of either kind, and repeat it until there is a sign that it arrived."""
        self._resend = self._context.send(to, message)
        self._context.due[TOKEN_RESEND] = now + self._retransmit_s

    def expect(self, members: int, now: float, slow_ms: int = 0) -> None:
        """Start the timeout after which the token counts as lost; `slow_ms`: at least this."""
        key = members, slow_ms
        if key != self._timeout[0]:
            usual = self._context.config.token_timeout(members)
            slow = min(slow_ms, self._context.config.token_timeout_max_ms) / 1000
            self._timeout = key, max(usual, slow)
        self._context.due[TOKEN_LOSS] = now + self._timeout[1]

    def accept(self, ring: Ring, sender: Member, token: Token, now: float) -> bool:
        """Check a received token; True if it is the next one of `ring`."""
        code = ring.refuses(token)
        if not code and sender != ring.predecessor:
            code = "token_sender"
        if not code and now > self._context.due.get(TOKEN_LOSS, now):
            # Stopped for too long: the others gave the ring up, and would not receive new frames.
            code = "token_late"
        if code:
            # No timer, counter of idleness or bound was touched (pitfalls 5, 6, 7, 37).
            self._context.count(code)
            return False
        self.accepted(ring, token, now)
        return True

    def accepted(self, ring: Ring, token: Token, now: float) -> None:
        """Restart the timers: the last token sent has arrived."""
        held = ring.may_be_held
        ring.accept(token)
        pace = token.pace
        self._lease.token(ring.id, ring.members, now, pace.lease_ms)
        last, self._last = self._last, (ring.id, now)
        if last[0] is ring.id:
            self.tempo.rotation(now - last[1], now, held=held)
        ring.set_pace(self.tempo.pace(token, first=ring.index == 0, idle=ring.idle))
        self._resend = None
        self._context.due.pop(TOKEN_RESEND, None)
        self.expect(len(ring.members), now, pace.timeout_ms)

    def alone(self, ring: Ring, now: float) -> None:
        """A ring of one was installed: its token is never in transit."""
        self.stop()
        self._lease.token(ring.id, ring.members, now, 0)

    def stop(self) -> None:
        """Expect no token, and repeat none."""
        self._resend = None
        self._context.cancel(TOKEN_LOSS, TOKEN_RESEND)

    def on_resend_timer(self, now: float) -> None:
        if self._resend is not None:
            self._context.count("token_resent")
            self._context.out.append(self._resend)
            self._context.arm(TOKEN_RESEND, now + self._retransmit_s)
