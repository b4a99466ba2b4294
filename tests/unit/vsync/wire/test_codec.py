"""Bytes both ways: every frame round-trips, and nothing else gets through."""

from __future__ import annotations

import random
from struct import pack

import msgpack
import pytest

from vsync.errors import FrameError
from vsync.totem.config import RingConfig
from vsync.totem.events import Direct, Note
from vsync.totem.membership.compatibility import settings_hash, settings_of
from vsync.totem.node import OUTDATED_AGAIN_S, Node
from vsync.types import NO_RING, Guarantee, Member, RingId
from vsync.wire.codec import (
    COUNT_MAX,
    SENT_MAX,
    Codec,
    checksum,
    data_body,
    fragment_head,
    ring_block,
)
from vsync.wire.messages import (
    NOBODY,
    Alive,
    CommitEntry,
    CommitToken,
    Content,
    Data,
    Datagram,
    FrameKind,
    Join,
    Merge,
    Message,
    Pace,
    Probe,
    Report,
    Token,
    Wake,
)

A, B, C = (Member(n, i, f"{n}:1") for i, n in enumerate("abc", 1))
SETTINGS = settings_hash(settings_of(RingConfig()))
RING = RingId(7, "a", 1)
BIG = (1 << 64) - 1
MOST = COUNT_MAX


def codec(member: Member = A, cluster: str = "test") -> Codec:
    return Codec(member, cluster, 32768, SETTINGS)


def body(
    content: Content = Content.PAYLOADS, items: tuple[bytes, ...] = (b"x", b"", b"yy")
) -> Data:
    raw = data_body(ring_block(RING), 9, 1, content, Guarantee.SAFE, items)
    return Data(RING, 9, 1, content, Guarantee.SAFE, list(items), raw)


