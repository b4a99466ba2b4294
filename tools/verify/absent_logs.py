"""Which members' logs are missing: members named by views and primaries that have no log here.

A log proves only as much as it can be compared with. Of a set of voters the logs of a majority are
needed, or messages confirmed by the others may contradict everything here. Pure Python over VIEW,
ACTIVE and SEGMENT rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tools.verify.format.records import RecordKind
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.voters import Voters, read_voters


class AbsentLogs(NamedTuple):
    """Members that the logs name but whose own logs are missing."""

    members: tuple[str, ...]
    voters: tuple[str, ...]  # with data, of the newest primary
    enough: bool  # the logs of a majority of these are available

    def notes(self) -> list[str]:
        """Return for each what is unknown, for people."""
        return [
            f"{name} is named by the other members, but no log of it is here: what it applied and "
            "confirmed is not known"
            for name in self.members
        ]

    def reason(self) -> str:
        """Return why there can be no verdict."""
        here = ", ".join(name for name in self.voters if name not in self.members) or "none"
        return (
            f"nothing to compare: of the voters {', '.join(self.voters)} the logs of {here} are "
            "here, and those of a majority are needed; collect DATA-DIR/memberlog of "
            f"{', '.join(self.members)} too, also from the disks of dead members"
        )


def find_absent(rows: Iterable[Row]) -> AbsentLogs:
    """Return whose logs are missing; `rows` are the control rows of all logs."""
    named: set[str] = set()
    here: set[str] = set()
    arbitrators: set[str] = set()
    newest, voters = -1, Voters(())
    for row in rows:
        if row.kind == SEGMENT:
            here.add(row.member)
        elif row.kind in (RecordKind.VIEW, RecordKind.ACTIVE):
            named.update(name.rsplit("/", 1)[0] for name in row.names or [])
        if row.kind == RecordKind.ACTIVE:
            of_row = read_voters(row.voters or [])
            named |= of_row.data_names
            arbitrators |= of_row.arbitrators
            if (row.epoch or 0) > newest:
                newest, voters = row.epoch or 0, of_row
    return AbsentLogs(
        tuple(sorted(named - arbitrators - here)),
        tuple(sorted(voters.data_names)),
        all(2 * one.votes_of(here) > sum(one.votes.values()) for one in voters.sets),
    )
