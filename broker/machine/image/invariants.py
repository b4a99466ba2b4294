"""Recomputes the root, and checks the invariants that hold between commands."""

from broker.machine.clock.cluster_time import check_horizons, clock_element
from broker.machine.clock.horizons import horizon_element, span_element
from broker.machine.digest import MASK, held_element
from broker.machine.handlers.alarms import alarm_element
from broker.machine.handlers.connections import channel_element, connection_element
from broker.machine.handlers.definitions import definition_element
from broker.machine.handlers.poison import poison_element
from broker.machine.handlers.policies import policies_defined
from broker.machine.handlers.sessions import active_element, cluster_element, session_element
from broker.machine.image.queue_invariants import (
    HeldOfQueue,
    check_delays,
    check_letters,
    check_queue,
    kept_sum,
    ready_sum,
    returns_sum,
    superseded_sum,
)
from broker.machine.policies.choice import NOTHING, policies_element, policies_of_queue
from broker.machine.publishing.letters import letter_element
from broker.machine.publishing.numbers import check as check_numbers
from broker.machine.publishing.numbers import recomputed_sum
from broker.machine.publishing.producers import element as producer_sum
from broker.machine.publishing.unfinished import check_parts, parts_sum
from broker.machine.queueing.bindings import binding_element, exchange_element
from broker.machine.queueing.declaration import consumer_element, lease_element, queue_element
from broker.machine.queueing.streams import recomputed_times
from broker.machine.queueing.windows import recomputed_sum as recomputed_sum_of_keys
from broker.machine.state import NUMBER, Channel, State, Vhost, all_queues, rehash_wholly


def recompute_root(state: State, fresh: bool = False) -> int:
    """The sum of the elements of everything, with messages hashed from their bytes. `fresh`: all
    messages were hashed and all queues summed up just now, so that is not repeated."""
    total = cluster_element(state)
    for name, record in state.sessions.items():
        total += session_element(name, record) + record.salt * record.last_blob_no
    total += sum(clock_element(name, clock) for name, clock in state.clocks.items())
    total += horizon_element(state) + sum(map(span_element, state.spans))
    total += sum(poison_element(*key, names) for key, names in state.poison.items())
    for letter in state.late_letters:
        content = rehash_wholly(letter.message)
        total += letter_element(letter._replace(message=(content, *letter.message[1:])))
    total += sum(alarm_element(*key, detail) for key, detail in state.alarms.items())
    total += active_element(state.active) if state.active else 0
    for what, defined in state.definitions.items():
        total += sum(definition_element(what, *key, body) for key, body in defined.items())
    for vhost in state.vhosts.values():
        for exchange in vhost.exchanges.values():
            total += exchange_element(vhost, exchange)
            total += sum(binding_element(vhost, one) for one in exchange.bindings.values())
        for queue in all_queues(vhost):
            total += queue_element(queue) + policies_element(queue) + lease_element(queue)
            total += returns_sum(queue)
            if queue.window is not None:
                window = queue.window
                total += window.sum if fresh else recomputed_sum_of_keys(window, window.order)
            if queue.last_values is not None:
                total += superseded_sum(queue, queue.last_values)
            if queue.groups is not None:
                total += kept_sum(queue.groups)
            if queue.stream is not None:
                total += recomputed_times(queue, queue.stream)
            total += queue.salt * queue.next_seq
            total += queue.ready_sum if fresh else ready_sum(queue, False)
            total += sum(consumer_element(one) for one in queue.consumers.values())
        total += _producers_sum(vhost, fresh)
    total += parts_sum(state)
    for connection in state.connections.values():
        total += connection_element(connection)
        for channel in connection.channels.values():
            total += channel_element(channel) + channel.salt * channel.next_tag
            total += _held_sum(channel)
    return total & MASK


def _producers_sum(vhost: Vhost, fresh: bool) -> int:
    total = 0
    for producers in vhost.producers.values():
        for producer in producers.values():
            total += producer_sum(producer)
            if not fresh:
                total += recomputed_sum(producer) - producer.sum
    return total & MASK


def _held_sum(channel: Channel) -> int:
    return sum(
        held_element(
            rehash_wholly(message), queue.number, seq, channel.salt, tag + tag + redelivered
        )
        for held_by_tag in (channel.unacked, channel.unsent)
        for tag, (queue, seq, message, _, redelivered) in held_by_tag.items()
    )


