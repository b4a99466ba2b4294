"""The part of `qpid-cluster` that changes voters: orders a change and waits for its effect."""

from __future__ import annotations

from collections.abc import Callable

import click

from tools.cli.shared_options import together
from tools.client.management import ClusterStatus, ManagementError, Target, wait_for
from vsync.types import record


@record
class Change:
    """One change of the voters, in the protocol's terms."""

    action: str
    member: str = ""
    by: str = ""
    votes: int = 0


with_voter_options = together(
    click.option("--add-voter", metavar="ID", help="Make an ACTIVE member a voter."),
    click.option(
        "--remove-voter", metavar="ID", help="Remove a voter, whether it is running or gone."
    ),
    click.option(
        "--replace-voter", nargs=2, metavar="OLD NEW",
        help="Make NEW, which must be ACTIVE, a voter in place of OLD, running or gone.",
    ),
    click.option(
        "--set-votes", nargs=2, metavar="ID N", help="Give a voter N votes.",
    ),
    click.option(
        "--expected-votes", metavar="N",
        help="Compute the quorum from N votes; 0: from the sum of all votes.",
    ),
)  # fmt: skip


def change_of(
    add_voter: str | None,
    remove_voter: str | None,
    replace_voter: tuple[str, str] | None,
    set_votes: tuple[str, str] | None,
    expected_votes: str | None,
) -> Change | None:
    """Return the requested change, None if there is none; UsageError if there are two."""
    found: list[Change] = []
    if add_voter is not None:
        found.append(Change("add", add_voter))
    if remove_voter is not None:
        found.append(Change("remove", remove_voter))
    if replace_voter is not None:
        found.append(Change("replace", *replace_voter))
    if set_votes is not None:
        found.append(Change("votes", set_votes[0], votes=_whole("--set-votes", set_votes[1])))
    if expected_votes is not None:
        found.append(Change("expected", votes=_whole("--expected-votes", expected_votes)))
    if len(found) > 1:
        raise click.UsageError("Only one command option may be supplied")
    return found[0] if found else None


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{option}: '{text}' is not a whole number") from None


def change_voters(target: Target, change: Change) -> str:
    """Order a change and wait until it is in force; return the new voters as a line.

    The text of a ManagementError says whether the change was ordered: it may still come into force.
    """
    answer = target.ask(
        op="voters", action=change.action, id=change.member, by=change.by, votes=change.votes
    )
    wanted = answer.get("voter_set")
    if not isinstance(wanted, list):
        raise ManagementError("the broker did not say what the voters will be")
    wait_until(target, lambda status: status.raw.get("voter_set") == wanted)
    return "        Voters: " + ", ".join(str(term) for term in wanted)


def wait_until(target: Target, in_force: Callable[[ClusterStatus], bool]) -> None:
    """Return when the ordered change is in force; ManagementError when the target's time is up."""
    otherwise = "the change is not in force yet; see qpid-cluster --json"
    wait_for(lambda: in_force(target.status()) or None, target.timeout_seconds, lambda: otherwise)
