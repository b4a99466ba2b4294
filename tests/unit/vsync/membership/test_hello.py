"""Incompatible members learn what differs, with both values; running members are not disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import pack
from typing import Any
from zlib import crc32

import msgpack
import pytest

from tests.support.ring.virtual_network import Net
from vsync.errors import FrameError
from vsync.io.diagnosis import read_mechanism
from vsync.totem.config import RingConfig
from vsync.totem.events import Hail
from vsync.totem.membership.compatibility import (
    FOREIGN_MEMBERS_MAX,
    HELLO_EVERY_S,
    HELLOS_MAX,
    Handshake,
    Hello,
    OpenDoor,
    read_hello,
    settings_hash,
    settings_of,
)
from vsync.totem.node import Node
from vsync.types import Member, RingId
from vsync.wire.codec import WIRE_VERSION, Codec
from vsync.wire.messages import Join, Merge, Message, Wake

A, B = Member("a", 1, "a:1"), Member("b", 2, "b:1")


def codec(me: Member, config: RingConfig, cluster: str = "test") -> Codec:
    return Codec(me, cluster, config.frame_bytes_max, settings_hash(settings_of(config)))


def handshake(config: RingConfig | None = None, cluster: str = "test") -> Handshake:
    config = config or RingConfig()
    return Handshake(A, cluster, config, codec(A, config, cluster), OpenDoor())


def hello(
    config: RingConfig | None = None, cluster: str = "test", version: int = WIRE_VERSION
) -> Hello:
    return Hello(B, version, cluster, settings_of(config or RingConfig()))


def seal(frame: bytes) -> bytes:
    return frame[:2] + pack("<I", crc32(frame[6:], crc32(frame[:2]))) + frame[6:]


def test_a_hello_round_trips_and_nothing_else_is_one() -> None:
    frame = hello().encode()
    assert read_hello(frame) == hello()
    with pytest.raises(FrameError, match="frame_hello"):
        codec(A, RingConfig()).open(frame)
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 1
        assert read_hello(bytes(damaged)) is None
        assert read_hello(frame[:at]) is None
        read_hello(seal(bytes(damaged)))  # whatever the bytes are, it does not raise
        if at >= 24:
            read_hello(seal(frame[:at]))
    assert read_hello(bytes(10_000)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", msgpack.packb(1), msgpack.packb([1, "c"]), msgpack.packb([1, "c", [1]]),
        msgpack.packb([1, "c", [["a", "b"]]]), msgpack.packb([1, "c", [[1, 1]]]),
        msgpack.packb(["1", "c", []]), msgpack.packb([True, "c", []]), msgpack.packb([1, 2, []]),
        msgpack.packb([1, "c", [[["a"], 1]]]), msgpack.packb([1, "c", [["a", 1]] * 200]),
        msgpack.packb([1, "c" * 2_000, []]), msgpack.packb({"a": 1}),
    ],
)  # fmt: skip
def test_a_malformed_hello_is_none(body: bytes) -> None:
    frame = hello().encode()
    assert read_hello(seal(frame[: 24 + 1 + 3] + body)) is None


def test_text_that_could_forge_a_log_line_is_not_a_hello() -> None:
    for odd in (
        hello(cluster="x\nqpidd: all is well"),
        hello()._replace(sender=Member("b\x1b[2J", 2, "b:1")),
        hello()._replace(sender=Member("b", 2, "b:1\r")),
        hello()._replace(settings={"a\nb": 1}),
    ):
        assert read_hello(odd.encode()) is None


def other(**values: int) -> RingConfig:
    return RingConfig(**values)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (hello(cluster="shpo"), ("cluster 'shpo'", "cluster 'test'", "b:1")),
        (
            hello(other(wire_version=9, wire_version_min=9), version=9),
            ("another version", "(9)", f"(version {WIRE_VERSION})"),
        ),
        (hello(other(frame_bytes_max=16_384)), ("frame_bytes_max 16384", "262144")),
        (hello(other(window_frames=32, personal_frames=20)), ("window_frames 32", "64")),
        (
            hello(other(payload_version=4, payload_version_min=2)),
            ("versions 2 to 4", "of 1 to 1", "a version in common"),
        ),
        (hello(other(token_timeout_ms=10_000)), ("token_timeout_ms 10000", "do not go together")),
        (
            hello(
                other(token_timeout_ms=220, merge_interval_ms=60, hold_ms=10, join_timeout_ms=40)
            ),
            ("token_timeout_ms 220", "600", "do not go together"),
        ),
        (
            hello()._replace(settings=settings_of(RingConfig()) | {"hold_ms": -5}),
            ("hold_ms -5", "must be at least 1"),
        ),
    ],
)
def test_a_difference_is_reported_with_both_values(
    theirs: Hello, expected: tuple[str, ...]
) -> None:
    at = handshake()
    assert at.on_hello(theirs.encode(), 0.0)[0] == "hello_refused"
    who, sentence = at.refused["b"]
    assert who == B
    assert all(word in sentence for word in expected), sentence
    assert "\n" not in sentence
    assert at.on_hello(hello().encode(), 0.0)[0] == "hello_accepted"
    assert not at.refused, "the difference is resolved"


def test_a_setting_only_one_release_has_is_judged_by_that_release() -> None:
    """With its default a member behaves like releases without the setting."""
    older = dict(settings_of(RingConfig()))
    del older["accelerated_frames"]
    assert (
        handshake().on_hello(hello()._replace(settings=older).encode(), 0.0)[0] == "hello_accepted"
    )
    at = handshake(other(accelerated_frames=3))
    assert at.on_hello(hello()._replace(settings=older).encode(), 0.0)[0] == "hello_refused"
    assert "a release without the setting accelerated_frames, which is 3" in at.refused["b"][1]
    for differs in ({}, {"join_timeout_ms": 60}):
        newer = settings_of(RingConfig()) | {"a_new_one": 1, "self": 1} | differs
        theirs = hello()._replace(settings=newer)
        assert handshake().on_hello(theirs.encode(), 0.0)[0] == "hello_accepted"


def test_releases_are_compatible_if_they_share_a_payload_version() -> None:
    at = handshake(other(payload_version=3, payload_version_min=2))
    for oldest, newest, fits in ((1, 2, True), (3, 9, True), (1, 1, False), (4, 9, False)):
        config = other(payload_version=newest, payload_version_min=oldest)
        result = at.on_hello(hello(config).encode(), 0.0)[0]
        assert (result == "hello_accepted") == fits, (oldest, newest)


def test_compatible_time_limits_may_differ() -> None:
    slower = other(join_timeout_ms=60, hold_ms=40, queue_messages_max=7)
    at = handshake()
    frame = codec(B, slower).encode(Wake(RingId(1, "b", 2)))
    with pytest.raises(FrameError, match="frame_settings"):
        at._codec.open(frame)
    assert at.on_hello(hello(slower).encode(), 0.0)[0] == "hello_accepted"
    assert at._codec.open(frame).sender == B


def test_settings_of_speed_may_differ_even_by_being_off() -> None:
    at = handshake(other(accelerated_frames=0))
    assert at.on_hello(hello().encode(), 0.0)[0] == "hello_accepted"
    at = handshake()
    assert at.on_hello(hello(other(accelerated_frames=0)).encode(), 0.0)[0] == "hello_accepted"
    zero = hello()._replace(settings=settings_of(RingConfig()) | {"lease_ms": 0})
    assert at.on_hello(zero.encode(), 0.0)[0] == "hello_refused"


def test_hellos_are_kept_within_a_bound_and_answered_at_a_limited_rate() -> None:
    at = handshake()
    for number in range(3 * FOREIGN_MEMBERS_MAX):
        foreign = hello(cluster="x")._replace(sender=Member(f"s{number}", 1, "s:1"))
        at.on_hello(foreign.encode(), 0.0)
        assert len(at.refused) <= FOREIGN_MEMBERS_MAX
    assert at.on_hello(hello()._replace(sender=A).encode(), 0.0)[0] == "name_of_mine"
    hellos = [at.on_foreign(b"\x09" + bytes(80), 1 + tick / 1000) for tick in range(1_000)]
    assert 1 <= sum(one is not None for one in hellos) <= 1 + 1 / HELLO_EVERY_S
    assert at.foreign_version == 9


class Two:
    """A running ring of a and b, and a newcomer n that may be incompatible."""

    def __init__(self, config: RingConfig, cluster: str = "test") -> None:
        self.net = Net("ab")
        self.net.run(2.0, lambda: all(len(n.members) == 2 for n in self.net.nodes.values()))
        self.views = self.shown()
        newcomer = Node(Member("n", 99, "n:1"), cluster, config, random.Random(9))
        self.newcomer = self.net.nodes["n"] = newcomer
        self.net.seen["n"] = []
        newcomer.start(self.net.now)
        self.net.flush("n")

    def shown(self) -> list[RingId]:
        return [self.net.nodes[name].ring for name in "ab"]


@pytest.mark.parametrize(
    ("config", "cluster", "expected"),
    [
        (other(frame_bytes_max=16_384), "test", "frame_bytes_max 262144, and this one with 16384"),
        (other(token_timeout_ms=20_000), "test", "do not go together"),
        (other(), "tset", "of cluster 'test', and this one was started for cluster 'tset'"),
    ],
)
def test_an_incompatible_newcomer_is_told_and_changes_no_view(
    config: RingConfig, cluster: str, expected: str
) -> None:
    two = Two(config, cluster)
    two.net.run(3.0)
    assert two.shown() == two.views, "the newcomer disturbed running members"
    refused = two.newcomer.handshake.refused
    assert refused
    assert all(expected in sentence for _, sentence in refused.values()), refused
    assert two.newcomer.members in ((), (two.newcomer.me,))


def test_a_newcomer_with_compatible_time_limits_joins() -> None:
    two = Two(other(join_timeout_ms=60, hold_ms=40))
    nodes = two.net.nodes.values()
    two.net.run(5.0)
    assert all(len(node.members) == 3 for node in nodes)
    assert all(node.counters["hello_accepted"] for node in nodes)


def test_frames_of_other_clusters_versions_or_settings_only_count() -> None:
    """Valid frames of every kind that could end a ring, for longer than any timer."""
    net = Net("ab")
    net.run(2.0, lambda: all(len(n.members) == 2 for n in net.nodes.values()))
    rings = {name: node.ring for name, node in net.nodes.items()}
    foreign = Member("s", 5, "s:1")
    messages: list[Message] = [
        Join((foreign, net.nodes["a"].me), (net.nodes["b"].me,), 1 << 40, False),
        Merge(RingId(99, "s", 5), (foreign,), (net.nodes["a"].me,)),
    ]
    writers: list[Callable[[Message], bytes]] = [
        codec(foreign, RingConfig(), "elsewhere").encode,
        codec(foreign, other(frame_bytes_max=2_048)).encode,
        lambda message: b"\x63" + codec(foreign, RingConfig()).encode(message)[1:],
    ]
    for _ in range(200):
        for write in writers:
            for message in messages:
                net.push(net.now + 0.001, "a", write(message))
        net.run(0.02)
    assert {name: node.ring for name, node in net.nodes.items()} == rings
    counted: dict[str, Any] = net.nodes["a"].counters
    for code in ("frame_cluster", "frame_settings", "frame_version"):
        assert counted[code] == 400
    assert not counted["token_lost"]


def test_hellos_are_sent_at_a_limited_rate() -> None:
    net = Net("a")
    net.run(1.0)
    node = net.nodes["a"]
    foreign = codec(B, RingConfig(), "elsewhere").encode(Wake(RingId(1, "b", 2)))
    for _ in range(1_000):
        node.receive(foreign, net.now)
    hellos = [one for one in node.take() if isinstance(one, Hail)]
    assert len(hellos) == 1


def test_forged_addresses_cost_a_bounded_number_of_connections() -> None:
    at = handshake()
    hellos = 0
    for tick in range(1_000):
        forger = Member("f", 1, f"f{tick}:1")
        frame = codec(forger, RingConfig(), "elsewhere").encode(Wake(RingId(1, "f", 1)))
        hellos += at.on_foreign(frame, 1 + tick / 1000) is not None
    assert HELLOS_MAX <= hellos <= HELLOS_MAX * (1 + 1 / HELLO_EVERY_S)


def test_the_greeting_of_a_listener_names_its_mechanism() -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    assert read_mechanism(greeting) == "CURVE"
    assert read_mechanism(greeting.replace(b"CURVE", b"NULL\0")) == "ANONYMOUS"
    assert read_mechanism(greeting[:-1]) == ""
    assert read_mechanism(b"HTTP/1.1 400 Bad Request".ljust(64)) == ""
    assert read_mechanism(greeting.replace(b"CURVE", b"\n\n\n\n\n")) == ""