def check(state: State) -> None:
    """Assert the invariants; costs a full scan."""
    assert all(queue.readers is not None for queue in state.reading.values())
    assert state.digest == state.digest & MASK, "the root is kept below 2**64"
    assert state.digest == recompute_root(state), "the root by deltas equals the root by scan"
    check_horizons(state)
    assert state.clocks.keys() <= state.sessions.keys()
    assert all(name in state.sessions for name, _ in state.alarms), "alarms end with sessions"
    assert not state.active or state.active in state.sessions, "so does the role of the active one"
    assert not state.dead_letters, "they are published at their position, or late"
    held_of_queue: HeldOfQueue = {}
    for key, channel in state.channels.items():
        assert channel.connection.channels[key[2]] is channel
        assert state.connections[key[:2]] is channel.connection
        _check_channel(channel, held_of_queue)
    check_parts(state)
    assert len(state.channels) == sum(len(one.channels) for one in state.connections.values())
    live = {record.session: True for record in state.sessions.values()}
    assert len(live) == len(state.sessions), "sessions are unique"
    ending = {one.key: True for one in state.ending}
    for connection in state.connections.values():
        assert connection.ended == (connection.key in ending), "what ended is about to be taken out"
        assert connection.ended or connection.key[0] in live, (
            "each connection has a session, or ended"
        )
        assert not (connection.ended and connection.local)
        assert all(one.open != connection.ended for one in connection.channels.values())
    assert len(ending) == len(state.ending)
    queues = [queue for vhost in state.vhosts.values() for queue in all_queues(vhost)]
    scheduled = {number for one in state.schedules().values() for number in one.times}
    assert scheduled <= {one.number for one in queues}, "nobody looks for queues that are gone"
    assert all(not one.deleted and one.number == at for at, one in state.late.items())
    assert state.window_keys == sum(one.window.size for one in queues if one.window)
    _check_definitions(state)
    _check_policies(state)
    for vhost in state.vhosts.values():
        _check_producers(vhost)
        for name, queue in vhost.queues.items():
            assert queue.name == name
            check_queue(state, queue, held_of_queue)
        check_delays(state, vhost)
        check_letters(state, vhost)
        for exchange in vhost.exchanges.values():
            assert sum(map(len, exchange.by_key.values())) == len(exchange.bindings)
            assert all(exchange.by_key.values()), "no key without a binding"
            for identity, binding in exchange.bindings.items():
                assert binding is exchange.by_key[binding.key][identity]
                ends = (
                    vhost.queues[binding.destination].bindings
                    if binding.to_queue
                    else (vhost.exchanges[binding.destination].inbound)
                )
                assert identity in ends, "a binding is known at both ends"


def _check_producers(vhost: Vhost) -> None:
    for producers in vhost.producers.values():
        used = [producer.used for producer in producers.values()]
        assert used == sorted(used), "who was heard of last is last"
        for producer in producers.values():
            check_numbers(producer)


def _check_definitions(state: State) -> None:
    defined = {name: True for _, name in state.definitions["vhost"]}
    assert [vhost for vhost in state.vhosts.values() if vhost.name not in defined] == state.leaving
    assert all(name in state.vhosts for name in defined)
    counts: dict[str, int] = {}
    for connection in state.connections.values():
        counts[connection.user] = counts.get(connection.user, 0) + 1
    assert counts == state.connected, "connections of users are counted"
    for vhost in state.vhosts.values():
        held = sum(one.vhost is vhost for one in state.connections.values())
        assert held == vhost.connections, "connections of virtual hosts are counted"
        assert vhost.leaving == (vhost in state.leaving)
        waiting = sum(letter.vhost is vhost for letter in state.late_letters)
        assert waiting == vhost.letters, "letters of virtual hosts are counted"
    for what, found in state.definitions.items():
        for vhost_name, _ in found:
            assert not vhost_name or vhost_name in defined, f"a {what} of no virtual host"


def _check_channel(channel: Channel, held_of_queue: HeldOfQueue) -> None:
    shared = 0
    outstanding: dict[str, int] = dict.fromkeys(channel.consumers, 0)
    for held_by_tag in (channel.unacked, channel.unsent):
        tags = list(held_by_tag)
        assert tags == sorted(tags), "delivery tags ascend"
        assert not tags or tags[-1] < channel.next_tag
        for held in held_by_tag.values():
            queue, seq, message, consumer, _ = held
            if message[NUMBER] or queue.stream is not None:
                held_of_queue.setdefault(queue.number, []).append((seq, message))
            if consumer is not None:
                assert consumer.no_ack == (held_by_tag is channel.unsent)
                shared += not consumer.no_ack
                if consumer.active:
                    outstanding[consumer.tag] += 1
    assert channel.outstanding == shared, "the channel counts what its consumers hold"
    for tag, consumer in channel.consumers.items():
        assert consumer.active
        assert consumer.tag == tag
        assert consumer.outstanding == outstanding[tag] <= consumer.limit
        assert consumer.queue.consumers[(*channel.key, tag)] is consumer


def _check_policies(state: State) -> None:
    """Each queue has the policies chosen for it, unless it is still to be looked at."""
    defined = policies_defined(state)
    assert all(queue.stale for queue in state.stale)
    waiting = {queue.number: True for queue in state.stale if not queue.deleted}
    for vhost in state.vhosts.values():
        assert vhost.policies == defined.get(vhost.name, NOTHING)
        for queue in vhost.queues.values():
            assert queue.stale == (queue.number in waiting)
            applied = policies_of_queue(vhost, queue.name, queue.arguments)
            assert queue.stale or applied == (queue.policy, queue.operator_policy)
