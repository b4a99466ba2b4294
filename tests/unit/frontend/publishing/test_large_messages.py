"""Large messages from the client's frames to the machine and back."""

from broker.amqp.handshake import Limits
from broker.frontend.channel import TX_BYTES_MAX
from broker.machine.commands import BODY_PART, PUBLISH, SENT
from tests.support.amqp_peer import methods_in, publish
from tests.support.gateway_loop import Loop, Peer

WHOLE = bytes(range(256)) * 8192  # 2 MiB


def connected(loop: Loop) -> Peer:
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    return peer


def kinds(loop: Loop) -> list[int]:
    return [command[0] for command, _ in loop.applied if command[0] in (BODY_PART, PUBLISH)]


def test_a_large_message_is_many_small_commands_and_comes_back_whole() -> None:
    loop = Loop()
    peer = connected(loop)
    peer.call(1, "confirm.select", False)
    (confirm,) = peer.send(publish(1, "", "q", WHOLE))
    assert (confirm.method, confirm.args) == ("basic.ack", (1, False))
    assert kinds(loop) == [BODY_PART] * 16 + [PUBLISH]
    (got,) = peer.send_method("basic.get", "q", True)
    assert (got.method, got.body) == ("basic.get-ok", WHOLE)


def test_an_operator_limits_the_size_of_messages() -> None:
    loop = Loop()
    loop.gateway.limits = Limits(message_bytes_max=2_000_000)
    peer = connected(loop)
    (closed,) = peer.send(publish(1, "", "q", WHOLE))
    assert closed.args[:2] == (
        406,
        "PRECONDITION_FAILED - message size 2097152 is larger than configured max size 2000000",
    )
    assert loop.machine.unfinished == {}


def test_a_transaction_publishes_a_large_message_whole() -> None:
    loop = Loop()
    peer = connected(loop)
    peer.call(1, "tx.select")
    peer.send(publish(1, "", "q", WHOLE), publish(1, "", "q", b"small"))
    assert kinds(loop) == []
    peer.call(1, "tx.commit")
    bodies = [peer.send_method("basic.get", "q", True)[0].body for _ in range(2)]
    assert bodies == [WHOLE, b"small"]


def test_a_transaction_refuses_a_large_message_before_it_is_complete() -> None:
    peer = connected(Loop())
    peer.call(1, "tx.select")
    stream = publish(1, "", "q", bytes(TX_BYTES_MAX + (4 << 20)))
    (closed,) = peer.send(stream[: TX_BYTES_MAX + (1 << 20)])
    assert closed.args[0] == 406
    assert peer.client.transaction_bytes == 0


def test_during_an_alarm_parts_wait_in_order() -> None:
    loop = Loop()
    peer = connected(loop)
    loop.gateway.block("no space")
    peer.send(publish(1, "", "q", WHOLE))
    assert kinds(loop) == []
    assert not peer.client.may_be_read
    loop.gateway.block("")
    peer.send()
    assert kinds(loop) == [BODY_PART] * 16 + [PUBLISH]


def test_a_sender_is_not_read_while_its_lane_is_full() -> None:
    loop = Loop()
    large, other = connected(loop), connected(loop)
    large.send(publish(1, "", "q", WHOLE))
    other.send(publish(1, "", "q", b"small"))
    loop.gateway.large_paused = True
    assert (large.client.may_be_read, other.client.may_be_read) == (False, True)
    loop.gateway.connection_lost(large.client)
    assert loop.gateway.large_senders == {}


def test_a_consumer_gets_it_piece_by_piece_without_copies() -> None:
    loop = Loop()
    sender, reader = connected(loop), connected(loop)
    for body in (WHOLE, b"small", WHOLE + b"2"):
        sender.send(publish(1, "", "q", body))
    reader.reads = False
    reader.send_method("basic.consume", "q", "c", False, True, False, False, {})
    connection = reader.client.connection
    assert connection.ahead
    assert len(connection.out) < 1000
    assert reader.client.is_full
    pieces: list[bytes] = []
    while connection.ahead:
        assert not loop.gateway.commands
        pieces.append(bytes(reader.client.take_output()))
    assert 4 <= len(pieces) <= 6
    assert [command[0] for command in loop.gateway.commands] == [SENT]
    reader.received += methods_in(b"".join(pieces))
    reader.reads = True
    loop.turn()
    bodies = [one.body for one in reader.take() if one.method == "basic.deliver"]
    assert bodies == [WHOLE, b"small", WHOLE + b"2"]
