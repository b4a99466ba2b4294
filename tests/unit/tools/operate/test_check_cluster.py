"""`qpidctl check_cluster`: each thing that needs looking after is found, said, and explained."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from broker.exit_codes import Exit
from tests.manual_pages import ROOT, anchors, pages
from tests.manual_pages import text as manual
from tests.support.dashboard.canned_api import CannedApi, Json, Object, member, queue
from tests.unit.tools.operate.commands import Run
from tools.commands.qpid_cluster import qpid_cluster
from tools.oncall import report
from tools.oncall.answers import Answers
from tools.oncall.findings import ALARMS, CRITICAL, NOTICE, WARNING, Finding, findings
from tools.operate.qpidctl import qpidctl

NOW_MS = 1_790_001_000_000
WELL: Object = {
    "cluster": "shop", "status": "ACTIVE", "reason": "", "alarms": [], "drained": [],
    "links_down": [], "machine_version": 15, "machine_version_possible": 15, "views": [],
    "quorum": {"expected_votes": 3, "total_votes": 3, "quorum": 2, "quorate": True},
    "members": [member("a"), member("b"), member("c")],
}  # fmt: skip


def told(
    cluster: Object | None = None, *, nodes: Sequence[Object] = (), queues: Sequence[Object] = ()
) -> list[Finding]:
    """What is found in a cluster that is well but for this."""
    answers = Answers(NOW_MS, {**WELL, **(cluster or {})}, [*nodes], [*queues], [], [])
    return findings(answers)


def view(minutes_ago: float, *names: str) -> Object:
    """One view as it is remembered."""
    return {"at_ms": NOW_MS - int(minutes_ago * 60_000), "members": [*names], "primary": True}


def test_of_a_cluster_that_is_well_nothing_is_said() -> None:
    assert told() == []


def down(total_votes: int) -> Object:
    """A member is away, and so many votes are here."""
    return {
        "members": [member("a"), member("b"), member("c", state="DOWN")],
        "quorum": {"expected_votes": 3, "total_votes": total_votes, "quorum": 2, "quorate": True},
        "views": [view(60, "a", "b", "c"), view(20, "a", "b")],
    }


def test_a_member_that_is_down_is_named_since_when_and_what_one_more_would_do() -> None:
    (found,) = told(down(2))
    assert found.level == WARNING
    assert found.what == "c is down since 2026-09-21 14:10:00 UTC"
    assert "next member that is lost stops the cluster" in found.follows
    assert "--replace-voter c NEW" in found.do
    assert "can lose 1 more vote." in told(down(3))[0].follows


def test_a_member_without_a_majority_passes_on_the_advice_that_its_broker_gives() -> None:
    reason = "1 of 3 voters here, 2 needed; missing: b, c. Start them: the cluster goes on"
    (found,) = told({**down(1), "status": "INQUORATE", "reason": reason})
    assert (found.level, found.do) == (CRITICAL, "Start them: the cluster goes on")
    assert found.what == "a serves nobody: 1 of 3 voters here, 2 needed; missing: b, c"


@pytest.mark.parametrize("status", ["WAITING", "JOINING"])
def test_a_member_that_does_not_serve_yet_says_what_it_waits_for(status: str) -> None:
    (found,) = told({"status": status, "reason": "1 of 3 members are here"})
    assert found.level == CRITICAL
    assert found.what.endswith(": 1 of 3 members are here")
    assert told({"status": status, "machine_version": 0}) == told({"status": status})


def test_a_fault_of_a_member_is_told_once_with_its_own_words() -> None:
    nodes: list[Object] = [{"name": "a", "qpidd": {"quorum_halted": 1}}]
    (found,) = told({"status": "INQUORATE", "reason": "digest differs"}, nodes=nodes)
    assert found.chapter == "failures.md#a-faulty-member"
    assert found.what == "a found a fault of its own and serves nobody: digest differs"


@pytest.mark.parametrize(
    ("alarm", "level"),
    [
        ("low on disk: 3 MB free at b", CRITICAL),
        ("disk full: 0 B at b", CRITICAL),
        ("the clock of b is 12.0 s ahead of the cluster's time (--clock-bound 10)", WARNING),
        ("something of a later release", WARNING),
    ],
)
def test_an_alarm_comes_with_what_follows_from_it(alarm: str, level: str) -> None:
    (found,) = told({"alarms": [alarm]})
    assert (found.what, found.level) == (alarm, level)
    assert found.do


def test_views_that_come_and_go_name_who_went() -> None:
    views: list[Json] = [view(9 - n, "a", "b", *(["c"] if n % 2 else [])) for n in range(6)]
    (found,) = told({"views": views})
    assert found.what == "5 changes of the view in ten minutes; out: c (2)"
    begin: list[Json] = [{**view(9 - n, "a"), "primary": False} for n in range(6)]
    assert told({"views": begin}) == []  # a start, and who waits for the others
    assert told({"views": [view(20, "a", "b", "c")] * 6}) == []


@pytest.mark.parametrize(
    ("cluster", "level", "words"),
    [
        ({"drained": ["b"]}, WARNING, "qpid-cluster --undrain b"),
        ({"links_down": ["10.1.0.2:25672"]}, WARNING, "the next loss"),
        ({"machine_version_possible": 16}, NOTICE, "qpid-cluster --upgrade"),
        ({"ha": {"members": [{"id": "a", "status": "ready"}]}}, CRITICAL, "qpid-ha"),
        (
            {"members": [member("a"), member("b", state="JOINING", received_percent=41.5)]},
            NOTICE, "--await b",
        ),
    ],
)  # fmt: skip
def test_what_waits_for_an_operator(cluster: Object, level: str, words: str) -> None:
    (found,) = told(cluster)
    assert found.level == level
    assert words in found.do


def test_queues_are_told_apart_by_what_is_wrong_with_them() -> None:
    still: Object = {"ack_details": {"avg_rate": 0.0}, "deliver_get_details": {"avg_rate": 0}}
    moving: Object = {"ack_details": {"avg_rate": 0.1}}
    held: Object = {"consumers": 1, "messages_unacknowledged": 4}
    (dead, stuck, untaken) = told(
        queues=[
            queue("stuck", 9, **held, message_stats=still),
            queue("works", 9, **held, message_stats=moving),
            queue("parked", 7),
            queue("looked-at", 7, consumers=1, browsers=1),
            queue("log", 7, type="stream"),
            queue("graves", 0, messages_dlx=2),
        ]
    )
    assert (dead.level, stuck.level, untaken.level) == (WARNING, WARNING, NOTICE)
    assert dead.what.endswith(": / graves (2)")
    assert stuck.what.endswith(": / stuck (4)")
    assert untaken.what.endswith(": / parked (7), / looked-at (7)")


def test_every_chapter_that_is_named_is_there() -> None:
    source = (ROOT / "tools" / "oncall" / "findings.py").read_text(encoding="utf-8")
    named = {chapter for *_, chapter in ALARMS}
    named |= set(re.findall(r'"([a-z-]+\.md[^"]*)"', source))
    assert len(named) > 15
    chapters = {f"{page.name}#{anchor}" for page in pages() for anchor in anchors(page)}
    assert named <= chapters | {page.name for page in pages()}
    wide = [one for one in named if len(f"{report.MANUAL}/{one}") > report.WIDTH_PLACE]
    assert not wide, "a narrow terminal would break these"


@pytest.mark.parametrize(
    "page", ["docs/ONCALL.md", "docs/operations", "README.md", "tools/oncall/findings.py"]
)
def test_what_an_operator_is_told_to_type_exists(page: str) -> None:
    place = ROOT / page
    text = manual() if place.is_dir() else place.read_text(encoding="utf-8")
    verbs = set(re.findall(r"qpidctl (?:-\S+ \S+ )*([a-z]+_[a-z_]+)", text))
    assert len(verbs) > 3
    assert verbs <= set(qpidctl.commands)
    known = {name for one in qpid_cluster.params for name in one.opts}
    assert {
        option
        for typed in re.findall(r"qpid-cluster((?: (?:--?[a-z-]+|\d+|[A-Z]+))+)", text)
        for option in re.findall(r"--[a-z-]+", typed)
    } <= known


def test_the_command_reads_for_people_and_fails_where_somebody_must_act(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ended = run(qpidctl, "check_cluster")
    assert ended.code == Exit.UNAVAILABLE  # the shovel of the prepared answers
    lines = ended.out.splitlines()
    assert lines[0].startswith("WARNING:  shovel away is error: <img src=x")
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "shop is ACTIVE, 3 of 3 members here: 1 warning, 2 notices"
    monkeypatch.setitem(api.answers, "shovels", [])
    assert run(qpidctl, "check_cluster").code == Exit.OK


def test_the_command_has_one_document_for_programs(run: Run) -> None:
    document = json.loads(run(qpidctl, "check_cluster", "--json").out)
    assert document["status"] == "ACTIVE"
    assert document["findings"][0]["level"] == WARNING
    assert document["findings"][0]["chapter"] == "docs/operations/shovels.md#shovels"


def test_a_name_cannot_steer_the_terminal(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api.answers, "queues", [queue("\x1b[2J\nWARNING: all is lost", 3)])
    out = run(qpidctl, "check_cluster").out
    assert "\x1b" not in out
    assert "\nWARNING: all" not in out


def test_what_a_member_does_not_tell_is_said_and_the_rest_is_shown(
    run: Run, api: CannedApi
) -> None:
    api.refusals["queues"] = (401, "Not monitor user")
    api.refusals["health/checks/certificate-expiration/0/days"] = (503, "Certificates expiring")
    ended = run(qpidctl, "check_cluster")
    assert ended.out.startswith("CRITICAL: the certificate of a has ended")
    assert "NOTICE:   not looked at: queues: " in ended.out


def test_a_higher_limit_reaches_a_member_that_has_no_file_as_well() -> None:
    (found,) = told({"alarms": ["a is low on memory: 99 % of its limit"]})
    assert "in the file of its --config, then SIGHUP" in found.do
    assert "without a file, or with --memory-limit, is restarted" in found.do
