"""Connections and channels: how they are opened, refused and closed.

Closing is the same whether the client closed, was refused, or its member died: its consumers, and
the queues that depend on them, are deleted; held messages are requeued in place, flagged
redelivered; and other consumers are served.
"""

from collections import deque
from itertools import islice

from broker.machine.commands import (
    IGNORED,
    OK,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    Value,
)
from broker.machine.digest import item_hash
from broker.machine.effects import ChannelError, ConnectionError_, Reply
from broker.machine.limits import CONSUMER_WORK, ENDING_WORK_MAX, HELD_WORK
from broker.machine.move_log import CHANNEL_CLOSED, CLOSED, note
from broker.machine.publishing.unfinished import forget_parts
from broker.machine.queueing.declaration import consumer_element, mark_used
from broker.machine.queueing.deletion import delete_queue, deletion_work
from broker.machine.queueing.dispatch import active_consumer, dispatch, offer
from broker.machine.queueing.groups import keep_no_groups
from broker.machine.queueing.settlement import requeue
from broker.machine.queueing.streams import forget_readers
from broker.machine.requests.refusals import METHODS, Refusal, no_vhost, second_open
from broker.machine.state import Channel, ConnectionRecord, Consumer, Held, Queue, State


def connection_element(connection: ConnectionRecord) -> int:
    return item_hash(
        "connection", connection.key, connection.vhost.name, connection.user, connection.peer
    )


def channel_element(channel: Channel) -> int:
    return item_hash("channel", channel.key, channel.limit)


def on_connection_open(state: State, session: int, command: ConnectionOpen) -> int:
    _, conn, vhost, user, peer = command
    key = (session, conn)
    if key in state.connections or not session_exists(state, session):
        return IGNORED
    at, local = state.vhosts.get(vhost), session == state.local_session
    if at is None or at.leaving:  # it existed when the origin let the client in
        refusal = no_vhost(vhost)
        if local:
            state.effects.append(ConnectionError_(conn, refusal.code, refusal.text, 10, 40))
        return refusal.code
    connection = ConnectionRecord(
        key, at, user, peer, local, totals=state.totals_of(session, vhost)
    )
    connection.totals.connections_opened += 1
    state.connections[key] = connection
    count_connection(state, connection, 1)
    state.add(connection_element(connection))
    return OK


def count_connection(state: State, connection: ConnectionRecord, more: int) -> None:
    """Count the connections of a user and of a virtual host, for the limits."""
    connection.vhost.connections += more
    count = state.connected.get(connection.user, 0) + more
    if count:
        state.connected[connection.user] = count
    else:
        del state.connected[connection.user]


def session_exists(state: State, session: int) -> bool:
    return any(record.session == session for record in state.sessions.values())


def on_connection_close(state: State, session: int, command: ConnectionClose) -> int:
    connection = state.connections.get((session, command[1]))
    if connection is None or connection.ended:
        return IGNORED
    if connection.local:
        state.effects.append(Reply(command[1], 0, "connection.close-ok", (), False))
    _end_connection(state, connection)
    return OK


def on_channel_open(state: State, session: int, command: ChannelOpen) -> int:
    _, conn, chan = command
    connection = state.connections.get((session, conn))
    if connection is None or connection.ended:
        return IGNORED
    old = connection.channels.get(chan)
    if old is not None:
        return refuse(state, old, command[0], second_open())
    channel = Channel(connection, chan, item_hash("next tag", session, conn, chan))
    connection.channels[chan] = channel
    connection.totals.channels_opened += 1
    state.channels[channel.key] = channel
    state.add(channel_element(channel) + channel.salt)
    return OK


def on_channel_close(state: State, channel: Channel, _command: ChannelClose) -> int:
    reply(state, channel, "channel.close-ok", (), False)
    note(state, CHANNEL_CLOSED, 0, 0, channel.mark, 0)
    end_channels(state, [channel], [])
    return OK


def reply(
    state: State, channel: Channel, method: str, args: tuple[Value, ...], durable: bool
) -> None:
    if channel.local:
        _, conn, chan = channel.key
        state.effects.append(Reply(conn, chan, method, args, durable))


def refuse(state: State, channel: Channel, kind: int, refusal: Refusal) -> int:
    """Close the channel, or for a hard error its connection; the outcome is the reply code."""
    _, conn, chan = channel.key
    class_id, method_id = METHODS[kind]
    code, text, hard = refusal
    if hard:
        if channel.local:
            state.effects.append(ConnectionError_(conn, code, text, class_id, method_id))
        _end_connection(state, channel.connection)
    else:
        if channel.local:
            state.effects.append(ChannelError(conn, chan, code, text, class_id, method_id))
        note(state, CHANNEL_CLOSED, 0, 0, channel.mark, 0)
        end_channels(state, [channel], [])
    return code


def _end_connection(state: State, connection: ConnectionRecord) -> None:
    """End it at this position, or over several positions if that is too much for one."""
    channels = connection.channels.values()
    work = sum(map(channel_work, channels)) + sum(map(deletion_work, connection.exclusive.values()))
    if work > ENDING_WORK_MAX:
        end_later(state, connection)
    else:
        end_connections(state, [connection])


