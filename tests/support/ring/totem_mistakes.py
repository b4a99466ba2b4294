"""The mistakes of other implementations, as small patches of this one.

Each generator yields (owner, attribute, replacement); `test_pitfalls_bite` names the pitfall of
each, and the test that must not pass with it.  Those that the simulator is tried with as well are
in `tests.sim.mutation.by_hand`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from struct import Struct

from tests.sim.mutation.by_hand import Patches
from vsync.totem.config import RingConfig
from vsync.totem.membership.commit import CommitPhase
from vsync.totem.membership.connectivity import Connectivity
from vsync.totem.membership.gather_sets import GatherSets
from vsync.totem.membership.merge import BackedOff
from vsync.totem.membership.protocol import Membership
from vsync.totem.membership.recovery import Exchange
from vsync.totem.membership.ring_ids import RingIds
from vsync.totem.node import Node
from vsync.totem.ordering import packing
from vsync.totem.ordering.ring import Ring, Source, Visit
from vsync.totem.ordering.token_passing import TokenPassing
from vsync.totem.ordering.window import Window
from vsync.totem.phases import Phase
from vsync.types import Member
from vsync.wire import codec as codec_module
from vsync.wire import membership_codec
from vsync.wire.messages import CommitEntry, CommitToken, Data, Join, Token


def token_in_gather_is_used() -> Patches:
    def lenient(self: Membership, sender: Member, token: Token, now: float) -> None:
        if self.current is not None:
            self.tokens.accept(self.current, sender, token, now)

    yield Membership, "token_while_forming", lenient


def old_state_is_saved_again() -> Patches:
    """The second attempt starts from the ring that the first one tried."""
    entry = Membership._entry

    def later(self: Membership) -> CommitEntry:
        made, past = entry(self), self.ring_ids.past
        return made._replace(old_ring=past[-1]) if past else made

    yield Membership, "_entry", later


def touched_before_it_is_checked(
    touch: Callable[[TokenPassing, Ring, Token, float], None],
) -> Patches:
    accept = TokenPassing.accept

    def hasty(self: TokenPassing, ring: Ring, sender: Member, token: Token, now: float) -> bool:
        touch(self, ring, token, now)
        return accept(self, ring, sender, token, now)

    yield TokenPassing, "accept", hasty


def last_aru_is_overwritten() -> Patches:
    def touch(tokens: TokenPassing, ring: Ring, token: Token, _now: float) -> None:
        ring.aru_seen = token.aru - 1

    yield from touched_before_it_is_checked(touch)


def loss_timer_is_armed() -> Patches:
    def touch(tokens: TokenPassing, ring: Ring, _token: Token, now: float) -> None:
        tokens.expect(len(ring.members), now + 0.001)

    yield from touched_before_it_is_checked(touch)


def stray_tokens_count_as_idle() -> Patches:
    def touch(tokens: TokenPassing, ring: Ring, _token: Token, _now: float) -> None:
        ring.idle += 1

    yield from touched_before_it_is_checked(touch)


def any_sender_of_tokens() -> Patches:
    yield Ring, "predecessor", property(lambda self: self.members[self.index - 2])


def asks_up_to_what_it_received() -> Patches:
    missing = Window.missing
    yield Window, "missing", lambda self, upto, limit: missing(self, min(upto, self.high), limit)


def aru_stops_at_64() -> Patches:
    add = Window.add

    def lame(self: Window, frame: Data, slack: int = 0) -> str:
        aru = self.aru
        code = add(self, frame, slack)
        self.aru = min(self.aru, aru + 64)
        return code

    yield Window, "add", lame


def small_recovery_store() -> Patches:
    init = Exchange.__init__

    def small(
        self: Exchange, ring: Ring, old: Ring | None, entries: tuple[CommitEntry, ...]
    ) -> None:
        init(self, ring, old, entries)
        ring.window.limit = 128

    yield Exchange, "__init__", small
    yield Ring, "consume_recovered", lambda self: None


def flag_stays_up() -> Patches:
    def flag(self: Exchange, token: Token) -> Token:
        return token._replace(recovering=True) if self._queue else token

    yield Exchange, "flag", flag


def flag_of_several() -> Patches:
    flag = Exchange.flag

    def mine_too(self: Exchange, token: Token) -> Token:
        forward = flag(self, token)
        self._raised = self._raised or bool(self._queue)
        return forward

    yield Exchange, "flag", mine_too


def no_room_for_the_wrapping() -> Patches:
    init = Node.__init__

    def tight(self: Node, me: Member, cluster: str, config: RingConfig, rng: Random) -> None:
        init(self, me, cluster, config, rng)
        self.codec.bytes_max = config.frame_bytes_max

    yield Node, "__init__", tight


def recovered_frames_are_freed_at_once() -> Patches:
    def eager(self: Ring) -> None:
        upto = min(self.delivered, self.window.aru)
        self.safe = max(self.safe, upto)
        self.window.release(upto)

    yield Ring, "release", eager


def buffers_are_switched_early() -> Patches:
    begin = Membership._begin_recovery

    def early(self: Membership, forming: CommitPhase, commit: CommitToken, now: float) -> None:
        self._delivery.assembly.forget()
        begin(self, forming, commit, now)

    yield Membership, "_begin_recovery", early


def believes_failed_sets_of_foreign_members() -> Patches:
    absorb = GatherSets.absorb

    def naive(self: GatherSets, sender: Member, join: Join) -> object:
        self.old |= {sender}
        return absorb(self, sender, join)

    yield GatherSets, "absorb", naive


def takes_joins_that_reject_it() -> Patches:
    on_join = Membership.on_join

    def naive(self: Membership, sender: Member, join: Join, now: float) -> None:
        on_join(self, sender, join._replace(failed=()), now)

    yield Membership, "on_join", naive


def drops_joins_without_news() -> Patches:
    on_join = Membership.on_join

    def deaf(self: Membership, sender: Member, join: Join, now: float) -> None:
        if self.phase is not Phase.OPERATIONAL or not set(join.proc) <= set(self.members):
            on_join(self, sender, join, now)

    yield Membership, "on_join", deaf


def fails_itself() -> Patches:
    def fail(self: GatherSets, members: Iterable[Member]) -> bool:
        self.failed |= set(members)
        return True

    yield GatherSets, "fail", fail


def members_in_another_order() -> Patches:
    candidates = GatherSets.candidates

    def turned(self: GatherSets) -> tuple[Member, ...]:
        found = candidates(self)
        at = found.index(self.me)
        return found[at:] + found[:at]

    yield GatherSets, "candidates", turned


def leaves_without_notice() -> Patches:
    yield Membership, "_send_leave_notice", lambda self, now: None


def holds_although_frames_are_lost() -> Patches:
    def accept(self: Ring, token: Token) -> None:
        self.hop = token.hop
        self.settled = token.seq == self.forwarded
        self.idle = self.idle + 1 if self.settled else 0

    yield Ring, "accept", accept


def asks_for_the_youngest() -> Patches:
    visit = Ring.visit

    def impatient(self: Ring, token: Token, source: Source, mark: int, ahead: int) -> Visit:
        self.forwarded = token.seq
        return visit(self, token, source, mark, ahead)

    yield Ring, "visit", impatient


def stale_joins_count() -> Patches:
    yield Node, "_was_away", lambda self, now: False


def tries_foreign_members_for_ever() -> Patches:
    def anybody(self: Connectivity, *_: object) -> tuple[Member, ...]:
        return self.reception(max(self._last_frame.values(), default=0.0))

    yield Connectivity, "gain", anybody
    yield BackedOff, "has", lambda self, member, now: False
    yield BackedOff, "has_since", lambda self, member, now, least: False


def what_is_wanted_stays_wanted() -> Patches:
    serve = Ring._serve

    def stubborn(
        self: Ring, token: Token, allowed: int
    ) -> tuple[list[bytes], tuple[int, ...], int]:
        resent, wanted, asked = serve(self, token, allowed)
        return resent, tuple(dict.fromkeys((*token.wanted, *wanted)))[:256], asked

    yield Ring, "_serve", stubborn


def numbers_of_32_bits() -> Patches:
    yield codec_module, "_TOKEN", Struct("<IIIHIQBHH")


def lengths_are_trusted() -> Patches:
    yield membership_codec, "_list", lambda value, size=None: value


def pieces_overlap() -> Patches:
    yield packing, "FRAGMENT_HEAD_BYTES", 12


def nothing_is_forgotten() -> Patches:
    init = RingIds.__init__

    def hoarding(self: RingIds) -> None:
        init(self)
        self.past = deque()

    yield RingIds, "__init__", hoarding


def array_of_16() -> Patches:
    yield membership_codec, "MEMBERS_MAX", 16
