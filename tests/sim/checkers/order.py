"""Checkers of content and order: nothing invented, nothing twice, one order, no holes.

Rule names: B basic, D sender's view, O order (the usual names of extended virtual synchrony).  They
work on logs alone.  Sequence numbers that no process delivered (recovery frames, fragments of a
large message) leave no trace in any log, so "no gap" refers to numbers that some process delivered.
"""

from __future__ import annotations

from tests.sim.checkers.history import (
    Delivered,
    History,
    Installed,
    Item,
    Passage,
    Process,
    Submitted,
    Who,
)
from tests.sim.checkers.violation import Violation, Violations
from vsync.types import NO_RING, Guarantee, RingId

Place = tuple[RingId, int]


def submits(history: History) -> dict[tuple[Who, int], Submitted]:
    """Every accepted submit by its source and number."""
    return {
        (process.who, entry.item.number): entry
        for process in history.processes
        for entry in process.entries
        if isinstance(entry, Submitted)
    }


def deliveries(process: Process) -> list[Delivered]:
    return [entry for entry in process.entries if isinstance(entry, Delivered)]


def no_creation(history: History) -> Violations:
    """B1: every delivered message was submitted by its source, unaltered, with that guarantee."""
    known = submits(history)
    for process in history.processes:
        for delivered in deliveries(process):
            for item in delivered.items:
                submitted = known.get((item.source, item.number))
                if submitted is None:
                    text = f"{process} delivered {item}, which nobody submitted"
                elif submitted.item.digest != item.digest:
                    text = f"{process} delivered {item} with other bytes than were submitted"
                elif item.source != delivered.sender:
                    text = f"{process} delivered {item} in the name of {delivered.sender}"
                elif delivered.guarantee < submitted.guarantee:
                    text = f"{process} delivered {item} with less than its guarantee"
                else:
                    continue
                yield Violation("G1", "B1", text)


def once(history: History) -> Violations:
    """B2: each process delivers each place of a ring, and each message, at most once."""
    for process in history.processes:
        places: set[Place] = set()
        items: set[Item] = set()
        for delivered in deliveries(process):
            place = (delivered.ring, delivered.seq)
            if place in places:
                yield Violation("G1", "B2", f"{process} delivered {place} twice")
            places.add(place)
            for item in delivered.items:
                if item in items:
                    yield Violation("G1", "B2", f"{process} delivered {item} twice")
                items.add(item)


def one_content(history: History) -> Violations:
    """O1 and B3: one content for each place on all members, one place for each message."""
    contents: dict[Place, tuple[Process, Delivered]] = {}
    places: dict[tuple[Who, int], tuple[Process, Place]] = {}
    for process in history.processes:
        for delivered in deliveries(process):
            place = (delivered.ring, delivered.seq)
            first, known = contents.setdefault(place, (process, delivered))
            if (known.sender, known.items) != (delivered.sender, delivered.items):
                text = f"{place} is {known.items} at {first} and {delivered.items} at {process}"
                yield Violation("G1", "O1", text)
            for item in delivered.items:
                other, at = places.setdefault((item.source, item.number), (process, place))
                if at != place:
                    text = f"{item} is ordered at {at} at {other} and at {place} at {process}"
                    yield Violation("G1", "B3", text)


def same_configuration(history: History) -> Violations:
    """B4 and B5: delivered in its ring's configuration, or in the transitional one right after."""
    for process in history.processes:
        ring = NO_RING
        for entry in process.entries:
            if isinstance(entry, Installed):
                ring = entry.ring
            elif isinstance(entry, Delivered) and entry.ring != ring:
                rule = "B5" if ring == NO_RING else "B4"
                text = f"{process} in ring {ring} delivered {entry.ring}:{entry.seq}"
                yield Violation("G2", rule, text)
    for passage in history.passages():
        for part, transitional in ((passage.regular, False), (passage.after, True)):
            for delivered in part:
                if delivered.transitional != transitional:
                    text = f"{passage}: {delivered.seq} says {delivered.transitional}"
                    yield Violation("G2", "B4", text)


def ascending(history: History) -> Violations:
    """O1: within a ring every process delivers by ascending sequence number.

    In the regular configuration it rises by one, from the end of recovery: every frame of an
    application yields a delivery, if only an empty one.
    """
    for passage in history.passages():
        last = 0
        for delivered in passage.deliveries():
            if delivered.seq <= last:
                yield Violation("G1", "O1", f"{passage} delivered {delivered.seq} after {last}")
            elif last and delivered.seq != last + 1 and not delivered.transitional:
                yield Violation("G1", "O2", f"{passage} delivered {delivered.seq} after {last}")
            last = delivered.seq


