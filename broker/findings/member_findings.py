"""One member's present findings: gathers what it knows, and applies the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from broker.findings.rules import NAMES, findings, unknown
from broker.findings.situation import LinkSeen, MemberSeen, Situation, ViewSeen
from broker.shovels.supervisor import Shovels
from broker.statistics.figures import Figures
from broker.statistics.observation import Observation

Row = Mapping[str, object]


class MemberFindings:
    """The findings of one member."""

    def __init__(
        self,
        status: Callable[[], Row],
        observed: Observation,
        movers: Shovels,
        now_ms: Callable[[], int],
        cluster: str,
        unloaded: Callable[[], tuple[str, str] | None] = lambda: None,
        not_taken: Callable[[], str] = str,
    ) -> None:
        """`status`: the reply to `status`; `cluster`: the name to show; `unloaded`: the file of
        definitions that was not loaded completely, and why; `not_taken`: what SIGHUP did not put in
        force, and why."""
        self._status, self._observed, self._movers = status, observed, movers
        self._now_ms, self._cluster, self._unloaded = now_ms, cluster, unloaded
        self._not_taken = not_taken

    def document(self) -> dict[str, object]:
        """Return all findings, and what cannot be known, for HTTP clients."""
        seen = self._situation()
        here = sum(one.state != "DOWN" for one in seen.members)
        return {
            "cluster": seen.cluster, "node": seen.me, "status": seen.status,
            "members": len(seen.members), "members_here": here,
            "findings": [one.row() for one in findings(seen)], "unknown": unknown(seen),
        }  # fmt: skip

    def counts(self) -> list[tuple[str, str, int]]:
        """Return for each possible finding its name, its severity, and the number of objects to
        which it applies now."""
        found: dict[str, int] = dict.fromkeys(NAMES, 0)
        for one in findings(self._situation()):
            found[one.name] += one.count
        return [(name, NAMES[name][0], count) for name, count in found.items()]

    def _situation(self) -> Situation:
        status, observed = self._status(), self._observed
        members = _rows(status, "members")
        me = next((str(one["id"]) for one in members if one.get("local")), "")
        serves = status.get("status") == "ACTIVE"
        clocks, disk, space_unknown = observed.local_alarms()
        votes = cast("Mapping[str, int]", status.get("quorum") or {})
        ha = cast("Row", status.get("ha") or {})
        return Situation(
            self._now_ms(), me, self._cluster, str(status.get("status")),
            str(status.get("reason") or ""),
            members=[self._member(one) for one in members],
            votes=votes.get("total_votes", 0), votes_needed=votes.get("quorum", 0),
            views=[
                ViewSeen(
                    cast("int", one["at_ms"]), cast("list[str]", one["members"]),
                    bool(one["primary"]), cast("list[str]", one["left"]),
                )
                for one in _rows(status, "views")
            ],
            alarms=dict(observed.machine.alarms), clock_alarms=clocks, disk_alarm=disk,
            space_unknown=space_unknown,
            drained=cast("list[str]", status.get("drained") or []),
            links_down=cast("list[str]", status.get("links_down") or []),
            roles=[str(one.get("status")) for one in _rows(ha, "members")], pair="pair" in ha,
            version=cast("int", status.get("machine_version", 0)),
            version_possible=cast("int", status.get("machine_version_possible", 0)),
            queues=observed.statistics.sampler.noted if serves else None,
            links=self._links() if serves else [], unloaded=self._unloaded(),
            not_taken=self._not_taken(),
        )  # fmt: skip

    def _member(self, row: Row) -> MemberSeen:
        name = str(row["id"])
        heard: Figures | None = None
        if row["state"] != "DOWN":
            heard = self._observed.statistics.members.of(name)
        share = cast("float | None", row.get("received_percent"))
        return MemberSeen(
            name, str(row["state"]), heard, share, bool(row.get("arbitrator")),
            voter=bool(row.get("voter", True)),
        )  # fmt: skip

    def _links(self) -> list[LinkSeen]:
        movers, found = self._movers, list[LinkSeen]()
        for what, rows in (
            ("shovel", movers.rows()), ("federation link", movers.link_rows()),
            ("replica", movers.replica_rows()),
        ):  # fmt: skip
            for row in rows:
                name = row.get("name") or row.get("exchange") or row.get("queue")
                place, reason = f"{row.get('vhost')} {name}", str(row.get("reason") or "")
                found.append(LinkSeen(what, place, str(row.get("state")), reason))
        return found


def _rows(found: Row, name: str) -> list[Row]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
