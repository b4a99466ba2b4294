"""Brokers with a fault, whose logs are whole and the same at all members.

The machine itself does wrong here and logs what it does, so moves, figures of checkpoints and roots
agree with one another: only what AMQP and docs/GUARANTEES.md promise contradicts them. Each fault
gets a patch and a fresh history, and returns the position at which it shows, or -1 where no log
could show it (docs/reference/memberlog-blind-spots.md has the reasons).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine import machine
from broker.machine.handlers import connections, consumers, publish, transactions
from broker.machine.machine import Machine
from broker.machine.move_log import CHANNEL_CLOSED, TAKEN_BACK, note
from broker.machine.publishing import producers
from broker.machine.queueing import enqueue, last_values, queue_limits, settlement
from broker.machine.queueing import queue as waiting
from broker.machine.queueing.deletion import delete_queue
from broker.machine.requests.refusals import unknown_tag
from broker.machine.state import Channel, Held, Queue, State
from tests.support.move_ledger import Ledger
from tests.support.three_machines import Client
from tests.system.verify.support.make_moves import MoveMaker

Patch = pytest.MonkeyPatch
Fault = Callable[[MoveMaker, Patch], int]
UNSEEN = -1


def _instead(patch: Patch, kind: int, handler: Callable[..., int]) -> None:
    """Let another function carry out commands of this kind."""
    changed = list(machine._ON_CHANNEL)
    changed[kind] = handler
    patch.setattr(machine, "_ON_CHANNEL", changed)


def _refused_when_done(patch: Patch, kind: int, handler: Callable[..., int]) -> None:
    """Commands of this kind are refused, but carried out by their handler all the same."""

    def refused(state: State, channel: Channel, command: c.Command) -> int:
        handler(state, channel, command)
        return connections.refuse(state, channel, kind, unknown_tag(1))

    _instead(patch, kind, refused)


def _without_invariants(patch: Patch) -> None:
    """The machine does not pass the tests' own checks after each command."""
    patch.setattr(Machine, "invariants", lambda _: None)
    patch.setattr(Ledger, "agrees_with", lambda *_: None)


def _filled(maker: MoveMaker, number: int, arguments: c.Table | None = None) -> Client:
    """A client beside a queue "q" with this many messages."""
    client = maker.rig.client("a")
    client.queue("q", arguments)
    for i in range(number):
        client.publish("q", b"%d" % i, no=i + 1)
    return client


# Settlements.


def ack_of_several_leaves_one_out(maker: MoveMaker, patch: Patch) -> int:
    whole = settlement.tags_up_to
    patch.setattr(consumers, "tags_up_to", lambda channel, tag, multiple: [
        one for one in whole(channel, tag, multiple) or [] if one != 2])  # fmt: skip
    client = _filled(maker, 3)
    client.consume("q")
    client.ack(3, multiple=True)
    patch.undo()
    client.ack(2)
    return maker.rig.position


def recover_leaves_one_out(maker: MoveMaker, patch: Patch) -> int:
    settle = consumers.settle_tags
    patch.setattr(consumers, "settle_tags", lambda state, channel, tags, what: settle(
        state, channel, tags[:-1] if what == TAKEN_BACK else tags, what))  # fmt: skip
    client = _filled(maker, 3)
    for _ in range(3):
        client.get("q")
    client.recover()
    client.ack(3)
    return maker.rig.position


def closed_channel_keeps_a_message(maker: MoveMaker, patch: Patch) -> int:
    """Whoever opens the channel's number again acks it there."""
    client, kept = _keep_a_message(maker, patch, 2)
    return _ack_it_later(maker, client, kept)


def closed_channel_keeps_its_only_message(maker: MoveMaker, patch: Patch) -> int:
    client, kept = _keep_a_message(maker, patch, 1)
    return _ack_it_later(maker, client, kept)


def _ack_it_later(maker: MoveMaker, client: Client, kept: dict[int, Held]) -> int:
    again = client.channel(1)
    for state in maker.rig.machines.values():
        (channel,) = [one for one in state.channels.values() if one.key[1] == client.conn]
        channel.unacked[9] = kept[id(state)]
    again.ack(9)
    return maker.rig.position