ENTRY = CommitEntry(RingId(3, "b", 2), 5, 9, 4, BIG, (A, B))
MESSAGES: list[Message] = [
    Token(RING, MOST, MOST, MOST - 1, 2, 64, 12345, True, (1, BIG, 0), (BIG - 1, BIG)),
    Token(RING, 0, 0, 0, NOBODY, 0, 0, False, (0,), ()),
    Token(RING, 1, 9, 8, NOBODY, 0, 0, False, (0,), (), Pace(1, 2, 3), 8),
    Report(RING, MOST, MOST, MOST - 1, BIG, MOST - 2),
    body(),
    body(Content.FRAGMENT, (fragment_head(1, 0, 2), b"piece")),
    body(Content.RECOVERED, (body().body,)),
    Join((A, B, C), (C,), 41, False),
    Join((), (A,), 0, True),
    CommitToken(RING, (A, B, C), 4, (ENTRY, None, CommitEntry(NO_RING, 0, 0, 0, 0, ()))),
    Merge(RING, (A, B), (B, C)),
    Merge(RING, (), ()),
    Join((A,), (), 1, False, (B, C)),
    Probe(),
    Alive(),
    Wake(RING),
    Datagram(b"payload"),
    Datagram(b""),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_frames_round_trip(message: Message) -> None:
    frame = codec().encode(message)
    reader = codec(B)
    for _ in range(2):  # the second time from the caches
        envelope = reader.open(frame)
        assert envelope.sender == A
        assert reader.decode(frame, envelope) == message


def seal(frame: bytes) -> bytes:
    """Recompute the checksum, so that the decoder looks at the fields behind it."""
    start = 24 + frame[22] + frame[23] if len(frame) > 23 else len(frame)
    return frame[:2] + pack("<I", checksum(frame, start)) + frame[6:]


def refuse(frame: bytes, code: str) -> None:
    frame = seal(frame)
    reader = codec(B)
    with pytest.raises(FrameError) as caught:
        reader.decode(frame, reader.open(frame))
    assert caught.value.code == code


def test_the_envelope_is_checked_first() -> None:
    frame = codec().encode(Wake(RING))
    refuse(frame[:23], "frame_short")
    refuse(frame[:25], "frame_short")
    refuse(bytes((9,)) + frame[1:], "frame_version")
    refuse(bytes((0,)) + frame[1:], "frame_hello")
    refuse(Codec(A, "test", 32768, b"else").encode(Wake(RING)), "frame_settings")
    refuse(codec(A, "other").encode(Wake(RING)), "frame_cluster")
    refuse(frame[:1] + bytes((99,)) + frame[2:], "frame_kind")
    refuse(frame + bytes(1_100_000), "frame_long")
    refuse(frame + b"x", "frame_trailing")
    refuse(frame.replace(b"a:1", b"\xff:1", 1), "frame_text")
    at = frame.index(A.name.encode() + A.address.encode())
    refuse(frame[:at] + b"\0" + frame[at + 1 :], "frame_text")
    with pytest.raises(FrameError, match="bad_identity"):
        codec(A._replace(name="\0"))


def test_a_damaged_frame_is_dropped_whichever_byte_is_hit() -> None:
    for message in MESSAGES:
        frame = codec().encode(message)
        for at in range(len(frame)):
            damaged = bytearray(frame)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(FrameError):
                codec(B).open(bytes(damaged))


def test_token_fields_and_lengths() -> None:
    writer = codec()
    good = Token(RING, 1, 5, 4, 1, 0, 0, False, (1, 2), (5,))
    frame = writer.encode(good)
    refuse(frame[:-1], "token_length")
    refuse(frame + bytes(8), "token_length")
    refuse(writer.encode(good._replace(aru=6)), "token_field")
    refuse(writer.encode(good._replace(aru_by=2)), "token_field")
    refuse(writer.encode(good._replace(marks=())), "token_field")
    refuse(writer.encode(good._replace(everywhere=5)), "token_field")
    refuse(frame[: -8 * 3 - 5], "frame_short")
    # One step later these would not fit the token that we must send: each would kill a member.
    for lying in (
        good._replace(hop=MOST + 1),
        good._replace(seq=MOST + 1),
        good._replace(backlog=BIG),
        good._replace(sent=SENT_MAX + 1),
    ):
        refuse(writer.encode(lying), "token_count")
    refuse(writer.encode(good._replace(ring=RingId((1 << 62) + 1, "a", 1))), "frame_ring")


def test_report_fields_and_lengths() -> None:
    writer = codec()
    good = Report(RING, 3, 9, 8, BIG, 7)
    frame = writer.encode(good)
    refuse(frame[:-1], "report_length")
    refuse(frame + b"x", "report_length")
    for lying in (
        good._replace(covers=9), good._replace(safe=10), good._replace(held=MOST + 1),
        good._replace(hop=MOST + 1),
    ):  # fmt: skip
        refuse(writer.encode(lying), "report_field")


def test_data_fields_and_lengths() -> None:
    writer = codec()
    block = ring_block(RING)

    def data(
        seq: int = 1, content: int = 0, guarantee: int = 1, items: tuple[bytes, ...] = (b"a",)
    ) -> bytes:
        made = bytearray(data_body(block, seq, 0, Content.PAYLOADS, Guarantee.AGREED, items))
        at = len(block) + 10
        made[at : at + 2] = bytes((content, guarantee))
        return writer.data_frame(bytes(made))

    refuse(data()[:-1], "data_length")
    refuse(data() + b"x", "data_length")
    refuse(data(items=()), "data_count")
    refuse(data(seq=0), "data_field")
    refuse(data(seq=MOST + 1), "data_field")
    refuse(data(content=3), "data_field")
    refuse(data(guarantee=0), "data_field")
    refuse(data(content=Content.FRAGMENT), "data_fragment")
    refuse(data(content=Content.FRAGMENT, items=(b"short", b"x")), "data_fragment")
    refuse(data(content=Content.RECOVERED, items=(b"a", b"b")), "data_recovered")
    huge = bytearray(data())
    at = writer.envelope_bytes + len(block) + 12
    huge[at : at + 4] = b"\xff\xff\x00\x00"
    refuse(bytes(huge), "frame_short")
    huge[at : at + 4] = b"\xff\xff\xff\xff"
    refuse(bytes(huge), "data_count")


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        ([], "control_shape"),
        ([[], [], 0], "control_shape"),
        ([[], [], 0, 1], "control_shape"),
        ([[["a", 1, "x"]], [], -1, False, []], "control_number"),
        ([[["a", 1, "x"]], [], 1 << 63, False, []], "control_shape"),
        ([[["a", True, "x"]], [], 0, False, []], "control_number"),
        ([[["a", 1]], [], 0, False, []], "control_shape"),
        ([[["", 1, "x"]], [], 0, False, []], "control_name"),
        ([[["\0", 1, "x"]], [], 0, False, []], "control_name"),
        ([[[1, 1, "x"]], [], 0, False, []], "control_text"),
        ([[["a", 1, "x"]] * 200, [], 0, False], "control_msgpack"),
        ([[["a" * 300, 1, "x"]], [], 0, False], "control_msgpack"),
        ([[["a", 1, "x"]], [["b", 1, "x"]], 0, False, []], "join_failed"),
        ({"a": 1}, "control_msgpack"),
        (b"bytes", "control_msgpack"),
    ],
)
def test_join_shapes(packed: object, code: str) -> None:
    refuse(codec().frame(FrameKind.JOIN, bytes(msgpack.packb(packed))), code)


