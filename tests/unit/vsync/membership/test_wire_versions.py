"""Releases that read different frame versions, and the version each member writes."""

from __future__ import annotations

import random

import pytest

from tests.support.ring.virtual_network import Net
from vsync.io.diagnosis import FOREIGN_FRAMES_MAX, misfit
from vsync.totem.config import RingConfig
from vsync.totem.membership.compatibility import settings_hash, settings_of
from vsync.totem.membership.wire_versions import KNOWN_MAX, WireVersions, newest_common
from vsync.totem.node import Node
from vsync.types import Member
from vsync.wire.codec import HELLO_VERSION, MEMBERSHIP_KINDS, WIRE_VERSION, Codec, Versions
from vsync.wire.messages import FrameKind

OLD, NEXT = WIRE_VERSION, WIRE_VERSION + 1
RANGES = {
    "a": Versions(OLD, OLD), "b": Versions(OLD, NEXT), "c": Versions(OLD, NEXT),
    "z": Versions(NEXT, NEXT),
}  # fmt: skip


class Releases(Net):
    """A network whose members are of the releases in `ranges`."""

    def __init__(self, names: str, ranges: dict[str, Versions]) -> None:
        self.ranges = ranges
        super().__init__(names)

    def make(self, me: Member) -> Node:
        """The node of a member of its release."""
        oldest, newest = self.ranges[me.name]
        config = RingConfig(wire_version_min=oldest, wire_version=newest)
        return Node(me, "test", config, random.Random(self.rng.random()))

    def written(self) -> dict[str, int]:
        """The version in which each member writes the frames of its ring."""
        return {name: node.codec.written for name, node in self.nodes.items()}


def all_deliver(net: Net, payload: bytes) -> None:
    for name in net.nodes:
        assert net.submit(name, payload + name.encode())
    expected = {payload + name.encode() for name in net.nodes}
    net.run(5.0, lambda: all(expected <= set(net.payloads(name)) for name in net.nodes))


def test_adjacent_releases_form_one_ring_in_the_older_version() -> None:
    net = Releases("abc", RANGES)
    net.settle()
    assert net.written() == {"a": OLD, "b": OLD, "c": OLD}
    all_deliver(net, b"one")


def test_members_of_one_release_write_the_newest_version_they_read() -> None:
    net = Releases("bc", RANGES)
    net.settle()
    assert net.written() == {"b": NEXT, "c": NEXT}
    all_deliver(net, b"one")
    assert not net.count("frame_version"), "a frame could not be read"


def test_a_newer_version_is_written_from_the_view_in_which_all_read_it() -> None:
    net = Releases("abc", dict(RANGES))
    net.settle()
    ring = net.nodes["b"].ring
    net.run(2.0)
    assert net.nodes["b"].ring == ring
    assert net.written()["b"] == OLD, "the version changes with a view only"
    net.ranges["a"] = Versions(OLD, NEXT)  # the last member of the older release is upgraded
    net.crash("a")
    net.settle("bc")
    assert net.written() == {"b": NEXT, "c": NEXT}
    net.boot("a")
    net.settle()
    assert net.written() == {"a": NEXT, "b": NEXT, "c": NEXT}
    all_deliver(net, b"two")


def test_a_late_hello_of_the_older_release_is_not_believed() -> None:
    """It says what the sender read before its upgrade."""
    net = Releases("abc", dict(RANGES))
    hellos: list[bytes] = []

    def watch(sender: str, _to: str, frame: bytes) -> bool:
        if sender == "a" and frame[0] == HELLO_VERSION:
            hellos.append(frame)
        return False

    net.drop = watch
    net.settle()
    late = hellos[-1]
    net.ranges["a"] = Versions(OLD, NEXT)
    net.crash("a")
    net.settle("bc")
    net.boot("a")
    net.settle()
    for name in "bc":
        net.push(net.now, name, late)
    net.run(0.01)
    net.crash("c")
    net.settle("ab")
    assert net.written() == {"a": NEXT, "b": NEXT}


def test_an_older_member_is_let_into_a_ring_that_writes_the_newer_version() -> None:
    """A downgrade: the running ring learns of it from the hello alone."""
    net = Releases("bc", RANGES)
    net.settle()
    rings = net.nodes["b"].ring
    net.boot("a")
    net.run(10.0, net.settled)
    assert net.nodes["b"].ring != rings
    assert net.written() == {"a": OLD, "b": OLD, "c": OLD}
    all_deliver(net, b"one")


