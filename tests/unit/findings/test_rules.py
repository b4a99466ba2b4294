"""Each finding appears in a constructed state, and does not just below its threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from broker.findings.rules import (
    CERTIFICATE_MS,
    LATE_S,
    NAMES,
    SLOW_COMMITS_S,
    UNSTEADY_MS,
    Finding,
    findings,
    unknown,
)
from broker.findings.situation import LinkSeen, MemberSeen, Situation, ViewSeen
from broker.statistics.figures import FIGURES, Figures
from broker.statistics.noted_queues import NotedQueue, NotedQueues

NOW_MS = 1_790_001_000_000


def member(name: str, state: str = "ACTIVE", **figures: float) -> MemberSeen:
    """A member that is well except for these figures."""
    found: Figures = dict.fromkeys(FIGURES, 0.0) | figures
    return MemberSeen(name, state, None if state == "DOWN" else found)


WELL = Situation(
    NOW_MS, "a", "shop", "ACTIVE", members=[member("a"), member("b"), member("c")], votes=3,
    votes_needed=2, version=1, version_possible=1, queues=NotedQueues(),
)  # fmt: skip


def told(**given: Any) -> list[Finding]:  # noqa: ANN401 - fields of all types
    """The findings of a cluster that is well except for this."""
    return findings(replace(WELL, **given))


def other(one: MemberSeen) -> dict[str, Any]:
    """Member `b` has these figures."""
    return {"members": [member("a"), one, member("c")]}


def noted(kind: str, *queues: NotedQueue) -> dict[str, Any]:
    """These queues are noted."""
    found = NotedQueues()
    for queue in queues:
        getattr(found, kind).add(queue)
    return {"queues": found}


def views(count: int, minutes_ago: float = 9.0) -> dict[str, Any]:
    """View changes in which `c` goes and comes; the first one was `minutes_ago`."""
    first = NOW_MS - int(minutes_ago * 60_000)
    return {
        "views": [
            ViewSeen(first - 1000 + 1000 * n, ("a", "b", "c")[: 3 - n % 2])
            for n in range(count + 1)
        ]
    }


def certificate(left_ms: int) -> dict[str, Any]:
    """The certificate of `b` is valid for this long."""
    return other(member("b", certificate_ends_at=(NOW_MS + left_ms) / 1000))


class Edge(NamedTuple):
    """A state with a finding, and one just short of it."""

    there: dict[str, object]
    absent: dict[str, object]


EDGES = {
    "cluster-waits": Edge({"status": "WAITING", "queues": None}, {}),
    "no-quorum": Edge(
        {"status": "INQUORATE", "queues": None},
        {"status": "INQUORATE", "queues": None, "members": [member("a", quorum_halted=1)]},
    ),
    "member-not-serving": Edge({"status": "JOINING", "queues": None}, {}),
    "member-faulty": Edge(other(member("b", quorum_halted=1)), other(member("b", "DOWN"))),
    "no-active-member": Edge({"roles": ["ready", "joining"]}, {"roles": ["ready", "recovering"]}),
    "disk-full": Edge({"alarms": {("b", "full"): "0 B free"}}, {"alarms": {("b", "disk"): "1 B"}}),
    "disk-low": Edge({"alarms": {("b", "disk"): "3 MB free"}}, {"alarms": {}}),
    "memory-low": Edge({"alarms": {("b", "memory"): "9 GB"}}, {"alarms": {}}),
    "certificate-ended": Edge(certificate(0), certificate(1000)),
    "certificate-ends": Edge(certificate(CERTIFICATE_MS), certificate(CERTIFICATE_MS + 1000)),
    "member-down": Edge(other(member("b", "DOWN")), other(member("b", "JOINING"))),
    "member-late": Edge(
        other(member("b", late_recent=2, late_recent_s=LATE_S)),
        other(member("b", late_recent=2, late_recent_s=LATE_S - 0.01)),
    ),
    "disk-slow": Edge(
        other(member("b", slow_commits_recent=9, slow_commits_recent_s=SLOW_COMMITS_S)),
        other(member("b", slow_commits_recent=9, slow_commits_recent_s=SLOW_COMMITS_S - 0.01)),
    ),
    "checkpoint-late": Edge(
        other(member("b", store_log_bytes=301e6, store_log_limit_bytes=100e6)),
        other(member("b", store_log_bytes=300e6, store_log_limit_bytes=100e6)),
    ),
    "space-unknown": Edge({"space_unknown": "Input/output error"}, {"space_unknown": ""}),
    "disk-lags": Edge({"disk_alarm": "the disk lags"}, {"disk_alarm": ""}),
    "clock-off": Edge({"clock_alarms": {"b": "the clock of b is 12.0 s ahead"}}, {}),
    "views-unsteady": Edge(views(5), views(4)),
    "ring-link-down": Edge({"links_down": ["10.1.0.2:25672"]}, {"links_down": []}),
    "pair-alone": Edge(other(member("b", pair_alone=1)), other(member("b", pair_alone=0))),
    "sole-voter": Edge(
        {"members": [member("a"), replace(member("b"), voter=False)]},
        {"members": [member("a"), member("b"), replace(member("c"), voter=False)]},
    ),
    "clients-refused": Edge(
        other(member("b", clients_refused_recent=1)), other(member("b", clients_refused_recent=0))
    ),
    "settings-refused": Edge({"not_taken": "--tls-cert /t.pem: no certificate"}, {"not_taken": ""}),
    "member-drained": Edge({"drained": ["b"]}, {"drained": []}),
    "letters-wait": Edge(noted("letters", NotedQueue(2, -1, "/", "graves")), noted("letters")),
    "consumers-stuck": Edge(noted("stuck", NotedQueue(4, -1, "/", "slow")), noted("stuck")),
    "definitions-unloaded": Edge({"unloaded": ("d.json", "bad")}, {"unloaded": None}),
    "shovel-failed": Edge(
        {"links": [LinkSeen("shovel", "/ away", "terminated", "refused")]},
        {"links": [LinkSeen("shovel", "/ away", "starting")]},
    ),
    "federation-failed": Edge(
        {"links": [LinkSeen("federation link", "/ far", "terminated")]},
        {"links": [LinkSeen("federation link", "/ far", "running")]},
    ),
    "replica-failed": Edge(
        {"links": [LinkSeen("replica", "/ spare", "terminated")]},
        {"links": [LinkSeen("replica", "/ spare", "running")]},
    ),
    "queue-untaken": Edge(noted("untaken", NotedQueue(7, -1, "/", "parked")), noted("untaken")),
    "member-joining": Edge(
        other(replace(member("b", "JOINING"), received_percent=41.5)),
        {"members": [member("a", "JOINING"), member("b")]},
    ),
    "upgrade-open": Edge({"version_possible": 2}, {"version_possible": 2, "status": "JOINING"}),
}


def test_a_healthy_cluster_has_no_findings() -> None:
    assert told() == []
    assert unknown(WELL) == []


def test_every_finding_has_a_case_just_below_it() -> None:
    assert EDGES.keys() == NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_each_finding_appears_alone_and_not_at_the_edge(name: str) -> None:
    (found,) = told(**EDGES[name].there)
    assert found.name == name
    assert found.what
    assert found.follows
    assert found.do
    assert found.count == 1
    row = found.row()
    assert (row["severity"], row["kind"]) == NAMES[name]
    assert row["see"] == f"docs/ONCALL.md#{name}"
    assert name not in {one.name for one in told(**EDGES[name].absent)}


def test_the_gravest_findings_come_first() -> None:
    listed = told(alarms={("b", "full"): "0 B"}, drained=["c"], version_possible=2)
    assert [one.name for one in listed] == ["disk-full", "member-drained", "upgrade-open"]


def test_a_down_member_is_named_with_the_effect_of_one_more_loss() -> None:
    gone: dict[str, object] = {
        "members": [member("a"), member("b"), member("c", "DOWN")],
        "views": [ViewSeen(NOW_MS - 3_600_000, "abc"), ViewSeen(NOW_MS - 1_200_000, "ab")],
    }
    (found,) = told(**gone, votes=2)
    assert (found.objects, found.since_ms) == (["c"], NOW_MS - 1_200_000)
    assert "loss of one more member stops the cluster" in found.follows
    assert "--replace-voter c NEW" in found.do
    assert "can lose 1 more vote." in told(**gone)[0].follows


def test_a_lost_member_of_a_pair_is_replaced_under_its_address() -> None:
    """Another voter is refused there: a pair has two seats, each bound to an address."""
    (found,) = told(members=[member("a"), member("b", "DOWN")], pair=True)
    assert "gone for good: start a new one with its address and an empty --data-dir" in found.do
    assert "--replace-voter" not in found.do


def test_the_advice_about_a_pair_is_that_of_a_pair() -> None:
    (waits,) = told(status="WAITING", roles=["joining"], pair=True)
    assert "both members" in waits.follows
    assert "--hac-peer" in waits.do
    (idle,) = told(roles=["ready"], pair=True)
    assert idle.name == "no-active-member"
    assert "promote" not in idle.do
    (down,) = told(**other(member("b", "DOWN")), pair=True)
    assert down.follows.startswith("The other one serves alone, or waits")


def test_a_late_member_is_reported_with_count_duration_and_time() -> None:
    late: Figures = {
        "late_recent": 3, "late_recent_s": 12.44, "late_longest_s": 8.1, "late_since_s": 90.0
    }  # fmt: skip
    (found,) = told(**other(member("b", "ACTIVE", **late)))
    assert found.what == ("b was late 3 times in ten minutes, 12.4 s in all, 8.1 s at the longest")
    assert found.since_ms == NOW_MS - 90_000
    (once,) = told(**other(member("b", "ACTIVE", **late | {"late_recent": 1})))
    assert once.what == "b was late once in ten minutes, by 12.4 s"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, "SIGSTOP"),
        ({"late_by_work_s": 5.0, "late_by_memory_s": 4.0}, "SIGSTOP"),
        ({"late_by_work_s": 5.1}, "long pieces of its own work"),
        ({"late_by_memory_s": 5.1}, "paged out"),
    ],
)
def test_the_advice_about_a_late_member_depends_on_the_cause(figures: Figures, words: str) -> None:
    late: Figures = {"late_recent": 4, "late_recent_s": 10.0, **figures}
    (found,) = told(**other(member("b", "ACTIVE", **late)))
    assert words in found.do


def test_an_alarm_shows_the_current_figure_beside_the_first() -> None:
    low = {("b", "disk"): "90.0 MB free of 100.0 MB wanted (--disk-free-limit)"}
    seen = {"alarms": low, **other(member("b", disk_free_bytes=55.44e6))}
    (found,) = told(**seen)
    assert found.what == (
        "b: low on disk, 90.0 MB free of 100.0 MB wanted (--disk-free-limit) when it began; "
        "now 55.4 MB"
    )
    (unheard,) = told(alarms=low, **other(replace(member("b"), figures=None)))
    assert unheard.what.endswith("(--disk-free-limit)")


def test_members_without_a_vote_behind_a_sole_voter_are_named() -> None:
    mute = [replace(member(name), voter=False) for name in "bc"]
    away = replace(member("d", "DOWN"), voter=False)
    (found,) = [
        one for one in told(members=[member("a"), *mute, away]) if one.name != "member-down"
    ]
    assert found.what == "a is the only voter, without a vote: b, c"
    assert "--add-voter b" in found.do
    assert told(members=[member("a"), *mute], pair=True) == []
    assert told(members=[member("a")]) == []


def test_refused_clients_are_counted_with_the_time() -> None:
    figures: Figures = {"clients_refused_recent": 12, "clients_refused_since_s": 90.0}
    (found,) = told(**other(member("b", "ACTIVE", **figures)))
    assert found.what.startswith("b refused 12 connections in ten minutes")
    assert found.since_ms == NOW_MS - 90_000


def test_a_member_without_a_majority_passes_on_its_brokers_advice() -> None:
    reason = "1 of 3 voters here, 2 needed; missing: b, c. Start them: the cluster goes on"
    left = [ViewSeen(NOW_MS - 9000, "abc"), ViewSeen(NOW_MS - 8000, "a", primary=False)]
    (found,) = told(status="INQUORATE", reason=reason, queues=None, views=left)
    assert found.do == "Start them: the cluster goes on"
    assert found.what == "a serves nobody: 1 of 3 voters here, 2 needed; missing: b, c"
    assert found.since_ms == NOW_MS - 8000


def test_a_members_own_fault_is_reported_once_in_its_words() -> None:
    (found,) = told(
        status="INQUORATE", reason="digest differs", members=[member("a", quorum_halted=1)]
    )
    assert found.what == "a detected a fault of its own and serves nobody: digest differs"


def test_flapping_views_name_who_left() -> None:
    (found,) = told(**views(6))
    assert found.what == "6 view changes in ten minutes; out: c (3)"
    begin = [ViewSeen(NOW_MS - 1000 * n, "a", primary=False) for n in range(9, 0, -1)]
    assert told(views=begin) == []  # a start that waits for the others
    assert told(**views(6, (UNSTEADY_MS + 7000) / 60_000)) == []


def rolling(*out: str, left: Sequence[str]) -> dict[str, Any]:
    """Members go and return one after the other; those in `left` take leave."""
    found = [ViewSeen(NOW_MS - 400_000, "abc")]
    for name in out:
        rest = [one for one in "abc" if one != name]
        at_ms = found[-1].at_ms + 10_000
        found += [
            ViewSeen(at_ms, rest, left=[name] if name in left else []),
            ViewSeen(at_ms + 5000, "abc"),
        ]
    return {"views": found}


def test_one_restart_of_each_member_is_not_an_unsteady_ring() -> None:
    assert told(**rolling("a", "b", "c", left="abc")) == []
    (found,) = told(**rolling("a", "b", "c", left=""))
    assert found.what == "6 view changes in ten minutes; out: a (1), b (1), c (1)"


def test_a_member_that_leaves_repeatedly_is_reported() -> None:
    (found,) = told(**rolling("a", "b", "b", "b", left="ab"))
    assert found.what == "6 view changes in ten minutes; out: b (3)"


def test_many_queues_are_one_finding_that_names_the_longest() -> None:
    rows = [NotedQueue(n, -n, "/", f"q{n}", 120 if n == 9 else 0) for n in range(1, 10)]
    (found,) = told(**noted("untaken", *rows))
    assert found.what == (
        "messages wait in queues without consumers: / q9 (9, 120 more in the last minute), "
        "/ q8 (8), / q7 (7), / q6 (6), / q5 (5) and 4 more"
    )
    assert (found.count, len(found.objects), found.objects[0]) == (9, 5, "/ q9")


def test_without_a_quorum_nobody_joins() -> None:
    """A member with an empty disk waits for a state that nobody can give."""
    there = other(member("b", "JOINING")) | {"status": "INQUORATE", "queues": None}
    assert [one.name for one in told(**there)] == ["no-quorum"]


def test_the_limits_of_a_members_knowledge_are_stated() -> None:
    silent = replace(member("b"), figures=None)
    seen = replace(
        WELL, status="INQUORATE", queues=None,
        members=[member("a"), silent, member("c", "DOWN"), replace(silent, arbitrator=True)],
    )  # fmt: skip
    assert unknown(seen) == [
        "queues, shovels and links: a is INQUORATE, so what it holds may be old",
        "disk, memory and pauses of b: a has not heard of them lately",
    ]


@pytest.mark.parametrize(
    ("figures", "why", "do"),
    [
        (
            {"store_checkpoints_given_up_total": 4},
            "no space for one; 4 were given up",
            "Free space",
        ),
        ({"store_checkpoint_under_way": 1}, "the one in progress takes that long", "disk is slow"),
        ({"quorum_halted": 1}, "its state is in doubt", "member-faulty"),
        ({}, "the reason is not known", "--diagnose"),
    ],
)
def test_a_late_checkpoint_is_reported_with_its_cause(
    figures: dict[str, Any], why: str, do: str
) -> None:
    late = member("b", store_log_bytes=640e6, store_log_limit_bytes=64e6, **figures)
    (found,) = [one for one in told(**other(late)) if one.name == "checkpoint-late"]
    assert found.objects == ["b"]
    assert "640 MB of log behind its checkpoint, where the next one is due with 64 MB" in found.what
    assert why in found.what
    assert do in found.do


def test_a_member_that_has_not_reported_its_limit_has_no_late_checkpoint() -> None:
    assert not told(**other(member("b", store_log_bytes=5.0, store_log_limit_bytes=0.0)))


def test_a_shovel_that_tries_again_has_failed_still() -> None:
    """Attempts at a broker that slows failed logins take longer than the pauses between them."""
    (found,) = told(links=[LinkSeen("shovel", "/ away", "starting", "ACCESS_REFUSED")])
    assert (found.name, "ACCESS_REFUSED" in found.what) == ("shovel-failed", True)


def test_the_time_of_a_certificate_is_told_in_words() -> None:
    def told_of(days: float) -> str:
        (found,) = told(**certificate(round(days * 86_400_000)))
        return found.what

    assert told_of(-1.5).endswith("expired one day ago")
    assert told_of(-0.5).endswith("expired less than a day ago")
    assert told_of(3).endswith("expires in 3 days")
