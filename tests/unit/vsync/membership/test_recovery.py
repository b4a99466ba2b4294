"""Closing an old ring: where each frame is delivered, and obligations after an aborted attempt."""

from __future__ import annotations

from vsync.totem.config import RingConfig
from vsync.totem.membership.recovery import Exchange
from vsync.totem.ordering.ring import Ring
from vsync.types import NO_RING, Guarantee, Member, RingId
from vsync.wire.codec import data_body, ring_block
from vsync.wire.messages import CommitEntry, Content, Data

A, B, C, D = (Member(n, 1, f"{n}:1") for n in "abcd")
OLD, NEW = RingId(3, "a", 1), RingId(4, "a", 1)
CONFIG = RingConfig()
S, G = Guarantee.SAFE, Guarantee.AGREED


def frame(seq: int, origin: int, guarantee: Guarantee = G, ring: RingId = OLD) -> Data:
    items = [b"%d" % seq]
    body = data_body(ring_block(ring), seq, origin, Content.PAYLOADS, guarantee, items)
    return Data(ring, seq, origin, Content.PAYLOADS, guarantee, items, body)


def old_ring(*frames: Data, safe: int = 0, delivered: int = 0) -> Ring:
    ring = Ring(OLD, (A, B, C, D), A, (0,) * 4, CONFIG, 30)
    for one in frames:
        assert not ring.add(one)
    ring.safe, ring.delivered = safe, delivered
    return ring


def entry(ring: Ring, **changes: object) -> CommitEntry:
    made = CommitEntry(OLD, ring.window.aru, ring.window.high, ring.safe, 0, ())
    return made._replace(**changes)  # type: ignore[arg-type]


def recovery(old: Ring, *others: CommitEntry) -> Exchange:
    members = (A, B, C)[: 1 + len(others)]
    new = Ring(NEW, members, A, (0,) * len(members), CONFIG, 30)
    return Exchange(new, old, (entry(old), *others))


def seqs(frames: list[Data]) -> list[int]:
    return [f.seq for f in frames]


def test_agreed_frames_up_to_the_first_gap_are_regular() -> None:
    old = old_ring(frame(1, 0), frame(2, 1), frame(4, 1), frame(5, 3))
    closing = recovery(old, entry(old)).close()
    assert seqs(closing.regular) == [1, 2]
    assert seqs(closing.transitional) == [4]  # 5 is from d, which did not come along
    assert closing.skipped == 1


def test_a_safe_frame_not_known_to_be_safe_ends_the_regular_part() -> None:
    old = old_ring(frame(1, 0, S), frame(2, 3, S), frame(3, 3), safe=1)
    closing = recovery(old, entry(old)).close()
    assert seqs(closing.regular) == [1]
    assert seqs(closing.transitional) == [2, 3]  # no gap before them, so the sender does not matter


def test_the_best_knowledge_of_what_is_safe_counts_for_all() -> None:
    old = old_ring(frame(1, 0, S), frame(2, 3, S), frame(3, 3))
    closing = recovery(old, entry(old, safe=2)).close()
    assert seqs(closing.regular) == [1, 2, 3]


def test_12_the_same_name_with_another_old_ring_does_not_come_along() -> None:
    old = old_ring(frame(1, 0))
    stayed = recovery(old, entry(old), entry(old, old_ring=RingId(3, "a", 2)))
    assert stayed.trans == (A, B)
    fresh = recovery(old, entry(old), CommitEntry(NO_RING, 0, 0, 0, 0, ()))
    assert fresh.trans == (A, B)


def test_in_a_first_ring_nobody_comes_along() -> None:
    new = Ring(NEW, (A, B), A, (0, 0), CONFIG, 30)
    blank = CommitEntry(NO_RING, 0, 0, 0, 0, ())
    assert Exchange(new, None, (blank, blank)).trans == (A,)


def test_only_frames_somebody_may_lack_are_sent() -> None:
    old = old_ring(frame(1, 0), frame(2, 1), frame(3, 1))
    assert recovery(old, entry(old)).backlog(1000) == 0
    assert recovery(old, entry(old, aru=1)).backlog(1000) == 2
    assert recovery(old, entry(old, high=5)).backlog(1000) == 0  # I have nothing above 3
    alone = recovery(old)
    assert alone.backlog(1000) == 0


