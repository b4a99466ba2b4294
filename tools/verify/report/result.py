"""Result of the full check: verdict, findings, notes, and how much was examined."""

from __future__ import annotations

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
    """Verdict of a check with its evidence."""

    counts: Counts = field(default_factory=Counts)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timeline: Timeline | None = None  # for pictures, where they were asked for
    clients: ClientReport | None = None  # None: no client kept a history
    checks: list[Coverage] = field(default_factory=list)  # how much each check examined

    @property
    def consistent(self) -> bool:
        """Whether no finding shows a broken promise."""
        return not self.findings

    def as_document(self) -> dict[str, object]:
        """Return the report as plain values for JSON."""
        return {
            "consistent": self.consistent,
            "counts": asdict(self.counts),
            "findings": [
                {**finding._asdict(), "title": PROPERTIES[finding.property]}
                for finding in self.findings
            ],
            "notes": self.notes,
            "checks": [one._asdict() for one in self.checks],
            "clients": self.clients and self.clients.as_document(),
        }
