"""Own blobs are applied exactly once and in order, whatever the ring does with them (G5, G12)."""

from __future__ import annotations

from broker.machine.blob import pack_blob, unpack_blob
from broker.machine.commands import ACK, PUBLISH, Ack, Command, Publish
from broker.submission import BLOB_BYTES_TARGET, Submissions


def ack(tag: int) -> Command:
    return Ack(ACK, 1, 1, tag, False)


class Ring:
    def __init__(self) -> None:
        self.room = 1_000_000
        self.sent: list[int] = []
        self.payloads: list[bytes] = []

    def send(self, payload: bytes) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.sent.append(unpack_blob(payload).blob_no)
        self.payloads.append(payload)
        return True


def test_numbers_rise_and_a_full_ring_keeps_the_rest() -> None:
    ring = Ring()
    own = Submissions(ring.send, pack_blob)
    own.start(7)
    ring.room = 1
    for tag in range(3):
        own.submit([ack(tag)], 1)
    assert ring.sent == [1]
    assert own.outstanding == 3
    ring.room = 10
    own.flush()
    assert ring.sent == [1, 2, 3]
    own.applied(2)
    assert own.outstanding == 1
    own.applied(3)
    assert own.bytes_outstanding == 0


def test_after_a_view_change_only_the_unapplied_go_again_in_order() -> None:
    ring = Ring()
    own = Submissions(ring.send, pack_blob)
    own.start(7)
    for tag in range(4):
        own.submit([ack(tag)], 1)
    own.suspend()
    own.submit([ack(9)], 1)
    assert ring.sent == [1, 2, 3, 4]
    own.resume(2)
    assert ring.sent == [1, 2, 3, 4, 3, 4, 5]


def test_a_new_session_forgets_the_old_one() -> None:
    ring = Ring()
    own = Submissions(ring.send, pack_blob)
    own.start(7)
    own.submit([ack(1)], 1)
    own.suspend()
    own.start(8)
    assert own.outstanding == 0
    own.submit([ack(1)], 1)
    assert unpack_blob(ring.payloads[-1])[:2] == (8, 1)


def test_commands_are_cut_into_blobs_of_a_frame_and_a_large_one_stands_alone() -> None:
    ring = Ring()
    own = Submissions(ring.send, pack_blob)
    own.start(7)
    small: list[Command] = [
        Publish(PUBLISH, 1, 1, n, "", "q", 0, b"", b"x" * 1000) for n in range(100)
    ]
    large: Command = Publish(PUBLISH, 1, 1, 101, "", "q", 0, b"", b"y" * 100_000)
    own.submit([*small, large, ack(1)], 1)
    blobs = [unpack_blob(p) for p in ring.payloads]
    tags = [list(command)[3] for blob in blobs for command in blob.commands]
    assert tags == [*range(100), 101, 1]
    packed = [p for p, b in zip(ring.payloads, blobs, strict=True) if len(b.commands) > 1]
    assert all(len(p) <= BLOB_BYTES_TARGET + 2000 for p in packed)
