"""Full garbage collections stay short; objects set aside leave no garbage that needs them."""

import gc
from collections.abc import Iterator

import pytest

from broker.watchdogs.full_collections import LONG_S, THRESHOLDS, FullCollections
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer


class Interpreter:
    """Records requests, with a clock that advances a fixed time with each collection."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.now = 0.0
        self.watched = FullCollections(
            lambda: self.asked.append("freeze"),
            lambda *thresholds: self.asked.append(thresholds),
            lambda: self.now,
        )

    def collect(self, took_s: float, generation: int = 2) -> None:
        self.watched.watch("start", {"generation": generation})
        self.now += took_s
        self.watched.watch("stop", {"generation": generation})


def test_survivors_of_a_long_full_collection_are_set_aside() -> None:
    interpreter = Interpreter()
    interpreter.collect(LONG_S / 2)
    interpreter.collect(LONG_S * 2, generation=1)
    assert interpreter.asked == [], "a member that holds little is left alone"
    interpreter.collect(LONG_S * 2)
    assert interpreter.asked == ["freeze"]
    interpreter.collect(LONG_S / 2)
    interpreter.collect(LONG_S * 3)
    assert interpreter.asked == ["freeze", "freeze"]
    assert interpreter.watched.counters == {"full": 4, "put_aside": 2, "longest_ms": 15}


@pytest.fixture
def callbacks() -> Iterator[None]:
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before


def test_the_interpreter_reports_each_collection(callbacks: None) -> None:
    interpreter = Interpreter()
    watched = interpreter.watched
    watched.begin()
    assert interpreter.asked == ["freeze", THRESHOLDS], "the objects present at the start"
    gc.collect(1)
    gc.collect()
    assert watched.counters["full"] == 1


def live(loop: Loop, number: int) -> None:
    """A client connects, uses its own queue, and goes in one of three ways."""
    peer, queue = loop.connect().open(1, 2), f"q{number}"
    peer.declare(1, queue)
    peer.call(1, "confirm.select", False)
    peer.call(1, "queue.bind", queue, "amq.topic", f"a.{number}", False, {})
    peer.call(2, "basic.qos", 0, 5, False)
    peer.call(2, "basic.consume", queue, "t", False, False, False, False, {})
    peer.send(publish(1, "", queue), publish(1, "amq.topic", f"a.{number}"))
    peer.call(2, "basic.ack", 1, False)
    peer.call(1, "queue.delete", queue, False, False, False)
    if number % 3:
        peer.send(method(0, "connection.close", 200, "", 0, 0))
    if number % 3 == 1:
        peer.send(method(0, "connection.close-ok"))
    loop.gateway.connection_lost(peer.client)
    loop.settle()
    del Peer.of[peer.client]


def test_clients_channels_and_queues_leave_no_cycles() -> None:
    loop = Loop()
    live(loop, 0)
    gc.collect()
    gc.disable()
    try:
        for number in range(9):
            live(loop, number)
        assert gc.collect() == 0
    finally:
        gc.enable()
