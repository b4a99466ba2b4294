"""Consumers that ask for the number of each delivery in its queue."""

import pytest

from broker.amqp import codec
from broker.machine.commands import Table
from broker.machine.publishing.queue_numbers import ASKED
from tests.support.amqp_peer import ServerMethod, publish
from tests.support.gateway_loop import Loop, Peer


def numbers(delivered: list[ServerMethod]) -> list[tuple[object, object]]:
    """Id and number of each delivery."""
    found: list[tuple[object, object]] = []
    for one in delivered:
        if one.method == "basic.deliver":
            headers = codec.decode_properties(one.properties).get("headers", {})
            assert isinstance(headers, dict)
            found.append((headers.get("x-queue-id"), headers.get("x-queue-sequence")))
    return found


def consume(
    peer: Peer, queue: str, *, no_ack: bool = False, asks: bool = True
) -> list[tuple[object, object]]:
    arguments: Table = {ASKED: asks}
    return numbers(
        peer.send_method("basic.consume", queue, "t", False, no_ack, False, False, arguments)
    )


def test_numbers_are_those_of_the_queue_and_survive_a_return() -> None:
    loop = Loop()
    loop.gateway.identify(loop.machine.cluster_id)
    first = loop.connect().open(1)
    first.declare(1, "q")
    first.publish(1, "q", b"0", b"1", b"2")
    first.call(1, "basic.qos", 0, 2, False)
    (queue, number), (same, following) = consume(first, "q")
    assert (queue, number, following) == (same, 0, 1)
    assert str(queue).startswith(f"{loop.machine.cluster_id}/")
    first.call(1, "channel.close", 200, "", 0, 0)
    second = loop.connect().open(1)
    assert consume(second, "q") == [(queue, 0), (queue, 1), (queue, 2)]
    first.open(1)
    first.declare(1, "other")
    first.publish(1, "other", b"0")
    ((other, _),) = consume(first, "other")
    assert other != queue


def test_each_priority_of_a_queue_has_its_own_id() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    arguments: Table = {"x-max-priority": 2}
    peer.call(1, "queue.declare", "q", False, False, False, False, False, arguments)
    for priority in (0, 2, 0):
        properties = codec.encode_properties({"priority": priority})
        peer.send(publish(1, "", "q", b"x", properties))
    found = consume(peer, "q")
    assert [(str(name).rpartition("/")[2], number) for name, number in found] == [
        ("2", 1), ("0", 0), ("0", 2),
    ]  # fmt: skip


def test_numbers_that_do_not_fit_the_frame_are_left_out() -> None:
    """The headers of a message must fit one frame, and a client may refuse a larger one."""
    loop = Loop()
    peer = loop.connect(frame_max=4096).open(1)
    peer.declare(1, "q")
    for size in (3000, 4050):
        properties = codec.encode_properties({"headers": {"h": "x" * size}})
        peer.send(publish(1, "", "q", b"x", properties))
    (_, first), second = consume(peer, "q")
    assert first == 0
    assert second == (None, None)


@pytest.mark.parametrize(("asks", "no_ack"), [(False, False), (True, True)])
def test_a_consumer_that_does_not_ask_or_ack_gets_no_numbers(asks: bool, no_ack: bool) -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    peer.send(publish(1, "", "q", b"0", codec.encode_properties({"headers": {"a": 1}})))
    assert consume(peer, "q", asks=asks, no_ack=no_ack) == [(None, None)]
