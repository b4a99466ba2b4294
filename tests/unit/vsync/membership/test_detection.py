"""Failure detection: early checks, timeouts, and members that only receive or only send."""

from __future__ import annotations

import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import ConfigError
from vsync.totem.config import RingConfig
from vsync.totem.events import Note
from vsync.totem.membership.failure_detector import FailureDetector, ProbeResult
from vsync.totem.phases import Phase
from vsync.types import Member
from vsync.wire.messages import FrameKind

B, C = (Member(n, 1, f"{n}:1") for n in "bc")
CONFIG = RingConfig()


def names(net: Net, of: str) -> str:
    return "".join(m.name for m in net.nodes[of].members)


def noted(net: Net, of: str, code: str) -> list[dict[str, str | int | float]]:
    return [o.fields for o in net.seen[of] if isinstance(o, Note) and o.code == code]


# -- the check, alone -------------------------------------------------------------------------


def test_a_member_refused_and_silent_for_the_whole_window_is_gone() -> None:
    checks = FailureDetector(0.06)
    assert checks.hint(B, 1.0, False)
    assert not checks.hint(B, 1.01, True)
    assert checks.probes(1.0) == [B]
    assert checks.probes(1.01) == []
    assert checks.probes(1.025) == [B]
    assert checks.probes(1.045) == [B]
    assert checks.findings(1.05) == []
    assert checks.next_at() == pytest.approx(1.065)
    assert checks.probes(1.065) == []
    assert checks.findings(1.065) == [(B, ProbeResult.GONE)]
    assert not checks.checks


def test_a_broken_link_alone_proves_nothing() -> None:
    checks = FailureDetector(0.06)
    checks.hint(B, 1.0, False)
    assert checks.findings(1.06) == [(B, ProbeResult.OPEN)]
    assert checks.next_at() is None


def test_only_late_frames_and_answers_prove_a_member_alive() -> None:
    checks = FailureDetector(0.06)
    checks.hint(B, 1.0, True)
    checks.hint(C, 1.0, True)
    checks.on_frame(B, 1.02)
    checks.on_frame(C, 1.04)
    assert checks.findings(1.06) == [(B, ProbeResult.GONE), (C, ProbeResult.ALIVE)]
    checks.hint(B, 2.0, True)
    checks.answered(B)
    assert checks.findings(2.0) == [(B, ProbeResult.ALIVE)]


def test_a_check_starts_again_after_the_process_was_stopped() -> None:
    checks = FailureDetector(0.06)
    checks.hint(B, 1.0, True)
    assert checks.findings(1.2) == []
    assert B in checks
    assert checks.findings(1.26) == [(B, ProbeResult.OPEN)]


def test_unwatched_members_are_not_checked() -> None:
    checks = FailureDetector(0.06)
    checks.hint(B, 1.0, True)
    checks.hint(C, 1.0, True)
    checks.keep((C,))
    assert checks.findings(1.06) == [(C, ProbeResult.GONE)]


# -- in the ring ------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", "abc")
def test_a_killed_member_is_out_long_before_the_token_timeout(failed: str) -> None:
    net = Net("abc")
    net.settle("abc")
    net.run(0.5)
    others = "abc".replace(failed, "")
    began = net.now
    net.crash(failed, noticed=True)
    net.settle(others, within=0.2)
    assert net.now - began < 2 * CONFIG.probe_ms / 1000
    assert noted(net, others[0], "checked")[-1] == {"member": failed, "found": "suspect_gone"}
    assert net.count("token_lost") == 0


def test_two_of_five_killed_at_once() -> None:
    net = Net("abcde")
    net.settle("abcde")
    net.crash("a", noticed=True)
    net.crash("d", noticed=True)
    net.settle("bce", within=0.3)


def test_one_member_that_notices_is_enough() -> None:
    net = Net("abc")
    net.settle("abc")
    address = net.nodes["b"].me.address
    net.crash("b")
    net.suspect("c", address, True)
    net.settle("ac", within=0.2)


def test_a_reset_connection_changes_nothing() -> None:
    net = Net("abc")
    net.settle("abc")
    for _ in range(20):
        net.suspect("a", net.nodes["b"].me.address, False)
        net.run(0.2)
    assert net.settled("abc")
    assert all(len(net.views(n)) == 1 for n in "abc")
    assert net.nodes["a"].counters["suspect_alive"] == 20


def test_a_refusal_proves_nothing_while_the_members_frames_arrive() -> None:
    net = Net("abc")
    net.settle("abc")
    for _ in range(20):
        net.suspect("a", net.nodes["b"].me.address, True)
        net.run(0.2)
    assert all(len(net.views(n)) == 1 for n in "abc")


def test_a_stopped_member_with_broken_links_is_left_to_the_token_timeout() -> None:
    """A stopped process refuses no connection: its kernel still listens for it."""
    net = Net("abc")
    net.settle("abc")
    net.paused["b"] = []
    for other in "ac":
        net.suspect(other, net.nodes["b"].me.address, False)
    net.run(0.4)
    net.resume("b")
    net.run(1.0)
    assert net.settled("abc")
    assert all(len(net.views(n)) == 1 for n in "abc")
    assert net.count("suspect_unproven") == 2


