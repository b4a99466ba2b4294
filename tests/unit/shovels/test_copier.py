"""A replica of a queue holds what its source holds (G35): both sides and the attempt between
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from random import Random
from types import SimpleNamespace

import pytest

from broker.amqp import codec
from broker.machine.commands import Table, Value
from broker.machine.publishing.queue_numbers import FOLLOW
from broker.shovels import followed
from broker.shovels.followed import COUNT, PLACES
from broker.shovels.replicas import parse_replica
from tests.support.amqp_peer import ServerMethod, method, publish
from tests.support.gateway_loop import Peer
from tests.unit.shovels.two_brokers import WAIT_S, Attempt, Wired, step
from tools.client.amqp_client import AmqpConnection, Delivery
from tools.shovel import copier
from tools.shovel.copier import OF, PLACE, Copier
from tools.shovel.task import Failed, Task, opened

SHOVEL = parse_replica("/", "q", {"src-uri": "amqp://elsewhere"})


def until(brokers: tuple[Wired, ...], true_now: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true_now():
        assert time.monotonic() < deadline
        step(brokers)


def headers_of(one: ServerMethod) -> Table:
    found = codec.decode_properties(one.properties).get("headers", {})
    assert isinstance(found, dict)
    return found


# -- what the source reports -----------------------------------------------------------------------


def told(received: list[ServerMethod]) -> list[object]:
    """Bodies of messages, and events with their values."""
    found: list[object] = []
    for one in received:
        if one.method == "basic.deliver":
            headers = headers_of(one)
            word = headers.get(FOLLOW)
            found.append(
                one.body if word is None else (word, headers.get(PLACES, headers.get(COUNT)))
            )
    return found


@pytest.fixture
def source() -> Iterator[Wired]:
    broker = Wired()
    peer = broker.connect().open(1, 2)
    peer.declare(1, "q")
    peer.publish(1, "q", *(b"%d" % number for number in range(5)))
    yield broker
    broker.cut()


def follow(broker: Wired, known: str = "") -> Peer:
    peer = broker.connect().open(1)
    answers = peer.call(1, "basic.consume", "q", "f", False, True, False, False, {FOLLOW: known})
    assert answers == [("basic.consume-ok", "f")]
    return peer


def told_next(broker: Wired, peer: Peer) -> list[object]:
    broker.beat()
    broker.beat()
    return told(peer.take())


def test_held_messages_are_sent_and_settled_ones_removed(source: Wired) -> None:
    peer = source.connect().open(1)
    peer.call(1, "basic.get", "q", False)
    peer.call(1, "basic.get", "q", False)
    follower = follow(source)
    assert told_next(source, follower) == [
        ("begin", 5), b"0", b"1", b"2", b"3", b"4", ("level", 5)
    ]  # fmt: skip
    assert told_next(source, follower) == []
    peer.call(1, "basic.reject", 1, True)  # it returns: nothing changes
    assert [one for one in told_next(source, follower) if one != ("level", 5)] == []
    peer.call(1, "basic.ack", 2, False)
    peer.publish(1, "q", b"5")
    assert told_next(source, follower) == [("gone", "1"), b"5", ("level", 5)]
    peer.call(1, "queue.purge", "q", False)
    assert told_next(source, follower) == [("gone", "0,2-5"), ("level", 0)]


def test_a_follower_that_falls_behind_is_told_by_how_much(
    source: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = follow(source)
    told_next(source, follower)
    monkeypatch.setattr(followed, "MESSAGES_MAX", 2)
    source.connect().open(1).publish(1, "q", *(b"%d" % number for number in range(5, 10)))
    source.beat()
    assert told(follower.take()) == []
    source.beat()
    assert told(follower.take()) == [b"5", b"6", ("behind", 3)]
    source.beat()
    assert told(follower.take()) == [b"7", b"8", ("behind", 1)]
    source.beat()
    assert told(follower.take()) == [b"9", ("level", 10)]


def test_large_messages_are_not_all_sent_at_once(
    source: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of five hundred may have 128 MB."""
    monkeypatch.setattr(followed, "BYTES_MAX", 1)
    follower = follow(source)
    assert told_next(source, follower) == [("begin", 5), b"0", b"1", ("behind", 3)]