def closed_channel_keeps_a_message_for_good(maker: MoveMaker, patch: Patch) -> int:
    _keep_a_message(maker, patch, 2)
    return maker.rig.position


def _keep_a_message(maker: MoveMaker, patch: Patch, number: int) -> tuple[Client, dict[int, Held]]:
    """A client that has closed its channel, and by machine the message that did not come back."""
    client = _filled(maker, number)
    for _ in range(number):
        client.get("q")
    end = connections.end_channels
    kept: dict[int, Held] = {}

    def end_without_it(state: State, channels: list[Channel], queues: list[Queue]) -> None:
        kept[id(state)] = channels[0].unacked.pop(number)
        end(state, channels, queues)

    patch.setattr(connections, "end_channels", end_without_it)
    _without_invariants(patch)
    client.close_channel()
    return client, kept


def written_ones_leave_one_out(maker: MoveMaker, patch: Patch) -> int:
    """Of three deliveries without acks the second one is reported as written later."""
    release = settlement.release_all

    def later(
        state: State,
        channel: Channel,
        unsent: dict[int, Held],
        settled: Iterable[tuple[int, int]],
        what: int,
    ) -> object:
        return release(state, channel, unsent, [one for one in settled if one[1] != 2], what)

    patch.setattr(consumers, "release_all", later)
    client = _filled(maker, 3)
    client.consume("q", no_ack=True)
    client.sent(3)
    patch.undo()
    client.sent(3)
    return maker.rig.position


def ack_settles_for_a_neighbour(maker: MoveMaker, patch: Patch) -> int:
    """The same tag of another channel is settled too."""
    client = _filled(maker, 2)
    other = client.channel(2)
    other.get("q")
    client.get("q")

    def both(state: State, channel: Channel, command: c.Ack) -> int:
        for one in channel.connection.channels.values():
            consumers.on_ack(state, one, command)
        return c.OK

    _instead(patch, c.ACK, both)
    client.ack(1)
    return maker.rig.position


def refused_ack_settles(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 1)
    client.get("q")

    _refused_when_done(patch, c.ACK, consumers.on_ack)
    client.ack(1)
    return maker.rig.position


def refused_commit_settles(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 1)
    client.get("q")

    _refused_when_done(patch, c.TX_COMMIT, transactions.on_tx_commit)
    client.commit([], [c.TxSettle(1, False, c.TX_ACK)])
    return maker.rig.position


# Deliveries.


def get_takes_two(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 2)

    def twice(state: State, channel: Channel, command: c.Get) -> int:
        consumers.on_get(state, channel, command)
        return consumers.on_get(state, channel, command)

    _instead(patch, c.GET, twice)
    client.get("q")
    return maker.rig.position


def get_for_somebody_else(maker: MoveMaker, patch: Patch) -> int:
    """A get takes a message for its own channel, and one for a neighbour."""
    client = _filled(maker, 2)
    client.channel(2)

    def for_all(state: State, channel: Channel, command: c.Get) -> int:
        for one in channel.connection.channels.values():
            consumers.on_get(state, one, command)
        return c.OK

    _instead(patch, c.GET, for_all)
    client.get("q")
    return maker.rig.position


def closed_channel_is_sent_more(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 0)
    consumer = client.channel(2)
    consumer.consume("q")

    def forgotten(state: State, channel: Channel, _: c.ChannelClose) -> int:
        note(state, CHANNEL_CLOSED, 0, 0, channel.mark, 0)
        return c.OK

    _instead(patch, c.CHANNEL_CLOSE, forgotten)
    consumer.close_channel()
    client.publish("q", b"more")
    return maker.rig.position


def expired_one_is_delivered(maker: MoveMaker, patch: Patch) -> int:
    """Its time is known to be over, as a message of another queue expired by it."""
    expired = queue_limits.has_expired
    client = _filled(maker, 1, {"x-message-ttl": 400})
    client.queue("other", {"x-message-ttl": 400})
    client.publish("other", b"other")
    for module in (queue_limits, consumers):
        patch.setattr(
            module, "has_expired", lambda state, queue: queue.name != "q" and expired(state, queue)
        )
    _without_invariants(patch)
    maker.rig.pass_time(900_000)
    client.get("q")
    return maker.rig.position


