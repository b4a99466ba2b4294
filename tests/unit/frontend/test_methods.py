"""How each method becomes a command for the machine: names, shapes, transactions."""

import pytest

from broker.amqp import codec
from broker.amqp.spec import METHODS
from broker.frontend.methods import REQUESTS
from broker.machine import commands as c
from tests.support.amqp_peer import PERSISTENT, method, publish
from tests.support.gateway_loop import Loop, Peer


def calls(peer: Peer, *data: bytes) -> list[tuple[object, ...]]:
    return [(one.method, *one.args) for one in peer.send(*data)]


def kinds(loop: Loop) -> list[int]:
    return [command[0] for command, _ in loop.applied]


def test_names_are_stamped_and_the_last_queue_is_remembered() -> None:
    peer = Loop().connect().open(1)
    declare = method(1, "queue.declare", "", False, False, False, False, False, {})
    assert calls(peer, declare) == [("queue.declare-ok", "amq.gen-1", 0, 0)]
    assert peer.call(1, "queue.bind", "", "amq.direct", "", False, {}) == [("queue.bind-ok",)]
    peer.send(publish(1, "amq.direct", "amq.gen-1"))
    received = peer.call(1, "basic.get", "", True)
    assert received == [("basic.get-ok", 1, False, "amq.direct", "amq.gen-1", 0)]
    received = peer.call(1, "basic.consume", "", "", False, True, False, False, {})
    assert received == [("basic.consume-ok", "amq.ctag-2")]
    assert peer.call(1, "basic.cancel", "amq.ctag-2", False) == [("basic.cancel-ok", "amq.ctag-2")]
    assert peer.call(1, "queue.unbind", "", "amq.direct", "", {}) == [("queue.unbind-ok",)]
    assert peer.call(1, "queue.purge", "", False) == [("queue.purge-ok", 0)]
    assert peer.call(1, "queue.delete", "", False, False, False) == [("queue.delete-ok", 0)]


def test_a_queue_without_a_type_gets_the_default_type_of_its_virtual_host() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    body: c.Table = {"description": "", "tags": (), "default_queue_type": "quorum"}
    loop.define("vhost", "", "/", body)
    lasting = (False, True, False, False, False)
    classic: c.Table = {"x-queue-type": "classic"}
    declared: list[tuple[str, tuple[bool, ...], c.Table]] = [
        ("typed", lasting, {}),
        ("said", lasting, classic),
        ("transient", (False, False, False, False, False), {}),
        ("exclusive", (False, True, True, False, False), {}),
        ("leaving", (False, True, False, True, False), {}),
    ]
    for name, flags, arguments in declared:
        declare = method(1, "queue.declare", name, *flags, arguments)
        assert calls(peer, declare) == [("queue.declare-ok", name, 0, 0)]
        assert calls(peer, declare) == [("queue.declare-ok", name, 0, 0)]
    quorum = [one.name for one in loop.machine.vhosts["/"].queues.values() if one.is_quorum]
    assert quorum == ["typed"]


@pytest.mark.parametrize(
    ("name", "args", "code", "text"),
    [
        ("queue.bind", ("", "amq.direct", "", False, {}), 404, "no previously declared queue"),
        ("basic.get", ("", False), 404, "no previously declared queue"),
        ("queue.purge", ("nope", False), 404, "no queue 'nope' in vhost '/'"),
        ("queue.declare", ("", True, False, False, False, False, {}), 404, "no queue '' in vhost"),
        (
            "queue.declare", ("amq.gen-x", False, False, False, False, False, {}),
            403, "reserved prefix",
        ),
        ("queue.declare", ("amq.x", False, False, False, False, False, {}), 403, "reserved prefix"),
        ("tx.commit", (), 406, "not transactional"),
        ("tx.rollback", (), 406, "not transactional"),
        ("basic.ack", (5, False), 406, "unknown delivery tag 5"),
        (
            "exchange.declare", ("e", "direct", False, False, False, False, False,
                                 {"a": tuple(range(5000))}),
            406, "4096",
        ),
    ],
)  # fmt: skip
def test_methods_that_end_a_channel(
    name: str, args: tuple[c.Value, ...], code: int, text: str
) -> None:
    peer = Loop().connect().open(1)
    (received,) = peer.call(1, name, *args)
    assert received[:2] == ("channel.close", code)
    assert text in str(received[2])
    assert peer.call(1, "tx.select") == []
    assert peer.call(1, "channel.close-ok") == []
    assert peer.call(1, "channel.open") == [("channel.open-ok",)]