def test_commit_shapes() -> None:
    writer = codec()
    commit = CommitToken(RING, (A, B), 1, (ENTRY, None))
    refuse(writer.encode(commit._replace(members=(B, A))), "commit_members")
    refuse(writer.encode(commit._replace(members=(B, C))), "commit_rep")
    refuse(writer.encode(commit._replace(entries=(ENTRY,))), "control_shape")
    refuse(writer.encode(commit._replace(entries=(ENTRY._replace(aru=10), None))), "commit_order")
    refuse(writer.encode(commit)[:-1], "control_msgpack")


def test_garbage_never_raises_and_is_counted() -> None:
    """Pitfall 33: truncated, stretched, flipped and invented frames of every kind."""
    rng = random.Random(5)
    config = RingConfig()
    node = Node(B, "test", config, rng)
    node.start(0.0)
    frames = [codec(A).encode(m) for m in MESSAGES]
    for _ in range(20_000):
        frame = bytearray(rng.choice(frames))
        match rng.randrange(4):
            case 0:
                del frame[rng.randrange(len(frame)) :]
            case 1:
                frame += rng.randbytes(rng.randrange(1, 30))
            case 2:
                for _ in range(rng.randrange(1, 4)):
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
            case _:
                frame = bytearray(rng.randbytes(rng.randrange(200)))
        node.receive(seal(bytes(frame)) if rng.random() < 0.7 else bytes(frame), 0.0)
        node.drained(0.0)
        node.invariants()
        node.take()
    assert node.counters["frame_short"] > 100
    assert node.counters["frame_cluster"] > 100


def test_a_frame_of_an_old_incarnation_or_the_own_name_is_dropped() -> None:
    node = Node(B, "test", RingConfig(), random.Random(1))
    node.start(0.0)
    young = Member("a", 5, "a:1")
    node.receive(codec(young).encode(Datagram(b"1")), 0.0)
    node.receive(codec(A).encode(Datagram(b"2")), 0.0)
    node.receive(codec(B._replace(incarnation=9)).encode(Datagram(b"3")), 0.0)
    node.receive(codec(B).encode(Datagram(b"4")), 0.0)
    directs = [o for o in node.take() if isinstance(o, Direct)]
    assert directs == [Direct(young, b"1")]
    assert node.counters["past_incarnation"] == 1
    assert node.counters["name_of_mine"] == 1
    assert node.counters["own_echo"] == 1


def test_a_process_that_goes_on_under_a_name_with_a_later_start_is_told_of() -> None:
    """Its clock was set back, say: nobody hears it, and it does not know. A late frame is none."""
    node = Node(B, "test", RingConfig(), random.Random(1))
    node.start(0.0)
    young = Member("a", 5, "a:1")
    node.receive(codec(young).encode(Datagram(b"1")), 0.0)
    node.take()

    def told(now: float, frame: Message) -> list[dict[str, str | int | float]]:
        node.receive(codec(A).encode(frame), now)
        return [o.fields for o in node.take() if isinstance(o, Note) and o.code == "outdated"]

    join = Join((A,), (), 1, leaving=False)
    assert not told(1.0, join)
    assert not told(2.0, join)
    assert not told(4.0, Datagram(b"late"))
    fields = {"member": "a", "address": A.address, "incarnation": A.incarnation, "known": 5}
    assert told(4.0, join) == [fields]
    assert not told(5.0, join)
    assert told(4.0 + OUTDATED_AGAIN_S, join) == [fields]
    assert node.counters["past_incarnation"] == 6