def test_frames_another_member_already_sent_are_not_sent_again() -> None:
    old = old_ring(frame(1, 0), frame(2, 1), frame(3, 1))
    trying = recovery(old, entry(old, aru=0))
    assert trying.absorb(frame(2, 1)) == "recovered_again"
    sent = []
    while (packed := trying.next(1000)) is not None:
        sent.append(packed[2][0])
    assert sent == [frame(1, 0).body, frame(3, 1).body]


def test_an_aborted_attempt_keeps_found_frames_and_obligations() -> None:
    """Another member may have installed, and delivered frame 3 from c as safe, relying on me."""
    old = old_ring(frame(1, 0))
    trying = recovery(old, entry(old, high=3, aru=1), entry(old, high=3, aru=1))
    assert trying.absorb(frame(3, 2, S)) == ""
    token = trying.ring.first_token()
    assert not trying.complete(token, 0)
    assert not trying.complete(token, 0)
    assert old.obliged == {A, B, C}
    trying.abort()
    assert old.window.get(3) is not None
    # Now alone, without c: the obligation remains.
    alone = recovery(old)
    alone.obliged |= old.obliged
    closing = Exchange(alone.ring, old, (entry(old, obliged=tuple(sorted(old.obliged))),)).close()
    assert seqs(closing.transitional) == [3]
    # Without the obligation, c's frame behind a hole is skipped.
    assert Exchange(alone.ring, old, (entry(old),)).close().skipped == 1


def test_obligations_are_shared_by_all_that_come_along() -> None:
    old = old_ring(frame(1, 0), frame(3, 3))
    closing = recovery(old, entry(old, obliged=(B, D))).close()
    assert seqs(closing.transitional) == [3]


def test_foreign_and_absurd_frames_are_refused() -> None:
    old = old_ring(frame(1, 0))
    trying = recovery(old, entry(old))
    assert trying.absorb(frame(2, 0, ring=NEW)) == "recovered_other_ring"
    assert trying.absorb(frame(2, 9)) == "recovered_field"
    assert trying.absorb(frame(1 << 40, 0)) == "recovered_beyond_store"
    assert trying.absorb(frame(1, 0)) == "recovered_again"


def test_frames_of_members_that_released_more_are_taken_and_kept() -> None:
    """They may be a whole store ahead of this member, which lags in its knowledge of what
    is safe."""
    old = old_ring(frame(1, 0))
    most = old.window.released + 2 * CONFIG.store_frames_max
    trying = recovery(old, entry(old, high=most))
    assert trying.absorb(frame(most, 1)) == ""
    assert trying.absorb(frame(most + 1, 1)) == "recovered_beyond_store"
    trying.abort()
    assert old.window.get(most) is not None


def test_11_the_flag_is_raised_and_lowered_by_the_same_member() -> None:
    old = old_ring(frame(1, 0), frame(2, 0))
    trying = recovery(old, entry(old, aru=0, high=0))
    token = trying.ring.first_token()
    raised = trying.flag(token)
    assert raised.recovering
    assert trying.flag(raised).recovering
    while trying.next(1000) is not None:
        pass
    lowered = trying.flag(raised)
    assert not lowered.recovering
    # I must not lower another member's flag.
    assert trying.flag(raised).recovering


def test_11_only_one_of_several_senders_has_the_flag() -> None:
    """If each lowered it in turn, another would count rotations in which nobody sends."""
    old = old_ring(frame(1, 0), frame(2, 0))
    trying = recovery(old, entry(old, aru=0, high=0), entry(old, aru=0, high=0))
    raised = trying.ring.first_token()._replace(recovering=True)  # by another, which still sends
    assert trying.flag(raised) == raised
    while trying.next(1000) is not None:
        pass
    assert trying.flag(raised).recovering


def test_installation_takes_two_full_rotations_after_the_exchange() -> None:
    old = old_ring(frame(1, 0))
    trying = recovery(old, entry(old))
    token = trying.ring.first_token()
    busy = token._replace(recovering=True)
    verdicts = [trying.complete(t, 0) for t in (token, token, busy, token, token, token, token)]
    assert verdicts == [False] * 6 + [True]


def test_only_two_arrivals_in_a_row_prove_that_all_have_all_frames() -> None:
    """A member that raises aru to its own may raise it above another's: the next arrival
    shows that."""
    trying = recovery(old_ring(frame(1, 0)), entry(old_ring(frame(1, 0))))
    token = trying.ring.first_token()._replace(seq=3)
    verdicts = [trying.complete(token, aru) for aru in (0, 0, 3, 2, 3, 3)]
    assert verdicts == [False] * 5 + [True]
