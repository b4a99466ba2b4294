"""The tempo: what a slow ring and a stall change, and what they do not."""

from __future__ import annotations

import pytest

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.events import Note
from vsync.totem.membership.departures import KILLED
from vsync.totem.ordering.tempo import WINDOW_S, Tempo

CONFIG = RingConfig()


def gone(net: Net, name: str) -> list[str]:
    """Why members are gone, as noted by `name`."""
    notes = [o for o in net.seen[name] if isinstance(o, Note) and o.code == "gone"]
    return [f"{note.fields['member']}: {note.fields['why']}" for note in notes]


def replying(net: Net, seconds: float) -> float:
    """The share of `seconds` in which all members may act."""
    held = 0
    for _ in range(100):
        net.run(seconds / 100)
        held += all(n.lease.holds(n.ring, net.now) for n in net.nodes.values())
    return held / 100


def slow(net: Net, rotation_s: float) -> None:
    for node in net.nodes.values():
        node.set_throttle(rotation_s / len(net.nodes))


def keep(net: Net) -> None:
    """As the shell does: write the lease that each member wants to its disk."""
    for node in net.nodes.values():
        node.tempo.keep(node.tempo.wanted_ms)


def test_a_ring_that_is_slow_for_long_still_replies() -> None:
    """With a fast ring's lease, no member of a ring that takes 240 ms would ever reply."""
    net = Net("abc")
    net.settle("abc")
    slow(net, 0.24)
    net.run(5.0)
    assert replying(net, 2.0) == 0  # no disk holds a longer lease yet
    for node in net.nodes.values():
        assert node.lease.seconds == CONFIG.lease_ms / 1000
    keep(net)
    net.run(2.0)
    assert replying(net, 2.0) == 1
    assert len(net.views("a")) == 1


def test_one_disk_without_the_longer_lease_keeps_it_short() -> None:
    net = Net("abc")
    net.settle("abc")
    slow(net, 0.24)
    net.run(5.0)
    for name in "ab":
        net.nodes[name].tempo.keep(net.nodes[name].tempo.wanted_ms)
    net.run(2.0)
    assert {node.lease.seconds for node in net.nodes.values()} == {CONFIG.lease_ms / 1000}


def test_the_lease_is_short_again_when_the_ring_is_fast_again() -> None:
    net = Net("abc")
    net.settle("abc")
    slow(net, 0.24)
    net.run(5.0)
    keep(net)
    net.run(2.0)
    slow(net, 0.0)
    net.run(3 * WINDOW_S)
    assert {node.lease.seconds for node in net.nodes.values()} == {CONFIG.lease_ms / 1000}


def test_a_brief_stall_of_a_member_changes_nothing() -> None:
    """300 ms, ten times: no view change, and no longer lease, which would delay every takeover."""
    net = Net("abc")
    net.settle("abc")
    views = len(net.views("a"))
    for _ in range(10):
        net.paused["b"] = []
        net.run(0.3)
        net.resume("b")
        net.run(0.5)
    keep(net)
    assert len(net.views("a")) == views
    assert {node.lease.seconds for node in net.nodes.values()} == {CONFIG.lease_ms / 1000}


def test_a_falsely_suspected_member_gets_twice_the_time() -> None:
    net = Net("abc")
    net.settle("abc")
    for _ in range(2):
        net.paused["b"] = []
        net.run(0.9)
        net.resume("b")
        net.settle("abc")
        net.run(1.0)
    views = len(net.views("a"))
    assert net.count("suspected_falsely") > 0
    net.paused["b"] = []
    net.run(1.1)
    net.resume("b")
    net.run(2.0)
    assert len(net.views("a")) == views


def test_a_killed_member_is_out_at_once_even_on_a_slow_ring() -> None:
    """Evidence of death is fast, whatever the ring makes of silence."""
    net = Net("abc")
    net.settle("abc")
    for node in net.nodes.values():
        node.tempo.false_suspicion(net.now)
        node.tempo.false_suspicion(net.now)
    net.run(1.0)
    net.crash("b", noticed=True)
    net.settle("ac", within=0.15)
    assert gone(net, "a") == [f"b: {KILLED}"]


@pytest.mark.parametrize("refused_late", [False, True])
def test_members_that_see_a_death_differently_report_no_contradiction(
    refused_late: bool,
) -> None:
    """The join of the member that found the link refused arrives before the own link is refused."""
    net = Net("abc")
    net.settle("abc")
    dead = net.nodes["b"].me.address
    net.crash("b")
    net.suspect("a", dead, False)
    net.suspect("a", dead, True)
    if refused_late:
        net.run(0.01)
        net.suspect("c", dead, True)
    net.settle("ac", within=0.2)
    assert gone(net, "a") == [f"b: {KILLED}"]
    (line,) = gone(net, "c")
    if refused_late:
        assert line == f"b: {KILLED}"
    else:
        assert line.startswith("b: a gave it up; silent for ")


def test_a_silent_member_is_reported_with_the_length_of_its_silence() -> None:
    net = Net("abc")
    net.settle("abc")
    net.crash("b")
    net.settle("ac")
    (line,) = gone(net, "a")
    assert line.startswith("b: silent for ")
    assert 600 <= int(line.split()[3]) <= 1600


def test_a_leave_and_a_restart_are_reported_as_such() -> None:
    net = Net("abc")
    net.settle("abc")
    net.nodes["b"].leave(net.now)
    net.flush("b")
    net.settle("ac")
    assert gone(net, "a") == ["b: it left"]
    net.crash("c")
    net.boot("c")
    net.settle("ac")
    assert gone(net, "a")[1:] == ["c: it was started again"]


def test_the_wanted_lease_grows_in_doubling_steps() -> None:
    tempo = Tempo(CONFIG)
    seen = []
    for step in range(200):
        tempo.rotation(0.005 * step, now=0.1 * step)
        if tempo.wanted_ms not in seen:
            seen.append(tempo.wanted_ms)
    assert seen == [200, 400, 800, 1600, 2400]
    assert tempo.lease_ms <= CONFIG.lease_max_ms
    assert tempo.timeout_ms <= CONFIG.token_timeout_max_ms


@pytest.mark.parametrize("calm_s", [2 * WINDOW_S, 20 * WINDOW_S])
def test_measurements_are_forgotten(calm_s: float) -> None:
    tempo = Tempo(CONFIG)
    for step in range(20):
        tempo.rotation(0.5, now=0.5 * step)
    assert tempo.timeout_ms > CONFIG.token_timeout_ms
    now = 10.0
    while now < 10.0 + calm_s + WINDOW_S:
        now += 0.1
        tempo.rotation(0.001, now)
    assert (tempo.lease_ms, tempo.timeout_ms) == (CONFIG.lease_ms, CONFIG.token_timeout_ms)