def returned_one_goes_to_the_end(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 3, {"x-max-priority": 1})
    patch.setattr(waiting, "place_of", lambda queue, seq: seq + 20 | 1)
    _without_invariants(patch)
    client.get("q")
    client.nack(1)
    client.get("q")
    return maker.rig.position


# Places and names.


def priority_that_its_queue_lacks(maker: MoveMaker, patch: Patch) -> int:
    patch.setattr(waiting, "priority_of", lambda _: -1)  # below the lowest
    _filled(maker, 1, {"x-max-priority": 3})
    return maker.rig.position


def two_queues_of_one_name(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 1)
    _without_invariants(patch)
    hidden = []
    for state in maker.rig.machines.values():
        queues = state.vhosts["/"].queues
        hidden.append((queues, queues.pop("q")))
    client.queue("q")
    where = maker.rig.position
    for queues, queue in hidden:
        queues["q as it was"] = queue
    return where


def one_declare_makes_two_queues(maker: MoveMaker, patch: Patch) -> int:
    client = maker.rig.client("a")
    declare = machine._ON_CHANNEL[c.QUEUE_DECLARE]
    assert declare is not None

    def twice(state: State, channel: Channel, command: c.QueueDeclare) -> int:
        declare(state, channel, command._replace(name="beside"))
        return declare(state, channel, command)

    _instead(patch, c.QUEUE_DECLARE, twice)
    client.queue("q")
    return maker.rig.position


# What no log holds.


