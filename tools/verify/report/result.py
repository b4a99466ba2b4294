"""The result of the full check: verdict, findings, notes, and how much was examined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from tools.verify.clients.check import ClientReport
from tools.verify.findings import PROPERTIES, Coverage, Finding
from tools.verify.report.timeline import Timeline


@dataclass(slots=True)
class Counts:
    """How much was read: a check that saw nothing proves nothing."""

    members: int = 0
    lives: int = 0
    segments: int = 0
    bytes: int = 0
    records: int = 0
    batches: int = 0
    positions: int = 0
    publishes: int = 0
    confirms: int = 0
    views: int = 0
    epochs: int = 0


@dataclass(slots=True)
class Report:
    """The verdict of a check with its evidence."""

    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timeline: Timeline | None = None  # for pictures, if they were requested
    clients: ClientReport | None = None  # None: no client kept a history
    checks: list[Coverage] = field(default_factory=list)  # how much each check examined

    @property
    def consistent(self) -> bool:
        """Whether no finding shows a broken promise."""
        return not self.findings

    @property
    def held(self) -> dict[str, str]:
        """Return the amount examined for each promise; a promise that no check saw is missing.

        Of several checks of a promise the first one that saw something counts.
        """
        seen: dict[str, str] = {}
        for one in self.checks:
            for promise in one.promise.split() if one.rows else ():
                seen.setdefault(promise, f"{one.rows:,} {one.of}")
        return {promise: seen[promise] for promise in PROPERTIES if promise in seen}

    @property
    def unseen(self) -> list[Coverage]:
        """Return the checks that saw none of the existing items."""
        return [one for one in self.checks if one.due and not one.rows]

    def verdict(self) -> Iterator[str]:
        """Yield, if no promise was broken, which were seen to hold, and in how many items."""
        held = {promise: on for promise, on in self.held.items() if promise != "LOG"}
        how = "consistent as far as looked" if self.unseen else "consistent"
        yield f"{how}: {', '.join(held)} hold in these logs"
        yield "seen: " + ", ".join(f"{promise} on {on}" for promise, on in held.items())
        for one in self.unseen:
            yield f"not seen: {one.promise}: {one.check}: no {one.of}"
        never = [name for name in PROPERTIES if name not in self.held]
        if never:
            yield f"nothing to see of {', '.join(never)} in these logs"

    def as_document(self) -> dict[str, object]:
        return {
            "consistent": self.consistent,
            "held": self.held,
            "not_seen": [f"{one.promise}: {one.check}" for one in self.unseen],
            "counts": asdict(self.counts),
            "findings": [
                {**finding._asdict(), "title": PROPERTIES[finding.property]}
                for finding in self.findings
            ],
            "notes": self.notes,
            "checks": [one._asdict() for one in self.checks],
            "clients": self.clients and self.clients.as_document(),
        }
