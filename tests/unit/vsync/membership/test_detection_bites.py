"""Each rule of failure detection and of broken links is removed in turn: some test must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from unittest.mock import patch

import pytest

from tests.support.ring.virtual_network import Net
from tests.unit.vsync.membership import test_detection as detection
from tests.unit.vsync.membership import test_links as links
from vsync.totem.membership.connectivity import Connectivity, ReceptionReport, largest_clique
from vsync.totem.membership.failure_detector import FailureDetector, Prober, ProbeResult
from vsync.totem.membership.gather import GatherPhase
from vsync.totem.membership.gather_sets import GatherSets
from vsync.totem.membership.protocol import Membership
from vsync.types import Member
from vsync.wire.messages import Join

Bite = tuple[object, str, object, Callable[[], object]]
_findings, _on_frame, _gain = FailureDetector.findings, FailureDetector.on_frame, Connectivity.gain
_absorb = GatherSets.absorb


def hint_is_proof(self: FailureDetector, now: float) -> list[tuple[Member, ProbeResult]]:
    return [
        (member, ProbeResult.GONE if finding is ProbeResult.OPEN else finding)
        for member, finding in _findings(self, now)
    ]


def never_proven(self: FailureDetector, now: float) -> list[tuple[Member, ProbeResult]]:
    return [(member, ProbeResult.OPEN) for member, _ in _findings(self, now)]


def sleeper_is_right(self: FailureDetector, now: float) -> list[tuple[Member, ProbeResult]]:
    over = [(m, ProbeResult.GONE) for m, c in self.checks.items() if now > c.began + self._window]
    for member, _ in over:
        del self.checks[member]
    return over


def last_frames_count(self: FailureDetector, member: Member, now: float) -> None:
    self.answered(member)


def one_word_is_a_link(self: Connectivity, now: float) -> dict[Member, ReceptionReport]:
    return {
        m: report for m, report in sorted(self._reports.items()) if now - report.at <= self._memory
    }


def anybody_is_a_gain(
    self: Connectivity, size: int, size_max: int, without: Iterable[Member], now: float
) -> tuple[Member, ...]:
    reports = self.linked(now)
    return (
        largest_clique(self._me, list(reports), lambda _a, _b: True) if len(reports) >= size else ()
    )


def nothing_is_a_gain(
    self: Connectivity, size: int, size_max: int, without: Iterable[Member], now: float
) -> tuple[Member, ...]:
    return _gain(self, size + 1, size_max, without, now)


def agreed_before_all_news(self: GatherSets, sender: Member, join: Join) -> object:
    verdict = _absorb(self, sender, join)
    self.agreed -= {sender} if verdict.value == "join_changed" else set()
    return verdict


def slow_agreement() -> None:
    """A member that learns of a failure from another one has agreed with it."""
    net = Net("abc")
    net.settle("abc")
    net.run(0.5)
    address = net.nodes["b"].me.address
    net.crash("b")
    net.suspect("c", address, True)
    began = net.now
    net.settle("ac", within=0.2)
    assert net.now - began < (detection.CONFIG.probe_ms + detection.CONFIG.join_timeout_ms) / 1000


BITES: tuple[Bite, ...] = (
    (
        FailureDetector, "findings", hint_is_proof,
        detection.test_a_stopped_member_with_broken_links_is_left_to_the_token_timeout,
    ),
    (
        FailureDetector, "findings", never_proven,
        lambda: detection.test_a_killed_member_is_out_long_before_the_token_timeout("b"),
    ),
    (
        FailureDetector, "findings", sleeper_is_right,
        detection.test_a_check_starts_again_after_the_process_was_stopped,
    ),
    (
        FailureDetector, "on_frame", last_frames_count,
        detection.test_only_late_frames_and_answers_prove_a_member_alive,
    ),
    (
        Prober, "on_probe", lambda self, sender: None,
        detection.test_a_refusal_proves_nothing_while_the_members_frames_arrive,
    ),
    (
        Membership, "_watched", lambda self: self.members,
        detection.test_forming_does_not_wait_for_a_foreign_member_that_dies,
    ),
    (GatherSets, "absorb", agreed_before_all_news, slow_agreement),
    (
        Connectivity, "linked", one_word_is_a_link,
        lambda: links.test_a_newcomer_that_reaches_only_some_waits_and_disturbs_nobody(
            {("a", "d")}
        ),
    ),
    (
        Connectivity, "complete", lambda self, members, now: True,
        links.test_a_new_ring_is_a_clique_from_the_start,
    ),
    (
        Connectivity, "gain", anybody_is_a_gain,
        lambda: links.test_a_newcomer_that_reaches_only_some_waits_and_disturbs_nobody(
            links.both_ways([("a", "d")])
        ),
    ),
    (Connectivity, "gain", nothing_is_a_gain, links.test_a_newcomer_that_reaches_all_joins_at_once),
    (
        Connectivity, "reception", lambda self, now: (),
        links.test_a_newcomer_that_reaches_all_joins_at_once,
    ),
    (
        GatherPhase, "_wait_less", lambda self, now: None,
        links.test_a_broken_link_is_not_waited_for_as_long_as_a_silent_member,
    ),
)  # fmt: skip


@pytest.mark.parametrize("bite", BITES, ids=lambda b: getattr(b[2], "__name__", "") + " " + b[1])
def test_removing_a_rule_fails_its_test(bite: Bite) -> None:
    target, attribute, replacement, test = bite
    test()
    with patch.object(target, attribute, replacement), pytest.raises(AssertionError):
        test()