def test_deeply_nested_arguments_are_refused_before_replication() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    table: c.Table = {}
    for _ in range(20):
        table = {"t": table}
    received = peer.call(1, "exchange.bind", "amq.direct", "amq.topic", "", False, table)
    assert received[0][:2] == ("channel.close", 406)


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("basic.qos", (1, 0, False), 540),
        ("channel.flow", (False,), 540),
        ("exchange.declare", ("e", "no-such-type", False, False, False, False, False, {}), 503),
    ],
)
def test_methods_that_end_a_connection(name: str, args: tuple[c.Value, ...], code: int) -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    (received,) = peer.call(1, name, *args)
    assert received[:2] == ("connection.close", code)
    assert loop.machine.connections == {}
    assert peer.call(1, "tx.select") == []
    peer.send(method(0, "connection.close-ok"))
    assert peer.client.wants_close


def test_all_other_methods_get_a_reply() -> None:
    peer = Loop().connect().open(1)
    declare: tuple[c.Value, ...] = ("e", "fanout", False, False, False, False, False, {})
    assert peer.call(1, "exchange.declare", *declare) == [("exchange.declare-ok",)]
    bind: tuple[c.Value, ...] = ("e", "amq.topic", "k.*", False, {})
    assert peer.call(1, "exchange.bind", *bind) == [("exchange.bind-ok",)]
    assert peer.call(1, "exchange.unbind", *bind) == [("exchange.unbind-ok",)]
    assert peer.call(1, "exchange.delete", "e", False, False) == [("exchange.delete-ok",)]
    assert peer.call(1, "basic.qos", 0, 10, False) == [("basic.qos-ok",)]
    assert peer.call(1, "basic.recover", True) == [("basic.recover-ok",)]
    assert peer.call(1, "basic.recover-async", True) == []
    assert peer.call(1, "basic.recover", True) == [("basic.recover-ok",)]
    assert peer.call(1, "channel.flow", True) == [("channel.flow-ok", True)]
    assert peer.call(1, "channel.flow-ok", True) == []
    assert peer.call(1, "basic.cancel-ok", "nobody's") == []
    assert peer.call(1, "confirm.select", True) == []
    assert peer.call(1, "confirm.select", False) == [("confirm.select-ok",)]


def test_nowait_gets_no_reply() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    received = peer.send(
        method(1, "queue.declare", "q", False, False, False, False, True, {}),
        method(1, "exchange.declare", "e", "fanout", False, False, False, False, True, {}),
        method(1, "queue.bind", "q", "e", "", True, {}),
        method(1, "basic.consume", "q", "tag", False, False, False, True, {}),
        method(1, "basic.cancel", "tag", True),
        method(1, "queue.purge", "q", True),
        method(1, "queue.delete", "q", False, False, True),
        method(1, "exchange.delete", "e", False, True),
    )
    assert received == []
    assert [outcome for _, outcome in loop.applied] == [0] * len(loop.applied)


def test_a_message_may_only_name_its_own_user() -> None:
    peer = Loop().connect().open(1, 2)
    own = codec.encode_properties({"user_id": "guest"})
    assert peer.send(publish(1, "", "q", b"x", own)) == []
    other = codec.encode_properties({"user_id": "root"})
    (received,) = peer.send(publish(2, "", "q", b"x", other))
    assert received.args[0] == 406
    assert "'root'" in str(received.args[1])


def test_a_message_that_is_too_large_is_refused_with_the_reason() -> None:
    loop = Loop()
    loop.gateway.limits = loop.gateway.limits._replace(message_bytes_max=10)
    peer = loop.connect().open(1)
    (received,) = peer.send(publish(1, "", "q", b"x" * 11))
    assert received.args[:2] == (
        406,
        "PRECONDITION_FAILED - message size 11 is larger than configured max size 10",
    )


# -- transactions ---------------------------------------------------------------------------------