def test_a_hint_about_a_foreign_address_is_counted() -> None:
    net = Net("abc")
    net.settle("abc")
    net.suspect("a", "elsewhere:1", True)
    net.suspect("a", net.nodes["a"].me.address, True)
    assert net.nodes["a"].counters["suspect_stranger"] == 2
    net.run(1.0)
    assert net.settled("abc")


@pytest.mark.parametrize("after_ms", range(12))
def test_forming_does_not_wait_for_a_candidate_that_dies(after_ms: int) -> None:
    net = Net("abcd")
    net.settle("abcd")
    net.nodes["d"].leave(net.now)
    net.flush("d")
    net.run(after_ms / 10_000)
    net.crash("d")
    net.crash("b", noticed=True)
    net.settle("ac", within=0.3)


def test_forming_does_not_wait_for_a_foreign_member_that_dies() -> None:
    net = Net("abc")
    net.settle("abc")
    net.boot("d")
    foreign = net.nodes["d"].me
    # This holds only while they gather with it, before a ring is under way.
    net.drop = lambda _s, _t, frame: frame[1] == FrameKind.COMMIT
    net.run(0.5, lambda: all(foreign in net.nodes[n].known_members() for n in "abc"))
    net.run(0.5, lambda: all(net.nodes[n].phase is not Phase.OPERATIONAL for n in "abc"))
    net.crash("d", noticed=True)
    net.drop = lambda *_: False
    net.settle("abc", within=0.4)


def test_a_quick_restart_at_the_same_address_needs_no_timeout() -> None:
    net = Net("abc")
    net.settle("abc")
    net.crash("b", noticed=True)
    net.run(0.02)
    net.boot("b")
    net.settle("abc", within=0.5)


# -- timeouts ---------------------------------------------------------------------------------


def test_a_silent_host_is_out_within_token_and_consensus_timeout() -> None:
    bound = CONFIG.token_timeout(3) + CONFIG.consensus_timeout(3)
    assert bound < 1.5
    for failed in "abc":
        net = Net("abc")
        net.settle("abc")
        net.run(0.73)
        began = net.now
        net.crash(failed)
        net.settle("abc".replace(failed, ""), within=bound + 0.05)
        assert net.now - began > CONFIG.token_timeout(3) / 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("busy", [False, True])
def test_a_pause_shorter_than_the_token_timeout_changes_nothing(share: float, busy: bool) -> None:
    for name in "abc":
        net = Net("abc")
        net.settle("abc")
        net.run(0.5)
        net.paused[name] = []
        end = net.now + share * CONFIG.token_timeout(3) - 2 * CONFIG.hold_ms / 1000
        while net.now < end:
            if busy:
                net.submit("abc".replace(name, "")[0], b"x")
            net.run(0.005)
        net.resume(name)
        net.run(1.0)
        assert net.settled("abc")
        assert all(len(net.views(n)) == 1 for n in "abc")
        assert net.count("token_lost") == 0


def test_each_relation_of_timeouts_is_checked_by_its_name() -> None:
    wrong: dict[str, dict[str, int]] = {
        "a held token is not lost": {"hold_ms": 200},
        "a token is resent before it is lost": {"token_retransmit_ms": 300},
        "consensus outlasts the loss of a token": {"consensus_timeout_ms": 600},
        "joins are repeated before a member is failed": {
            "join_timeout_ms": 400,
            "lonely_wait_ms": 900,
        },
        "a check ends before the token is lost": {"probe_ms": 151},
        "a token is held within the lease": {"lease_ms": 149},
        "the lease ends before the token is lost": {"lease_ms": 600},
        "a slow ring is given more time": {"token_timeout_max_ms": 599},
        "a slow ring is given a longer lease": {"lease_max_ms": 199},
        "failure to receive is found before the token is lost": {"receive_failure_ms": 600},
        "a ring of one after two joins": {"lonely_wait_ms": 90},
        "reception outlasts missed announcements": {"hearing_ms": 399},
        "reception expires before the decision": {"hearing_ms": 721},
        "backing off begins with one interval": {"merge_backoff_max_ms": 100},
        "a visit is a share of the window": {"personal_frames": 65},
        "what follows the token is a share of the visit": {"accelerated_frames": 25},
        "release lags two rotations": {"store_frames_max": 255},
        "marks go round before the token rests": {"idle_visits_before_rest": 1},
        "a token rests before it is held": {"idle_visits_before_hold": 2},
        "a rest is shorter than a hold": {"rest_ms": 66},
        "a frame carries something": {"frame_bytes_max": 1023},
        "a frame is sent at once": {"frame_bytes_max": (1 << 20) + 1},
        "a message may fill a frame": {"message_bytes_max": 32767},
        "the token fits a frame": {"wanted_max": 1025},
        "some payloads can be read": {"payload_version_min": 2},
        "some frames can be read": {"wire_version": 256},
        "the joins fit a frame": {"members_max": 129},
    }
    assert set(wrong) == {relation.name for relation in CONFIG.relations()}
    for name, values in wrong.items():
        with pytest.raises(ConfigError, match=f"^{name}: "):
            RingConfig(**values)
