"""Random clients against gateway, machine and outbox: nothing fails, and replies add up."""

from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.amqp.fields import Value
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer

QUEUES = ("p", "q", "")
REPLIES = {
    "queue.declare": "queue.declare-ok",
    "queue.purge": "queue.purge-ok",
    "queue.delete": "queue.delete-ok",
    "basic.qos": "basic.qos-ok",
    "basic.consume": "basic.consume-ok",
    "basic.recover": "basic.recover-ok",
    "confirm.select": "confirm.select-ok",
    "tx.select": "tx.select-ok",
    "tx.commit": "tx.commit-ok",
    "tx.rollback": "tx.rollback-ok",
    "channel.flow": "channel.flow-ok",
}
TRANSIENT = codec.encode_properties({"delivery_mode": 1})

queues = st.sampled_from(QUEUES)
flags = st.booleans()
Request: TypeAlias = tuple[str, tuple[Value, ...]]
requests: st.SearchStrategy[Request] = st.one_of(
    queues.map(lambda q: ("queue.declare", (q, False, q == "p", False, False, False, {}))),
    queues.map(lambda q: ("queue.purge", (q, False))),
    queues.map(lambda q: ("queue.delete", (q, False, False, False))),
    st.integers(0, 3).map(lambda n: ("basic.qos", (0, n, False))),
    st.tuples(queues, flags).map(
        lambda pair: ("basic.consume", (pair[0], "", False, pair[1], False, False, {}))
    ),
    st.tuples(queues, flags).map(lambda pair: ("basic.get", pair)),
    st.just(("basic.recover", (True,))),
    st.just(("basic.recover-async", (True,))),
    st.just(("confirm.select", (False,))),
    st.just(("tx.select", ())),
    st.just(("tx.commit", ())),
    st.just(("tx.rollback", ())),
    st.just(("channel.flow", (True,))),
    flags.map(lambda multiple: ("basic.ack", (0, multiple))),
)
Step: TypeAlias = str | tuple[int, int, Request] | tuple[int, int, tuple[str, bool]]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 1), st.integers(1, 2), requests),
        st.tuples(st.integers(0, 1), st.integers(1, 2), st.tuples(queues, flags)),
        st.sampled_from(["turn", "settle", "fence", "unfence", "session"]),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_random_clients(script: list[Step]) -> None:
    loop = Loop()
    loop.durable = False
    peers = [loop.connect().open(1, 2), loop.connect().open(1, 2)]
    requested: dict[tuple[int, int], list[str]] = {}
    published: dict[tuple[int, int], int] = {}
    for step in script:
        match step:
            case "settle":
                loop.settle()
            case "fence":
                loop.outbox.fence()
            case "unfence":
                loop.outbox.unfence()
            case "session":
                loop.turn()
                loop.outbox.fence()
                loop.activate(fresh=False)
            case str():
                loop.turn()
            case (int(who), int(channel), (str(name), tuple(args))):
                loop.gateway.data_received(peers[who].client, method(channel, name, *args), 0.0)
                if name in REPLIES or name == "basic.get":
                    requested.setdefault((who, channel), []).append(name)
            case (int(who), int(channel), (str(queue), bool(persistent))):
                data = (
                    publish(channel, "", queue)
                    if persistent
                    else publish(channel, "", queue, b"x", TRANSIENT)
                )
                loop.gateway.data_received(peers[who].client, data, 0.0)
                key = (who, channel)
                published[key] = published.get(key, 0) + 1
    loop.outbox.unfence()
    loop.turn()
    loop.settle()
    loop.machine.invariants()
    assert loop.machine.root() == loop.machine.recompute_root()
    for who, peer in enumerate(peers):
        for channel in (1, 2):
            check(
                peer, channel, requested.get((who, channel), []), published.get((who, channel), 0)
            )


def check(peer: Peer, channel: int, requested: list[str], published: int) -> None:
    """Every request has its reply, in order, or the channel was closed with a reason."""
    received = [one for one in peer.received if one.channel == channel]
    replies = [
        one.method
        for one in received
        if one.method.endswith(("-ok", "-empty")) and one.method != "channel.open-ok"
    ]
    expected = [
        REPLIES.get(name, reply)
        for name, reply in zip(requested, [*replies, *requested], strict=False)
    ]
    closed = [one for one in received if one.method == "channel.close"]
    assert len(closed) <= 1
    assert replies == expected[: len(replies)]
    if not closed:
        assert len(replies) == len(requested)
        assert not peer.client.channels[channel].held
    else:
        assert received[-1] is closed[0]
    tags = [one.args[1] for one in received if one.method == "basic.deliver"]
    assert len(tags) == len(set(tags))
    for one in received:
        if one.method == "basic.ack":
            assert isinstance(one.args[0], int)
            assert one.args[0] <= published