def test_a_queue_with_many_messages_out_of_line_is_looked_at_less_often(
    source: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at each of them, ten times a second, would take the member's time."""
    monkeypatch.setattr(followed, "LOOKED_AT_PER_S", 1)
    client = source.connect().open(1)
    for _ in range(5):
        client.call(1, "basic.get", "q", False)
    follower = follow(source)
    told_next(source, follower)
    client.publish(1, "q", b"5")
    assert told_next(source, follower) == []
    for _ in range(30):
        source.beat()
    assert told(follower.take()) == [b"5", ("level", 6)]


def test_only_durable_changes_are_reported(source: Wired) -> None:
    source.durable = False
    follower = follow(source)
    assert told_next(source, follower) == []
    source.durable = True
    source.settle()
    assert told_next(source, follower)[0] == ("begin", 5)


def test_no_state_between_two_positions_is_reported(source: Wired) -> None:
    """For example, a command that waits for the disk has taken a message out and not yet put it
    back."""
    follower = follow(source)
    told_next(source, follower)
    source.connect().open(1).call(1, "queue.purge", "q", False)
    source.replica.half_way = True
    assert told_next(source, follower) == []
    source.replica.half_way = False
    assert told_next(source, follower) == [("gone", "0-4"), ("level", 0)]


def test_a_follower_of_a_member_that_does_not_serve_is_sent_away(source: Wired) -> None:
    """After some seconds: a view change is over in a moment, and then the follower continues."""
    peer = follow(source)
    told_next(source, peer)
    source.controller.serving = False
    for _ in range(9):  # seconds
        source.beat()
    source.controller.serving = True
    assert told_next(source, peer) == []
    source.controller.serving = False
    for _ in range(9):
        source.beat()
    assert peer.take() == []
    said = "this member has not served for 10 s (1 of 3 votes): follow the queue at another"
    assert sent_away(source, peer) == f"CONNECTION_FORCED - {said}"
    source.beat()
    assert peer.take() == []


def test_the_reason_is_an_expired_lease_where_there_is_one(source: Wired) -> None:
    """As far as the member knows its view stands, so it has no other reason."""
    peer = follow(source)
    source.gateway.fenced = True
    for _ in range(10):
        source.beat()
    peer.take()
    assert "has not served for 10 s (its lease is over): follow" in sent_away(source, peer)


def sent_away(source: Wired, peer: Peer) -> str:
    """The text with which the member closes the connection at its next beat."""
    source.beat()
    (closed,) = peer.take()
    assert (closed.method, closed.args[0]) == ("connection.close", 320)
    return str(closed.args[1])


def test_known_messages_are_reported_only_if_gone_and_after_the_rest(source: Wired) -> None:
    queue_id = f"{source.machine.cluster_id}/{source.queue().number}"
    follower = follow(source, f"{queue_id} 1-2,7-8")
    assert told_next(source, follower) == [
        ("begin", 5), b"0", b"3", b"4", ("gone", "7-8"), ("level", 5)
    ]  # fmt: skip
    other = follow(source, "other/1 0-4")
    assert told_next(source, other)[1:6] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_queue_declared_anew_is_reported_from_its_beginning(source: Wired) -> None:
    follower = follow(source)
    told_next(source, follower)
    peer = source.connect().open(1)
    peer.call(1, "queue.delete", "q", False, False, False)
    peer.declare(1, "q")
    peer.publish(1, "q", b"new")
    assert told_next(source, follower) == [("begin", 1), b"new", ("level", 1)]
    peer.call(1, "queue.delete", "q", False, False, False)
    source.beat()
    (closed,) = follower.take()
    assert (closed.method, closed.args[0]) == ("channel.close", 404)


@pytest.mark.parametrize(
    ("arguments", "no_ack"), [({FOLLOW: ""}, False), ({FOLLOW: 5}, True)]
)  # fmt: skip
def test_a_follower_with_invalid_arguments_is_refused(
    source: Wired, arguments: Table, no_ack: bool
) -> None:
    peer = source.connect().open(1)
    ((closed, code, *_),) = peer.call(
        1, "basic.consume", "q", "f", False, no_ack, False, False, arguments
    )
    assert (closed, code) == ("channel.close", 406)


@pytest.mark.parametrize(
    ("exclusive", "arguments", "code", "says"),
    [
        (True, {}, 405, "it goes with its connection"),
        (False, {"x-queue-type": "stream"}, 406, "which is read by offsets"),
    ],
)
def test_the_reason_why_a_queue_cannot_be_followed_is_given(
    source: Wired,
    exclusive: bool,
    arguments: Table,
    code: int,
    says: str,
) -> None:
    peer = source.connect().open(1)
    peer.call(1, "queue.delete", "q", False, False, False)
    peer.call(1, "queue.declare", "q", False, True, exclusive, False, False, arguments)
    follower = follow(source)
    source.beat()
    (closed,) = follower.take()
    assert (closed.method, closed.args[0]) == ("channel.close", code)
    assert says in str(closed.args[1])


def test_a_queue_with_too_many_unacked_messages_is_not_followed(
    source: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "OUT_OF_LINE_MAX", 1)
    peer = source.connect().open(1)
    peer.call(1, "basic.get", "q", False)
    follower = follow(source)
    assert told_next(source, follower)[0] == ("begin", 5)
    peer.call(1, "basic.get", "q", False)
    source.beat()
    (closed,) = follower.take()
    assert (closed.method, closed.args[0]) == ("channel.close", 506)
    assert "has 2 messages that are unacknowledged" in str(closed.args[1])


def test_a_cancelled_follower_gets_nothing_more(source: Wired) -> None:
    follower = follow(source)
    assert follower.call(1, "basic.cancel", "f", False) == [("basic.cancel-ok", "f")]
    assert told_next(source, follower) == []
    assert not source.gateway.following


# -- what the replica holds
# --------------------------------------------------------------------------


class Workload:
    """Clients of the source that do everything that changes the contents of a queue."""

    def __init__(self, broker: Wired, random: Random, priorities: int) -> None:
        self._broker, self._random, self._priorities = broker, random, priorities
        self._peer = broker.connect().open(1)
        self._taker = broker.connect().open(1)
        self._number, self._tags = 0, list[int]()

    def declare(self, broker: Wired) -> None:
        arguments: Table = {"x-max-priority": self._priorities} if self._priorities else {}
        broker.connect().open(1).call(
            1, "queue.declare", "q", False, True, False, False, False, arguments
        )

    def some(self) -> None:
        """The body of one message."""
        random = self._random
        match random.choice("ppppppggggaarrnd"):
            case "p":
                for _ in range(random.randrange(1, 8)):
                    self._number += 1
                    self._publish(b"%d" % self._number)
            case "g":
                for one in self._taker.call(1, "basic.get", "q", False):
                    if one[0] == "basic.get-ok":
                        self._tags.append(int(str(one[1])))
            case "a" if self._tags:
                self._settle("basic.ack", False)
            case "r" if self._tags:
                self._settle("basic.reject", True)
            case "n" if self._tags:
                self._settle("basic.reject", False)
            case "d" if random.random() < 0.1:
                self._peer.call(1, "queue.purge", "q", False)
            case _:
                pass

    def _publish(self, body: bytes) -> None:
        properties = codec.encode_properties(
            {"priority": self._random.randrange(3), "delivery_mode": 2}
        )
        self._peer.send(publish(1, "", "q", body, properties))

    def _settle(self, how: str, flag: bool) -> None:
        tag = self._tags.pop(self._random.randrange(len(self._tags)))
        self._taker.call(1, how, tag, flag)


Begin = Callable[[Wired, Wired], Attempt]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts attempts, which end with the test."""
    begun: list[Attempt] = []

    def one(source: Wired, destination: Wired) -> Attempt:
        begun.append(Attempt(source, destination))
        return begun[-1]

    yield one
    for attempt in begun:
        attempt.end()


@pytest.fixture
def brokers() -> tuple[Wired, Wired]:
    """The source, with one message, and the broker of the replica."""
    there, here = Wired(), Wired()
    there.connect().open(1).declare(1, "q", durable=True)
    return there, here


@pytest.mark.parametrize("priorities", [0, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_replica_equals_the_source_in_the_end(seed: int, priorities: int, begin: Begin) -> None:
    random = Random(seed)
    there, here = both = Wired(), Wired()
    work = Workload(there, random, priorities)
    work.declare(there)
    if priorities:
        work.declare(here)
    attempt = begin(*both)
    for _ in range(300):
        work.some()
        step(both)
        if random.random() < 0.01:  # its member dies, or that of the source
            attempt.end()
            attempt = begin(*both)
    until(both, lambda: attempt.level and here.holds() == there.holds())
    assert here.queue().unacked == len(here.holds()), "no other consumer can get them"
    assert here.queue().exclusive_consumer
    attempt.stop()
    peer, got = here.connect().open(1), list[bytes]()
    while bodies := [one.body for one in peer.send_method("basic.get", "q", True) if one.body]:
        got += bodies
    assert sorted(got) == sorted(there.holds())
    assert priorities or got == there.holds(), "in the order of the source"


def test_a_missing_message_is_copied_to_its_place(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    there, here = brokers
    there.connect().open(1).publish(1, "q", *(b"%d" % number for number in range(6)))
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level and len(here.holds()) == 6)
    attempt.stop()
    thief = here.connect().open(1)
    for _ in range(3):
        thief.call(1, "basic.get", "q", False)
    thief.call(1, "basic.ack", 3, False)  # as a cold start drops messages that are not persistent
    thief.call(1, "channel.close", 200, "", 0, 0)
    assert here.holds() == [b"0", b"1", b"3", b"4", b"5"]
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level and here.holds() == there.holds())


def test_messages_that_left_while_nothing_ran_go_however_scattered_the_queue_is(
    brokers: tuple[Wired, Wired], begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G35: an attempt tells the source no more than a number of ranges. Messages behind those that
    the source had settled stayed in the replica for good."""
    monkeypatch.setattr(copier, "TOLD_RANGES_MAX", 2)
    there, here = brokers
    clients = there.connect().open(1)
    clients.publish(1, "q", *(b"%d" % number for number in range(12)))
    for _ in range(12):
        clients.call(1, "basic.get", "q", False)
    for tag in (2, 4, 6, 8):
        clients.call(1, "basic.ack", tag, False)
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level and here.holds() == there.holds())
    attempt.stop()
    for tag in (1, 9, 12):
        clients.call(1, "basic.ack", tag, False)
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level and here.holds() == there.holds())


