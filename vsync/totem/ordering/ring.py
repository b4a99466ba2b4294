"""One ring at one member: its frames, its sequence numbers, and the plan of a token visit.

`visit` decides everything about a visit at once (what to resend, what to request, what to send
before and after the token, the new token) and returns it as a plan; the caller sends. The ring
knows no phases, timers or other rings. Delivery order and the safe bound are decided here.

Invariants: delivered <= aru; released <= min(safe, delivered); everything between released and
delivered is still readable, because some member may lack it.

Sources: the Totem single ring protocol for the visit; the accelerated ring for sending on both
sides of the token, and for requesting only up to the seq that this member forwarded one rotation
ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from vsync.totem.config import RingConfig
from vsync.totem.ordering.flow_control import Flow, allowance
from vsync.totem.ordering.packing import Packed
from vsync.totem.ordering.window import Window
from vsync.types import Guarantee, Member, RingId
from vsync.wire.codec import data_body, data_overhead, ring_block
from vsync.wire.messages import NO_PACE, NOBODY, Content, Data, Pace, Token

_new = tuple.__new__  # half the cost of calling the class


class Source(Protocol):
    """Where new frames get their content: the send queue, or the frames to recover."""

    def backlog(self, room: int) -> int: ...

    def next(self, room: int) -> Packed | None: ...


class Visit(NamedTuple):
    """The plan of one token visit: `resent` and `before` go first, then `token`, then `after`."""

    resent: list[bytes]
    before: list[bytes]
    token: Token
    after: list[bytes]
    asked: int


def same(marks: tuple[int, ...]) -> bool:
    """Whether all members have the same mark, so that nobody waits for one."""
    return marks.count(marks[0]) == len(marks)


class Ring:
    """The state of one ring at one member."""

    def __init__(
        self,
        ring: RingId,
        members: tuple[Member, ...],
        me: Member,
        marks: tuple[int, ...],
        config: RingConfig,
        envelope_bytes: int,
    ) -> None:
        self.id = ring
        self.members = members
        self.me = me
        self.index = members.index(me)
        self.indices = {member: index for index, member in enumerate(members)}
        self.others = tuple(member for member in members if member != me)
        self._successor = (self.index + 1) % len(members)
        self.config = config
        self.block = ring_block(ring)
        self.room = config.frame_bytes_max - envelope_bytes - data_overhead(self.block)
        self.window = Window(config.store_frames_max)
        self.delivered = 0
        self.safe = 0  # every member holds everything up to here
        self.known = 0  # the token showed that: each other member knows it by its next visit
        self.early = 0  # frames sent while the token stays here
        self.aru_seen = 0  # the token's aru as it arrived for the last visit
        self.aru_sent = 0  # and as it was passed on
        self.hop = -1  # of the last token accepted
        self.forwarded = 0  # the seq of the token as it was forwarded last
        self.settled = False  # when the last token came, all members knew all frames to be safe
        self.mine = 0  # the seq of my last frame
        self.idle = 0  # consecutive visits that found it settled, with no mark changed
        self.flow = Flow()
        self.marks = marks  # as the token last showed them
        self.held_back_by = NOBODY  # index of the member that holds back aru; for how long, below
        self.held_back_since = 0.0
        self.held_back_visits = 0
        self.obliged: set[Member] = set()  # see recovery
        self.pace = NO_PACE

    @property
    def successor(self) -> Member:
        return self.members[self._successor]

    @property
    def predecessor(self) -> Member:
        return self.members[self.index - 1]

    def first_token(self) -> Token:
        """The token that the representative creates, once, before its own first visit."""
        return Token(self.id, 0, 0, 0, NOBODY, 0, 0, False, self.marks, ())

    # -- reception ---------------------------------------------------------------------------

    def refuses(self, token: Token) -> str:
        """ "" or the counter for a token that is not this ring's next; changes nothing."""
        if token.ring != self.id:
            return "token_other_ring"
        if token.hop <= self.hop:
            return "token_again"
        if len(token.marks) != len(self.members):
            return "token_members"
        if token.seq < max(self.forwarded, self.window.high):
            return "token_backwards"  # its numbers were given out already
        return ""

    def accept(self, token: Token) -> None:
        """The token is this ring's next: count idle visits. Once per token, before its visit.

        All others know by now what this member knew to be safe a rotation ago, because each has had
        a visit since: see `_known_safe`.
        """
        self.hop = token.hop
        self.settled = (
            token.seq == token.aru == self.forwarded == self.known
            and not token.wanted
            and not token.recovering
            and self.window.aru == token.seq
        )
        self.idle = self.idle + 1 if self.settled and token.marks == self.marks else 0

    def installed(self) -> None:
        """Restart the count of idle visits: those during recovery say nothing of the backlog."""
        self.idle = 0

    @property
    def may_be_held(self) -> bool:
        """Whether the ring has been idle long enough for the representative to hold the token."""
        return self.idle + 2 >= self.config.idle_visits_before_hold

    @property
    def rests_soon(self) -> bool:
        """Whether the ring has been idle so long that the token may rest from the next visit on."""
        return self.idle + 1 >= self.config.idle_visits_before_rest

    @property
    def may_rest(self) -> bool:
        """Whether the token may rest at another member before it is here again.

        When the last frame is this member's, others may have known it to be safe before this
        member. One of them may wait for its own commit, which comes with that of this frame; and
        one may keep the token if all marks were the same, also at this member's last visit: see
        `OperationalPhase`.
        """
        return self.known == self.forwarded and (self.settled or self.mine != self.known)

    def keeps(self, token: Token) -> None:
        """The token stays here before its visit: its marks are known from now on."""
        self.marks = token.marks

    def set_pace(self, pace: Pace) -> None:
        """Set the pace of the next token."""
        self.pace = pace

    def oblige(self, members: Iterable[Member]) -> None:
        """Promise to deliver the frames of these senders; see `recovery`."""
        self.obliged |= set(members)

    def all_safe(self) -> None:
        """A ring of one: all members hold what this member holds."""
        self.known = self.safe = self.window.aru

    def held_by_all(self, upto: int) -> None:
        """All members reported that they hold everything up to here."""
        self.safe = max(self.safe, upto)

    def add(self, frame: Data) -> str:
        """Keep a data frame of this ring; return "", or the counter for why not."""
        if frame.origin >= len(self.members):
            return "data_origin"
        return self.window.add(frame)

    # -- the visit ---------------------------------------------------------------------------

    def visit(self, token: Token, source: Source, mark: int, ahead: int) -> Visit:
        """Serve, request, send, and update the token. `ahead`: frames that may trail the token."""
        window, config = self.window, self.config
        # Read at once.
        _, hop, seq, aru, aru_by, sent, backlog, recovering, marks, asked_for, _, everywhere = token
        known = max(self._known_safe(token), min(everywhere, self.delivered))
        if known > self.known:
            self.known = known
            self.safe = max(self.safe, known)
        self.aru_seen = aru
        room, flow = self.room, self.flow
        waiting = left = source.backlog(room)
        resent: list[bytes] = []
        new: list[bytes] = []
        wanted: tuple[int, ...] = ()
        allowed = asked = 0
        if waiting or asked_for:
            allowed = allowance(
                config.window_frames, config.personal_frames,
                sent, flow.sent, backlog, waiting, flow.waiting,
            )  # fmt: skip
            allowed = max(0, allowed - self.early)
        if asked_for or min(self.forwarded, seq) > window.aru:
            resent, wanted, asked = self._serve(token, allowed)
        if waiting:
            new, seq = self._originate(source, seq, allowed - len(resent))
            if new:
                self.mine = seq
            left = source.backlog(room)
        if window.aru < aru or aru_by in (self.index, NOBODY):
            aru = window.aru
            aru_by = NOBODY if aru == seq else self.index
        sent, backlog = flow.settle(sent, backlog, len(resent) + len(new) + self.early, left)
        self.early = 0
        if marks[self.index] != mark:
            marks = (*marks[: self.index], mark, *marks[self.index + 1 :])
        self.marks = marks
        self.forwarded, self.aru_sent = seq, aru
        # A frame behind the token is acknowledged a rotation later. That pays when there are many
        # frames; with few, that is in a quiet ring, it would only delay safe delivery.
        split = max(min(len(new), config.lead_frames), len(new) - ahead)
        fields = self.id, hop + 1, seq, aru, aru_by, sent, backlog, recovering, marks, wanted
        forward = _new(Token, (*fields, self.pace, min(everywhere, aru)))
        return _new(Visit, (resent, new[:split], forward, new[split:], asked))

    def send_early(self, token: Token, source: Source) -> tuple[Token, list[bytes]]:
        """Send while the token stays here: it goes on with the new seq, and counts these frames."""
        new, seq = self._originate(source, token.seq, self.config.personal_frames - self.early)
        if new:
            self.mine, self.idle, self.settled = seq, 0, False
            self.early += len(new)
        return token._replace(seq=seq), new

    def _known_safe(self, token: Token) -> int:
        """The seq up to which all members hold everything, by the token's aru now and as passed on.

        Call them r and f. A member that lacks something at or below f lowers aru beneath f in its
        visit. Then it alone may raise aru again, and not before its next visit. So if r >= f nobody
        lacked anything up to f. If r < f, aru only fell after it had fallen beneath f, and every
        member has at least what it left. Either way: min(r, f). (r alone proves nothing: a member
        that raises aru to its own may raise it over the head of another.)

        The last member that the token visits knows a hop before the sender. If the token left here
        with f = seq, and the successor sent the frames up to n, it left there with aru = n, or with
        a lower aru that nobody else raises in this rotation. So r >= n means that all have the
        frames up to n, and passed on no less.
        """
        own = self.window.aru
        known = min(token.aru, self.aru_sent, own)
        if self.aru_sent == self.forwarded and known < token.aru:
            upto, get, successor = min(token.aru, own), self.window.get, self._successor
            run = max(known, self.forwarded)
            while run < upto and (frame := get(run + 1)) is not None and frame.origin == successor:
                run += 1
            if run > self.forwarded:
                return run
        return known

    def _serve(self, token: Token, allowed: int) -> tuple[list[bytes], tuple[int, ...], int]:
        """Frames to resend, requests that stay on the token, and how many were added to them.

        A member requests only frames that existed when it forwarded the token one rotation ago:
        newer frames may still be on their way behind the token (accelerated ring), or overtaken by
        it.
        """
        window = self.window
        resent: list[bytes] = []
        lacking = window.missing(min(self.forwarded, token.seq), self.config.wanted_max)
        wanted = []
        for seq in token.wanted:
            held = window.get(seq)
            if held is None:
                if seq > window.released:
                    wanted.append(seq)
            elif len(resent) < allowed:
                resent.append(held.body)
            else:
                wanted.append(seq)
        known = frozenset(wanted)
        space = self.config.wanted_max - len(wanted)
        mine = [s for s in lacking if s not in known][: max(0, space)]
        return resent, (*wanted, *mine), len(mine)

    def _originate(self, source: Source, seq: int, allowed: int) -> tuple[list[bytes], int]:
        """Give sequence numbers to new frames; they enter the window like received ones."""
        new: list[bytes] = []
        # No member's store may overflow, whichever lags: the released bound limits the window.
        window = self.window
        allowed = min(allowed, window.released + window.limit - self.config.window_frames - seq)
        while len(new) < allowed:
            packed = source.next(self.room)
            if packed is None:
                break
            content, guarantee, items = packed
            seq += 1
            body = data_body(self.block, seq, self.index, content, guarantee, items)
            refused = window.add(Data(self.id, seq, self.index, content, guarantee, items, body))
            assert not refused, (refused, seq, self.describe())
            new.append(body)
        return new, seq

    def failed_to_receive(self, token: Token, now: float) -> Member | None:
        """The member that has held back aru for too long, by visits and by time; never this member.

        Called once per visit with the token as it arrived. A member that cannot receive may still
        pass tokens, so only the others can tell (Totem: failure to receive).
        """
        config = self.config
        if (
            token.aru_by == NOBODY
            or token.aru != self.aru_seen
            or token.aru_by != self.held_back_by
        ):
            self.held_back_by, self.held_back_since, self.held_back_visits = token.aru_by, now, 0
            return None
        self.held_back_visits += 1
        if (
            self.held_back_by == self.index
            or self.held_back_visits < config.receive_failure_visits
            or now - self.held_back_since < config.receive_failure_ms / 1000
        ):
            return None
        return self.members[self.held_back_by]

    # -- delivery ----------------------------------------------------------------------------

    def ready(self) -> Iterator[Data]:
        """Frames that may be delivered now, in order; advances `delivered` past each of them.

        An agreed frame never overtakes an earlier safe one: the first frame that must wait ends it.
        """
        window = self.window
        while self.delivered < window.aru:
            frame = window.get(self.delivered + 1)
            assert frame is not None, self.describe()
            if frame.guarantee is Guarantee.SAFE and frame.seq > self.safe:
                return
            self.delivered += 1
            if frame.content is not Content.RECOVERED:
                yield frame

    def consume_recovered(self) -> None:
        """Pass over frames that carry the old ring's; recovery has taken those out already."""
        window = self.window
        while self.delivered < window.aru:
            frame = window.get(self.delivered + 1)
            if frame is None or frame.content is not Content.RECOVERED:
                return
            self.delivered += 1

    def release(self) -> None:
        """Drop frames that all members hold and this member has delivered."""
        upto = min(self.known, self.delivered)
        if upto > self.window.released:
            self.window.release(upto)

    def describe(self) -> str:
        return (
            f"ring {self.id} at {self.me}: delivered {self.delivered}, safe {self.safe}, "
            f"forwarded {self.forwarded}, hop {self.hop}, {self.window.describe()}"
        )

    def invariants(self) -> None:
        window = self.window
        window.invariants()
        assert window.released <= self.delivered <= window.aru, self.describe()
        assert self.safe <= window.aru, self.describe()
        assert window.released <= self.known <= self.safe, self.describe()
        assert self.flow.sent <= self.config.window_frames, self.flow.describe()
