"""Clock differences: who is refused, who is named, and what a slow answer proves (G17)."""

import pytest

from broker.watchdogs.clock_skew import (
    CHECK_S,
    JUMP_S,
    PREFIX,
    ROUND_TRIP_S_MAX,
    STEADY_S,
    WAIT_S,
    ClockSkew,
)
from vsync.types import Member

BOUND_S = 10.0


class Net:
    """Members with clocks set by hand, and datagrams that take as long as a test says."""

    def __init__(self, **ahead_s: float) -> None:
        self.now = 50.0
        self.ahead_s = ahead_s
        self.ran = dict.fromkeys(ahead_s, False)
        self.members = {name: Member(name, 1, name) for name in ahead_s}
        self.sent: list[tuple[str, Member, bytes]] = []
        self.watches = {name: self._watch(name) for name in ahead_s}

    def _watch(self, name: str) -> ClockSkew:
        return ClockSkew(
            self.members[name],
            BOUND_S,
            lambda to, payload: self.sent.append((name, to, payload)),
            lambda: int((1_700_000_000 + self.now + self.ahead_s[name]) * 1e6),
            lambda: self.ran[name],
        )

    def view(self, names: str, *, each_way_s: float = 0.001) -> None:
        members = tuple(self.members[name] for name in names.split())
        for name in names.split():
            self.watches[name].on_view(members, self.now)
        self.settle(each_way_s)

    def settle(self, each_way_s: float = 0.001) -> None:
        while self.sent:
            self.now += each_way_s
            sent, self.sent = self.sent, []
            for sender, to, payload in sent:
                self.watches[to.name].on_datagram(self.members[sender], payload, self.now)

    def refused(self) -> str:
        return "".join(name for name, watch in self.watches.items() if watch.refusal())


def test_a_newcomer_far_off_the_running_members_time_is_refused() -> None:
    """G17: the error gives both values and the remedy."""
    net = Net(a=0, b=1, c=3600)
    net.ran.update(a=True, b=True)
    net.view("a b c")
    assert net.refused() == "c"
    refusal = net.watches["c"].refusal()
    assert "clock says 2023-11-14 23:14:10 UTC" in refusal
    assert "cluster's time is 2023-11-14 22:14:" in refusal
    assert "3599." in refusal
    assert "ahead of" in refusal
    assert "--clock-bound" in refusal


def test_a_late_answer_to_an_earlier_question_is_ignored() -> None:
    """Counted from the later question, its way would seem short, and the clock ahead."""
    net = Net(a=0, b=0)
    members = tuple(net.members.values())
    watch = net.watches["a"]
    watch.on_view(members, net.now)
    (_, _, question), net.sent = net.sent[0], []
    net.now += 0.9
    watch.wake(net.now)
    assert net.sent, "it asks again"
    net.sent = [("a", net.members["b"], question)]
    net.settle(0.05)
    assert watch.readings == {}


@pytest.mark.parametrize("names", ["a", "a b"])
def test_a_clock_that_few_can_judge_must_be_steady_for_long(names: str) -> None:
    """A broker alone whose clock was a year ahead for a minute dropped its member log by age."""
    net = Net(**dict.fromkeys(names.split(), 0))
    net.view(names)
    watch = net.watches["a"]

    def right_after(seconds: float) -> bool:
        net.now += seconds
        watch.wake(net.now)
        return watch.is_right

    assert not right_after(0)
    assert not right_after(STEADY_S - 1)
    assert right_after(1)
    net.ahead_s["a"] += JUMP_S - 1  # corrected a little at a time, like by NTP
    assert right_after(1)
    for jump_s in (3e7, -3e7):
        net.ahead_s["a"] += jump_s
        assert not right_after(1)
        assert not right_after(STEADY_S - 1)
    assert right_after(1)


def test_a_clock_that_others_agree_with_is_right_at_once() -> None:
    net = Net(a=0, b=0, c=0)
    net.view("a b c")
    assert net.watches["a"].is_right
    net.ahead_s["a"] = 3e7
    net.view("a b c")
    assert not net.watches["a"].is_right


def test_a_newcomer_within_the_bound_may_join() -> None:
    net = Net(a=0, b=-9.5)
    net.ran.update(a=True)
    net.view("a b")
    assert net.watches["b"].decided(net.now)
    assert not net.refused()


def test_at_a_first_start_the_majority_is_right() -> None:
    net = Net(a=0, b=-500, c=0.3)
    net.view("a b c")
    assert net.refused() == "b"


def test_of_two_that_differ_neither_is_known_to_be_right() -> None:
    net = Net(a=0, b=500)
    net.view("a b")
    assert not net.refused()
    assert len(net.watches["a"].alarms) == 0, "both are the median"


def test_one_wrong_member_of_two_does_not_refuse_a_newcomer() -> None:
    net = Net(a=0, b=500, c=0)
    net.ran.update(a=True, b=True)
    net.view("a b c")
    assert not net.refused()


def test_a_member_that_drifts_off_is_named_and_goes_on() -> None:
    net = Net(a=0, b=0, c=0)
    net.ran.update(a=True, b=True, c=True)
    net.view("a b c")
    net.ahead_s["b"] = -11.0
    net.now += CHECK_S
    for watch in net.watches.values():
        watch.wake(net.now)
    net.settle()
    assert not net.refused()
    for watch in net.watches.values():
        assert list(watch.alarms) == ["b"]
        assert "11.0 s behind" in watch.alarms["b"]
        assert watch.counters["alarms"] == 1
    net.ahead_s["b"] = 0
    net.now += CHECK_S
    for watch in net.watches.values():
        watch.wake(net.now)
    net.settle()
    assert not any(watch.alarms for watch in net.watches.values())


def test_a_slow_answer_proves_nothing_and_is_requested_again() -> None:
    net = Net(a=0, b=0)
    net.ran.update(a=True)
    net.view("a b", each_way_s=ROUND_TRIP_S_MAX)
    watch = net.watches["b"]
    assert watch.counters["slow_answers"] == 1
    assert not watch.readings
    watch.wake(net.now)
    net.settle()
    assert watch.readings


def test_half_of_the_round_trip_is_subtracted() -> None:
    net = Net(a=0, b=0)
    net.view("a b", each_way_s=0.2)
    assert abs(net.watches["a"].readings[net.members["b"]].ahead_s) < 0.001


def test_members_that_never_answer_do_not_block_a_newcomer_for_ever() -> None:
    net = Net(a=0, b=0)
    members = tuple(net.members.values())
    watch = net.watches["a"]
    watch.on_view(members, net.now)
    assert not watch.decided(net.now)
    assert watch.decided(net.now + WAIT_S)
    assert not watch.refusal()


def test_a_lone_member_waits_for_nothing() -> None:
    net = Net(a=0)
    net.view("a")
    assert net.watches["a"].decided(net.now)


def test_a_datagram_that_is_not_a_clocks_is_counted() -> None:
    net = Net(a=0, b=0)
    for payload in (b"", b"\xc1", b"\x94\x01\xa1x\x00\x00", b"\x92\x01\x02"):
        net.watches["a"].on_datagram(net.members["b"], PREFIX + payload, 0.0)
    assert net.watches["a"].counters["malformed"] == 4