def test_nothing_is_removed_before_its_replacement_is_confirmed() -> None:
    """After a cold start of the source the same message has a new place. It was removed from the
    replica as soon as its new copy was on its way, although that copy may still be refused. (Found
    by a seed of the simulator.)"""

    class Destination(SimpleNamespace):
        def publish(self, *_: object, **__: object) -> int:
            return 1

        def ack(self, tag: int, *, multiple: bool) -> None:
            self.settled.append(tag)

    def there(**headers: Value) -> Delivery:
        named: Table = {"x-queue-id": "far/1", **{f"x-queue-{k}": v for k, v in headers.items()}}
        return Delivery(1, False, "", "", codec.encode_properties({"headers": named}), b"m")

    copier = Copier(SimpleNamespace(shovel=SHOVEL), [].append, -1)  # type: ignore[arg-type]
    copier._here = {"far/1": {7: 0}}
    here = Destination(acks=[], returns=[], settled=[], deliveries=[])
    of: Table = {OF: "far/1", PLACE: 7}
    here.deliveries = [Delivery(5, False, "", "", codec.encode_properties({"headers": of}), b"m")]
    told = there(follow="begin", count=1), there(sequence=9), there(follow="gone", places="7")
    source = SimpleNamespace(deliveries=[*told, there(follow="level", count=1)])
    copier._take_source(source, here)  # type: ignore[arg-type]
    copier._take_back(here)  # type: ignore[arg-type]
    copier._take_confirms(here)  # type: ignore[arg-type]
    assert here.settled == []
    here.acks = [(1, False, True)]
    copier._take_confirms(here)  # type: ignore[arg-type]
    assert here.settled == [5]


