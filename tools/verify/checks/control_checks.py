"""All checks of control rows, which grow with views and segments; no Spark.

The full check collects these rows from Spark's tasks and adds the comparison of members' batches.
Tests parse the segments themselves and get all findings except those of that comparison.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.verify.checks import (
    confirms,
    digest_votes,
    epoch_beginnings,
    leases,
    lifetimes,
    view_changes,
    views_and_segments,
    voter_changes,
)
from tools.verify.checks.canonical_history import epoch_bounds
from tools.verify.checks.lifetimes import Incarnation
from tools.verify.checks.views_and_segments import IncarnationId, PrimaryView
from tools.verify.findings import Finding
from tools.verify.input.rows import Row


class ControlResult(NamedTuple):
    """Result of the checks of control rows."""

    incarnations: list[Incarnation]
    epochs: dict[int, PrimaryView]
    cutoffs: dict[int, int]  # by epoch, the position after which a later one superseded it
    begin_inactive: list[str]  # files of segments that begin outside of a primary
    evidence: list[Finding]  # faults within segments and at their joints
    views: list[Finding]  # faults of views, primaries, and of what incarnations did in them
    notes: list[str]  # what is not known, for people

    @property
    def findings(self) -> list[Finding]:
        return self.evidence + self.views


def overtaken_in(rows: list[Row]) -> dict[IncarnationId, str]:
    """Return whose logs to leave out of all checks, because they prove nothing, and why."""
    return leases.overtaken_at_once(rows)


def check_control_rows(rows: list[Row], *, live: bool = False) -> ControlResult:
    """Check rows of `views_and_segments.CONTROL_KINDS` and votes; other rows are ignored.

    `live`: the end of a log may not be written yet. Raises `BadInput` for files that are not logs,
    or of several clusters.
    """
    views_and_segments.check_input(rows)
    incarnations, evidence, begin_inactive = lifetimes.join_segments(rows)
    epochs = views_and_segments.primaries(rows)
    bounds = epoch_bounds(rows, epochs)
    of_segments = list(views_and_segments.check_segments(rows))
    of_states = list(lifetimes.check_starts(rows))
    of_states += [] if live else lifetimes.check_unfounded_states(rows, epochs)
    evidence += [one for one in of_segments if isinstance(one, Finding)]
    notes = [one for one in of_segments + of_states if isinstance(one, str)]
    views = [
        *(() if live else views_and_segments.check_closing_records(rows)),
        *view_changes.check_views(rows),
        *view_changes.check_view_changes(rows),
        *views_and_segments.check_primaries(rows),
        *voter_changes.check_voter_changes(rows, epochs),
        *voter_changes.check_pairs(rows),
        *voter_changes.check_active_member(rows, epochs, bounds.cutoffs),
        *(() if live else leases.check_leases(rows, incarnations)),
        *epoch_beginnings.check_epoch_beginnings(rows, epochs),
        *(one for one in of_states if isinstance(one, Finding)),
        *lifetimes.check_synchrony(rows, incarnations),
        *lifetimes.check_next_primary(incarnations, epochs, bounds.bases),
        *lifetimes.check_majority(incarnations, epochs),
        *confirms.check_marks(rows, incarnations, epochs),
        *digest_votes.check_verdicts(rows, epochs),
    ]
    return ControlResult(
        incarnations, epochs, bounds.cutoffs, begin_inactive, evidence, views, notes
    )  # fmt: skip
