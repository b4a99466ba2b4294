"""Clients through gateway, machine and outbox: what they may do, and what they receive."""

import pytest

from broker.amqp import codec
from broker.frontend.gateway import random_name
from broker.machine import commands as c
from tests.support.amqp_peer import method, opening, publish, start_ok
from tests.support.gateway_loop import Loop, Peer


def calls(peer: Peer, *data: bytes) -> list[tuple[object, ...]]:
    return [(one.method, *one.args) for one in peer.send(*data)]


def kinds(loop: Loop) -> list[int]:
    return [command[0] for command, _ in loop.applied]


# -- connections ----------------------------------------------------------------------------------


def test_a_client_opens_works_and_closes() -> None:
    loop = Loop()
    peer = loop.connect()
    assert [one.method for one in peer.take()] == [
        "connection.start",
        "connection.tune",
        "connection.open-ok",
    ]
    assert peer.call(1, "channel.open") == [("channel.open-ok",)]
    assert peer.call(1, "channel.close", 200, "", 0, 0) == [("channel.close-ok",)]
    assert peer.call(0, "connection.close", 200, "", 0, 0) == [("connection.close-ok",)]
    assert peer.client.wants_close
    peer.loop.gateway.connection_lost(peer.client)
    loop.turn()
    assert kinds(loop)[1:] == [
        c.CONNECTION_OPEN, c.CHANNEL_OPEN, c.CHANNEL_CLOSE, c.CONNECTION_CLOSE,
    ]  # fmt: skip
    assert loop.machine.connections == {}
    assert loop.gateway.clients == {}


def test_a_lost_socket_ends_the_connection_in_the_machine() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.loop.gateway.connection_lost(peer.client)
    loop.turn()
    assert loop.machine.connections == {}
    assert not loop.gateway.has_work