@pytest.mark.parametrize("delivered", [False, True])
def test_old_copies_go_whether_or_not_they_are_delivered_before_new_ones_are_made(
    delivered: bool,
) -> None:
    """G35: a message in front was missing here, so all behind it is copied again. The old copies
    may be farther back than a channel takes at once."""

    def one(tag: int, **headers: Value) -> Delivery:
        named: Table = {name.replace("_", "-"): value for name, value in headers.items()}
        return Delivery(tag, False, "", "", codec.encode_properties({"headers": named}), b"m")

    def there(**headers: Value) -> Delivery:
        return one(1, x_queue_id="far/1", **{f"x_queue_{k}": v for k, v in headers.items()})

    copier = Copier(SimpleNamespace(shovel=SHOVEL), [].append, -1)  # type: ignore[arg-type]
    copier._here = {"far/1": {0: 0, 2: 0}}
    numbers, settled = count(1), list[int]()
    here = SimpleNamespace(
        acks=[], returns=[], publish=lambda *_, **__: next(numbers),
        ack=lambda tag, multiple: settled.append(tag),
    )  # fmt: skip
    source = SimpleNamespace(reopen_channel=lambda: None, consume=lambda *_, **__: None)
    begin, missing = there(follow="begin", count=3), there(sequence=1)
    copies = [
        one(tag, x_replica_of="far/1", x_replica_place=place)
        for tag, place in ((1, 0), (2, 2), (3, 1), (4, 2))
    ]
    parts = ([begin], [missing], [begin, missing, there(sequence=2), there(follow="level")])
    for source.deliveries, here.deliveries in zip(
        parts, ((copies[:2] if delivered else []), [], []), strict=True
    ):
        copier._take_source(source, here)  # type: ignore[arg-type]
        copier._take_back(here)  # type: ignore[arg-type]
    here.deliveries = copies[2:] if delivered else copies
    copier._take_back(here)  # type: ignore[arg-type]
    here.acks = [(2, True, True)]
    copier._take_confirms(here)  # type: ignore[arg-type]
    assert settled == [2]


