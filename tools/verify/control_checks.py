"""All checks on what grows with views and segments, in their order; no Spark.

The full check collects these rows from Spark's tasks and adds what compares the batches of members;
tests parse the segments themselves and have all that shows without such a comparison.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.verify import control, disks, lives, passages, verdicts
from tools.verify.control import Primary
from tools.verify.findings import Finding
from tools.verify.lives import Lived
from tools.verify.rows import Row


class Judged(NamedTuple):
    """What the control rows of all logs show."""

    lives: list[Lived]
    epochs: dict[int, Primary]
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
    control.check_input(rows)
    lived, evidence, begin_inactive = lives.join_segments(rows)
    epochs = control.primaries(rows)
    began = control.begun(rows, epochs)
    notes: list[str] = []
    for said in control.check_segments(rows):
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
        *(() if live else control.check_endings(rows)),
        *control.check_views(rows),
        *passages.check_passages(rows),
        *control.check_primaries(rows),
        *lives.check_synchrony(rows, lived),
        *lives.check_next_primary(lived, epochs, began),
        *lives.check_majority(lived, epochs),
        *disks.check_marks(rows, lived, epochs),
        *verdicts.check_verdicts(rows, epochs),
    ]
    return Judged(lived, epochs, control.cuts(rows, began), begin_inactive, evidence, views, notes)
