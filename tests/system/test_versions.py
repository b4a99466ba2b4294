"""Members of two releases do not mix: the newcomer says so and ends, running members continue."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import zmq

from broker.exit_codes import Exit
from tests.system.support.clusters import wait_until
from tools.client.management import Target
from tools.demo.local_cluster import HOST, BrokerProcess, LocalCluster, free_ports
from vsync.wire.codec import WIRE_VERSION

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


def speak_another_version(ring: str, frames: int) -> None:
    """Send frames of a later wire version to a ring address."""
    send_frames(ring, [bytes([WIRE_VERSION + 1]) + bytes(80)] * frames)


def send_frames(ring: str, frames: list[bytes]) -> None:
    """Send frames to a ring address, one every 10 ms."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.linger = 0
    try:
        socket.connect(f"tcp://{ring}")
        for frame in frames:
            with contextlib.suppress(zmq.Again):
                socket.send(frame, zmq.NOBLOCK)
            time.sleep(0.01)
    finally:
        socket.close()
        context.term()


def send_until_counted(member: BrokerProcess, frames: list[bytes], counter: str) -> None:
    """Send frames to a member until its counter of this kind has risen.

    Frames still in a socket when it is closed are lost, and frames are counted when they are read.
    """
    ring = member.arguments[member.arguments.index("--cluster-bind") + 1]

    def counted() -> int:
        counters = Target(member.address).ask(op="counters")["counters"]
        assert isinstance(counters, dict)
        return int(str(counters.get(counter, 0)))  # counters appear with the first count

    def more() -> bool:
        send_frames(ring, frames)
        return counted() > before

    before = counted()
    wait_until(more, 30, f"more {counter}")


def test_a_newcomer_among_members_of_another_version_ends(tmp_path: Path) -> None:
    port, ring = free_ports(2)
    arguments = [
        "--cluster-name", "mixed", "--cluster-size", "3",
        "--cluster-bind", f"{HOST}:{ring}", "--cluster-nodes", f"{HOST}:{ring}",
        "--port", str(port), "--data-dir", str(tmp_path / "newcomer"),
    ]  # fmt: skip
    newcomer = BrokerProcess("newcomer", tmp_path, port, arguments)
    newcomer.start()
    try:
        # It takes time to start, so the others send until it has heard enough of them.
        until = time.monotonic() + 40
        while newcomer.alive and time.monotonic() < until:
            speak_another_version(f"{HOST}:{ring}", 50)
        assert newcomer.exit_code == Exit.PROTOCOL
        said = newcomer.log_path.read_text()
        assert "another version" in said
        assert f"version {WIRE_VERSION}" in said
    finally:
        if newcomer.alive:
            newcomer.kill()


def test_a_running_member_is_not_harmed(cluster: LocalCluster) -> None:
    """G15: foreign frames are counted and dropped."""
    another = bytes([WIRE_VERSION + 1]) + bytes(80)
    send_until_counted(cluster[0], [another] * 60, "ring.frame_version")
    cluster.wait_active()