def test_a_replica_under_load_becomes_level() -> None:
    """If confirms took longer than the source's next notice, the replica never was, and kept all
    messages that had left the source."""
    numbers = count(1)

    def there(**headers: Value) -> Delivery:
        named: Table = {"x-queue-id": "far/1", **{f"x-queue-{k}": v for k, v in headers.items()}}
        return Delivery(1, False, "", "", codec.encode_properties({"headers": named}), b"m")

    copier = Copier(SimpleNamespace(shovel=SHOVEL), [].append, -1)  # type: ignore[arg-type]
    here = SimpleNamespace(acks=[], returns=[], publish=lambda *_, **__: next(numbers))
    source = SimpleNamespace(deliveries=[there(follow="begin", count=1)])
    for place in range(3):
        source.deliveries += [there(sequence=place), there(follow="level", count=1)]
        copier._take_source(source, here)  # type: ignore[arg-type]
        if place:
            here.acks = [(place, False, True)]  # of the message before this one
        copier._take_confirms(here)  # type: ignore[arg-type]
    assert copier._level


def test_a_replica_that_fell_behind_is_not_level() -> None:
    """It was shown as level for as long as its attempt ran, however many messages it lacked."""
    told: list[dict[str, object]] = []

    def there(**headers: Value) -> Delivery:
        named: Table = {"x-queue-id": "far/1", **{f"x-queue-{k}": v for k, v in headers.items()}}
        return Delivery(1, False, "", "", codec.encode_properties({"headers": named}), b"m")

    copier = Copier(SimpleNamespace(shovel=SHOVEL), told.append, -1)  # type: ignore[arg-type]
    here = SimpleNamespace(acks=[], returns=[], publish=lambda *_, **__: 1)

    def turn(*deliveries: Delivery) -> object:
        source = SimpleNamespace(deliveries=[*deliveries])
        copier._take_source(source, here)  # type: ignore[arg-type]
        copier._take_confirms(here)  # type: ignore[arg-type]
        copier._report(at_once=True)
        return [one["why"] for one in told if one["event"] == "blocked"][-1]

    turn()
    assert turn(there(follow="begin", count=0), there(follow="level", count=0)) == ""
    assert turn(there(follow="behind", count=1)) == "not level yet: 1 messages are to come"
    assert turn(there(sequence=9), there(follow="level", count=1)) == ""


def test_a_queue_declared_anew_at_the_source_replaces_the_old_one(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    there, here = brokers
    peer = there.connect().open(1)
    peer.publish(1, "q", b"old", b"older")
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level)
    peer.call(1, "queue.delete", "q", False, False, False)
    peer.declare(1, "q", durable=True)
    peer.publish(1, "q", b"new")
    until(brokers, lambda: here.holds() == [b"new"])
    peer.call(1, "queue.delete", "q", False, False, False)
    until(brokers, lambda: not attempt.runs)
    assert "no queue 'q'" in str(attempt.ended["why"])
    assert here.holds() == [b"new"], "a replica outlives a queue deleted at the source"