def dead_letter_is_lost(maker: MoveMaker, patch: Patch) -> int:
    patch.setattr(consumers, "dead_letter", lambda *_: None)
    client = _filled(maker, 1, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client.get("q")
    client.nack(1, requeue=False)
    return UNSEEN


def credit_is_ignored(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 3)
    take = consumers.on_consume
    _instead(patch, c.CONSUME, lambda state, channel, command: take(
        state, channel, command._replace(prefetch=0)))  # fmt: skip
    client.consume("q", prefetch=1)
    return UNSEEN


def consumer_is_passed_over(maker: MoveMaker, patch: Patch) -> int:
    _without_invariants(patch)
    patch.setattr(consumers, "dispatch", lambda *_, **__: None)
    _filled(maker, 3).consume("q")
    return UNSEEN


def exclusive_consumer_shares(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 0)
    _without_invariants(patch)
    client.consume("q", "own", 1, exclusive=True)
    for state in maker.rig.machines.values():
        state.vhosts["/"].queues["q"].exclusive_consumer = False
    client.channel(2).consume("q", "too", 1)
    for i in range(2):
        client.publish("q", b"%d" % i)
    return UNSEEN


def cancelled_consumer_is_sent_more(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 0)
    client.consume("q")
    _instead(patch, c.CANCEL, lambda *_: c.OK)
    client.cancel()
    client.publish("q", b"more")
    return UNSEEN


def ack_does_nothing(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 1)
    client.get("q")
    _instead(patch, c.ACK, lambda *_: c.OK)
    client.ack(1)
    return UNSEEN


def number_is_taken_twice(maker: MoveMaker, patch: Patch) -> int:
    patch.setattr(publish, "attempt_of", lambda *_: None)
    client = _filled(maker, 0)
    named = codec.encode_properties({"headers": {producers.ID: "p", producers.SEQUENCE: 1}})
    for i in range(2):
        client.publish("q", b"once", properties=named, no=i + 1)
    return UNSEEN


def last_value_stays_beside_a_newer_one(maker: MoveMaker, patch: Patch) -> int:
    _without_invariants(patch)
    client = _filled(maker, 0, {"qpid.last_value_queue_key": "k"})
    for module in (waiting, enqueue, last_values, settlement):
        if hasattr(module, "last_value_key"):
            patch.setattr(module, "last_value_key", lambda *_: None)
    for i in range(2):
        key = codec.encode_properties({"headers": {"k": "one"}})
        client.publish("q", b"%d" % i, properties=key)
    return UNSEEN


def never_given_up(maker: MoveMaker, patch: Patch) -> int:
    patch.setattr(settlement, "_came_back_too_often", lambda *_: False)
    client = _filled(maker, 1, {"x-delivery-limit": 1})
    for tag in (1, 2, 3):
        client.get("q")
        client.nack(tag)
    return UNSEEN


def queue_goes_with_a_get(maker: MoveMaker, patch: Patch) -> int:
    client = _filled(maker, 2)

    def deletes(state: State, channel: Channel, command: c.Get) -> int:
        consumers.on_get(state, channel, command)
        delete_queue(state, channel.connection.vhost.queues["q"])
        return c.OK

    _instead(patch, c.GET, deletes)
    client.get("q")
    return UNSEEN


# What a broker may do.


def channel_with_and_without_acks(maker: MoveMaker) -> None:
    client = _filled(maker, 4)
    client.get("q")
    client.get("q", no_ack=True)
    client.get("q")
    client.get("q", no_ack=True)
    client.sent(4)
    client.ack(1)
    client.ack(3)


def channel_that_is_opened_again(maker: MoveMaker) -> None:
    client = _filled(maker, 2)
    client.get("q")
    client.close_channel()
    client.channel(1).get("q")
    client.ack(1)
    client.publish("q", no=1)  # its publishes are numbered anew, too


def acks_in_any_order(maker: MoveMaker) -> None:
    client = _filled(maker, 6)
    client.consume("q")
    client.ack(4)
    client.ack(3, multiple=True)
    client.ack(6)
    client.ack(5)


def kept_group_whose_consumer_went(maker: MoveMaker) -> None:
    """Everything that it was sent was settled."""
    client = _filled(maker, 0, {"qpid.group_header_key": "g"})
    one, two = client.channel(2), client.channel(3)
    of_group = codec.encode_properties({"headers": {"g": "a"}})
    one.consume("q", "one", 1)
    client.publish("q", b"1", properties=of_group)
    client.publish("q", b"2", properties=of_group)
    one.ack(1)
    one.ack(2)
    two.consume("q", "two", 1)
    one.cancel("one")
    for i in range(2):
        client.publish("q", b"%d" % i, properties=of_group)
    two.ack(1)


def name_of_a_deleted_queue(maker: MoveMaker) -> None:
    client = _filled(maker, 1)
    client.delete("q")
    client.queue("q")
    client.publish("q", b"new")


NO_FAULTS: tuple[Callable[[MoveMaker], None], ...] = (
    channel_with_and_without_acks, channel_that_is_opened_again, acks_in_any_order,
    kept_group_whose_consumer_went, name_of_a_deleted_queue,
)  # fmt: skip
FAULTS: dict[Fault, str] = {
    ack_of_several_leaves_one_out: "G20",
    recover_leaves_one_out: "G20",
    closed_channel_keeps_a_message: "G20",
    closed_channel_keeps_its_only_message: "G20",
    closed_channel_keeps_a_message_for_good: "G13",
    written_ones_leave_one_out: "G20",
    ack_settles_for_a_neighbour: "G13",
    refused_ack_settles: "G20",
    refused_commit_settles: "G20",
    get_takes_two: "G20",
    get_for_somebody_else: "G20",
    closed_channel_is_sent_more: "G13",
    expired_one_is_delivered: "G17",
    returned_one_goes_to_the_end: "G12",
    priority_that_its_queue_lacks: "G12",
    two_queues_of_one_name: "G20",
    one_declare_makes_two_queues: "G20",
    dead_letter_is_lost: "",
    credit_is_ignored: "",
    consumer_is_passed_over: "",
    exclusive_consumer_shares: "",
    cancelled_consumer_is_sent_more: "",
    ack_does_nothing: "",
    number_is_taken_twice: "",
    last_value_stays_beside_a_newer_one: "",
    never_given_up: "",
    queue_goes_with_a_get: "",
}
"""The promise that each breaks, as the check must name it; "": it cannot."""