def test_a_transaction_is_one_command() -> None:
    loop = Loop()
    peer = loop.connect().open(1, 2)
    peer.declare(1, "q")
    assert peer.call(1, "tx.select") == [("tx.select-ok",)]
    assert peer.publish(1, "q", b"one", b"two") == []
    assert kinds(loop)[-1] == c.QUEUE_DECLARE
    assert peer.call(2, "basic.get", "q", True) == [("basic.get-empty",)]
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.call(1, "basic.get", "q", False) == [("basic.get-ok", 1, False, "", "q", 1)]
    assert peer.call(1, "basic.ack", 1, False) == []
    assert peer.call(1, "tx.rollback") == [("tx.rollback-ok",)]
    assert peer.call(1, "basic.reject", 1, True) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.call(1, "basic.get", "q", False) == [("basic.get-ok", 2, True, "", "q", 1)]


def test_transactions_and_confirms_exclude_each_other() -> None:
    peer = Loop().connect().open(1, 2)
    peer.call(1, "tx.select")
    assert peer.call(1, "confirm.select", False)[0][:2] == ("channel.close", 406)
    peer.call(2, "confirm.select", False)
    assert peer.call(2, "tx.select")[0][:2] == ("channel.close", 406)


def test_a_transaction_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.frontend.channel.TX_ITEMS_MAX", 3)
    peer = Loop().connect().open(1)
    peer.call(1, "tx.select")
    assert peer.publish(1, "q", b"1", b"2", b"3") == []
    (received,) = peer.publish(1, "q", b"4", b"5")
    assert received.args[0] == 406


def test_the_transactions_of_a_client_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.frontend.dispatch.TX_BYTES_MAX", 100)
    peer = Loop().connect().open(1, 2)
    for channel in (1, 2):
        peer.call(channel, "tx.select")
        assert peer.publish(channel, "q", b"x" * 40) == []
    assert peer.call(1, "tx.rollback") == [("tx.rollback-ok",)]
    assert peer.publish(1, "q", b"x" * 40) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.publish(1, "q", b"x" * 40) == []
    (received,) = peer.publish(2, "q", b"x" * 40)
    assert received.args[0] == 406
    assert peer.client.transaction_bytes == 43


def test_a_client_with_many_requests_is_throttled_like_a_publisher() -> None:
    peer = Loop().connect().open(1)
    for _ in range(300):
        peer.call(1, "basic.qos", 0, 1, False)
    assert peer.client.is_publisher


def test_every_method_of_a_client_has_a_handler() -> None:
    elsewhere = ("basic.publish", "channel.open", "channel.close")
    for row in METHODS.values():
        if row.by_client and row.class_id != 10 and row.name not in elsewhere:
            assert row.name in REQUESTS


def test_clients_cannot_forge_log_lines() -> None:
    loop = Loop()
    loop.connect(vhost="x\nERROR all is lost")
    assert "\n" not in loop.log[-1]


def test_prefetch_applies_to_later_consumers() -> None:
    loop = Loop()
    peer = loop.connect().open(1)
    peer.declare(1, "q")
    peer.call(1, "basic.qos", 0, 2, False)
    peer.call(1, "basic.consume", "q", "t", False, False, False, False, {})
    received = peer.publish(1, "q", *(b"x" for _ in range(5)))
    assert [one.method for one in received] == ["basic.deliver"] * 2
    assert [one.args[1] for one in peer.send(method(1, "basic.ack", 2, True))] == [3, 4]
    assert received[0].properties == PERSISTENT


def test_line_ends_are_removed_from_names_where_rabbitmq_removes_them() -> None:
    peer = Loop().connect().open(1, 2)
    declared = peer.call(1, "queue.declare", "q\r\n\n", False, False, False, False, False, {})
    assert declared == [("queue.declare-ok", "q", 0, 0)]
    exchange: tuple[c.Value, ...] = ("e\n", "fanout", False, False, False, False, False, {})
    assert peer.call(1, "exchange.declare", *exchange) == [("exchange.declare-ok",)]
    assert peer.call(1, "queue.bind", "\nq", "e\r", "k\n", False, {}) == [("queue.bind-ok",)]
    assert peer.call(1, "exchange.bind", "e\n", "amq.fanout\n", "", False, {}) == [
        ("exchange.bind-ok",)
    ]
    peer.publish(1, "q", b"x")
    (refused,) = peer.call(2, "basic.get", "q\n", True)
    assert refused[:2] == ("channel.close", 404)
    assert peer.call(1, "queue.unbind", "q\n", "e\n", "k\n", {}) == [("queue.unbind-ok",)]
    assert peer.call(1, "queue.delete", "q\n", False, False, False) == [("queue.delete-ok", 1)]
    assert peer.call(1, "exchange.delete", "e\n", False, False) == [("exchange.delete-ok",)]
