"""The largest control frames of a ring are decoded, however small its frames are."""

from __future__ import annotations

import pytest

from vsync.totem.config import RingConfig
from vsync.totem.membership.compatibility import settings_hash, settings_of
from vsync.types import Member, RingId
from vsync.wire.codec import COUNT_MAX, WANTED_MAX, Codec, wire_bytes_max
from vsync.wire.membership_codec import MEMBERS_MAX, RING_SEQ_MAX
from vsync.wire.messages import CommitEntry, CommitToken, Join, Merge, Message, Token

MOST = (1 << 64) - 1


def members(count: int) -> tuple[Member, ...]:
    """Members with names as brokers have them: their ring addresses."""
    names = (f"192.168.100.{number:03}:25672" for number in range(count))
    return tuple(Member(name, MOST - 1, name) for name in names)


def largest(count: int) -> list[Message]:
    """The largest control messages of a ring of `count` members."""
    all_of_them = members(count)
    ring = RingId(RING_SEQ_MAX, all_of_them[0].name, all_of_them[0].incarnation)
    entry = CommitEntry(ring, COUNT_MAX, COUNT_MAX, COUNT_MAX, MOST, all_of_them)
    return [
        Join(all_of_them, all_of_them, RING_SEQ_MAX, False, all_of_them),
        Merge(ring, all_of_them, all_of_them),
        CommitToken(ring, all_of_them, 2 * count, (entry,) * count),
        Token(
            ring,
            COUNT_MAX,
            COUNT_MAX,
            0,
            0,
            0,
            0,
            False,
            (MOST,) * count,
            (COUNT_MAX,) * WANTED_MAX,
        ),
    ]


@pytest.mark.parametrize("frame_bytes_max", [1_024, RingConfig().frame_bytes_max, 1 << 20])
@pytest.mark.parametrize("count", [RingConfig().members_max, MEMBERS_MAX])
def test_the_largest_control_frames_are_decoded(frame_bytes_max: int, count: int) -> None:
    """Including a commit token in which each member owes the frames of all: found above
    40 members."""
    config = RingConfig(frame_bytes_max=frame_bytes_max, members_max=count, wanted_max=WANTED_MAX)
    me = members(count)[0]
    codec = Codec(me, "test", frame_bytes_max, settings_hash(settings_of(config)))
    for message in largest(count):
        frame = codec.encode(message)
        assert len(frame) <= wire_bytes_max(frame_bytes_max), type(message)
        assert codec.decode(frame, codec.open(frame)) == message
