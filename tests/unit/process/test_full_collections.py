"""Full garbage collections stay short, and what is put aside leaves no garbage that needs them."""

import gc
from collections.abc import Iterator

import pytest

from broker.process.server import LONG_COLLECTION_S, keep_full_collections_short
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """As it was before."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks


def test_what_a_long_full_collection_has_found_is_put_aside() -> None:
    times, frozen = iter((1.0, 1.0 + LONG_COLLECTION_S / 2, 2.0, 2.0 + 2 * LONG_COLLECTION_S)), []
    watch = keep_full_collections_short(lambda: frozen.append(True), lambda: next(times))
    gc.callbacks.remove(watch)  # the interpreter's own are none of the four
    assert frozen == [True], "what was there at the start"
    for generation, phase in ((1, "start"), (1, "stop"), (2, "start"), (2, "stop")):
        watch(phase, {"generation": generation})
    assert frozen == [True], "it was short"
    watch("start", {"generation": 2})
    watch("stop", {"generation": 2})
    assert frozen == [True, True]


def test_the_interpreter_calls_it() -> None:
    times, frozen = iter((1.0, 2.0)), []
    gc.disable()
    try:
        watch = keep_full_collections_short(lambda: frozen.append(True), lambda: next(times))
        gc.collect()
        gc.callbacks.remove(watch)
    finally:
        gc.enable()
    assert frozen == [True, True]


def live(loop: Loop, number: int) -> None:
    """A client comes, works with a queue of its own, and goes in one of two ways."""
    peer, queue = loop.connect().open(1, 2), f"q{number}"
    peer.declare(1, queue)
    peer.call(1, "confirm.select", False)
    peer.call(1, "queue.bind", queue, "amq.topic", f"a.{number}", False, {})
    peer.call(2, "basic.qos", 0, 5, False)
    peer.call(2, "basic.consume", queue, "t", False, False, False, False, {})
    peer.send(publish(1, "", queue), publish(1, "amq.topic", f"a.{number}"))
    peer.call(2, "basic.ack", 1, False)
    peer.call(1, "queue.delete", queue, False, False, False)
    if number % 2:
        peer.send(method(0, "connection.close", 200, "", 0, 0))
    else:
        loop.gateway.connection_lost(peer.client)
    loop.settle()


def test_clients_channels_and_queues_leave_no_cycles() -> None:
    loop = Loop()
    live(loop, 0)
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 9):
            live(loop, number)
        assert gc.collect() == 0
    finally:
        gc.enable()
