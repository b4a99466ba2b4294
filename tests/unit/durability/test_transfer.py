"""State transfer ends complete and verified, whatever datagrams are lost or doubled."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from broker.durability.transfer_protocol import (
    CHUNK_BYTES,
    GIVE_UP_S,
    Receiver,
    Sender,
    Tag,
    decode,
    encode,
)
from vsync.types import Member

JOINER, DONOR = Member("j", 1, "j:1"), Member("d", 1, "d:1")


class Wire:
    """Joins a receiver and a sender through a lossy, doubling network."""

    def __init__(self, content: bytes, seed: int, loss: float, lie: bool = False) -> None:
        self.rng, self.loss, self.content = random.Random(seed), loss, content
        self.got = bytearray(len(content))
        self.queue: list[tuple[Member, bytes]] = []
        self.dropped: list[str] = []
        digest = blake2b(content, digest_size=16).digest()
        self.digest = digest[::-1] if lie else digest
        self.sender = Sender(self.send, self.copy, self.read, self.dropped.append)
        self.ready = False
        self.receiver = Receiver("t1", DONOR, 5, 0.0, self.send, self.write, 3)

    def send(self, to: Member, payload: bytes) -> None:
        if self.rng.random() >= self.loss:
            self.queue.append((to, payload))
            if self.rng.random() < 0.1:
                self.queue.append((to, payload))

    def copy(self, tid: str, base: int, beyond: int) -> bool:
        assert (base, beyond) == (5, 3)
        self.ready = self.rng.random() < 0.5
        return self.ready

    def read(self, tid: str, offset: int, length: int) -> bytes:
        return self.content[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self.got[offset : offset + len(data)] = data

    def run(self) -> None:
        now = 0.0
        while not self.receiver.complete and not self.receiver.failed and now < GIVE_UP_S * 3:
            now += 0.05
            self.receiver.wake(now)
            if self.ready and "t1" in self.sender.offers and not self.sender.offers["t1"].ready:
                self.sender.copied("t1", len(self.content), self.digest, now)
            queue, self.queue = self.queue, []
            self.rng.shuffle(queue)
            for to, payload in queue:
                message = decode(payload)
                assert message is not None
                if to == DONOR:
                    self.sender.on_message(JOINER, *message, now)
                else:
                    self.receiver.on_message(*message, now)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 40 * CHUNK_BYTES + 17])
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_transfer_completes_under_loss(size: int, loss: float) -> None:
    wire = Wire(random.Random(size).randbytes(size), 3, loss)
    wire.run()
    assert wire.receiver.complete, wire.receiver.failed
    assert bytes(wire.got) == wire.content


def test_a_wrong_digest_fails_the_transfer() -> None:
    wire = Wire(b"x" * 100, 1, 0.0, lie=True)
    wire.run()
    assert "digest" in wire.receiver.failed
    assert not wire.receiver.complete


def test_silence_is_given_up() -> None:
    wire = Wire(b"x", 1, 1.0)
    wire.run()
    assert "nothing from d" in wire.receiver.failed


def test_garbage_is_no_message() -> None:
    assert decode(b"T\xff\xff") is None
    assert decode(b"T" + b"\x93\x63\x01\x02") is None
    assert decode(encode(Tag.ASK, "x", 1)) == (Tag.ASK, ("x", 1))


def test_a_joiner_has_one_copy_at_a_time() -> None:
    """Each is as large as the store: one that asks again and again must not fill the disk."""
    made: list[str] = []
    dropped: list[str] = []

    def copy(tid: str, base: int, beyond: int) -> bool:
        made.append(tid)
        return True

    sender = Sender(lambda *_: None, copy, lambda *_: b"", dropped.append)
    other = Member("k", 1, "k:1")
    sender.on_message(other, Tag.ASK, ("other", 5, 3), 0.0)
    for number in range(50):
        for _ in range(3):  # asked again until it is ready
            sender.on_message(JOINER, Tag.ASK, (f"t{number}", 5, 3), 0.0)
    assert made == ["other", *(f"t{number}" for number in range(50))]
    assert sender.offers.keys() == {"other", "t49"}
    assert dropped == [f"t{number}" for number in range(49)]
