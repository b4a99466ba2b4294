"""Checkers of configurations, virtual synchrony and safe delivery.

Rule names: C configurations, V virtual synchrony, S safe.  One relaxation of the textbook: a member
named in a transitional configuration may fail to install the next ring although it is up, when the
ring breaks between two members' installations; it then counts as failed for C4, but it still owes
every safe message (S1, S2) before its own next regular configuration.
"""

from __future__ import annotations

from tests.sim.checkers.history import History, Installed, Passage, Process, Transited, Who
from tests.sim.checkers.violation import Violation, Violations
from vsync.types import NO_RING, Guarantee, RingId


def self_inclusion(history: History) -> Violations:
    """C1: a member is in every configuration that it installs."""
    for process in history.processes:
        for entry in process.entries:
            if isinstance(entry, Installed | Transited) and process.who not in entry.members:
                yield Violation("G6", "C1", f"{process} installed {entry} without itself")


def one_membership(history: History) -> Violations:
    """C2: one membership for one ring id; ids rise in each process."""
    known: dict[RingId, tuple[Process, tuple[Who, ...]]] = {}
    for process in history.processes:
        last = NO_RING
        for entry in process.entries:
            if not isinstance(entry, Installed):
                continue
            other, members = known.setdefault(entry.ring, (process, entry.members))
            if members != entry.members:
                text = f"ring {entry.ring} is {members} at {other}, {entry.members} at {process}"
                yield Violation("G6", "C2", text)
            if entry.ring.seq <= last.seq:
                text = f"{process} installed ring {entry.ring} after {last}"
                yield Violation("G6", "C2", text)
            last = entry.ring


def alternation(history: History) -> Violations:
    """C3: R, (T, R)*; a transitional configuration is a part of both its neighbours."""
    for process in history.processes:
        regular: Installed | None = None
        trans: Transited | None = None
        for entry in process.entries:
            if isinstance(entry, Transited):
                if regular is None or trans is not None:
                    yield Violation("G6", "C3", f"{process} installed {entry} out of turn")
                elif entry.ring != regular.ring or not set(entry.members) <= set(regular.members):
                    yield Violation("G6", "C3", f"{process} installed {entry} after {regular}")
                trans = entry
            elif isinstance(entry, Installed):
                if regular is not None and trans is None:
                    text = f"{process} went from {regular.ring} to {entry.ring} without transition"
                    yield Violation("G6", "C3", text)
                elif trans is not None and not set(trans.members) <= set(entry.members):
                    yield Violation("G6", "C3", f"{process} installed {entry} after {trans}")
                regular, trans = entry, None


def transitional_agreement(history: History) -> Violations:
    """C4: processes that move together agree on who does.  C5: a new incarnation is a new
    member."""
    passages = [p for p in history.passages() if p.next is not None and p.trans is not None]
    came_from = {(p.process.who, p.next): p.ring for p in passages}
    groups: dict[tuple[RingId, RingId | None], list[Passage]] = {}
    for passage in passages:
        groups.setdefault((passage.ring, passage.next), []).append(passage)
    for (ring, following), group in groups.items():
        first = group[0]
        together = {passage.process.who for passage in group}
        for passage in group:
            trans = passage.trans or ()
            move = f"{ring} -> {following} at {passage.process}"
            if trans != first.trans:
                yield Violation(
                    "G6", "C4", f"{move}: {trans}, but {first.trans} at {first.process}"
                )
            if not together <= set(trans):
                text = f"{move}: {sorted(together - set(trans))} moved along and are not counted"
                yield Violation("G6", "C4", text)
            for who in trans:
                if came_from.get((who, following), ring) != ring:
                    text = f"{move}: {who} is counted but came from {came_from[who, following]}"
                    yield Violation("G6", "C4", text)
                if who not in passage.members:
                    yield Violation("G6", "C5", f"{move}: {who} is counted but was not there")


def virtual_synchrony(history: History) -> Violations:
    """V1: processes that move together from ring to ring delivered the same messages in between."""
    first_of: dict[tuple[RingId, RingId], Passage] = {}
    for passage in history.passages():
        if passage.next is None:
            continue
        first = first_of.setdefault((passage.ring, passage.next), passage)
        mine = {delivered.seq for delivered in passage.deliveries()}
        theirs = {delivered.seq for delivered in first.deliveries()}
        if mine != theirs:
            text = (
                f"{passage.ring} -> {passage.next}: {first.process} alone"
                f" {sorted(theirs - mine)[:8]}, {passage.process} alone {sorted(mine - theirs)[:8]}"
            )
            yield Violation("G2", "V1", text)


def safe(history: History) -> Violations:
    """S1, S2: a safe message delivered by one is delivered by all of its configuration, or they
    died.  S3: safe in a regular configuration means that all of it had installed the ring.
    """
    passages = history.passages()
    at: dict[tuple[Who, RingId], Passage] = {(p.process.who, p.ring): p for p in passages}
    processes = {process.who: process for process in history.processes}
    has = {key: {d.seq for d in passage.deliveries()} for key, passage in at.items()}
    for passage in passages:
        for rule, group, part in (
            ("S1", passage.members, passage.regular),
            ("S2", passage.trans or (), passage.after),
        ):
            safe_ones = [d.seq for d in part if d.guarantee == Guarantee.SAFE]
            if safe_ones:
                for who in group:
                    yield from _owed(passage, rule, safe_ones, who, at, processes, has)


def _owed(
    passage: Passage,
    rule: str,
    seqs: list[int],
    who: Who,
    at: dict[tuple[Who, RingId], Passage],
    processes: dict[Who, Process],
    has: dict[tuple[Who, RingId], set[int]],
) -> Violations:
    process, reached = processes.get(who), at.get((who, passage.ring))
    if process is None or (reached is None and not process.ended):
        text = f"{passage} delivered safe {seqs[0]}; {who} never installed the ring and is up"
        yield Violation("G4", "S3", text)
    elif reached is not None and not (reached.next is None and process.ended):
        for seq in seqs:
            if seq not in has[who, passage.ring]:
                text = f"{passage} delivered safe {seq}; {reached} did not and is up"
                yield Violation("G4", rule, text)


VIEW_CHECKERS = (
    self_inclusion,
    one_membership,
    alternation,
    transitional_agreement,
    virtual_synchrony,
    safe,
)
