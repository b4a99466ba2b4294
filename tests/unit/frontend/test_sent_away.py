"""Clients that an operator sends away: one of them, or all of a member that is drained."""

from tests.support.amqp_peer import method, opening, publish
from tests.support.gateway_loop import Loop, Peer

OPEN_CHANNEL = method(1, "channel.open")
DECLARE = method(1, "queue.declare", "q", False, False, False, False, False, {})


def connected(loop: Loop) -> Peer:
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL, DECLARE)
    peer.take()
    return peer


def test_a_drained_member_closes_its_connections_and_lets_none_in() -> None:
    loop = Loop()
    old = connected(loop)
    loop.gateway.drain("member 'a' is drained for maintenance; try amqp:tcp:b:5672")
    loop.turn()
    code, text = old.take()[-1].args[:2]
    assert (code, text) == (
        320,
        "CONNECTION_FORCED - member 'a' is drained for maintenance; try amqp:tcp:b:5672",
    )
    assert not loop.machine.connections
    new = Peer(loop)
    assert new.send(opening(), OPEN_CHANNEL)[-1].args[0] == 320
    loop.gateway.drain("")
    assert connected(loop).client.conn
    assert len(loop.machine.connections) == 1


def test_a_client_that_waits_to_be_admitted_is_sent_away_too() -> None:
    loop = Loop()
    loop.outbox.fence()
    loop.gateway.admit_waiting(soon=True)
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    loop.gateway.drain("drained")
    loop.outbox.unfence()
    loop.gateway.admit_waiting(soon=False)
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    assert not loop.machine.connections


def test_one_client_is_disconnected_and_what_it_held_returns() -> None:
    loop = Loop()
    one, other = connected(loop), connected(loop)
    one.client.peer = "192.0.2.1:50001"
    one.send(publish(1, "", "q", b"m"), method(1, "basic.get", "q", False))
    loop.gateway.disconnect("192.0.2.1:50001", "the connection was closed by an operator")
    loop.turn()
    assert one.take()[-1].args[:2] == (
        320, "CONNECTION_FORCED - the connection was closed by an operator",
    )  # fmt: skip
    assert other.client.conn
    assert len(loop.machine.connections) == 1
    got = other.send(method(1, "basic.get", "q", True))
    assert got[0].method == "basic.get-ok"
    assert got[0].args[1] is True
