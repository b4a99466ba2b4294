"""Results of checks: coverage, and findings that name the broken promise of docs/GUARANTEES.md."""

from __future__ import annotations

from typing import NamedTuple

INSTALL = "install it with: pip install 'qpid-cluster-py[verify]'"
PROPERTIES = {
    "LOG": "the evidence is whole",
    "G1": "total order",
    "G2": "virtual synchrony",
    "G5": "order of one source",
    "G6": "agreement on views",
    "G7": "one primary at a time",
    "G8": "nothing confirmed is forgotten",
    "G9": "durable before acknowledged",
    "G10": "divergence is named",
    "G11": "redelivery has a cause",
    "G12": "order of a queue",
    "G13": "one holder",
    "G14": "same state everywhere",
    "G17": "expiry by one clock",
    "G20": "one message, one end",
    "G23": "a number is taken once",
    "G25": "one active member",
    "G29": "a stream is read in order",
    "G30": "only a newer value replaces",
    "G32": "a group has one holder",
    "G34": "a kept group stays",
    "G38": "one leads a shared store",
}


class Finding(NamedTuple):
    """One broken promise: which, by which member, at which position, and how it shows."""

    property: str
    member: str  # "" when it concerns no particular member
    incarnation: int
    position: int  # -1 when there is none
    what: str
    until: int = -1  # the last position concerned, if there are several
    queue: str = ""  # vhost and name, if it is about a queue
    around: tuple[str, ...] = ()  # other moves of the message, and of this command

    def __str__(self) -> str:
        who = f"member {self.member} (incarnation {self.incarnation}) " if self.member else ""
        where = f"at position {self.position}" if self.position >= 0 else ""
        subject = f"{who}{where}".strip()
        said = f"{subject}: {self.what}" if subject else self.what
        return shown(f"{self.property} ({PROPERTIES[self.property]}): {said}")


ERASE = "\r\x1b[K"
"""Erases a line of progress on a terminal."""


def shown(text: str) -> str:
    """Return a text as one line that is safe for a terminal: users choose the names of queues."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Coverage(NamedTuple):
    """How many items one check examined: a check that saw nothing proves nothing."""

    promise: str
    check: str
    rows: int
    of: str
    due: bool = False  # there was something to examine: no rows are a hole in the proof


class BadInput(Exception):
    """There can be no verdict: logs empty, unreadable, or of several clusters."""
