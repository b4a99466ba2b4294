"""Each checker can fail: one good history, and for every rule one small lie in it.

A checker that cannot fail is worthless, so for every rule at least one mutation must be reported
under the name of that rule.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.checkers.all import check
from tests.sim.checkers.history import (
    Delivered,
    Ended,
    Entry,
    History,
    Installed,
    Item,
    Process,
    Submitted,
    Transited,
    Who,
)
from vsync.types import NO_RING, Guarantee, RingId

A, B, C = ("a", 1), ("b", 1), ("c", 1)
R1, R2, R3 = RingId(1, "a", 1), RingId(2, "a", 1), RingId(3, "a", 1)
SAFE, AGREED = Guarantee.SAFE, Guarantee.AGREED

# Which member sends what, at which place of ring 1; numbers count per source.
ORDER = [
    (1, A, 1, AGREED),
    (2, B, 1, SAFE),
    (3, C, 1, AGREED),
    (4, A, 2, SAFE),
    (5, C, 2, AGREED),  # only c received this one
    (6, B, 2, SAFE),  # delivered in the transitional configuration
]


def item(source: Who, number: int) -> Item:
    return Item(source, number, 100 * number + ord(source[0]))


def delivery(seq: int, source: Who, number: int, level: Guarantee, late: bool) -> Delivered:
    return Delivered(1.0, R1, seq, source, (item(source, number),), level, late)


def good() -> History:
    """Three members; c is cut off, a and b move on to ring 2, then all merge in ring 3."""
    history = History()
    for who in (A, B, C):
        process = history.new_process(*who)
        process.entries.append(Installed(0.0, R1, (A, B, C)))
        for _, source, number, level in ORDER:
            if source == who:
                process.entries.append(Submitted(0.5, item(source, number), level, NO_RING, 0))
        for seq, source, number, level in ORDER[:4]:
            process.entries.append(delivery(seq, source, number, level, False))
        others = (A, B) if who != C else (C,)
        process.entries.append(Transited(2.0, R1, others))
        process.entries.append(delivery(*ORDER[4], True) if who == C else delivery(*ORDER[5], True))
        second = R2 if who != C else RingId(2, "c", 1)
        process.entries.append(Installed(2.0, second, others))
        process.entries.append(Transited(3.0, second, others))
        process.entries.append(Installed(3.0, R3, (A, B, C)))
    return history


def process_of(history: History, who: Who) -> Process:
    return next(process for process in history.processes if process.who == who)


def place(process: Process, seq: int) -> int:
    return next(
        index
        for index, entry in enumerate(process.entries)
        if isinstance(entry, Delivered) and entry.seq == seq
    )


def put(process: Process, at_seq: int, **changes: object) -> None:
    index = place(process, at_seq)
    entry = process.entries[index]
    assert isinstance(entry, Delivered)
    process.entries[index] = Delivered(**{**entry._asdict(), **changes})


def swap_first_two(history: History) -> None:
    entries = process_of(history, B).entries
    i, j = place(process_of(history, B), 1), place(process_of(history, B), 2)
    entries[i], entries[j] = entries[j], entries[i]


def invented(history: History) -> None:
    put(process_of(history, A), 3, items=(item(C, 9),))


def altered(history: History) -> None:
    put(process_of(history, A), 3, items=(Item(C, 1, 5),))


def weakened(history: History) -> None:
    put(process_of(history, A), 2, guarantee=AGREED)


def twice(history: History) -> None:
    entries = process_of(history, A).entries
    entries.insert(place(process_of(history, A), 4), entries[place(process_of(history, A), 3)])


def two_contents(history: History) -> None:
    put(process_of(history, A), 3, items=(item(C, 2),))


def two_places(history: History) -> None:
    put(process_of(history, C), 5, seq=7)
    process_of(history, A).entries.insert(
        place(process_of(history, A), 6), delivery(5, C, 2, AGREED, True)
    )


def before_view(history: History) -> None:
    entries = process_of(history, A).entries
    entries.insert(0, entries.pop(place(process_of(history, A), 1)))


def in_later_ring(history: History) -> None:
    entries = process_of(history, A).entries
    entries.append(entries.pop(place(process_of(history, A), 6)))


def wrong_word(history: History) -> None:
    put(process_of(history, A), 4, transitional=True)


def gap(history: History) -> None:
    del process_of(history, B).entries[place(process_of(history, B), 3)]


def gap_of_insider(history: History) -> None:
    for who in (A, B):
        process = process_of(history, who)
        late = place(process, 6)
        process.entries[late] = delivery(8, B, 2, SAFE, True)
    put(process_of(history, C), 5, sender=B)


def reversed_sender(history: History) -> None:
    for who in (A, B, C):
        process = process_of(history, who)
        put(process, 1, items=(item(A, 2),), guarantee=SAFE)
        put(process, 4, items=(item(A, 1),))


def effect_before_cause(history: History) -> None:
    process = process_of(history, A)
    index = next(i for i, e in enumerate(process.entries) if isinstance(e, Submitted))
    process.entries[index] = Submitted(0.5, item(A, 1), AGREED, R1, 3)


def number_left_out(history: History) -> None:
    put(process_of(history, A), 4, items=(item(A, 3),))


def effect_behind_a_hole(history: History) -> None:
    """The sender had delivered the message that only c received, and a delivers the sender's
    message without it."""
    process = process_of(history, B)
    index = next(
        i
        for i, e in enumerate(process.entries)
        if isinstance(e, Submitted) and e.item == item(B, 2)
    )
    process.entries[index] = Submitted(0.5, item(B, 2), SAFE, R1, 5)


def lost_own(history: History) -> None:
    process_of(history, A).entries.append(Submitted(4.0, item(A, 3), SAFE, R3, 0))


def dead_lost_own(history: History) -> None:
    for who in (A, B, C):
        process = process_of(history, who)
        put(process, 4, items=())
    process = process_of(history, A)
    process.entries.insert(1, Submitted(0.5, item(A, 3), SAFE, NO_RING, 0))
    put(process, 6, items=(item(A, 3),), sender=A)
    process.entries.append(Ended(5.0, "crash"))


def stranger_to_itself(history: History) -> None:
    process = process_of(history, A)
    process.entries[0] = Installed(0.0, R1, (B, C))


def two_memberships(history: History) -> None:
    process = process_of(history, A)
    process.entries[0] = Installed(0.0, R1, (A, B))


def ring_goes_back(history: History) -> None:
    process = process_of(history, A)
    process.entries[-1] = Installed(3.0, RingId(2, "b", 1), (A, B, C))


def no_transition(history: History) -> None:
    entries = process_of(history, A).entries
    del entries[-2]


def transition_of_strangers(history: History) -> None:
    process = process_of(history, C)
    process.entries[-2] = Transited(3.0, RingId(2, "c", 1), (A, C))


def uneven_transition(history: History) -> None:
    _replace_transition(process_of(history, A), (A,))


def _replace_transition(process: Process, members: tuple[Who, ...]) -> None:
    index = next(i for i, e in enumerate(process.entries) if isinstance(e, Transited))
    process.entries[index] = Transited(2.0, R1, members)


def old_life_counts(history: History) -> None:
    for who in (A, B):
        process = process_of(history, who)
        process.entries[-2] = Transited(3.0, R2, (A, B, C))


def uneven_set(history: History) -> None:
    process = process_of(history, B)
    del process.entries[place(process, 6)]


def unsafe_regular(history: History) -> None:
    process = process_of(history, C)
    del process.entries[place(process, 4)]


def unsafe_transitional(history: History) -> None:
    process = process_of(history, B)
    del process.entries[place(process, 6)]


def never_there(history: History) -> None:
    process = process_of(history, C)
    entries: list[Entry] = [Installed(3.0, R3, (A, B, C))]
    process.entries[:] = [e for e in process.entries if isinstance(e, Submitted)] + entries


LIES: list[tuple[str, Callable[[History], None]]] = [
    ("G1/B1", invented),
    ("G1/B1", altered),
    ("G1/B1", weakened),
    ("G4/B1", weakened),
    ("G1/B2", twice),
    ("G1/O1", two_contents),
    ("G1/O1", swap_first_two),
    ("G1/B3", two_places),
    ("G2/B5", before_view),
    ("G2/B4", in_later_ring),
    ("G2/B4", wrong_word),
    ("G1/O2", gap),
    ("G1/O3", gap_of_insider),
    ("G5/D2", reversed_sender),
    ("G5/D2", number_left_out),
    ("G1/D3", effect_before_cause),
    ("G1/D3", effect_behind_a_hole),
    ("G3/D1", lost_own),
    ("G3/D1", dead_lost_own),
    ("G6/C1", stranger_to_itself),
    ("G6/C2", two_memberships),
    ("G6/C2", ring_goes_back),
    ("G6/C3", no_transition),
    ("G6/C3", transition_of_strangers),
    ("G6/C4", uneven_transition),
    ("G6/C5", old_life_counts),
    ("G2/V1", uneven_set),
    ("G4/S1", unsafe_regular),
    ("G4/S2", unsafe_transitional),
    ("G4/S3", never_there),
]


def test_the_good_history_is_good() -> None:
    """The history keeps every promise, although it has a hole of an outsider and a split."""
    assert [str(v) for v in check(good())] == []


@pytest.mark.parametrize(("rule", "lie"), LIES, ids=[f"{r} {f.__name__}" for r, f in LIES])
def test_each_lie_is_found(rule: str, lie: Callable[[History], None]) -> None:
    """The rule that the lie breaks reports it."""
    history = good()
    lie(history)
    assert rule in {f"{v.promise}/{v.rule}" for v in check(history)}


def test_a_process_that_ended_owes_nothing() -> None:
    """A member that crashed in ring 1 may have missed what the others delivered as safe."""
    history = good()
    process = process_of(history, C)
    cut = place(process, 4)
    process.entries[cut:] = [Ended(1.5, "crash")]
    assert [str(v) for v in check(history)] == []
