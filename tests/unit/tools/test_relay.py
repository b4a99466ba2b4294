"""The relay of the system tests duplicates and reorders whole frames, and does nothing else."""

from __future__ import annotations

import random
import time

import zmq

from tests.system.support.tcp_relay import Cutter, Relay
from tools.demo.local_cluster import HOST, free_ports

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame of ZMTP 3, in its long form when necessary."""
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body


def test_frames_come_out_whole_however_the_bytes_arrive() -> None:
    assert len(GREETING) == 64
    chance = random.Random(1)
    frames = [frame(b"\x05READY", 4), *(frame(chance.randbytes(n)) for n in (0, 1, 255, 256, 9000))]
    stream = GREETING + b"".join(frames)
    for seed in range(50):
        chance, cutter, place = random.Random(seed), Cutter(), 0
        found: list[tuple[bytes, bool]] = []
        while place < len(stream):
            size = chance.choice((1, 3, 60, 200, 5000))
            found += cutter.cut(stream[place : place + size])
            place += size
        assert b"".join(part for part, _ in found) == stream
        assert [part for part, message in found if message] == frames[1:]
        assert (frames[0], False) in found


def test_other_protocols_pass_through_unchanged() -> None:
    cutter = Cutter()
    assert cutter.cut(b"AMQP\0\0\x09\1") == [(b"AMQP\0\0\x09\1", False)]
    assert cutter.cut(b"\0\5") == [(b"\0\5", False)]


def test_frames_are_duplicated_and_reordered_and_none_is_lost() -> None:
    """Over real sockets, as members use them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ports = free_ports(2)
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind(f"tcp://{HOST}:{ports[1]}")
    try:
        with Relay([f"{HOST}:{port}" for port in ports], 7) as relay:
            push.setsockopt(zmq.LINGER, 0)
            push.connect("tcp://" + relay.detours(0).partition("=")[2])
            relay.confuse(0, 0.3)
            for number in range(300):
                push.send(number.to_bytes(2, "big") * 200)
            heard: list[int] = []
            deadline = time.monotonic() + 20
            while len(heard) < 300 + relay.doubled and time.monotonic() < deadline:
                if pull.poll(100):
                    body = pull.recv()
                    assert body == body[:2] * 200
                    heard.append(int.from_bytes(body[:2], "big"))
            assert set(heard) == set(range(300))
            assert relay.doubled > 10
            assert relay.overtaken > 10
            assert len(heard) == 300 + relay.doubled
            assert heard != sorted(heard)
    finally:
        push.close()
        pull.close()
        context.term()