def end_later(state: State, connection: ConnectionRecord) -> None:
    """Send it nothing more and ignore what it sends; handlers/sessions.py ends it."""
    connection.ended, connection.local = True, False
    for channel in connection.channels.values():
        channel.open = channel.local = False
        forget_parts(state, channel)
    state.ending.append(connection)


def channel_work(channel: Channel) -> int:
    """Units of ending the channel (limits.py)."""
    held = len(channel.unacked) + len(channel.unsent)
    kept = sum(
        one.queue.groups.count_kept_by(one)
        for one in channel.consumers.values()
        if one.queue.groups is not None
    )
    return 8 + HELD_WORK * held + CONSUMER_WORK * len(channel.consumers) + kept


def end_some_channels(state: State, connection: ConnectionRecord, what: int, work_max: int) -> int:
    """End channels of an ended connection, within this many units; return the units used. If a
    channel is too much for one position, its messages go back first."""
    ending, work = [], 0
    for channel in list(connection.channels.values()):
        if work >= work_max:
            break
        room = max(1, (work_max - work) // HELD_WORK)
        work += channel_work(channel)
        if len(channel.unacked) + len(channel.unsent) <= room:
            ending.append(channel)
            continue
        affected: dict[int, Queue] = {}
        for held_by_tag in (channel.unacked, channel.unsent):
            tags = list(islice(held_by_tag, room))
            room -= len(tags)
            _put_back(state, channel, held_by_tag, tags, what, affected)
        for queue in affected.values():
            resume_service(state, queue)
        break
    end_channels(state, ending, [], what)
    return work


def end_connections(state: State, connections: list[ConnectionRecord], what: int = CLOSED) -> None:
    """End them together, so that nothing is delivered from one that is closed to another."""
    channels = [channel for one in connections for channel in one.channels.values()]
    exclusive_queues = [queue for one in connections for queue in one.exclusive.values()]
    end_channels(state, channels, exclusive_queues, what)
    for connection in connections:
        del state.connections[connection.key]
        connection.totals.connections_closed += 1
        count_connection(state, connection, -1)
        state.remove(connection_element(connection))


def end_channels(
    state: State, channels: list[Channel], exclusive_queues: list[Queue], what: int = CLOSED
) -> None:
    """End channels; `what` is the move by which held messages are requeued."""
    affected: dict[int, Queue] = {}
    for channel in channels:
        for consumer in list(channel.consumers.values()):
            _take_out(state, consumer)
            affected[consumer.queue.number] = consumer.queue
    for queue in affected.values():
        queue.service = deque(one for one in queue.service if one.waiting)
        forget_readers(state, queue)
        if queue.auto_delete and not queue.consumers:
            delete_queue(state, queue)
    for queue in exclusive_queues:
        if not queue.deleted:
            delete_queue(state, queue)
    for channel in channels:
        for held_by_tag in (channel.unacked, channel.unsent):
            _put_back(state, channel, held_by_tag, list(held_by_tag), what, affected)
        forget_parts(state, channel)
        del channel.connection.channels[channel.key[2]]
        channel.connection.totals.channels_closed += 1
        del state.channels[channel.key]
        state.remove(channel_element(channel) + channel.salt * channel.next_tag)
    for queue in affected.values():
        resume_service(state, queue)


def _put_back(
    state: State,
    channel: Channel,
    held_by_tag: dict[int, Held],
    tags: list[int],
    what: int,
    affected: dict[int, Queue],
) -> None:
    """Requeue messages that the channel held; the queues are noted in `affected`."""
    for tag in tags:
        held = held_by_tag.pop(tag)
        queue, *_ = held
        requeue(state, channel, tag, held, what, counts=held_by_tag is channel.unacked)
        affected[queue.number] = queue


def remove_consumer(state: State, consumer: Consumer) -> None:
    """Remove a consumer; its held messages stay with the channel. The caller handles auto-delete
    and the successor."""
    queue = consumer.queue
    if consumer.waiting and consumer.reader is None:
        queue.service.remove(consumer)
    _take_out(state, consumer)
    forget_readers(state, queue)


def _take_out(state: State, consumer: Consumer) -> None:
    """Remove it everywhere except from the queue's service: searching that for many, one by one, is
    slow."""
    queue = consumer.queue
    channel = consumer.channel
    consumer.active = consumer.waiting = False
    if consumer.exclusive:
        queue.exclusive_consumer = False
    if consumer.reader is not None:
        assert queue.readers is not None
        queue.readers.count -= 1
    keep_no_groups(state, consumer)
    del queue.consumers[(*channel.key, consumer.tag)]
    if not queue.consumers:
        mark_used(state, queue)
    del channel.consumers[consumer.tag]
    state.remove(consumer_element(consumer))


def resume_service(state: State, queue: Queue) -> None:
    """After consumers left or messages came back: activate the successor, serve the others."""
    if queue.deleted:
        return
    active = active_consumer(queue) if queue.single_active else None
    if active is not None:
        offer(active)
    dispatch(state, queue)
