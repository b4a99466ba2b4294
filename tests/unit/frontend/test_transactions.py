"""Replies of a transaction before its commit."""

from broker.machine.commands import NACK
from tests.support.amqp_peer import method
from tests.support.gateway_loop import Loop, Peer


def holding(count: int) -> Peer:
    """A channel in a transaction that holds this many messages."""
    peer = Loop().connect().open(1)
    peer.declare(1, "q")
    peer.publish(1, "q", *(b"%d" % n for n in range(1, count + 1)))
    peer.call(1, "tx.select")
    for _ in range(count):
        peer.call(1, "basic.get", "q", False)
    return peer


def refusal(received: list[tuple[object, ...]]) -> tuple[object, ...]:
    (one,) = received
    return one[:3]


def test_an_unknown_tag_is_refused_at_once() -> None:
    for multiple in (False, True):
        peer = holding(2)
        assert refusal(peer.call(1, "basic.ack", 3, multiple)) == (
            "channel.close", 406, "PRECONDITION_FAILED - unknown delivery tag 3",
        )  # fmt: skip


def test_tags_settled_in_the_transaction_are_unknown() -> None:
    for first, second in (
        (("basic.ack", 1, False), ("basic.ack", 1, False)),
        (("basic.ack", 1, False), ("basic.reject", 1, True)),
        (("basic.ack", 2, True), ("basic.nack", 1, False, True)),
        (("basic.ack", 2, True), ("basic.ack", 2, True)),
        (("basic.ack", 0, True), ("basic.ack", 2, False)),
    ):
        peer = holding(2)
        assert peer.call(1, *first) == []
        assert refusal(peer.call(1, *second))[:2] == ("channel.close", 406)


def test_ack_all_covers_deliveries_outstanding_at_that_moment() -> None:
    peer = holding(2)
    assert peer.call(1, "basic.ack", 0, True) == []
    assert peer.call(1, "basic.ack", 0, True) == []
    peer.publish(1, "q", b"3")
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.call(1, "basic.get", "q", False)[0][:2] == ("basic.get-ok", 3)
    assert peer.call(1, "basic.ack", 3, False) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]


def test_ack_all_covers_deliveries_before_one_settled_alone() -> None:
    peer = holding(4)
    peer.call(1, "basic.ack", 4, False)
    peer.call(1, "basic.ack", 2, False)
    for _ in range(2):
        assert peer.call(1, "basic.ack", 0, True) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.loop.machine.vhosts["/"].queues["q"].unacked == 0


def test_ack_all_covers_nothing_if_each_was_settled_alone() -> None:
    peer = holding(2)
    for tag in (2, 1):
        peer.call(1, "basic.ack", tag, False)
    for _ in range(2):
        assert peer.call(1, "basic.ack", 0, True) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]


def test_a_rollback_makes_the_tags_known_again() -> None:
    peer = holding(2)
    peer.call(1, "basic.ack", 2, True)
    assert peer.call(1, "tx.rollback") == [("tx.rollback-ok",)]
    assert peer.call(1, "basic.ack", 1, False) == []
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    peer.call(1, "basic.recover", True)
    assert peer.call(1, "basic.get", "q", True) == [("basic.get-ok", 3, True, "", "q", 0)]


def test_recover_returns_what_the_transaction_has_not_settled() -> None:
    peer = holding(3)
    assert peer.call(1, "basic.ack", 2, False) == []
    assert peer.call(1, "basic.recover", True) == [("basic.recover-ok",)]
    assert [peer.call(1, "basic.get", "q", True)[0][:2] for _ in range(3)] == [
        ("basic.get-ok", 4), ("basic.get-ok", 5), ("basic.get-empty",),
    ]  # fmt: skip
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]


def test_repeated_recovers_return_messages_once() -> None:
    peer = holding(3)
    peer.call(1, "basic.ack", 3, False)
    recover = method(1, "basic.recover", True)
    assert [one.method for one in peer.send(recover * 100)] == ["basic.recover-ok"] * 100
    given_back = [one for one, _ in peer.loop.applied if one[0] == NACK]
    assert [tuple(one)[3:] for one in given_back] == [(1, False, True), (2, False, True)]
    assert peer.call(1, "basic.get", "q", False)[0][:2] == ("basic.get-ok", 4)
    assert peer.call(1, "basic.recover", True) == [("basic.recover-ok",)]
    assert peer.call(1, "tx.commit") == [("tx.commit-ok",)]
    assert peer.loop.machine.vhosts["/"].queues["q"].unacked == 0
