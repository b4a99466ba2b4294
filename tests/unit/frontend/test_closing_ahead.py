"""A channel with nothing pending is closed without waiting for the machine."""

from collections.abc import Callable

import pytest

from broker.machine.commands import CHANNEL_CLOSE, CHANNEL_OPEN, Value
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer

CLOSE = ("channel.close", 200, "", 0, 0)
CLOSE_OK = [("channel.close-ok",)]


def now(peer: Peer, *data: bytes) -> list[tuple[object, ...]]:
    """What a client gets at once, before the member has ordered anything of it."""
    for part in data:
        peer.loop.gateway.data_received(peer.client, part, peer.loop.now)
    peer.loop.write()
    return [(one.method, *one.args) for one in peer.take()]


def close(peer: Peer, number: int = 1) -> list[tuple[object, ...]]:
    return now(peer, method(number, *CLOSE))


def settled(peer: Peer) -> None:
    """Its confirms have come, and its messages are consumed and settled."""
    peer.declare(1, "q")
    peer.call(1, "confirm.select", False)
    assert [one.method for one in peer.publish(1, "q", b"1", b"2")] == ["basic.ack"]
    assert peer.call(1, "basic.get", "q", True)[0][0] == "basic.get-ok"
    peer.call(1, "basic.consume", "q", "t", False, True, False, False, {})
    assert peer.call(1, "basic.cancel", "t", False) == [("basic.cancel-ok", "t")]


def unused(_peer: Peer) -> None:
    pass


@pytest.mark.parametrize("used", [unused, settled])
def test_a_channel_with_nothing_pending_is_closed_at_once(used: Callable[[Peer], None]) -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    used(peer)
    assert close(peer) == CLOSE_OK
    loop.turn()
    assert peer.take() == []
    assert not loop.machine.channels


def test_its_number_is_free_at_once_and_the_machine_closes_in_order() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    for _ in range(3):
        assert close(peer) == CLOSE_OK
        assert now(peer, method(1, "channel.open")) == [("channel.open-ok",)]
    peer.declare(1, "q")
    assert [one.method for one in peer.publish(1, "none", b"")] == []
    assert close(peer) == []
    loop.turn()
    assert [one.method for one in peer.take()] == ["channel.close-ok"]
    assert not loop.machine.channels
    kinds = [command[0] for command, _ in loop.applied]
    assert [one for one in kinds if one in (CHANNEL_OPEN, CHANNEL_CLOSE)] == (
        [CHANNEL_OPEN, CHANNEL_CLOSE] * 4
    )
    assert peer.call(1, "channel.open") == [("channel.open-ok",)]
    assert peer.call(1, "channel.open")[0][:2] == ("connection.close", 504)


CONSUME: tuple[str, *tuple[Value, ...]]
CONSUME = ("basic.consume", "q", "t", False, False, False, False, {})


@pytest.mark.parametrize(
    ("before", "under_way"),
    [
        pytest.param([CONSUME], b"", id="a consumer"),
        pytest.param([("basic.get", "full", False)], b"", id="an unsettled message"),
        pytest.param([("tx.select",)], b"", id="a transaction"),
        pytest.param(
            [("basic.consume", "amq.rabbitmq.reply-to", "t", False, True, False, False, {})],
            b"", id="replies",
        ),
        pytest.param([], publish(1, "", "q", b""), id="a publish"),
        pytest.param([("confirm.select", False)], publish(1, "", "q", b""), id="a confirm"),
        pytest.param([], method(1, "queue.purge", "q", False), id="a request"),
        pytest.param([], method(1, "queue.purge", "q", True), id="a request without reply"),
        pytest.param([], method(1, "basic.ack", 7, False), id="an ack"),
        pytest.param([], method(1, "basic.reject", 7, False), id="a reject"),
    ],
)  # fmt: skip
def test_a_channel_with_pending_work_is_closed_after_it(
    before: list[tuple[str, *tuple[Value, ...]]], under_way: bytes
) -> None:
    loop = Loop()
    peer = loop.connect().open(1, 2)
    peer.declare(2, "q")
    peer.declare(2, "full")
    peer.publish(2, "full", b"1")
    for name, *args in before:
        peer.call(1, name, *args)
    assert now(peer, under_way) == []
    assert close(peer) == []
    loop.turn()
    ended = [one.method for one in peer.take()][-1]
    assert ended in ("channel.close-ok", "channel.close")


def test_replies_that_wait_for_disks_come_before_the_end() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.durable = False
    assert peer.call(1, "queue.declare", "q", False, True, False, False, False, {}) == []
    assert close(peer) == []
    loop.turn()
    assert peer.take() == []
    loop.settle()
    assert [one.method for one in peer.take()] == ["queue.declare-ok", "channel.close-ok"]


def test_a_fenced_member_closes_no_channel_ahead() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.outbox.fence()
    assert close(peer) == []
    loop.turn()
    loop.outbox.unfence()
    loop.turn()
    assert [one.method for one in peer.take()] == ["channel.close-ok"]


def test_a_channel_closed_ahead_does_not_count_towards_limits() -> None:
    loop = Loop()
    loop.define("user_limit", "", "guest", {"max-channels": 1})
    peer = loop.connect().open(1)
    assert close(peer) == CLOSE_OK
    assert now(peer, method(1, "channel.open")) == [("channel.open-ok",)]
    assert peer.call(2, "channel.open")[0][:2] == ("connection.close", 530)


def test_a_client_that_opens_and_closes_many_is_not_read_while_the_member_is_full() -> None:
    loop = Loop()
    peer = loop.connect()
    loop.gateway.paused = True
    for _ in range(257):
        assert peer.client.may_be_read
        assert now(peer, method(1, "channel.open"), method(1, *CLOSE))[-1:] == CLOSE_OK
    assert not peer.client.may_be_read
