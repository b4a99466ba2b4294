"""A shovel between two scripted ends: what it acknowledges, sends without a number, waits for."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from broker.amqp import codec
from broker.amqp.fields import Value, encode_table
from broker.machine.commands import Table
from broker.memberlog.client_history import ClusterName
from broker.shovels.definition import Link, parse_shovel
from broker.shovels.upstreams import link_of, parse_upstream
from tests.unit.shovels.scripted_ends import Broker, Sent
from tools.client import amqp_client
from tools.client.amqp_client import AmqpConnection
from tools.shovel import mover, task
from tools.shovel.content import number_of
from tools.shovel.doubts import Doubts
from tools.shovel.mover import Mover
from tools.shovel.task import Failed, Task
from tools.shovel.upstream import UpstreamExchange

HIGHEST, REMEMBERED = 6000, 4096
ON_PUBLISH = {"ack-mode": "on-publish"}
TOO_OLD = (
    "x-sequence {number} of producer '{producer}' is too old to be known, {remembered} are "
    "remembered up to {highest}; keep fewer messages unconfirmed, and begin a higher epoch"
)


class Run:
    """One attempt, from beginning to end."""

    def __init__(
        self,
        places: list[int],
        on_publish: Callable[[Broker, Sent], None] | None = None,
        *,
        destination: Broker | None = None,
        delete_after: int | None = None,
        doubtful: dict[str, list[int]] | None = None,
        timestamps: bool = False,
        source: Broker | None = None,
        changes: Mapping[str, object] | None = None,
    ) -> None:
        self.source, self.destination = source or Broker(), destination or Broker(on_publish)
        self.destination.stop_attempt = self._stop
        for place in places:
            headers: Table = {"x-queue-id": "id/1", "x-queue-sequence": place}
            properties = codec.encode_properties({"headers": headers})
            self.source.messages[place] = properties, str(place).encode()
        value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b",
                 "src-delete-after": delete_after or "never",
                 "dest-add-timestamp-header": timestamps, **(changes or {})}  # fmt: skip
        given = Task(
            parse_shovel("/", "s", value), 0, doubtful or {}, "near", self.source.descriptor,
            self.destination.descriptor,
        )  # fmt: skip
        control, self._control = os.pipe()
        self.told: list[dict[str, object]] = []
        try:
            self.ended = Mover(given, self.told.append, control).run()
        finally:
            os.close(control)
            self._stop()
            self.source.close()
            self.destination.close()

    def _stop(self) -> None:
        control, self._control = self._control, -1
        if control >= 0:
            os.close(control)

    @property
    def left(self) -> list[int]:
        """Places that were not acknowledged."""
        return list(self.source.messages)

    @property
    def bodies(self) -> list[int]:
        """The published bodies."""
        return [int(body) for _, _, body in self.destination.published]


def test_numbers_too_old_are_found_at_once_and_nothing_is_sent_twice() -> None:
    """Ten messages that another consumer returned, ahead of the rest: one refusal tells of them
    all. Before, each refusal told of one, and a pause followed that doubled."""
    taken: list[int] = []

    def on_publish(broker: Broker, sent: Sent) -> None:
        producer, number = number_of(sent[1])
        if producer and number <= HIGHEST - REMEMBERED:
            broker.refuses(TOO_OLD.format(
                number=number, producer=producer, remembered=REMEMBERED, highest=HIGHEST
            ))  # fmt: skip
            return
        taken.append(int(sent[2]))
        broker.confirms(sent[0])

    places = [*range(10), *range(HIGHEST, HIGHEST + 10)]
    run = Run(places, on_publish, delete_after=len(places))
    assert run.ended == {"why": mover.ALL_MOVED, "done": True,
                         "doubtful": {"id/1": [HIGHEST - REMEMBERED]}}  # fmt: skip
    assert taken == places
    assert run.left == []
    assert run.destination.opened == 2
    assert [one["event"] for one in run.told].count("running") == 1, "to its member it is one run"
    numbered = [number_of(properties)[1] for _, properties, _ in run.destination.published]
    assert numbered == [0, *[-1] * 10, *places[10:]]


class Dying(Broker):
    """A source that is lost with an acknowledgement that it was sent."""

    def _on_method(self, channel: int, name: str, args: tuple[Value, ...]) -> None:
        if name == "basic.ack":
            self.mine.shutdown(socket.SHUT_RDWR)
        else:
            super()._on_method(channel, name, args)


def test_a_shovel_is_done_when_its_source_has_taken_the_acknowledgements() -> None:
    """G24. It deleted itself as soon as they were sent: if the source's member died then, the
    messages were at both ends for good."""
    run = Run([1], lambda broker, sent: broker.confirms(sent[0]), delete_after=1, source=Dying())
    assert run.left == [1]
    assert run.ended == {"why": f"source: this cluster: {mover.UNTAKEN}", "done": False,
                         "doubtful": {}}  # fmt: skip


def test_an_idle_destination_gets_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn flushes them. A destination that got nothing for 20 s closed the connection, and
    messages then waited up to a minute for the next attempt."""
    now = [0.0]
    monkeypatch.setattr(amqp_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker = Broker()
    destination = AmqpConnection("b", admitted=socket.socket(fileno=broker.descriptor))
    monkeypatch.setattr(destination, "_heartbeat", 10.0)
    for now[0] in range(7):
        destination.send_now()
        destination.keep_alive()
    assert broker.beats.wait(10)
    destination.drop()
    broker.close()


def test_a_number_given_to_another_message_affects_only_its_message() -> None:
    def on_publish(broker: Broker, sent: Sent) -> None:
        producer, number = number_of(sent[1])
        if number == 2:
            text = f"x-sequence 2 of producer '{producer}' was given to another message; send"
            broker.refuses(text)
        else:
            broker.confirms(sent[0])

    run = Run([1, 2, 3], on_publish, delete_after=3)
    assert run.ended == {"why": mover.ALL_MOVED, "done": True, "doubtful": {}}
    assert run.bodies == [1, 2, 2, 3]
    assert run.left == []


def test_any_other_refusal_ends_the_attempt() -> None:
    run = Run([1, 2], lambda broker, _: broker.refuses("no such thing"))
    assert "no such thing" in str(run.ended["why"])
    assert (run.ended["doubtful"], run.left) == ({}, [1, 2])


def test_an_unnumbered_message_is_confirmed_before_a_numbered_one() -> None:
    followed: list[bool] = []

    def on_publish(broker: Broker, sent: Sent) -> None:
        if not number_of(sent[1])[0]:
            time.sleep(0.1)
            try:
                followed.append(bool(broker.mine.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
            except BlockingIOError:
                followed.append(False)
        broker.confirms(sent[0])

    run = Run([1, 2], on_publish, delete_after=2, doubtful={"id/1": [1]})
    assert (run.bodies, followed) == ([1, 2], [False])


def test_no_more_than_a_fixed_number_is_taken_from_the_source() -> None:
    """The rest stays with its other consumers."""
    run = Run([1, 2, 3], lambda broker, sent: broker.confirms(sent[0]), delete_after=2)
    assert (run.ended["done"], run.left) == (True, [3])
    assert ("basic.qos", (0, 2, False)) in run.source.did


def test_a_refused_message_does_not_take_the_numbers_of_earlier_ones() -> None:
    """G24. The third is refused, and the connection breaks: the next attempt sent the first two
    without a number, too, although the destination may have them."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 3:
            broker.say("basic.nack", sent[0], False, False)
            broker.mine.shutdown(socket.SHUT_RDWR)

    run = Run([1, 2, 3], on_publish)
    assert run.left == [1, 2, 3]
    doubts = Doubts(cast("dict[str, list[int]]", run.ended["doubtful"]))
    assert [place for place in run.left if doubts.has("id/1", place)] == [3]


def test_a_returned_message_is_doubtful_and_the_others_are_acked() -> None:
    """Before, all unconfirmed messages were sent again without numbers, and arrived twice."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            broker.returns(sent)
        if sent[0] == 4:
            broker.confirms(4, multiple=True)

    run = Run([10, 11, 12, 13], on_publish)
    assert run.left == [11]
    assert run.ended == {"why": f"destination: {mover.UNROUTED}", "done": False,
                         "doubtful": {"id/1": [-1, 11]}}  # fmt: skip


def test_a_returned_message_without_a_number_is_not_acked() -> None:
    """Nor are those confirmed after it, as the returned one may be among them; those confirmed
    before it are."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 3:
            broker.confirms(1)
            broker.returns((2, *broker.published[1][1:]))
            broker.confirms(2)
            broker.confirms(3)

    run = Run([10, 11, 12], on_publish, timestamps=True)
    assert run.left == [11, 12]
    assert run.ended["doubtful"] == {}
    assert run.ended["why"] == f"destination: {mover.UNROUTED}"


@pytest.mark.parametrize(
    ("local", "consumers", "waited_s", "length"),
    [
        (False, [0], 0, 0), (False, [1, 1, 0], 2, 2), (False, [1] * 50, 30, 30),
        (True, [1], 0, 0),
    ],
)  # fmt: skip
def test_the_length_of_a_queue_is_taken_when_a_lost_attempt_holds_none_of_it(
    local: bool, consumers: list[int], waited_s: int, length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The member that ran the shovel vanished with its machine. The broker there still gave the
    messages to its broken connection; the next attempt found none, and the shovel deleted itself.
    A consumer of somebody else's stays: it is not waited for any longer. Meanwhile the destination
    is kept alive: a remote one closed the connection in that time, so each attempt failed."""
    now = [0]
    kept_alive: list[int] = []
    monkeypatch.setattr(mover, "time", SimpleNamespace(monotonic=lambda: float(now[0])))
    given = cast("Task", SimpleNamespace(
        shovel=None, here=None, doubtful={}, source_descriptor=3 if local else None
    ))  # fmt: skip

    def pump(seconds: float, also: int) -> bool:
        assert (seconds, also) == (1.0, 7)
        now[0] += 1
        return False

    source = SimpleNamespace(
        login=SimpleNamespace(heartbeat_seconds=10), pump=pump,
        call=lambda *_: ("a", now[0], consumers[now[0]]),
    )  # fmt: skip
    destination = SimpleNamespace(pump=lambda wait_s: kept_alive.append(now[0] + wait_s))
    ends = cast("AmqpConnection", source), cast("AmqpConnection", destination)
    one = Mover(given, lambda _: None, 7)
    assert one._length(*ends, "a") == length
    assert now == [waited_s]
    assert kept_alive == [*range(1, waited_s + 1)]


def test_a_message_confirmed_out_of_order_does_not_settle_those_before_it() -> None:
    """The destination confirms the second message, and is lost: the first one must come again."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            broker.confirms(2)
            broker.mine.shutdown(socket.SHUT_RDWR)

    run = Run([1, 2], on_publish)
    assert run.left == [1]


def test_what_is_confirmed_just_before_the_destination_closes_is_not_sent_again() -> None:
    """A broker that stops in order confirms, and closes, in one packet: the error came first, and
    the next attempt sent the message a second time."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 3:
            out = bytearray()
            codec.append_method(out, 1, "basic.ack", (1, False))
            codec.append_method(out, 0, "connection.close", (320, "it stops", 0, 0))
            broker.mine.sendall(out)

    run = Run([1, 2, 3], on_publish)
    assert run.left == [2, 3]
    assert run.ended["why"] == "destination: this cluster: it stops"


@pytest.mark.parametrize("delete_after", [None, 2])
def test_a_refused_message_stays_although_the_next_one_is_taken(delete_after: int | None) -> None:
    """A shovel that was to move just these two is not done, and so does not delete itself."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            broker.say("basic.nack", 1, False, False)
            broker.confirms(2)

    run = Run([1, 2], on_publish, delete_after=delete_after)
    assert run.left == [1]
    assert run.ended == {"why": f"destination: {mover.NACKED}", "done": False,
                         "doubtful": {"id/1": [-1, 1]}}  # fmt: skip


def test_what_waited_behind_a_refused_number_is_sent_once() -> None:
    """The refusal ends the channel, and everything comes again from the source."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        producer, number = number_of(sent[1])
        if number == 5:
            broker.refuses(f"x-sequence 5 of producer '{producer}' was given to another message")
        else:
            broker.confirms(sent[0])

    run = Run([5, 1, 6], on_publish, delete_after=3, doubtful={"id/1": [1]})
    assert (run.bodies, run.left) == ([5, 5, 1, 6], [])
    assert run.ended["done"] is True


def test_an_attempt_that_is_stopped_before_the_last_confirm_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its shovel deletes itself, and the last message stays at the source."""
    monkeypatch.setattr(mover, "FINISH_S", 0.05)
    monkeypatch.setattr(task, "TURN_S", 0.01)

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 1:
            broker.confirms(1)
        else:
            broker.stop_attempt()

    run = Run([1, 2], on_publish, delete_after=2)
    assert run.ended == {"why": "it is stopped", "done": False, "doubtful": {}}
    assert run.left == [2]


def test_nothing_more_is_sent_once_the_attempt_ends() -> None:
    """Messages behind one that was refused would arrive before it."""
    given = cast("Task", SimpleNamespace(shovel=None, here=None, doubtful={}))
    one = Mover(given, lambda _: None, -1)
    one._finish(mover.NACKED)
    source = SimpleNamespace(deliveries=[object()])
    one._forward(source, cast("AmqpConnection", None))  # type: ignore[arg-type]
    assert [*source.deliveries, *one._held] == []


@pytest.mark.parametrize("body_bytes", [1, 4 << 20])
def test_an_attempt_ends_when_everything_is_sent(
    body_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `on-publish` nobody confirms: what is still unsent at the end is lost."""
    unsent: list[int] = []

    class Closed(AmqpConnection):
        def close(self) -> bool:
            unsent.append(len(self.out))
            return super().close()

    monkeypatch.setattr(task, "AmqpConnection", Closed)
    source = Broker()
    source.messages[1] = codec.encode_properties({}), bytes(body_bytes)
    run = Run([], lambda _, __: None, delete_after=1, source=source, changes=ON_PUBLISH)
    assert (run.ended["done"], run.left, unsent) == (True, [], [0, 0])
    assert sum(len(body) for _, _, body in run.destination.published) == body_bytes


def test_the_first_reason_to_end_is_the_one_that_is_told() -> None:
    """But that all is moved is no reason: an attempt that is stopped then is not done."""
    given = cast("Task", SimpleNamespace(shovel=None, here=None, doubtful={}))
    one = Mover(given, lambda _: None, 7)
    for why in (mover.ALL_MOVED, "destination: it refuses", "it is stopped", mover.ALL_MOVED):
        one._finish(why)
    assert one._why == "destination: it refuses"
    assert one._deadline < float("inf")


def test_moved_messages_are_reported_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists show them while it runs."""
    now = [100.0]
    monkeypatch.setattr(mover, "time", SimpleNamespace(monotonic=lambda: now[0]))
    given = cast("Task", SimpleNamespace(shovel=None, here=None, doubtful={}))
    told: list[dict[str, object]] = []
    one = Mover(given, told.append, 7)
    for passed_s, moved in ((0.0, 2), (0.5, 3), (0.5, 4), (1.0, 0)):
        now[0] += passed_s
        one._moved += moved
        one._report()
    assert [event["count"] for event in told] == [2, 7]


def test_all_moved_messages_are_counted_also_the_last_ones() -> None:
    run = Run(
        [1, 2, 3], lambda broker, sent: broker.confirms(sent[0]), delete_after=3,
        changes={"src-prefetch-count": 1},
    )  # fmt: skip
    assert sum(cast("int", one["count"]) for one in run.told if one["event"] == "moved") == 3


def test_deliveries_that_need_no_acknowledgement_get_none() -> None:
    """Brokers close the channel for one."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            broker.stop_attempt()

    run = Run([1, 2], on_publish, changes={"ack-mode": "no-ack"})
    assert run.ended["why"] == "it is stopped"
    assert "basic.ack" not in run.source.names()


def test_a_message_for_a_queue_comes_back_if_that_is_gone() -> None:
    """A broker confirms a message that no queue takes, and drops it, unless it is `mandatory`."""

    def published(**to: object) -> list[Value]:
        changes = {f"dest-{name}": one for name, one in to.items()}
        run = Run(
            [1], lambda broker, sent: broker.confirms(sent[0]), delete_after=1, changes=changes
        )
        ((_, args),) = [one for one in run.destination.did if one[0] == "basic.publish"]
        return [*args[:3]]

    assert published() == ["", "b", True]
    assert published(queue=None, exchange="x") == ["x", "a", False]


class Turns:
    """Sees each turn of an attempt: whether the destination takes something, whether the source is
    read, and how many messages were published by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[bool, bool, int]] = []
        self._turn = task.turn
        monkeypatch.setattr(mover, "turn", self._noted)

    def _noted(
        self, poll: select.poll, source: AmqpConnection, destination: AmqpConnection,
        of: Callable[[str], AbstractContextManager[None]], *, reading: bool,
    ) -> Iterator[None]:  # fmt: skip
        takes = not (destination.blocked or destination.congested)
        while not (self.seen or source.deliveries):
            source.pump(1)
        self.seen.append((takes, reading, destination._publish_no))
        if destination.blocked and len(self.seen) == 3:
            self.unblock()
        yield from self._turn(poll, source, destination, of, reading=reading)

    def unblock(self) -> None:
        raise NotImplementedError


class Blocked(Broker):
    """A destination that takes nothing at first."""

    def _on_method(self, channel: int, name: str, args: tuple[Value, ...]) -> None:
        if name == "connection.open":
            self.say("connection.blocked", "no disk", channel=0)
        super()._on_method(channel, name, args)


def test_while_the_destination_takes_nothing_the_source_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise all that a prefetch allows would be held in the memory of the process."""
    monkeypatch.setattr(task, "TURN_S", 0.01)
    turns = Turns(monkeypatch)
    destination = Blocked(lambda broker, sent: broker.confirms(sent[0]))
    unblock = partial(destination.say, "connection.unblocked", channel=0)
    monkeypatch.setattr(turns, "unblock", unblock)
    run = Run([1, 2], delete_after=2, destination=destination)
    assert (run.ended["done"], run.left) == (True, [])
    assert turns.seen[:3] == [(False, False, 0)] * 3
    assert [one["why"] for one in run.told if one["event"] == "blocked"] == ["no disk", ""]


def test_while_a_large_message_is_being_sent_the_source_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(monkeypatch)
    source = Broker()
    source.messages[1] = codec.encode_properties({}), bytes(8 << 20)
    run = Run([], lambda _, __: None, delete_after=1, source=source, changes=ON_PUBLISH)
    assert run.ended["done"] is True
    busy = [reading for takes, reading, _ in turns.seen if not takes]
    assert busy
    assert not any(busy)


def test_a_source_that_is_not_read_is_not_taken_for_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A destination may take nothing for longer than two heartbeats of the source."""
    now = [0.0]
    monkeypatch.setattr(amqp_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(task, "TURN_S", 0)
    ends = Broker(), Broker()
    source, destination = (
        AmqpConnection("b", admitted=socket.socket(fileno=one.descriptor)) for one in ends
    )
    monkeypatch.setattr(source, "_heartbeat", 10.0)
    control, other = os.pipe()
    poll = task.poll_of(control, source, destination)

    def turns(seconds: range, *, reading: bool) -> None:
        for now[0] in seconds:
            [*task.turn(poll, source, destination, task.doing_of, reading=reading)]

    turns(range(50), reading=False)
    with pytest.raises(Failed, match="silent"):
        turns(range(50, 100), reading=True)
    for descriptor in (control, other):
        os.close(descriptor)
    for one in (source, destination):
        one.drop()
    for broker in ends:
        broker.close()


def test_the_last_of_a_fixed_number_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that gave up started counting again, and the shovel moved more than requested."""
    monkeypatch.setattr(mover, "FINISH_S", 0.05)
    monkeypatch.setattr(task, "TURN_S", 0.01)

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            time.sleep(0.4)
            broker.confirms(2, multiple=True)

    run = Run([1, 2, 3], on_publish, delete_after=2)
    assert (run.ended["done"], run.left) == (True, [3])


# -- links of federation -------------------------------------------------------------------------


class LinkRun:
    """One attempt of a link on a thread; its member reports changes."""

    def __init__(
        self, kind: str, here: dict[str, object], *ways: list[str], confirms: bool = True
    ) -> None:
        """`ways`: for each waiting message, the clusters that it has passed."""
        self.source = Broker()
        self.destination = Broker(
            lambda broker, sent: broker.confirms(sent[0]) if confirms else None
        )
        for place, way in enumerate(ways):
            headers: Table = {"x-queue-id": "id/1", "x-queue-sequence": place}
            if way:
                headers["x-received-from"] = tuple({"cluster-name": one, "vhost": "/"}
                                                   for one in way)  # fmt: skip
            properties = codec.encode_properties({"headers": headers})
            self.source.messages[place] = properties, str(place).encode()
        upstream = parse_upstream("far", {"uri": "amqp:///there"})
        link = Link(kind, "x", "far", "x", "near", 2, False, True, "fanout")
        given = Task(
            link_of(upstream, "/", link), 0, {}, "near", self.source.descriptor,
            self.destination.descriptor, "", here,
        )  # fmt: skip
        control, self._say = os.pipe()
        self.told: list[dict[str, object]] = []
        self.ended: dict[str, object] = {}
        self._mover = Mover(given, self.told.append, control)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.ended = self._mover.run()

    def say(self, **change: object) -> None:
        data = json.dumps(change).encode() + b"\n"
        os.write(self._say, data[:5])
        time.sleep(0.01)  # a line may come in parts
        os.write(self._say, data[5:])

    def stop(self) -> None:
        os.close(self._say)
        self._thread.join(20)
        assert self.ended["why"] == "it is stopped", self.ended
        self.close()

    def close(self) -> None:
        self.source.close()
        self.destination.close()

    def wait_for(self, true_now: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not true_now():
            assert time.monotonic() < deadline, (self.source.did, self.told)
            time.sleep(0.01)


def test_a_message_that_was_here_is_acked_and_not_published() -> None:
    run = LinkRun("exchange", {"bind": [], "unbind": []}, [], ["near"], ["a", "b"], ["a"])
    run.wait_for(lambda: not run.source.messages)
    run.stop()
    assert [int(body) for _, _, body in run.destination.published] == [0, 3]
    assert run.ended["doubtful"] == {}


def test_a_message_that_was_here_does_not_settle_the_one_before_it() -> None:
    run = LinkRun("exchange", {"bind": [], "unbind": []}, [], ["near"], confirms=False)
    run.wait_for(lambda: 1 not in run.source.messages)
    assert [*run.source.messages] == [0]
    run.destination.confirms(1)
    run.stop()
    assert not run.source.messages


def test_bindings_follow_while_it_runs_and_go_with_the_link() -> None:
    empty = b64encode(encode_table({})).decode()
    run = LinkRun("exchange", {"bind": [["a", empty]], "unbind": []})
    run.wait_for(lambda: "basic.consume" in run.source.names())
    assert run.source.names().index("exchange.bind") < run.source.names().index("queue.bind")
    run.say(bind=[["b", empty]], unbind=[["a", empty]])
    run.wait_for(lambda: "exchange.unbind" in run.source.names())
    run.wait_for(lambda: run.source.names().count("exchange.bind") == 2)
    run.say(ends=True)
    run.stop()
    assert run.source.names()[-2:] == ["queue.delete", "connection.close"]
    assert run.source.did[-2][1][2] is True, "only if it is empty"


def test_a_link_whose_exchange_is_deleted_names_the_likely_cause() -> None:
    """Two upstreams that are one broker share a queue there, and each deletes what the other
    made."""
    run = LinkRun("exchange", {"bind": [], "unbind": []})
    run.wait_for(lambda: "basic.consume" in run.source.names())
    own = next(str(args[1]) for name, args in run.source.did if name == "queue.bind")
    run.source.say("channel.close", 404, f"NOT_FOUND - no exchange '{own}' in vhost '/'", 40, 30)
    run.wait_for(lambda: bool(run.ended))
    why = str(run.ended["why"])
    assert why.startswith("source: ")
    assert "another upstream here that is the same broker" in why
    run.close()


def test_a_queue_is_consumed_only_while_messages_are_wanted() -> None:
    run = LinkRun("queue", {"wanted": 0}, [], [])
    run.wait_for(lambda: "queue.declare" in run.source.names())
    time.sleep(0.1)
    assert "basic.consume" not in run.source.names()
    run.say(wanted=3)
    run.wait_for(lambda: len(run.destination.published) == 2)
    run.say(wanted=2000)
    run.wait_for(lambda: run.source.names().count("basic.consume") == 2)
    asked = [args for name, args in run.source.did if name == "basic.qos"]
    assert [args[1] for args in asked] == [3, 1000], "never more than its definition allows"
    assert run.source.names().count("basic.cancel") == 1, "the prefetch of a consumer cannot change"
    run.say(wanted=0)
    run.wait_for(lambda: run.source.names().count("basic.cancel") == 2)
    run.stop()
    consumed = next(args for name, args in run.source.did if name == "basic.consume")
    assert isinstance(consumed[6], dict)
    assert consumed[6]["x-priority"] == -1
    assert "queue.declare" not in run.destination.names(), "the queue exists, or the link does not"


def test_rabbitmq_gets_the_hops_in_the_type_it_accepts() -> None:
    """It refuses a shorter integer: "Argument x-max-hops must be of type long"."""
    link = Link("exchange", "x", "far", "x", "near", 2, False, True)
    shovel = link_of(parse_upstream("far", {"uri": "amqp://far"}), "/", link)
    declared: list[Table] = []

    def call(method: str, args: tuple[Value, ...], answer: str) -> tuple[Value, ...]:
        if method == "exchange.declare" and args[1] == "x-federation-upstream":
            assert isinstance(args[7], dict)
            declared.append(args[7])
        return "", 0, 0

    source = cast("AmqpConnection", SimpleNamespace(call=call))
    UpstreamExchange(shovel, "far", "/", {}).prepare(source)
    assert b"\x0ax-max-hopsl" + (2).to_bytes(8, "big") in encode_table(declared[0])


def test_two_clusters_of_one_name_are_detected_before_anything_is_declared() -> None:
    """Loops could not be detected. With the same id it is this cluster, reached by a host name."""
    upstream = parse_upstream("far", {"uri": "amqp://far"})
    shovel = link_of(upstream, "/", Link("exchange", "x", "far", "y", "near", 2, False, True))
    mover = Mover(Task(shovel, 0, {}, "near", None, None, "aa", {}), lambda _: None, 0)
    for found in (ClusterName("near", "aa"), ClusterName("far", "bb"), ClusterName("near")):
        assert mover._way(cast("AmqpConnection", SimpleNamespace(cluster=found))) is not None
    same = cast("AmqpConnection", SimpleNamespace(cluster=ClusterName("near", "bb")))
    with pytest.raises(Failed, match="--cluster-name"):
        mover._way(same)
    own = link_of(upstream, "/", Link("exchange", "x", "far", "x", "near", 2, False, True))
    mover = Mover(Task(own, 0, {}, "near", None, None, "aa", {}), lambda _: None, 0)
    with pytest.raises(Failed, match="is the exchange itself"):
        mover._way(cast("AmqpConnection", SimpleNamespace(cluster=ClusterName("near", "aa"))))
