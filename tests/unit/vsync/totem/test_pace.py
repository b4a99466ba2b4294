"""The token's pace: it moves only for a reason, and a member that needs it gets it at once.

Here frames take 0.05 to 0.3 ms and a commit 1 ms. The bounds are on the number of frames, which the
machine's load does not change, and on virtual time.
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tests.support.ring.virtual_network import Net, waiting_token
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Marks
from vsync.totem.node import Node
from vsync.totem.ordering.operational import OperationalPhase
from vsync.types import Guarantee
from vsync.wire.messages import FrameKind, Wake

STEP_S = 0.0001
CONFIG = RingConfig(frame_bytes_max=32_768)  # so that little fills several visits
HOLD_S = CONFIG.hold_ms / 1000
REST_S = CONFIG.rest_ms / 1000
KEEP_S = CONFIG.keep_ms / 1000
WAIT_S = CONFIG.commit_wait_ms / 1000


def phase_of(node: Node) -> OperationalPhase:
    """The operational phase of a member whose ring is installed."""
    phase = node.membership.operational
    assert phase is not None
    return phase


class Disks(Net):
    """Every member commits what it delivers, and announces the commit to the ring if `tells`."""

    def __init__(self, names: str = "abc", seed: int = 1, *, tells: bool = True) -> None:
        self.tells = tells
        self.commit_s = dict.fromkeys(names, 0.001)
        self.delivered = dict.fromkeys(names, 0)
        self.asleep: set[str] = set()  # they commit their deliveries later, with something else
        self.commits: list[tuple[float, str, int]] = []
        self.kinds: list[int] = []
        super().__init__(names, seed, config=CONFIG)
        self.drop = self._count_kind
        self.settle(names)
        self.run(1.0)

    def _count_kind(self, _from: str, _to: str, frame: bytes) -> bool:
        self.kinds.append(frame[1])
        return False

    def flush(self, name: str) -> None:
        known = len(self.seen[name])
        super().flush(name)
        for output in self.seen[name][known:]:
            if isinstance(output, Deliver) and name not in self.asleep:
                self.delivered[name] += 1
                if self.tells:
                    self.nodes[name].expect_mark(self.delivered[name])
                at = self.now + self.commit_s[name]
                self.commits.append((at, name, self.delivered[name]))

    def step(self, seconds: float) -> None:
        """Let time pass, and complete the commits that are due."""
        for _ in range(round(seconds / STEP_S)):
            self.run(STEP_S)
            for commit in [one for one in self.commits if one[0] <= self.now]:
                self.commits.remove(commit)
                _, name, mark = commit
                self.nodes[name].set_mark(mark, self.now)
                self.flush(name)

    def durable_at(self, name: str) -> int:
        """The position a majority has on disk, as `name` sees it."""
        shown = [o for o in self.seen[name] if isinstance(o, Marks)]
        return sorted(shown[-1].marks.values())[len(self.nodes) // 2] if shown else 0

    def confirmed(self, name: str, within: float) -> float:
        """Submit a payload, and return the time until it is known to be durable."""
        before, began = self.durable_at(name), self.now
        assert self.submit(name, b"x")
        while self.durable_at(name) == before:
            assert self.now - began < within, self.describe()
            self.step(STEP_S)
        return self.now - began

    def until_delivered(self, names: str, count: int) -> float:
        """Run until `names` have delivered `count` payloads, and return the time taken."""
        began = self.now
        self.run(0.2, lambda: all(len(self.payloads(name)) >= count for name in names))
        return self.now - began

    def until_marked(self, name: str, of: str, mark: int) -> float:
        """Run until `name` sees the mark `mark` of `of`, and return the time taken."""
        began = self.now
        self.run(0.2, lambda: self.marks(name)[of] == mark)
        return self.now - began

    def marks(self, name: str) -> dict[str, int]:
        """The marks `name` saw last."""
        return [o for o in self.seen[name] if isinstance(o, Marks)][-1].marks

    def confirmed_by_both(self, origin: str, other: str) -> float:
        """Submit a payload, and return the time until both `origin` and `other` have it on disk."""
        before, began = self.marks(origin)[other], self.now
        self.submit(origin, b"x")
        while min(self.marks(origin)[name] for name in (origin, other)) == before:
            self.step(STEP_S)
        return self.now - began

    def tokens(self) -> int:
        """The number of tokens sent since the last call."""
        count = self.kinds.count(FrameKind.TOKEN)
        self.kinds.clear()
        return count


@pytest.mark.parametrize("origin", "abc")
def test_a_message_takes_few_hops(origin: str) -> None:
    """Most messages are sent while the token stays; then the token moves only when the
    keep ends."""
    net = Disks()
    net.tokens()
    took = []
    for _ in range(100):
        net.step(0.01)
        took.append(net.confirmed(origin, 0.02))
    net.step(0.01)
    paced = net.tokens() / len(took)
    assert paced < 10
    assert sorted(took)[50] < 0.002


def test_the_token_does_not_spin_while_commits_are_under_way() -> None:
    hops: dict[bool, int] = {}
    for tells in (True, False):
        net = Disks(tells=tells)
        for _ in range(20):
            net.step(0.01)
            net.tokens()
            net.confirmed("b", 0.02)
            hops[tells] = hops.get(tells, 0) + net.tokens()
    assert hops[True] < 0.8 * hops[False]


@pytest.mark.turns(8)
@pytest.mark.parametrize("silence", [0.0005, 0.002, 0.004, 0.01, 0.03, 0.06, 0.2, 1.0])
@pytest.mark.parametrize("origin", "abc")
def test_work_gets_the_token_at_once_however_long_it_rested(silence: float, origin: str) -> None:
    net = Disks(seed=3)
    for number in range(20):
        net.step(silence + number * STEP_S)
        assert net.confirmed(origin, 0.02) < 0.006


@pytest.mark.parametrize("slow", "abc")
@pytest.mark.parametrize("origin", "abc")
def test_a_slow_disk_barely_delays_the_marks_of_others(slow: str, origin: str) -> None:
    """Two of three have committed; the token waits only briefly for the third."""
    net = Disks()
    net.commit_s[slow] = 1.0
    took = []
    for _ in range(20):
        net.step(0.03)
        took.append(net.confirmed(origin, 0.03))
    assert max(took) < 0.006 + 2 * WAIT_S


def test_a_mark_that_never_comes_blocks_nothing() -> None:
    """A stuck disk, or a store that was replaced meanwhile."""
    net = Disks()
    for name in "abc":
        net.nodes[name].expect_mark(1 << 40)
    for origin in "abc" * 5:
        net.step(0.01)
        assert net.confirmed(origin, 0.03) < 0.006 + 6 * WAIT_S
    net.nodes["a"].set_mark(net.nodes["a"].mark - 1, net.now)
    assert net.nodes["a"].intake.coming == net.nodes["a"].mark


@pytest.mark.parametrize("lost", [("a", "b"), ("b", "c"), ("c", "a"), ("c", "b")])
def test_a_lost_call_costs_one_rest(lost: tuple[str, str]) -> None:
    """At intervals at which calls are frequent; an idle ring still holds its token longer."""
    net = Disks()
    net.drop = lambda source, to, frame: frame[1] == FrameKind.WAKE and (source, to) == lost
    net.confirmed(lost[0], 0.08)
    for _ in range(50):
        net.step(0.007)
        assert net.confirmed(lost[0], 0.08) < 0.006 + REST_S + WAIT_S


def test_a_call_that_overtakes_the_token_is_remembered() -> None:
    """The token is on its way to a member that would keep it."""
    net = Disks()
    for node in net.nodes.values():
        node.expect_mark(1 << 40)
    for _ in range(9):
        net.step(0.1)
        phases = [phase_of(node) for node in net.nodes.values()]
        net.run(HOLD_S, lambda: not any(waiting_token(node) for node in net.nodes.values()))
        last = max(range(3), key=lambda n: phases[n].ring.hop)
        receiver = list(net.nodes.values())[(last + 1) % 3]
        waited = receiver.counters["token_waited"]
        receiver.membership.on_wake(Wake(receiver.ring), net.now)
        net.run(0.0005)
        assert waiting_token(receiver) is None
        assert receiver.counters["token_waited"] == waited


def test_non_urgent_work_goes_with_the_next_traffic() -> None:
    """It leaves with the token when the keep ends, whatever is sent meanwhile."""
    net = Disks()
    for more in (True, False):
        net.confirmed("a", 0.02)
        net.step(0.003)
        called = net.count("token_called")
        assert net.submit("b", b"ack", urgent=False)
        assert net.count("token_called") == called
        began, acks = net.now, net.payloads("a").count(b"ack")
        if more:
            net.submit("a", b"x")
        net.run(0.05, lambda acks=acks: net.payloads("a").count(b"ack") > acks)  # type: ignore[misc]
        assert net.now - began < KEEP_S + 0.004


@pytest.mark.parametrize("origin", "abc")
def test_non_urgent_work_ends_a_long_rest(origin: str) -> None:
    net = Disks()
    net.step(0.5)
    began = net.now
    assert net.submit(origin, b"ack", urgent=False)
    net.run(0.1, lambda: all(b"ack" in net.payloads(n) for n in "abc"))
    assert net.now - began < 0.004


@pytest.mark.parametrize("frames", [24, 25, 49])
@pytest.mark.parametrize("origin", "abc")
def test_work_of_several_visits_is_sent_without_a_rest(frames: int, origin: str) -> None:
    """A representative that compared with its own forwarded value took its last frames for safe,
    and rested before they were."""
    net = Disks()
    net.step(0.2)
    body = bytes(CONFIG.frame_bytes_max - 4096)
    began = net.now
    for _ in range(frames):
        assert net.submit(origin, body)
    net.run(0.2, lambda: all(len(net.payloads(n)) == frames for n in "abc"))
    assert net.now - began < 0.008


def test_all_know_what_is_safe_before_the_token_rests() -> None:
    """Wherever it rests, no member waits for a visit to deliver."""
    net = Disks("abcd", seed=5)
    for number in range(60):
        net.step(0.002 + number % 7 * 0.001)
        net.submit("abcd"[number % 4], b"x")
        for _ in range(60):
            net.step(STEP_S)
            for node in net.nodes.values():
                if phase_of(node).held:
                    assert len({len(net.payloads(n)) for n in "abcd"}) == 1


@pytest.mark.parametrize("origin", "abc")
def test_a_new_ring_does_not_rest_on_visits_of_its_recovery(origin: str) -> None:
    """Queued work goes out with its first rotations, without a call."""
    for seed in range(9):
        net = Disks("abcd", seed)
        net.crash("d", noticed=True)
        net.submit(origin, b"x")
        net.settle("abc")
        assert net.until_delivered("abc", 1) < 0.003


@pytest.mark.parametrize("silence", [0.008, 0.02, 0.5])
def test_work_of_a_representative_without_the_token_prevents_its_rest(silence: float) -> None:
    """The representative calls nobody, because the token rests with it; so it must not
    rest then."""
    net = Disks()
    for number in range(1, 9):
        net.confirmed("b", 0.1)
        net.step(silence)
        net.run(0.2, lambda: waiting_token(net.nodes["a"]) is None)
        net.asleep.update("abc")  # this ack shares a later commit
        net.submit("a", b"ack", urgent=False)
        took = net.until_delivered("b", 2 * number)
        assert took < (0.004 if silence == 0.5 else 0.004 + KEEP_S)
        net.step(silence)
        net.run(0.2, lambda: waiting_token(net.nodes["a"]) is None)
        mark = 1000 * number
        net.nodes["a"].set_mark(mark, net.now)
        net.flush("a")
        assert net.until_marked("b", "a", mark) < 0.002
        net.asleep.clear()
        net.delivered = dict.fromkeys("abc", mark)


@pytest.mark.parametrize("origin", "ab")
def test_the_member_that_waits_for_a_commit_is_called(origin: str) -> None:
    """Not only the representative: any member may have the token then."""
    net = Disks()
    net.commit_s["c"] = 0.01
    took = []
    for _ in range(20):
        net.step(0.02)
        net.submit("b", b"x")
        net.run(0.05, lambda: phase_of(net.nodes["c"]).held)
        net.submit(origin, b"y")
        took.append(net.until_delivered(origin, len(net.payloads(origin)) + 1))
    assert sum(took) / len(took) < 0.0013


def test_marks_call_a_representative_without_a_disk() -> None:
    """It rests while the others commit."""
    net = Disks()
    net.asleep.add("a")
    net.commit_s = dict.fromkeys("abc", 0.012)
    took = []
    for _ in range(20):
        net.step(0.03)
        took.append(net.confirmed_by_both("b", "c"))
    assert sum(took) / len(took) < 0.012 + 0.0035


@pytest.mark.parametrize("origin", "bc")
def test_a_lone_sender_calls_little_while_nothing_rests(origin: str) -> None:
    net = Disks()
    for number in range(200):
        net.submit(origin, b"x")
        net.step(0.0009 + number % 3 * STEP_S)
    assert net.count("token_called") < 200


class OldRelease(Disks):
    """One member calls only the representative, and late, and does not wait for commits."""

    old = ""

    def submit(
        self,
        name: str,
        payload: bytes,
        guarantee: Guarantee = Guarantee.SAFE,
        *,
        urgent: bool = True,
    ) -> bool:
        if name != self.old:
            return super().submit(name, payload, guarantee, urgent=urgent)
        node = self.nodes[name]
        assert node.intake.queue.put(payload, guarantee)
        phase = phase_of(node)
        if phase.waiting is not None:
            phase.work_arrived(self.now)
        elif phase.ring.idle + 2 >= CONFIG.idle_visits_before_hold:
            phase._call(phase.ring.members[:1])
        self.flush(name)
        return True


@pytest.mark.parametrize("old", "bc")
def test_a_member_of_an_older_release_waits_a_rest_but_not_a_hold(old: str) -> None:
    net = OldRelease()
    net.old = old
    for number in range(60):
        net.step(0.006 + number * 5 * STEP_S)
        assert net.confirmed(old, 0.08) < 0.008 + REST_S + 2 * WAIT_S


@pytest.mark.parametrize("origin", "abc")
def test_the_token_stays_where_the_last_urgent_work_came_from(origin: str) -> None:
    """More may follow from there; then nobody is called, and no hop is spent on fetching
    the token."""
    net = Disks()
    net.confirmed(origin, 0.02)
    called, took = net.count("token_called"), []
    net.tokens()
    for _ in range(50):
        net.step(0.01)
        took.append(net.confirmed(origin, 0.02))
    assert net.count("token_called") == called
    assert sorted(took)[25] < 0.0025
    assert net.tokens() / 50 < 13


@pytest.mark.parametrize("other", "ac")
def test_a_called_keeper_passes_the_token_on(other: str) -> None:
    """From then on it stays with the caller."""
    net = Disks()
    for origin in ("b", other, "b"):
        net.confirmed(origin, 0.02)
        net.step(0.005)
        for name, node in net.nodes.items():
            assert phase_of(node).held == (name == origin)


@pytest.mark.turns(8)
@pytest.mark.parametrize("where", [*permutations("abc", 2)])
@pytest.mark.parametrize("silence", [0.0, 0.0004, 0.002, 0.01])
def test_the_member_that_acked_last_can_call_the_keeper(
    where: tuple[str, str], silence: float
) -> None:
    """Also if the keeper knew that the ack was safe before its sender did."""
    net = Disks()
    keeper, other = where
    for number in range(20):
        net.step(0.03)
        net.confirmed(keeper, 0.02)
        net.asleep.update("abc")  # this ack shares a later commit
        net.submit(other, b"ack", urgent=False)
        net.run(0.1, lambda: b"ack" in net.payloads(other)[number * 3 :])  # noqa: B023
        net.step(silence)
        net.asleep.clear()
        net.delivered = dict.fromkeys("abc", max(net.delivered.values()))
        assert net.confirmed(other, 0.05) < 0.006


@pytest.mark.turns(2)
@pytest.mark.parametrize("seed", range(8))
def test_urgent_work_never_waits_for_a_kept_token(seed: int) -> None:
    """Whatever other members send meanwhile: where no call is lost, all are in time."""
    names = ("abc", "abcd")[seed % 2]
    net, rng = Disks(names, seed), random.Random(seed)
    net.commit_s = dict.fromkeys(names, (0.0005, 0.001, 0.0015, 0.004)[seed // 2])
    for _ in range(400):
        net.step(rng.choice((0.0, 0.0003, 0.002, 0.008, 0.03)))
        for name in names:
            if rng.random() < 0.3:
                net.submit(name, b"ack", urgent=False)
        net.step(rng.choice((0.0, 0.0003, 0.001, 0.004)))
        name, payload = rng.choice(names), rng.randbytes(8)
        net.submit(name, payload)
        began = net.now
        while payload not in net.payloads(name)[-40:]:
            net.step(STEP_S)
            assert net.now - began < 0.004 + len(names) * WAIT_S, net.describe()


@pytest.mark.parametrize("silence", [0.0, 0.0003, 0.001, 0.005])
def test_marks_that_arrive_as_the_keep_begins_are_shown(silence: float) -> None:
    """All marks are there, so the token rests, but work that waited for them does not."""
    for seed in range(20):
        net = Disks(seed=seed)
        for number in range(20):
            net.step(0.008)
            net.submit("ba"[number % 2], b"other")
            net.step(silence)
            assert net.confirmed("ab"[number % 2], 0.03) < 0.006


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_a_mark_is_seen_once_all_have_delivered_what_it_covers(seed: int) -> None:
    """Frames are lost, so some members learn late what is safe; nobody confirms before they do."""
    names = ("ab", "abc", "abcd", "abcde")[seed % 4]
    net = Disks(names, seed)
    lossy = random.Random(seed)
    counted = net.drop
    net.drop = lambda source, to, frame: (
        counted(source, to, frame)
        or (frame[1] in (FrameKind.DATA, FrameKind.EARLY, FrameKind.WAKE) and lossy.random() < 0.1)
    )
    seen = dict.fromkeys(names, 0)
    for number in range(2000):
        if lossy.random() < 0.2:
            net.submit(names[number // 50 % len(names)], b"x", urgent=lossy.random() < 0.8)
        net.step(3 * STEP_S)
        for name in names:
            for output in net.seen[name][seen[name] :]:
                if isinstance(output, Marks):
                    assert max(output.marks.values()) <= min(net.delivered.values())
            seen[name] = len(net.seen[name])
    assert min(net.delivered.values()) > 100


def test_an_idle_ring_still_holds_its_token() -> None:
    net = Disks()
    net.confirmed("b", 0.02)
    net.step(0.3)
    net.tokens()
    net.run(2.0)
    assert net.tokens() <= 3 * (2.0 / HOLD_S + 1)


@pytest.mark.parametrize("where", [*permutations("abc", 2)])
def test_two_members_that_send_together_are_both_quick(where: tuple[str, str]) -> None:
    net = Disks()
    for number in range(30):
        net.step(0.008)
        net.submit(where[0], b"other")
        net.step(number % 10 * STEP_S)
        assert net.confirmed(where[1], 0.03) < 0.006


def test_leases_hold_at_any_pace() -> None:
    """Rests are part of the rotation that renews a lease."""
    net = Disks("abcde")
    for number in range(400):
        net.step(0.001 * (number % 40))
        if number % 3 == 0:
            net.submit("abcde"[number % 5], b"x")
        for node in net.nodes.values():
            assert node.lease.holds(node.ring, net.now)