def test_an_older_member_does_not_give_up_on_a_busy_ring() -> None:
    """It receives hundreds of frames that it cannot read before it is let in."""
    net = Releases("bc", RANGES)
    net.settle()
    newcomer = net.boot("a")
    for _ in range(4_000):
        assert misfit(newcomer.me, newcomer.handshake) == ""
        for name in "bc":
            net.submit(name, bytes(20_000))
        net.run(0.0005)
        if len(newcomer.members) == 3:
            break
    assert newcomer.counters["frame_version"] > 2 * FOREIGN_FRAMES_MAX
    net.run(10.0, net.settled)


def test_rings_that_met_before_know_each_others_versions() -> None:
    net = Releases("bc", RANGES)
    net.settle()
    net.split("b", "c")
    net.settle("b", "c")
    net.split()
    net.settle()
    assert net.written() == {"b": NEXT, "c": NEXT}


def test_three_releases_make_two_rings_and_the_newcomer_learns_why() -> None:
    net = Releases("ab", RANGES)
    net.settle()
    ring = net.nodes["a"].ring
    newcomer = net.boot("z")
    net.run(5.0)
    assert net.nodes["a"].ring == net.nodes["b"].ring == ring, "it disturbed running members"
    _, sentence = newcomer.handshake.refused["a"]
    assert f"another version of the ring protocol ({OLD}) than this one" in sentence
    assert f"(version {NEXT})" in sentence
    assert newcomer.members in ((), (newcomer.me,))


def codec(versions: Versions) -> Codec:
    config = RingConfig(wire_version_min=versions.oldest, wire_version=versions.newest)
    settings = settings_hash(settings_of(config))
    return Codec(Member("b", 1, "b:1"), "test", config.frame_bytes_max, settings, versions)


def test_frames_for_outsiders_have_an_older_version_than_the_rings() -> None:
    mine = codec(RANGES["b"])
    chosen = WireVersions("b", mine)
    assert (mine.written, mine.written_outside) == (OLD, OLD)
    chosen.heard("c", RANGES["c"])
    assert (mine.written, mine.written_outside) == (OLD, NEXT)
    chosen.forming("bc")
    chosen.heard("a", RANGES["a"])
    assert (mine.written, mine.written_outside) == (NEXT, OLD)
    assert {kind for kind in FrameKind if mine.frame(kind, b"")[0] == OLD} == MEMBERSHIP_KINDS
    chosen.forming("bc")
    assert (mine.written, mine.written_outside) == (NEXT, NEXT)


def test_forged_hellos_are_bounded() -> None:
    mine = codec(RANGES["b"])
    chosen = WireVersions("b", mine)
    chosen.heard("c", RANGES["c"])
    chosen.forming("bc")
    for number in range(KNOWN_MAX + 9):
        chosen.heard(f"forged{number}", RANGES["a"])
    assert len(chosen._known) <= KNOWN_MAX
    assert len(chosen._others) <= KNOWN_MAX
    assert mine.written_outside == OLD
    chosen.forming("bc")
    assert (mine.written, mine.written_outside) == (NEXT, NEXT), "the ring was forgotten"


def test_ring_members_come_before_one_they_cannot_all_speak_to() -> None:
    mine = codec(RANGES["b"])
    chosen = WireVersions("b", mine)
    chosen.heard("z", RANGES["z"])
    chosen.forming("bz")
    chosen.heard("a", RANGES["a"])
    assert mine.written_outside == NEXT
    assert newest_common([RANGES["b"], RANGES["z"]]) == NEXT


def test_all_versions_of_the_range_are_read_whichever_is_written() -> None:
    mine, theirs = codec(RANGES["b"]), codec(RANGES["b"])
    for version in (OLD, NEXT):
        theirs.write(version, version)
        frame = theirs.frame(FrameKind.PROBE, b"")
        assert frame[0] == version
        envelope = mine.open(frame)
        assert (envelope.kind, envelope.versions) == (FrameKind.PROBE, RANGES["b"])


@pytest.mark.parametrize(("oldest", "newest"), [(2, 1), (1, 256)])
def test_an_impossible_range_of_versions_is_refused(oldest: int, newest: int) -> None:
    with pytest.raises(ValueError, match="some frames can be read"):
        RingConfig(wire_version_min=oldest, wire_version=newest)