def test_messages_of_an_old_queue_stay_until_those_of_the_new_one_are_here() -> None:
    """Its replica was level when the queue was declared anew at the source."""

    def one(**headers: Value) -> Delivery:
        named: Table = {name.replace("_", "-"): value for name, value in headers.items()}
        return Delivery(5, False, "", "", codec.encode_properties({"headers": named}), b"m")

    attempt = Copier(SimpleNamespace(shovel=SHOVEL), lambda _: None, -1)  # type: ignore[arg-type]
    attempt._here, attempt._id, attempt._level = {"far/1": {7: 0}}, "far/1", True
    settled: list[int] = []
    here = SimpleNamespace(
        deliveries=[one(x_replica_of="far/1", x_replica_place=7)], acks=[], returns=[],
        ack=lambda tag, multiple: settled.append(tag),
    )  # fmt: skip
    begin = one(x_queue_id="far/2", x_queue_follow="begin", x_queue_count=0)
    source = SimpleNamespace(deliveries=[begin])
    attempt._take_source(source, here)  # type: ignore[arg-type]
    attempt._take_back(here)  # type: ignore[arg-type]
    assert settled == []
    source.deliveries = [one(x_queue_id="far/2", x_queue_follow="level", x_queue_count=0)]
    attempt._take_source(source, here)  # type: ignore[arg-type]
    attempt._take_confirms(here)  # type: ignore[arg-type]
    assert settled == [5]


def test_a_queue_of_another_cluster_is_not_mixed_in(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    there, here = brokers
    there.connect().open(1).publish(1, "q", b"0")
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level)
    attempt.stop()
    there.machine.cluster_id = "another"
    attempt = begin(there, here)
    until(brokers, lambda: not attempt.runs)
    assert "its cluster is another one (another)" in str(attempt.ended["why"])
    assert here.holds() == [b"0"]


def test_foreign_messages_in_the_replica_stay_and_are_reported(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    there, here = brokers
    here.connect().open(1).declare(1, "q", durable=True)
    here.connect().open(1).publish(1, "q", b"mine")
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level and here.queue().unacked == 1)
    assert [one["event"] for one in attempt.told].count("note") == 1
    assert here.holds() == [b"mine"]


def test_a_replica_whose_cluster_takes_nothing_is_not_level(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    """It was shown as level, while its source was not read."""
    there, here = brokers
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level)
    (end,) = here.links.values()
    end.setblocking(True)
    end.sendall(method(0, "connection.blocked", "low on disk"))
    until(brokers, lambda: not attempt.level)
    assert attempt.told[-1]["why"] == "low on disk"
    end.setblocking(True)
    end.sendall(method(0, "connection.unblocked"))
    until(brokers, lambda: attempt.level)


def test_a_copy_names_its_original_and_how_it_was_published(
    brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    there, here = brokers
    there.connect().open(1).publish(1, "q", b"0")
    attempt = begin(there, here)
    until(brokers, lambda: attempt.level)
    attempt.stop()
    found = here.connect().open(1).send_method("basic.get", "q", True)[0]
    headers = headers_of(found)
    queue_id = f"{there.machine.cluster_id}/{there.queue().number}"
    assert [headers[name] for name in (OF, PLACE)] == [queue_id, 0]
    assert headers["x-replica-routing-key"] == "q"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-queue-follow": "gone", "x-queue-places": "0-9"},
        {"x-queue-follow": "begin", "x-queue-id": "another/1", "x-queue-count": 7},
        {"x-queue-follow": "level"},
    ],
)
def test_a_message_that_looks_like_a_notice_is_a_message(
    headers: Table, brokers: tuple[Wired, Wired], begin: Begin
) -> None:
    """Anyone who published such a message to the source had copies removed from the replica, or the
    attempt end again and again (G35)."""
    there, here = brokers
    peer = there.connect().open(1)
    properties = codec.encode_properties({"headers": headers, "delivery_mode": 2})
    peer.publish(1, "q", b"0")
    peer.send(publish(1, "", "q", b"1", properties))
    peer.publish(1, "q", b"2")
    attempt = begin(there, here)
    until(brokers, lambda: not attempt.runs or (attempt.level and len(here.holds()) == 3))
    assert here.holds() == [b"0", b"1", b"2"]
    attempt.stop()
    attempt = begin(there, here)  # it reads them here
    until(brokers, lambda: attempt.level)
    assert here.holds() == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("acks", "returns"), [([(1, False, False)], []), ([], [object()])])
