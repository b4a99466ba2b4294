"""Findings a member gathers: from its status, its machine and the reports of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from broker.findings.member_findings import MemberFindings
from broker.findings.rules import NAMES
from broker.shovels.supervisor import Shovels
from broker.statistics.observation import Observation
from tests.support.observed import Observed as Seen

NOW_MS = 1_790_001_000_000


def status(**more: object) -> dict[str, object]:
    """The status of one of three members; `c` is away."""
    members = [
        {"id": "a", "state": "ACTIVE", "local": True, "arbitrator": False},
        {"id": "b", "state": "ACTIVE", "local": False, "arbitrator": False},
        {"id": "c", "state": "DOWN", "local": False, "arbitrator": False},
    ]
    return {
        "status": "ACTIVE", "reason": "", "members": members,
        "quorum": {"total_votes": 2, "quorum": 2},
        "views": [
            {"at_ms": NOW_MS - 60_000, "members": ["a", "b", "c"], "primary": True, "left": []},
            {"at_ms": NOW_MS - 30_000, "members": ["a", "b"], "primary": True, "left": []},
        ],
        "drained": ["b"], "links_down": [], "machine_version": 1, "machine_version_possible": 1,
        "ha": {"status": "stand-alone"}, **more,
    }  # fmt: skip


def of_member(
    seen: Seen, unloaded: tuple[str, str] | None = None, **more: object
) -> MemberFindings:
    """The findings of `a`, which has two failed links and a report of a clock."""
    observed = SimpleNamespace(
        statistics=seen.statistics, machine=seen.machine,
        local_alarms=lambda: ({"b": "the clock of b is 12.0 s ahead"}, "", ""),
    )  # fmt: skip
    row = {"vhost": "/", "state": "terminated", "reason": "refused"}
    movers = SimpleNamespace(
        rows=lambda: [{**row, "name": "away"}],
        link_rows=list,
        replica_rows=lambda: [{**row, "queue": "spare"}],
    )
    return MemberFindings(
        lambda: status(**more), cast("Observation", observed), cast("Shovels", movers),
        lambda: NOW_MS, "shop", lambda: unloaded,
    )  # fmt: skip


def test_reports_of_several_places_are_combined() -> None:
    seen = Seen()
    seen.figures = dict.fromkeys(seen.figures, 0.0)
    client = seen.rig.client("a")
    client.queue("parked")
    client.publish("parked")
    seen.sweep()
    document = of_member(seen).document()
    found = document["findings"]
    assert isinstance(found, list)
    assert [(one["name"], one["objects"]) for one in found] == [
        ("member-down", ["c"]), ("clock-off", ["b"]), ("member-drained", ["b"]),
        ("shovel-failed", ["/ away"]), ("replica-failed", ["/ spare"]),
        ("queue-untaken", ["/ parked"]),
    ]  # fmt: skip
    assert found[0]["since_ms"] == NOW_MS - 30_000
    assert document["unknown"] == ["disk, memory and pauses of b: a has not heard of them lately"]
    assert (document["node"], document["members"], document["members_here"]) == ("a", 3, 2)


def test_a_member_that_does_not_serve_reports_no_queues_and_says_so() -> None:
    seen = Seen()
    seen.figures = dict.fromkeys(seen.figures, 0.0)
    document = of_member(seen, status="INQUORATE", drained=[]).document()
    found, missing = document["findings"], document["unknown"]
    assert isinstance(found, list)
    assert isinstance(missing, list)
    assert [one["name"] for one in found] == ["no-quorum", "clock-off"]
    assert missing[0].startswith("queues, shovels and links: a is INQUORATE")


def test_what_a_member_reported_before_it_went_is_not_held_against_it() -> None:
    """Its last report is remembered for some seconds."""
    seen = Seen()
    reported = dict.fromkeys(seen.figures, 0.0) | {"clients_refused_recent": 3.0}
    seen.figures = reported
    members = [
        {"id": "a", "state": "DOWN", "local": False, "arbitrator": False},
        {"id": "b", "state": "ACTIVE", "local": True, "arbitrator": False},
    ]
    for state, said in (("ACTIVE", True), ("DOWN", False)):
        members[0]["state"] = state
        found = of_member(seen, members=members).document()["findings"]
        assert isinstance(found, list)
        assert ("clients-refused" in [one["name"] for one in found]) == said


def test_a_definitions_file_that_failed_to_load_is_named_with_its_entry() -> None:
    seen = Seen()
    seen.figures = dict.fromkeys(seen.figures, 0.0)
    file = ("/etc/d.json", "queues[2]: there is no vhost 'shop' for 'q'")
    found = of_member(seen, file).document()["findings"]
    assert isinstance(found, list)
    (told,) = [one for one in found if one["name"] == "definitions-unloaded"]
    assert told["objects"] == ["a"]
    assert told["what"] == f"a loaded only a part of --load-definitions {file[0]}: {file[1]}"


def test_the_findings_know_that_a_member_is_in_a_pair() -> None:
    seen = Seen()
    seen.figures = dict.fromkeys(seen.figures, 0.0)
    found = of_member(seen, ha={"status": "active", "pair": {"mode": "hac"}}).document()["findings"]
    assert isinstance(found, list)
    assert "start a new one with its address" in found[0]["do"]


def test_the_gauge_has_every_name_and_counts_objects() -> None:
    seen = Seen()
    seen.figures = dict.fromkeys(seen.figures, 0.0)
    counts = of_member(seen).counts()
    assert [(name, severity) for name, severity, _ in counts] == [
        (name, severity) for name, (severity, _) in NAMES.items()
    ]
    assert {name: count for name, _, count in counts if count} == {
        "member-down": 1, "clock-off": 1, "member-drained": 1, "shovel-failed": 1,
        "replica-failed": 1,
    }  # fmt: skip
