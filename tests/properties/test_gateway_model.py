"""Random clients against gateway, machine and outbox: nothing fails, and answers add up."""

from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.amqp.fields import Value
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import Loop, Peer

QUEUES = ("p", "q", "")
ANSWERED = {
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
        st.sampled_from(["turn", "settle", "hold", "resume", "session"]),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_random_clients(script: list[Step]) -> None:
    loop = Loop()
    loop.durable = False
    peers = [loop.connect().open(1, 2), loop.connect().open(1, 2)]
    asked: dict[tuple[int, int], list[str]] = {}
    published: dict[tuple[int, int], int] = {}
    for step in script:
        match step:
            case "settle":
                loop.settle()
            case "hold":
                loop.outbox.hold()
            case "resume":
                loop.outbox.resume()
            case "session":
                loop.turn()
                loop.outbox.hold()
                loop.activate(fresh=False)
            case str():
                loop.turn()
            case (int(who), int(channel), (str(name), tuple(args))):
                peers[who].client.data_received(method(channel, name, *args), 0.0)
                if name in ANSWERED or name == "basic.get":
                    asked.setdefault((who, channel), []).append(name)
            case (int(who), int(channel), (str(queue), bool(persistent))):
                data = (
                    publish(channel, "", queue)
                    if persistent
                    else publish(channel, "", queue, b"x", TRANSIENT)
                )
                peers[who].client.data_received(data, 0.0)
                key = (who, channel)
                published[key] = published.get(key, 0) + 1
    loop.outbox.resume()
    loop.turn()
    loop.settle()
    loop.machine.invariants()
    assert loop.machine.root() == loop.machine.recompute_root()
    for who, peer in enumerate(peers):
        for channel in (1, 2):
            check(peer, channel, asked.get((who, channel), []), published.get((who, channel), 0))


def check(peer: Peer, channel: int, asked: list[str], published: int) -> None:
    """Every request is answered in its order, or the channel has been closed with a reason."""
    said = [one for one in peer.said if one.channel == channel]
    answers = [
        one.method
        for one in said
        if one.method.endswith(("-ok", "-empty")) and one.method != "channel.open-ok"
    ]
    expected = [
        ANSWERED.get(name, answer) for name, answer in zip(asked, [*answers, *asked], strict=False)
    ]
    closed = [one for one in said if one.method == "channel.close"]
    assert len(closed) <= 1
    assert answers == expected[: len(answers)]
    if not closed:
        assert len(answers) == len(asked)
        assert not peer.client.channels[channel].held
    else:
        assert said[-1] is closed[0]
    tags = [one.args[1] for one in said if one.method == "basic.deliver"]
    assert len(tags) == len(set(tags))
    for one in said:
        if one.method == "basic.ack":
            assert isinstance(one.args[0], int)
            assert one.args[0] <= published
