"""A member that cannot keep up slows the whole ring down and stays in it.

Decision: docs/decisions/0009-a-disk-that-lags-slows-all-down-then-leaves.md.
"""

from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig


def rotations(net: Net, seconds: float) -> int:
    """How often the token visited b in that time, with work for it all along."""
    ring = net.nodes["b"].membership.current
    assert ring is not None
    before = ring.hop
    for _ in range(round(seconds / 0.01)):
        for name in "abc":  # several senders, so that nobody keeps the token
            net.submit(name, b"x")
        net.run(0.01)
    assert net.nodes["b"].membership.current is ring
    return (ring.hop - before) // 3


def test_a_slow_member_holds_each_token_for_a_moment() -> None:
    net = Net("abc")
    net.run(1.0)
    free = rotations(net, 1.0)
    net.nodes["b"].set_throttle(0.02)
    slowed = rotations(net, 1.0)
    assert slowed <= 1.0 / 0.02 < free / 3
    assert net.nodes["b"].counters["token_slowed"] >= slowed - 1
    net.nodes["b"].set_throttle(0.0)
    net.run(0.05)
    assert rotations(net, 1.0) > free / 2
    views = [len(net.views(name)) for name in "abc"]
    net.nodes["b"].set_throttle(1000.0)
    rotations(net, 2.0)
    assert net.nodes["b"].intake.throttle_s == RingConfig().hold_ms / 1000, (
        "below the token timeout"
    )
    assert [len(net.views(name)) for name in "abc"] == views
    assert all(net.nodes[name].counters["token_lost"] == 0 for name in "abc")


def test_a_slow_member_sends_no_reports_while_another_keeps_the_token() -> None:
    """So the token comes to it, and it slows down a single sender as well."""
    net = Net("abc")
    net.run(1.0)
    for throttle_s in (0.0, 0.02):
        net.nodes["b"].set_throttle(throttle_s)
        for _ in range(50):
            net.submit("a", b"x")
            net.run(0.01)
        assert (net.nodes["b"].counters["reports_sent"] > 20) == (throttle_s == 0.0)
        net.nodes["b"].counters["reports_sent"] = 0


def test_a_ring_of_one_slows_itself() -> None:
    net = Net("a")
    net.run(1.0)
    net.nodes["a"].set_throttle(0.05)
    net.submit("a", b"x")
    net.run(0.04)
    assert not net.payloads("a")
    net.run(0.02)
    assert net.payloads("a") == [b"x"]