def test_a_batch_keeps_the_order_of_arrival_of_all_clients() -> None:
    loop = Loop()
    one, two = loop.connect().open(1), loop.connect().open(1)
    one.loop.gateway.data_received(one.client, publish(1, "", "a"), 0.0)
    two.loop.gateway.data_received(two.client, publish(1, "", "b"), 0.0)
    one.loop.gateway.data_received(one.client, publish(1, "", "c"), 0.0)
    commands = loop.gateway.take_commands()
    assert [(command[1], command[5]) for command in commands if len(command) > 5] == [
        (1, "a"), (2, "b"), (1, "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("user", "password", "is_local", "is_good"),
    [
        ("guest", "guest", True, True),
        ("guest", "guest", False, False),
        ("guest", "wrong", True, False),
        ("anna", "secret", False, True),
        ("anna", "", False, False),
        ("nobody", "", True, False),
    ],
)
def test_which_logins_are_accepted(user: str, password: str, is_local: bool, is_good: bool) -> None:
    loop = Loop({"anna": "secret"})
    peer = Peer(loop, is_local=is_local)
    received = peer.send(codec.PROTOCOL_HEADER, start_ok(user, password))
    assert received[-1].method == ("connection.tune" if is_good else "connection.close")


def test_only_known_virtual_hosts_can_be_opened() -> None:
    peer = Loop().connect(vhost="/other")
    received = peer.take()[-1]
    assert received.args == (530, "NOT_ALLOWED - vhost /other not found", 10, 40)
    assert peer.loop.gateway.clients == {}


def test_a_member_outside_the_primary_admits_no_client() -> None:
    loop = Loop()
    loop.outbox.fence()
    peer = loop.connect()
    received = peer.take()[-1]
    assert received.args[0] == 320
    assert "'a' is not part of the primary" in str(received.args[1])


def test_a_new_session_ends_the_connections_of_the_old_one() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    peer.loop.gateway.data_received(peer.client, publish(1, "", "q"), 0.0)
    loop.outbox.fence()
    loop.activate(fresh=True)
    loop.outbox.unfence()
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    assert c.PUBLISH not in kinds(loop)
    assert loop.gateway.clients == {}
    peer.loop.gateway.connection_lost(peer.client)
    loop.turn()
    other = loop.connect().open(1)
    assert other.client.conn == 2


def test_a_session_that_continues_keeps_its_connections() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.outbox.fence()
    loop.activate(fresh=False)
    assert peer.call(1, "queue.declare", "q", False, False, False, False, False, {}) == []
    loop.outbox.unfence()
    loop.turn()
    assert [one.method for one in peer.take()] == ["queue.declare-ok"]


def test_a_client_may_close_at_a_fenced_member() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.outbox.fence()
    assert peer.call(0, "connection.close", 200, "", 0, 0) == [("connection.close-ok",)]


def test_a_stopping_member_closes_its_clients_with_the_reason() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    loop.gateway.drop_all("the broker is stopping")
    loop.turn()
    assert peer.take()[-1].args[:2] == (320, "CONNECTION_FORCED - the broker is stopping")


def test_a_protocol_error_ends_the_connection_in_the_machine_too() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    assert peer.send(publish(1, "", "q"), b"\xff" * 8)[-1].args[0] == 501
    assert loop.machine.connections == {}
    assert loop.gateway.counters["faults"] == 1
    assert "501" in loop.log[-1] or "FRAME_ERROR" in loop.log[-1]


def test_the_whole_opening_and_a_channel_may_arrive_in_one_piece() -> None:
    loop = Loop()
    peer = Peer(loop)
    received = peer.send(opening() + method(1, "channel.open") + publish(1, "", "q"))
    assert [one.method for one in received][-2:] == ["connection.open-ok", "channel.open-ok"]
    assert kinds(loop)[-1] == c.PUBLISH
    assert peer.client.is_publisher


def test_the_clock_reaches_the_connection() -> None:
    loop = Loop()
    peer = loop.connect(heartbeat=10).open(1)
    assert peer.client.next_timer() == 5.0
    peer.client.reading(False, 0.0)
    peer.loop.gateway.wake(peer.client, 60.0)
    peer.client.reading(True, 60.0)
    peer.loop.gateway.wake(peer.client, 79.0)
    assert not peer.client.wants_close
    peer.loop.gateway.wake(peer.client, 80.0)
    assert peer.client.wants_close
    loop.turn()
    assert loop.machine.connections == {}


def test_generated_names_are_not_guessable() -> None:
    names = {random_name("amq.gen-") for _ in range(10)}
    assert len(names) == 10
    assert {len(name) for name in names} == {30}


def test_a_connection_that_is_lost_before_it_is_ordered_is_not_gone_yet() -> None:
    """Its opening is under way, and its end behind it."""
    loop = Loop()
    client = loop.gateway.connect("127.0.0.1:5000", True, 0.0)
    loop.gateway.data_received(client, opening(), 0.0)
    conn = client.conn
    assert conn
    loop.gateway.connection_lost(client)
    assert not loop.gateway.is_gone(conn)
    loop.turn()
    assert loop.gateway.is_gone(conn)


def test_nothing_stays_of_a_client_that_is_lost_while_its_close_is_under_way() -> None:
    loop = Loop()
    peer = loop.connect()
    loop.gateway.data_received(peer.client, method(0, "connection.close", 200, "", 0, 0), 0.0)
    assert list(loop.gateway.clients.values()) == [peer.client]
    loop.gateway.connection_lost(peer.client)
    loop.turn()
    assert (loop.gateway.clients, loop.gateway.ending) == ({}, {})


def test_who_is_closed_while_it_waits_to_be_admitted_is_not_let_in() -> None:
    loop = Loop()
    loop.outbox.fence()
    loop.gateway.admission.admit_waiting(soon=True)
    peer = loop.connect()
    assert list(loop.gateway.admission.waiting) == [peer.client]
    loop.gateway.disconnect(peer.client.peer, "an operator's wish")
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert (loop.gateway.clients, peer.client.conn) == ({}, 0)