def no_gap(history: History) -> Violations:
    """O2: no hole in a regular configuration.  O3: in a transitional one only holes of
    outsiders."""
    passages = history.passages()
    by_ring: dict[RingId, dict[int, Delivered]] = {}
    for passage in passages:
        for delivered in passage.deliveries():
            by_ring.setdefault(passage.ring, {}).setdefault(delivered.seq, delivered)
    for passage in passages:
        yield from _gaps_of(passage, by_ring.get(passage.ring, {}))


def _gaps_of(passage: Passage, known: dict[int, Delivered]) -> Violations:
    mine = {delivered.seq for delivered in passage.deliveries()}
    regular_end = max((delivered.seq for delivered in passage.regular), default=0)
    end = max(mine, default=0)
    for seq in sorted(known):
        if seq in mine or seq > end:
            continue
        if seq < regular_end:
            yield Violation("G1", "O2", f"{passage} delivered {regular_end} but not {seq}")
        elif passage.trans is not None and known[seq].sender in passage.trans:
            text = f"{passage} left out {seq} of {known[seq].sender}, who moved along"
            yield Violation("G1", "O3", text)


def fifo(history: History) -> Violations:
    """D2: the messages of one sender arrive in the order in which it submitted them.

    Within one ring none between two of them is missing, as it was ordered there before the second.
    """
    for passage in history.passages():
        in_ring: dict[Who, int] = {}
        for delivered in passage.deliveries():
            for item in delivered.items:
                before = in_ring.get(item.source, item.number - 1)
                if item.number > before + 1:
                    text = f"{passage} delivered {item} after number {before}, and none between"
                    yield Violation("G5", "D2", text)
                in_ring[item.source] = item.number
    for process in history.processes:
        last: dict[Who, int] = {}
        for delivered in deliveries(process):
            for item in delivered.items:
                before = last.get(item.source, 0)
                if item.number <= before:
                    text = f"{process} delivered {item} after number {before}"
                    yield Violation("G5", "D2", text)
                last[item.source] = item.number


def _delivered_by_ring(history: History) -> dict[RingId, set[int]]:
    """The deliveries of each ring at any process."""
    found: dict[RingId, set[int]] = {}
    for passage in history.passages():
        found.setdefault(passage.ring, set()).update(d.seq for d in passage.deliveries())
    return found


def causal(history: History) -> Violations:
    """D3: a message is ordered after everything that its sender had delivered when submitting.

    A process that delivers it has delivered all that before, or has a hole there: no effect without
    its cause.
    """
    known = submits(history)
    by_ring = _delivered_by_ring(history)
    for passage in history.passages():
        mine = {delivered.seq for delivered in passage.deliveries()}
        hole = min(by_ring.get(passage.ring, set()) - mine, default=0)
        for delivered in passage.deliveries() if hole else ():
            for item in delivered.items:
                submitted = known.get((item.source, item.number))
                if submitted and submitted.ring == passage.ring and submitted.seq >= hole:
                    text = f"{passage} delivered {item} without {hole}, which its sender had"
                    yield Violation("G1", "D3", text)
    for process in history.processes:
        for delivered in deliveries(process):
            for item in delivered.items:
                submitted = known.get((item.source, item.number))
                if submitted is None or submitted.ring != delivered.ring:
                    continue
                if delivered.seq <= submitted.seq:
                    text = f"{item} is ordered at {delivered.seq}, submitted after {submitted.seq}"
                    yield Violation("G1", "D3", text)


def self_delivery(history: History) -> Violations:
    """D1: a process that delivers a later own message, or is up at the end, lost none before.

    A stopped process may leave its last messages unsent, but never a hole among them.
    """
    for process in history.processes:
        mine = [
            item.number
            for delivered in deliveries(process)
            for item in delivered.items
            if item.source == process.who
        ]
        taken = sum(isinstance(entry, Submitted) for entry in process.entries)
        expected = max(mine, default=0) if process.ended else taken
        lost = sorted(set(range(1, expected + 1)) - set(mine))
        if lost:
            text = f"{process} lost its own {lost[:8]} ({len(lost)} of {taken} submitted)"
            yield Violation("G3", "D1", text)


def guarantee_kept(history: History) -> Violations:
    """B1 for the level: all processes see one guarantee for one place."""
    seen: dict[Place, Guarantee] = {}
    for process in history.processes:
        for delivered in deliveries(process):
            place = (delivered.ring, delivered.seq)
            if seen.setdefault(place, delivered.guarantee) != delivered.guarantee:
                yield Violation("G4", "B1", f"{place} has two guarantees")


ORDER_CHECKERS = (
    no_creation,
    once,
    one_content,
    same_configuration,
    ascending,
    no_gap,
    fifo,
    causal,
    self_delivery,
    guarantee_kept,
)
