"""The trace of a member: one record per fact, with a kind and its fields.

Nothing here reads a clock or writes a file; `vsync.io.traced_driver` does. Rare facts (phase moves,
views, commits, recoveries) are always noted, as a `Note`. Facts that may occur with every frame
(drops, retransmissions, joins) are noted only while tracing is on, and a `TraceDigest` merges equal
facts of one moment.
"""

from __future__ import annotations

from vsync.totem.context import names
from vsync.totem.events import Marks, Note, Output, Transitional

Fields = dict[str, str | int | float]
Fact = tuple[float, str, Fields]
"""Time, kind and fields."""

KINDS = {
    "trace": "a trace begins: which member writes it",
    "phase": "the phase moved, and why",
    "join_sent": "candidates and failed members",
    "join_heard": "the same, of another member",
    "failed": "members given up",
    "stuck": "a member that failed to receive",
    "suspect": "the link to a member broke",
    "checked": "how the check of it ended",
    "gone": "why a member of the ring before is out",
    "falsely": "members that ran all the time while the ring was given up",
    "meet": "a merge with another ring begins",
    "met": "members known, in the ring or not, have changed",
    "commit": "a ring is agreed on",
    "recovery": "what is to be sent of the old ring, and who comes along",
    "closing": "how the old ring ended",
    "transitional": "the members that come along",
    "view": "a ring was installed",
    "token_lost": "the token did not come in time",
    "token_resent": "the token was sent again",
    "token_slowed": "the token was kept back, as the application is behind",
    "retransmitted": "frames sent again on request",
    "asked": "frames asked for",
    "recovered_sent": "frames of the old ring sent again",
    "fragments_sent_again": "a payload was begun again",
    "fragment_restarted": "a sender began its payload again",
    "drop": "a frame was not used: why, and who it came from",
    "marks": "the mark (durable position) of each member",
    "primary": "the primary layer moved",
}
"""Every kind of record."""

_ALIKE = frozenset(
    ("drop", "retransmitted", "asked", "recovered_sent", "token_resent", "fragment_restarted")
)


def fact(output: Output) -> tuple[str, Fields] | None:
    """The record of one output of a node; None if there is none."""
    if isinstance(output, Note):
        return output.code, output.fields
    if isinstance(output, Marks):
        return "marks", dict(output.marks)
    if isinstance(output, Transitional):
        return "transitional", {"ring": str(output.ring), "members": names(output.members)}
    return None


class TraceDigest:
    """Facts in order; equal ones between two `take`s become one, with `times` and the first
    time.
    """

    def __init__(self) -> None:
        self._facts: list[Fact] = []
        self._alike: dict[tuple[object, ...], Fields] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def add(self, at: float, kind: str, fields: Fields) -> None:
        """One more fact."""
        if kind in _ALIKE:
            times = fields.get("times", 1)
            assert isinstance(times, int)
            key = (kind, fields.get("why"), fields.get("from"))
            held = self._alike.get(key)
            if held is not None:
                held["times"] = int(held["times"]) + times
                return
            fields = self._alike[key] = {**fields, "times": times}
        elif kind == "marks":
            held = self._alike.get((kind,))
            if held is not None:
                held.clear()
                held.update(fields)
                return
            self._alike[(kind,)] = fields
        self._facts.append((at, kind, fields))

    def take(self) -> list[Fact]:
        """The facts since the last call."""
        found, self._facts = self._facts, []
        self._alike.clear()
        return found
