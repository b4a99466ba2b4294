"""The findings of the members that were asked, and the members that did not answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tools.cli.answers import Object, items, objects
from tools.client.broker_url import Address
from tools.client.http_api import Api, ApiError, NotRunning
from vsync.types import record

PATIENCE_S = 5.0
"""The time for each member: one that hangs accepts the connection, and sends nothing."""
OF_MANY = ("queue",)
"""Kinds of objects of which members name only the worst few, which may differ between members."""


@record
class Silent:
    """A member that was asked, and why there is no answer."""

    address: Address
    problem: ApiError


@record
class Answers:
    """All answers."""

    heard: list[Object]
    """The content of `GET /api/qpid/findings`, one member after the other."""
    silent: list[Silent]

    @property
    def best(self) -> Object:
        """The answer of a member that serves, if one does."""
        return next((one for one in self.heard if one.get("status") == "ACTIVE"), self.heard[0])

    def findings(self) -> list[Object]:
        """Each finding once, with the members that see it as `seen_by`; the gravest first."""
        merged: dict[tuple[str, ...], Object] = {}
        for document in self.heard:
            for one in objects(document.get("findings")):
                found = merged.setdefault(_key(one), {**one, "seen_by": []})
                seen_by = found["seen_by"]
                assert isinstance(seen_by, list)
                seen_by.append(document.get("node"))
        return sorted(merged.values(), key=lambda one: place_of(str(one.get("severity"))))

    def unknown(self) -> list[str]:
        """What the members that answered could not tell, except what another one of them can."""
        told = [{str(one) for one in items(document.get("unknown"))} for document in self.heard]
        return sorted(set.union(*told)) if all(told) else []

    @property
    def grave(self) -> bool:
        """Whether an operator has to act."""
        return bool(self.silent) or any(one["severity"] != LEVELS[-1] for one in self.findings())


LEVELS = ("critical", "warning", "notice")


def place_of(severity: str) -> int:
    """Its place in the order; a finding of a later release goes to the end."""
    return LEVELS.index(severity) if severity in LEVELS else len(LEVELS)


def _key(finding: Object) -> tuple[str, ...]:
    named = () if finding.get("kind") in OF_MANY else map(str, items(finding.get("objects")))
    return (str(finding.get("name")), *sorted(named))


def asked(api: Api) -> Answers:
    """Ask every member of the list. Raises ApiError if none of them answers."""
    patience_s = min(api.timeout_seconds or PATIENCE_S, PATIENCE_S)
    found = Answers([], [])
    for address in (api.address, *api.others):
        one = replace(api, address=address, others=(), timeout_seconds=patience_s)
        try:
            found.heard.append(one.fields("qpid", "findings"))
        except ApiError as problem:
            if problem.status == 404:
                problem = ApiError(f"{address} has a release that finds nothing by itself", 404)
            found.silent.append(Silent(address, problem))
    if not found.heard:
        raise _all_of([one.problem for one in found.silent])
    return found


def _all_of(problems: Sequence[ApiError]) -> ApiError:
    """One reason for all: that no member runs is said only if it is true of each."""
    first = next((one for one in problems if not isinstance(one, NotRunning)), problems[0])
    return type(first)("; ".join(str(one) for one in problems), first.status)
