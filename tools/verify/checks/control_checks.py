"""All checks on what grows with views and segments, in their order; no Spark.

The full check collects these rows from Spark's tasks and adds what compares the batches of members;
tests parse the segments themselves and have all that shows without such a comparison.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.verify.checks import (
    digest_votes,
    durability,
    lifetimes,
    view_changes,
    views_and_segments,
)
from tools.verify.checks.lifetimes import Lived
from tools.verify.checks.views_and_segments import PrimaryView
from tools.verify.findings import Finding
from tools.verify.input.rows import Row


class Judged(NamedTuple):
    """What the control rows of all logs show."""

    lives: list[Lived]
    epochs: dict[int, PrimaryView]
    cuts: dict[int, int]  # by epoch, where a later one began that does not know the rest
    begin_inactive: list[str]  # files of segments that begin in no primary
    evidence: list[Finding]  # what is wrong within segments, and where they meet
    views: list[Finding]  # what is wrong with views, primaries, and what lives did in them
    notes: list[str]  # what is not known

    @property
    def findings(self) -> list[Finding]:
        """Return all findings."""
        return self.evidence + self.views


def judge_control(rows: list[Row], *, live: bool = False) -> Judged:
    """Judge rows of `control.CONTROL_KINDS` and what votes there are among them, others are not
    looked at; `BadInput` for what is no log, or of several clusters.  `live`: what ends a log may
    not be written yet.
    """
    views_and_segments.check_input(rows)
    lived, evidence, begin_inactive = lifetimes.join_segments(rows)
    epochs = views_and_segments.primaries(rows)
    began = views_and_segments.begun(rows, epochs)
    notes: list[str] = []
    for said in views_and_segments.check_segments(rows):
        if isinstance(said, Finding):
            evidence.append(said)
        else:
            notes.append(said)
    unjudged = sum(life.unjudged for life in lived)
    if unjudged:
        notes.append(
            f"{unjudged} confirms are above the durable mark; whether they were of transient "
            "messages, which need not wait, is not recorded"
        )
    views = [
        *(() if live else views_and_segments.check_endings(rows)),
        *views_and_segments.check_views(rows),
        *view_changes.check_passages(rows),
        *views_and_segments.check_primaries(rows),
        *lifetimes.check_synchrony(rows, lived),
        *lifetimes.check_next_primary(lived, epochs, began),
        *lifetimes.check_majority(lived, epochs),
        *durability.check_marks(rows, lived, epochs),
        *digest_votes.check_verdicts(rows, epochs),
    ]
    return Judged(
        lived, epochs, views_and_segments.cuts(rows, began), begin_inactive, evidence, views, notes
    )
