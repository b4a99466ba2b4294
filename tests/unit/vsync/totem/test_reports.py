"""Reports replace rotations: the keeper of the token sends at once, and the others report what they
hold, have delivered and have on disk. Lost, late or false reports must prove nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.unit.vsync.totem.test_pace import CONFIG, KEEP_S, REST_S, STEP_S, Disks, phase_of
from vsync.totem.events import Broadcast, Deliver, Marks, Send
from vsync.totem.ordering.reports import FRAMES_MAX, OwnMark, Reports, ReportWait
from vsync.totem.ordering.ring import Ring
from vsync.types import NO_RING
from vsync.wire.messages import FrameKind, Report

RINGS = ("ab", "abc", "abcd", "abcde")
DATA = (FrameKind.DATA, FrameKind.EARLY)


class Watched(Disks):
    """Checks after each step of a member that what it takes for safe is held by all, that what it
    takes for delivered by all is, and that all have delivered what any mark it sees covers.

    All members are in one ring; a mark counts deliveries, until one falls.
    """

    def __init__(self, names: str = "abc", seed: int = 1) -> None:
        self.checks = 0
        super().__init__(names, seed)
        self.commit_s = dict.fromkeys(names, 0.0006)
        self.checks = 1

    def rings(self) -> Iterator[Ring]:
        return (phase_of(node).ring for node in self.nodes.values())

    def flush(self, name: str) -> None:
        known = len(self.seen[name])
        super().flush(name)
        if not self.checks:
            return
        self.checks += 1
        delivered = min(ring.delivered for ring in self.rings())
        assert max(ring.safe for ring in self.rings()) <= min(r.window.aru for r in self.rings())
        token = phase_of(self.nodes[name]).waiting
        assert token is None or token.everywhere <= delivered
        for output in self.seen[name][known:]:
            if isinstance(output, Marks):
                assert max(output.marks.values()) <= min(self.delivered.values())

    def position(self, name: str, payload: bytes) -> int:
        """The mark that covers `payload` there; 0 if it is not delivered yet."""
        frames = [one.payloads for one in self.seen[name] if isinstance(one, Deliver)]
        return next((at for at, items in enumerate(frames, 1) if payload in items), 0)

    def keeper(self) -> str:
        """The member that keeps the token, or ""."""
        return "".join(name for name, node in self.nodes.items() if phase_of(node)._kept_until)

    def kept_by(self, name: str) -> None:
        """Let `name` send something, and wait until it keeps the token."""
        self.step(0.01)
        self.confirmed(name, 0.05)
        for _ in range(1000):
            self.step(STEP_S)
            if phase_of(self.nodes[name])._kept_until > self.now + KEEP_S - 2 * STEP_S:
                return
        raise AssertionError(self.describe())


def test_a_message_takes_few_hops_and_frames() -> None:
    """Data to two members, a report from each to all, its deliveries and its mark to one."""
    net = Watched()
    net.kept_by("b")
    net.kinds.clear()
    took = []
    for _ in range(8):
        net.step(0.0005)
        took.append(net.confirmed("b", 0.01))
    net.step(0.001)
    assert net.keeper() == "b"
    assert len(net.kinds) <= 8 * 10
    assert FrameKind.TOKEN not in net.kinds
    assert sorted(took)[4] < 0.0015


@pytest.mark.parametrize("names", RINGS)
def test_consecutive_messages_need_few_rotations(names: str) -> None:
    """Also from one keep to the next: the returning token finds work, and stays."""
    net = Watched(names)
    for _ in range(200):
        net.confirmed("b", 0.02)
    assert net.tokens() < 200 * 0.8 * len(names)
    assert net.count("sent_early") > 150
    assert net.count("reports_late") < 10


@pytest.mark.parametrize("far_s", [0.0005, 0.001, 0.002, 0.003])
def test_reports_are_awaited_for_as_long_as_they_take(far_s: float) -> None:
    """A message takes three hops also where those take longer than a rest."""
    net = Watched()
    net.far_s = far_s
    for _ in range(20):
        net.confirmed("b", 0.1)
    rests = net.count("reports_late")
    took = [net.confirmed("b", 0.1) for _ in range(100)]
    early, late = net.count("sent_early"), net.count("reports_late")
    assert early > 60, (early, late)
    assert late <= rests + 2, (early, rests, late)
    assert sorted(took)[25] < 3 * (far_s + 0.0003) + 0.001


@pytest.mark.parametrize("far_s", [0.0, 0.0005])
def test_an_ack_under_way_makes_no_message_wait_for_a_rotation(far_s: float) -> None:
    """A consumer beside the producer acknowledges each message, and the ack goes with a token; the
    next message comes before it is known to be safe."""
    net = Watched()
    net.far_s = far_s
    took = []
    for number in range(100):
        sent, began = b"%d" % number, net.now
        net.submit("b", sent)
        while not (at := net.position("b", sent)):
            net.step(STEP_S)
        net.nodes["b"].submit(b"ack", net.now, urgent=False)
        net.flush("b")
        while net.durable_at("b") < at:
            net.step(STEP_S)
        took.append(net.now - began)
    assert net.count("sent_early") > 60
    assert sorted(took)[50] < 3 * (far_s + 0.0003) + 0.001


def test_a_member_that_waits_for_marks_calls_the_keeper() -> None:
    """Otherwise it waits until the keep ends: its window is full, and it sends no more."""
    net, rng = Watched(), random.Random(7)
    waiting: dict[bytes, float] = {}
    took: list[float] = []
    acks = number = 0
    while len(took) < 300:
        if not waiting:
            for sent in (b"%d" % at for at in range(number, number + 5)):
                waiting[sent] = net.now
                net.submit("b", sent)
            number, acks = number + 5, acks + 5
        net.step(3 * STEP_S)
        known = net.durable_at("b")
        done = [sent for sent in waiting if 0 < net.position("b", sent) <= known]
        took += [net.now - waiting.pop(sent) for sent in done]
        if acks and rng.random() < 0.5:
            acks -= 1
            net.submit("c", b"ack")
    assert max(took) < KEEP_S / 2
    assert net.count("sent_early") > 5


@pytest.mark.parametrize("low", [5, 0])
def test_a_fallen_mark_only_one_keeper_showed_is_seen_first(low: int) -> None:
    """b shows a mark of c that a never sees; the mark falls, and a, which sees no fall, keeps the
    token. It takes two lost calls for both to think that they may keep it."""
    net = Disks("abc", seed=1)
    net.asleep.update("abc")
    for node in net.nodes.values():
        node.set_mark(4, net.now)
    net.step(0.1)
    deaf = set[str]()
    counted = net.drop
    net.drop = lambda source, to, frame: (
        counted(source, to, frame) or (frame[1] == FrameKind.WAKE and to in deaf)
    )
    for name, wait_s in (("b", 0.02), ("a", 0.07)):
        net.submit(name, b"it keeps the token")
        net.step(wait_s)
        deaf.add(name)
    net.submit("b", b"early")
    keeper = phase_of(net.nodes["b"])
    for _ in range(2000):
        net.run(STEP_S / 2)
        token = keeper.waiting
        if keeper._kept_until and keeper.ring.early and token and token.everywhere == token.seq:
            break
    net.nodes["c"].set_mark(10, net.now)
    net.flush("c")
    net.run(0.004, lambda: net.marks("b")["c"] == 10)
    net.nodes["c"].set_mark(low, net.now)
    net.flush("c")
    deaf.discard("b")
    net.submit("a", b"work")
    net.submit("c", b"fell")
    net.step(0.1)
    for name in "ab":
        shown: dict[str, int] = {}
        for output in net.seen[name]:
            if isinstance(output, Marks):
                shown = output.marks
            elif isinstance(output, Deliver) and b"fell" in output.payloads:
                assert shown["c"] == low
                break
        else:
            raise AssertionError(net.describe())


@pytest.mark.turns(10)
@pytest.mark.parametrize("seed", range(32))
def test_with_any_loss_no_member_takes_too_much_for_safe(seed: int) -> None:
    names, share = RINGS[seed % 4], (0.0, 0.02, 0.2, 0.5)[seed // 4 % 4]
    net, rng = Watched(names, seed), random.Random(seed)
    counted = net.drop
    kinds = (*DATA, FrameKind.REPORT, FrameKind.WAKE)
    net.drop = lambda source, to, frame: (
        counted(source, to, frame) or (frame[1] in kinds and rng.random() < share)
    )
    for number in range(400):
        if rng.random() < 0.3:
            name = names[number // 40 % len(names)] if rng.random() < 0.9 else rng.choice(names)
            net.submit(name, bytes(rng.choice((1, 1, 20_000))), urgent=rng.random() < 0.9)
        if rng.random() < 0.02:
            net.commit_s[rng.choice(names)] = rng.choice((0.0, 0.0006, 0.004))
        net.step(rng.choice((1, 3, 3, 30)) * STEP_S)
    net.drop = counted
    net.step(0.3)
    assert len({tuple(net.payloads(name)) for name in names}) == 1
    assert net.settled(names)
    assert all(net.marks(name) == net.delivered for name in names)
    # Where two members send, one that waits for marks calls the keeper, so few frames are early.
    assert net.count("sent_early") > (25 if share == 0.0 else 5)


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(40))
def test_a_fallen_mark_is_seen_before_what_its_member_sends_next(seed: int) -> None:
    """Whichever member keeps the token, and whatever the others report meanwhile."""
    names = RINGS[seed % 4]
    net, rng = Disks(names, seed), random.Random(seed)
    net.commit_s = dict.fromkeys(names, 0.0006)
    for fallen in rng.sample(names, len(names)):
        for number in range(rng.randrange(20, 40)):
            if rng.random() < 0.5:
                net.submit(rng.choice((fallen, names[number % 2])), b"x", urgent=number % 4 > 0)
            net.step(rng.choice((1, 2, 4, 8)) * STEP_S)
        net.asleep.add(fallen)  # its store is replaced, and the new disk is still empty
        net.commits = [one for one in net.commits if one[1] != fallen]
        net.nodes[fallen].set_mark(1, net.now)
        net.submit(fallen, b"fell " + fallen.encode())
    net.step(0.1)
    for name in names:
        shown: dict[str, int] = {}
        found = []
        for output in net.seen[name]:
            if isinstance(output, Marks):
                shown = output.marks
            elif isinstance(output, Deliver):
                found += [one[5:].decode() for one in output.payloads if one[:4] == b"fell"]
                assert all(shown[fallen] <= 1 for fallen in found)
        assert len(found) == len(names)


@pytest.mark.parametrize("dead", "abc")
@pytest.mark.parametrize("step", range(0, 24, 2))
def test_a_member_that_dies_at_any_step_leaves_agreement_behind(dead: str, step: int) -> None:
    """The others delivered before their view ended whatever the dead member had shown to
    be durable."""
    net = Watched(seed=step)
    net.kept_by("b")
    net.step(0.0007)
    net.submit("b", b"last")
    net.checks = 0
    net.step(step * STEP_S)
    durable = dead in net.seen and net.durable_at(dead)
    seen = net.crash(dead, noticed=True)
    net.settle("abc".replace(dead, ""))
    net.run(0.2)
    left = "abc".replace(dead, "")
    assert len({tuple(net.payloads(name)) for name in left}) == 1
    shown = [p for o in seen if isinstance(o, Deliver) for p in o.payloads]
    for name in left:
        regular = [p for o in net.deliveries(name) if not o.transitional for p in o.payloads]
        assert len(regular) >= durable
        if dead != "b" or shown[-1:] == [b"last"]:
            assert net.payloads(name)[-1] == b"last"


@pytest.mark.parametrize("lost", [("b", "a", 10), ("b", "c", 10), ("a", "b", 11), ("c", "a", 11)])
def test_a_lost_frame_or_report_costs_a_rest(lost: tuple[str, str, int]) -> None:
    net = Watched()
    net.drop = lambda source, to, frame: (source, to, frame[1]) == lost
    for _ in range(20):
        net.step(0.008)
        assert net.confirmed("b", 0.05) < 0.006 + REST_S
    if lost[1:] != ("a", 11):  # it needs nothing from that one
        assert net.count("reports_late") > 5


@pytest.mark.parametrize("far_s", [0.0005, 0.001])
def test_no_message_waits_for_the_reports_on_the_one_before(far_s: float) -> None:
    """More than one is under way between distant members."""
    net = Watched()
    net.far_s = far_s
    took: list[float] = []
    waiting: dict[bytes, float] = {}
    for number in range(2000):
        if number % 10 == 0:
            net.submit("b", b"%d" % number)
            waiting[b"%d" % number] = net.now
        net.step(STEP_S)
        done = [sent for sent in waiting if net.position("b", sent)]
        took += [net.now - waiting.pop(sent) for sent in done]
    assert sorted(took)[len(took) // 2] < 2 * (far_s + 0.0003) + 2 * STEP_S
    assert net.count("token_called") < 20  # not for each mark that must wait


def test_on_a_near_ring_messages_share_a_frame_however_long_the_last_one_takes() -> None:
    net = Watched()
    for _ in range(5):
        net.confirmed("b", 0.05)
    net.kept_by("b")
    net.far_s = 0.002  # as if the others were busy
    before = net.count("sent_early")
    for payload in (b"1", b"2", b"3"):
        net.submit("b", payload)
        net.step(0.001)
    assert net.count("sent_early") == before + 1


def test_a_lost_frame_costs_a_rest_though_others_follow() -> None:
    net = Watched()
    net.far_s = 0.0005
    net.kept_by("b")
    lost: list[bytes] = []

    def drop(_from: str, to: str, frame: bytes) -> bool:
        first = to == "c" and frame[1] == FrameKind.EARLY and not lost
        if first:
            lost.append(frame)
        return first

    net.drop = drop
    began = net.now
    for number in range(400):
        if number % 7 == 0:
            net.submit("b", b"%d" % number)
        net.step(STEP_S)
        if net.position("b", b"0"):
            break
    assert net.now - began < REST_S + 10 * (net.far_s + 0.0003)  # requested, sent again, safe


@pytest.mark.parametrize("slow", "ac")
def test_a_stuck_disk_delays_nothing(slow: str) -> None:
    net = Watched()
    net.commit_s[slow] = 10.0
    took = []
    for _ in range(60):
        net.step(0.004)
        took.append(net.confirmed("b", 0.05))
    assert sorted(took)[30] < 0.002
    assert max(took) < 0.008


@pytest.mark.parametrize("other", "ac")
@pytest.mark.parametrize("moment", range(0, 12, 2))
def test_urgent_work_elsewhere_calls_the_keeper(other: str, moment: int) -> None:
    """Before the first frame arrives, while reports are under way, and after them."""
    net = Watched(seed=moment)
    for _ in range(10):
        net.kept_by("b")
        net.submit("b", b"x")
        net.step(moment * STEP_S)
        before = net.count("token_called")
        net.submit(other, b"y")
        began, count = net.now, len(net.payloads(other))
        while b"y" not in net.payloads(other)[count:]:
            net.step(STEP_S)
            assert net.now - began < 0.004
        assert net.count("token_called") > before


def test_a_large_burst_goes_with_the_token() -> None:
    net = Watched()
    net.kept_by("b")
    for _ in range(FRAMES_MAX + 2):
        net.submit("b", bytes(CONFIG.frame_bytes_max - 4096))  # while the first is under way
    assert net.count("sent_early") == 1
    net.step(STEP_S)
    assert net.keeper() == ""
    net.until_delivered("abc", FRAMES_MAX + 3)


def test_the_keeper_passes_the_token_on_in_time() -> None:
    """However often it sends: the token renews the leases."""
    net = Watched()
    net.kept_by("b")
    last = net.now
    net.kinds.clear()
    for _ in range(400):
        net.submit("b", b"x")
        net.step(0.0005)
        if FrameKind.TOKEN in net.kinds:
            last = net.now
            net.kinds.clear()
        assert net.now - last < KEEP_S + 0.002
    assert net.count("sent_early") > 60


# -- reports that prove nothing --------------------------------------------------------------


def test_a_report_of_another_visit_is_not_used() -> None:
    """A mark may have fallen since."""
    net = Watched()
    net.kept_by("b")
    reports: list[bytes] = []
    counted = net.drop
    net.drop = lambda source, to, frame: (
        counted(source, to, frame)
        or (
            (source == "c" and frame[1] == FrameKind.REPORT and not reports.append(frame))  # type: ignore[func-returns-value]
            and False
        )
    )
    net.confirmed("b", 0.02)
    net.step(0.001)
    net.run(0.1, lambda: net.keeper() != "b")
    net.nodes["c"].set_mark(0, net.now)
    net.flush("c")
    net.run(0.1, lambda: net.marks("b")["c"] == 0)
    overtaken = net.nodes["b"].counters["report_overtaken"]
    for _ in range(50):
        for frame in reports[:4]:
            net.nodes["b"].receive(frame, net.now)
        net.run(STEP_S)
        assert net.marks("b")["c"] == 0
    assert net.nodes["b"].counters["report_overtaken"] > overtaken


def test_false_reports_are_counted_by_name() -> None:
    net = Watched()
    net.kept_by("b")
    phase, (a, b, _) = phase_of(net.nodes["b"]), (net.nodes[name].me for name in "abc")
    ring, token = phase.ring, phase.waiting
    assert token is not None
    good = Report(ring.id, ring.hop, token.seq, token.seq, 9, 0)
    false = {
        "report_other_ring": good._replace(ring=NO_RING),
        "report_beyond_token": good._replace(held=token.seq + 1),
        "report_overtaken": good._replace(hop=ring.hop - 3),
    }
    for code, report in false.items():
        phase.on_report(a, report, net.now)
        assert net.nodes["b"].counters[code] == 1
    phase.on_report(b._replace(name="z"), good, net.now)
    assert net.nodes["b"].counters["report_stranger"] == 1
    marks = ring.marks
    phase.on_report(a, good, net.now)
    phase.turn(net.now)
    assert ring.marks == marks  # nothing is under way


def report(**fields: int) -> Report:
    values = {"hop": 3, "held": 5, "safe": 4, "mark": 7, "covers": 4} | fields
    return Report(NO_RING, **values)


def test_all_members_must_report() -> None:
    """At the keeper, index 0 of three."""
    reports = Reports(3, 0)
    reports.begin(4, 3)
    reports.sent(5)
    assert reports.take(1, report(), 3)
    assert (reports.held_by_all(), reports.delivered_by_all(5)) == (0, 0)
    assert reports.take(2, report(held=4), 3)
    assert (reports.held_by_all(), reports.delivered_by_all(5)) == (4, 4)
    assert reports.take(2, report(safe=5), 3)
    assert reports.take(1, report(safe=5, mark=8, covers=5), 3)
    assert (reports.held_by_all(), reports.delivered_by_all(5)) == (5, 5)
    assert reports.delivered_by_all(4) == 4
    assert reports.marks((1, 1, 1), 4) == (1, 1, 7)
    assert reports.marks((1, 9, 1), 5) == (1, 9, 7)


def test_reports_in_any_order_say_the_same() -> None:
    said = [report(), report(safe=5), report(safe=5, mark=9, covers=5), report(held=6, safe=5)]
    results = set()
    for seed in range(20):
        order = random.Random(seed).sample(said, len(said))
        reports = Reports(2, 0)
        reports.begin(4, 4)
        reports.sent(6)
        for one in order:
            assert reports.take(1, one._replace(hop=4), 4)
        results.add((reports.held_by_all(), reports.marks((0, 0), 5)))
    assert results == {(6, (0, 9))}


def test_a_report_counts_for_one_hop_of_the_token() -> None:
    """At a member that is not the keeper: index 1 of three, whose last token had hop 1."""
    for hop, counts in ((0, False), (1, False), (2, True), (3, True), (4, False)):
        reports = Reports(3, 1)
        reports.begin(4)
        sender = (hop + 1) % 3 if (hop + 1) % 3 != 1 else (hop + 2) % 3
        assert reports.take(sender, report(hop=hop), 1) == counts
    reports = Reports(3, 1)
    reports.begin(4)
    assert not reports.take(0, report(hop=3), 1)  # from the keeper itself
    reports.frame(5, 0, 1)
    assert not reports.take(2, report(hop=2), 1)
    reports.received(5)
    assert reports.take(2, report(hop=3), 1)
    assert reports.held_by_all() == 5
    reports.end()
    assert not reports.take(2, report(hop=3), 4)
    assert not reports.under_way


def test_early_frames_count_up_to_the_first_gap() -> None:
    reports = Reports(3, 1)
    reports.begin(4)
    for seq in (6, 4, 7):
        reports.frame(seq, 0, 1)
    reports.received(5)
    assert not reports.under_way
    reports.received(6)
    assert (reports.under_way, reports.upto) == (True, 6)


def test_the_wait_follows_the_time_that_reports_take() -> None:
    wait = ReportWait(5, 26)
    for _ in range(50):
        wait.begin(3, 5, 10.0)
        wait.answered(5, 10.0004)
    assert wait.seconds == 0.005
    for _ in range(50):
        wait.begin(3, 5, 10.0)
        wait.answered(5, 10.008)
    assert 0.008 < wait.seconds < 0.0085
    for at in range(50):
        wait.begin(3, 5, 10.0)
        wait.answered(5, 10.006 + 0.004 * (at % 2))
    assert 0.012 < wait.seconds <= 0.013
    wait.answered(5, 19.0)
    assert wait.seconds == 0.013
    for _ in range(100):
        wait.begin(3, 5, 10.0)
        wait.answered(5, 10.0004)
    assert wait.seconds == 0.005


def test_the_wait_measures_one_burst_at_a_time() -> None:
    """Otherwise it would learn nothing while some are always under way."""
    wait = ReportWait(5, 26)
    for at in range(50):
        wait.begin(at, 5, 10.0)
        wait.begin(at, 6, 10.006)
        wait.answered(4, 10.007)
        wait.answered(5, 10.008)
        wait.answered(6, 19.0)
    assert 0.008 < wait.seconds < 0.0085


def test_the_shortest_time_tells_distance_from_load() -> None:
    wait = ReportWait(5, 26)
    for took in (0.002, 0.009, 0.0019, 0.02):
        wait.begin(1, 5, 10.0)
        wait.answered(5, 10.0 + took)
    assert 0.0018 < wait.shortest_s < 0.0025
    wait.begin(1, 5, 10.0)
    wait.answered(5, 10.0004)
    assert wait.shortest_s < 0.0005
    for _ in range(200):
        wait.begin(1, 5, 10.0)
        wait.answered(5, 10.002)
    assert 0.0019 < wait.shortest_s < 0.0021


def test_only_a_late_report_on_the_last_frames_tells_how_long_it_took() -> None:
    wait = ReportWait(5, 26)
    wait.late(report(), 10.0)
    wait.begin(3, 5, 10.0)
    wait.late(report(hop=2), 10.012)
    wait.late(report(held=4), 10.012)
    assert wait.seconds == 0.005
    wait.late(report(), 10.012)
    assert wait.seconds == 0.013


def test_an_own_mark_waits_until_all_have_delivered() -> None:
    own = OwnMark(3, 3)
    own.set(5, 10)
    own.set(6, 10)
    own.set(8, 12)
    assert own.latest() == (8, 12)
    assert [own.shown(n, 3) for n in (9, 10, 11, 12)] == [3, 6, 6, 8]
    own.set(2, 13)  # another disk
    assert own.fell
    assert own.shown(12, 8) == 0
    assert own.shown(13, 8) == 2
    own.visited()  # all see it by the next visit
    assert (own.fell, own.shown(13, 4)) == (True, 2)
    own.visited()
    assert own.shown(13, 4) == 4  # by a report


def test_a_turn_sends_before_it_delivers() -> None:
    net = Watched()
    net.kept_by("b")
    net.checks = 0
    orders = []
    flush = net.flush

    def looking(name: str) -> None:
        out = net.nodes[name].context.out
        orders.append([type(o) for o in out if isinstance(o, Send | Broadcast | Deliver)])
        flush(name)

    net.flush = looking  # type: ignore[method-assign]
    net.submit("b", b"x")
    net.step(0.003)
    kinds = [order for order in orders if Deliver in order]
    assert len(kinds) == 3
    assert all(Send not in order[order.index(Deliver) :] for order in kinds)