def test_a_copy_that_the_cluster_here_refuses_ends_the_attempt(
    acks: list[object], returns: list[object]
) -> None:
    """Its queue here is full, or gone: a replica without the message is not level."""
    one = Copier(SimpleNamespace(shovel=SHOVEL), lambda _: None, -1)  # type: ignore[arg-type]
    one._pending, one._level_at = {1}, 1
    with pytest.raises(Failed, match="it refuses messages"):
        one._take_confirms(SimpleNamespace(acks=acks, returns=returns))  # type: ignore[arg-type]
    assert not one._level


@pytest.mark.parametrize("hindrance", ["", "congested", "blocked", "unconfirmed"])
def test_the_source_is_read_only_while_the_cluster_here_takes_copies(
    hindrance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all of a long queue would be held in the memory of the process."""
    one = Copier(SimpleNamespace(shovel=SHOVEL), lambda _: None, -1)  # type: ignore[arg-type]
    readings: list[bool] = []

    def turn(*_: object, reading: bool) -> list[None]:
        readings.append(reading)
        one._ends = True
        return []

    monkeypatch.setattr(copier, "turn", turn)
    monkeypatch.setattr(copier, "poll_of", lambda *_: None)
    one._pending = set(range(copier.UNCONFIRMED_MAX + 1)) if hindrance == "unconfirmed" else set()
    here = SimpleNamespace(
        congested=hindrance == "congested", blocked=hindrance if hindrance == "blocked" else "",
        acks=[], returns=[], deliveries=[], out=b"", send_now=lambda: None,
    )  # fmt: skip
    one._loop(SimpleNamespace(deliveries=[]), here)  # type: ignore[arg-type]
    assert readings == [not hindrance]


def test_the_source_is_told_a_bounded_part_of_what_is_here() -> None:
    """A queue with many gaps would not fit into the argument of a method."""
    one = Copier(SimpleNamespace(shovel=SHOVEL), lambda _: None, -1)  # type: ignore[arg-type]
    one._here = {"far/1": dict.fromkeys(range(0, 20_000, 2), 0)}
    asked: list[str] = []
    source = SimpleNamespace(consume=lambda *_, arguments, **__: asked.append(arguments[FOLLOW]))
    one._follow(source)  # type: ignore[arg-type]
    (text,) = asked
    assert text.startswith("far/1 0,2,4,")
    assert text.count(",") + 1 == copier.TOLD_RANGES_MAX


def test_of_messages_here_no_content_is_kept_while_the_source_is_silent() -> None:
    """They are delivered at once; 4,096 large ones are more than the process may have memory."""
    one = Copier(SimpleNamespace(shovel=SHOVEL), lambda _: None, -1)  # type: ignore[arg-type]
    properties = codec.encode_properties({"headers": {OF: "far/1"}})
    here = SimpleNamespace(deliveries=[Delivery(1, False, "", "b", properties, b"large")])
    one._take_back(here)  # type: ignore[arg-type]
    assert here.deliveries == []
    assert one._waits == [(1, {OF: "far/1"})]


@pytest.mark.parametrize(
    ("cluster", "vhost", "refused"),
    [("near", "/", True), ("near", "other", False), ("far", "/", False)],
)
def test_a_queue_is_no_replica_of_itself(cluster: str, vhost: str, refused: bool) -> None:
    """Another address of this cluster cannot be told from its definition."""
    task = SimpleNamespace(shovel=SHOVEL, cluster_id="near")
    one = Copier(task, lambda _: None, -1)  # type: ignore[arg-type]
    source = SimpleNamespace(
        capabilities={"followed_queues"}, cluster=SimpleNamespace(id=cluster),
        login=SimpleNamespace(virtual_host=vhost),
    )  # fmt: skip
    with pytest.raises(Failed, match="the queue itself") if refused else nullcontext():
        one._check(source)  # type: ignore[arg-type]


def test_a_source_that_cannot_report_is_refused_with_advice(
    brokers: tuple[Wired, Wired], begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_another(task: Task, which: str) -> AmqpConnection:
        found = opened(task, which)
        if which == "source":
            found.capabilities = frozenset(("publisher_confirms",))
        return found

    monkeypatch.setattr(copier, "opened", as_another)
    attempt = begin(*brokers)
    until(brokers, lambda: not attempt.runs)
    assert attempt.ended["why"] == copier.CANNOT
