"""A history of queues with limits, times to live, dead letters, groups, routes and numbers.

It has what `plain_history` lacks; `fresh_lies` changes its logs.
"""

from __future__ import annotations

from broker.amqp import codec
from broker.machine import commands as c
from tests.support.three_machines import Client
from tests.system.verify.support.make_moves import MoveMaker

GRAVE: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}


def headers(values: c.Table) -> bytes:
    """Return the properties of a message with these headers."""
    return codec.encode_properties({"headers": values})


def eventful_history() -> MoveMaker:
    """Use each queue such that a lie about it contradicts something else."""
    maker = MoveMaker()
    one, two, three = (maker.rig.client(name) for name in "abc")
    one.queue("grave")
    _expire(one)
    _go_over_the_limit(one)
    _come_back_too_often(two)
    maker.checkpoint()
    _route(one)
    _number(two)
    _commit(three)
    maker.checkpoint()
    _share_groups(two, three)
    _keep_groups(two, three)
    _delay(one)
    three.close()
    maker.end()
    return maker


def _expire(one: Client) -> None:
    one.queue("brief", {"x-message-ttl": 400, **GRAVE})
    one.queue("long")
    for i in range(3):
        one.publish("brief", b"brief %d" % i, no=i + 1)
    lasting = codec.encode_properties({"expiration": "300"})
    one.publish("long", b"own time", properties=lasting, no=4)
    one.rig.pass_time(200_000)
    one.publish("brief", b"later", no=5)
    one.rig.pass_time(600_000)


def _go_over_the_limit(one: Client) -> None:
    one.queue("short", {"x-max-length": 3, **GRAVE})
    for i in range(6):
        one.publish("short", b"short %d" % i, no=6 + i)
    one.queue("refusing", {"x-max-length": 1, "x-overflow": "reject-publish-dlx", **GRAVE})
    for i in range(2):
        one.publish("refusing", b"refused %d" % i, no=12 + i)


def _come_back_too_often(two: Client) -> None:
    two.queue("again", {"x-delivery-limit": 1, **GRAVE})
    for i in range(2):
        two.publish("again", b"again %d" % i, no=i + 1)
    getter = two.channel(2)
    for tag in (1, 2):
        getter.get("again")
        getter.nack(tag)
    getter.get("again")
    getter.nack(3, requeue=False)


def _route(one: Client) -> None:
    one.exchange("news", "topic")
    one.exchange("all", "fanout")
    for name in ("left", "right"):
        one.queue(name)
        one.bind(name, "news", f"to.{name}")
        one.bind(name, "all")
    for i in range(2):
        one.publish("to.left", b"news %d" % i, "news", no=14 + 2 * i)
        one.publish("", b"all %d" % i, "all", no=15 + 2 * i)
    one.publish("to.nobody", b"nobody", "news", no=18)
    one.unbind("left", "news", "to.left")
    one.publish("to.left", b"too late", "news", no=19)
    one.delete("right")
    one.publish("right", b"gone", no=20)
    for tag in range(1, 5):
        one.get("left")
        one.ack(tag)


def _number(two: Client) -> None:
    two.queue("numbered")
    for i, number in enumerate((1, 2, 1, 2)):
        two.publish(
            "numbered", b"numbered %d" % number, no=3 + i,
            properties=headers({"x-producer-id": "p", "x-sequence": number}),
        )  # fmt: skip


def _commit(three: Client) -> None:
    three.queue("work")
    three.queue("done")
    for i in range(4):
        three.publish("work", b"work %d" % i)
    for _ in range(4):
        three.get("work")
    results = [c.TxPublish("", "done", c.PERSISTENT, b"\0\0", b"done %d" % i) for i in range(2)]
    three.commit(results, [c.TxSettle(2, True, c.TX_ACK), c.TxSettle(3, False, c.TX_REQUEUE)])


def _share_groups(two: Client, three: Client) -> None:
    two.queue("shared", {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1})
    for text in ("a1", "b1", "a2", "b2", "a3"):
        two.publish("shared", text.encode(), properties=headers({"g": text[0]}))
    left, right = two.channel(3), three.channel(2)
    left.consume("shared", "l", 1)
    right.consume("shared", "r", 1)
    left.ack(1)
    left.ack(2)
    right.ack(1)
    left.close_channel()
    right.ack(2)


def _keep_groups(two: Client, three: Client) -> None:
    two.queue("kept", {"qpid.group_header_key": "g"})
    left, right = two.channel(4), three.channel(3)
    left.consume("kept", "l", 1)
    right.consume("kept", "r", 1)
    for text in ("a1", "b1", "a2", "b2", "a3", "a4"):
        two.publish("kept", text.encode(), properties=headers({"g": text[0]}))
    for tag in (1, 2):
        left.ack(tag)
        right.ack(tag)
    left.cancel("l")
    left.ack(3)
    right.ack(3)


def _delay(one: Client) -> None:
    one.exchange("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    one.bind("done", "late")
    for i, delay in enumerate((300, 100)):
        one.publish("", b"late %d" % i, "late", properties=headers({"x-delay": delay}), no=21 + i)
    one.rig.pass_time(200_000)
    one.rig.pass_time(700_000)
