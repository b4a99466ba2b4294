"""Queues over HTTP: listed from the replicated state, changed through AMQP."""

from __future__ import annotations

from itertools import islice

from aiohttp.web import StreamResponse

from broker.amqp.fields import Value
from broker.machine.policies.choice import effective_definition
from broker.machine.queueing.dispatch import active_consumer
from broker.machine.queueing.streams import first_offset, max_lag
from broker.machine.requests.arguments import queue_type
from broker.machine.state import NO_TTL, ConnectionRecord, Queue, ready_count
from broker.management.call import (
    Call,
    Reply,
    Route,
    bad_request,
    flag_field,
    not_found,
    short,
    table_field,
)
from broker.management.json_values import Json, Object, figures, table, to_amqp
from broker.management.listing import Listing, chosen
from broker.management.resources.connections import consumer_row
from broker.management.slices import Slices
from broker.statistics.samples import NO_SPANS, Spans
from broker.waiting.pager import ROW_BYTES
from vsync.quorum.voter_set import parse

DETAILS_MAX = 500
"""Number of consumers shown with a queue."""
QUEUE_BYTES = 4_000
"""Approximate memory of an empty queue (docs/PERFORMANCE.md)."""


def queue_row(call: Call, queue: Queue, spans: Spans = NO_SPANS) -> Object:
    """A queue as tools know it; unknown fields are left out, never invented."""
    ready, unacked = ready_count(queue), queue.unacked
    primary = call.broker.controller.primary
    others = sorted(primary.caught_up_names - primary.mark.without_data - {call.broker.name})
    exclusive = next(iter(queue.consumers.values())) if queue.exclusive_consumer else None
    kind = queue_type(queue.arguments)
    row: Object = {
        "arguments": table(queue.arguments),
        "auto_delete": queue.auto_delete,
        "consumers": len(queue.consumers),
        "consumer_capacity": 1.0 if queue.service else 0.0,
        "consumer_utilisation": 1.0 if queue.service else 0.0,
        "durable": queue.durable,
        "effective_policy_definition": table(
            effective_definition(queue.policy, queue.operator_policy)
        ),
        "exclusive": queue.owner is not None,
        "exclusive_consumer_tag": exclusive.tag if exclusive is not None else None,
        "message_bytes": queue.ready_bytes + queue.unacked_bytes,
        "message_bytes_ready": queue.ready_bytes,
        "message_bytes_unacknowledged": queue.unacked_bytes,
        "messages": ready + unacked if queue.stream is None else ready,  # messages read stay
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "name": queue.name,
        "node": call.broker.name,
        "operator_policy": queue.operator_policy.name if queue.operator_policy else None,
        "policy": queue.policy.name if queue.policy else None,
        "slave_nodes": list(others),
        "synchronised_slave_nodes": list(others),
        "recoverable_slaves": list(others),
        "state": "running",
        "type": kind,
        "vhost": queue.vhost.name,
        **figures(call.broker.statistics.queue(queue, spans)),
    }
    if queue.owner is not None:
        row["owner_pid_details"] = owner_of(call, queue.owner)
    if kind != "classic":  # by the names used here
        online = {call.broker.name, *others}
        voters = parse(call.broker.controller.promise.voters).data_names
        row["leader"], row["online"] = call.broker.name, [*sorted(online)]
        row["members"] = [*sorted(online.union(voters))]
    row |= in_memory(queue) | _special(queue)
    active = active_consumer(queue) if queue.single_active else None
    row["single_active_consumer_tag"] = active.tag if active is not None else None
    return row


def in_memory(queue: Queue) -> Object:
    """How much of it is in this member's memory, and how much in pages on disk, under RabbitMQ's
    names. Delivered and unsettled messages are in memory."""
    pages = [block.page.summary for block in queue.ready.blocks if block.page is not None]
    messages, size = sum(page.messages for page in pages), sum(page.bytes for page in pages)
    ready, unacked = ready_count(queue) - messages, queue.unacked * (queue.stream is None)
    bodies = queue.ready_bytes + queue.unacked_bytes - size
    return {
        "memory": QUEUE_BYTES + bodies + ROW_BYTES * (ready + unacked),
        "messages_ram": ready + unacked,
        "messages_ready_ram": ready,
        "messages_unacknowledged_ram": unacked,
        "message_bytes_ram": bodies,
        "messages_paged_out": messages,
        "message_bytes_paged_out": size,
    }


def _special(queue: Queue) -> Object:
    """Fields that only some kinds of queues have."""
    row: Object = {}
    if queue.at_least_once or queue.letters is not None:
        kept = queue.letters
        row["messages_dlx"] = ready_count(kept) if kept is not None else 0
        row["message_bytes_dlx"] = kept.ready_bytes if kept is not None else 0
    if queue.window is not None:
        row["deduplication_keys"] = len(queue.window.by_key)
        row["deduplicated"] = queue.tally.drop_duplicate
    if queue.last_values is not None:
        row["replaced"] = queue.tally.replaced
    if queue.groups is not None:
        row["groups"], row["groups_held"] = len(queue.groups.by_key), len(queue.groups.held)
        if queue.groups.keeps:
            row["groups_kept"] = len(queue.groups.kept)
    if queue.stream is None and queue.readers is not None:
        row["browsers"], row["max_offset_lag"] = queue.readers.count, max_lag(queue)
    if queue.stream is not None:
        row["first_offset"], row["next_offset"] = first_offset(queue), queue.next_seq
        row["max_offset_lag"] = max_lag(queue)
        row["retention"] = {
            "bytes": queue.max_bytes if queue.max_bytes >= 0 else None,
            "seconds": queue.ttl_us // 1_000_000 if queue.ttl_us != NO_TTL else None,
        }
    return row


def owner_of(call: Call, owner: ConnectionRecord) -> Object:
    """The connection of an exclusive queue."""
    host, _, port = owner.peer.rpartition(":")
    return {"name": owner.peer, "peer_host": host, "peer_port": int(port) if port.isdigit() else 0}


async def list_queues(call: Call) -> Reply | StreamResponse:
    return await Listing(
        (queue for vhost in call.vhosts() for queue in list(vhost.queues.values())),
        lambda queue: queue_row(call, queue),
        lambda queue: (queue.vhost.name, queue.name),
        lambda queue: queue.name,
        lambda queue: queue.deleted,
    ).reply(call)


def queue_of(call: Call) -> Queue:
    """The queue in the path."""
    queue = call.vhost().queues.get(call.names["queue"])
    if queue is None:
        raise not_found()
    return queue


async def show_queue(call: Call) -> Reply:
    """The queue with the consumers that would be served first; `consumers` of the API lists all."""
    queue, spans, slices = queue_of(call), call.spans(), Slices()
    details: list[Json] = []
    for one in islice(list(queue.consumers.values()), DETAILS_MAX):
        details.append(consumer_row(call, one))
        await slices.step()
    row = queue_row(call, queue, spans) | {"consumer_details": details}
    row |= {"incoming": [], "deliveries": []}
    return chosen(call, row)  # the last two are rates of the mode "detailed"


async def put_queue(call: Call) -> Reply:
    """Declare it; repeating an identical declaration is no error, a different one is."""
    vhost, name = call.vhost(), call.names["queue"]
    body = call.json()
    arguments = to_amqp(table_field(body, "arguments"))
    args: tuple[Value, ...] = (
        short(name, "the queue's name"), False, flag_field(body, "durable", True),
        flag_field(body, "exclusive"), flag_field(body, "auto_delete"), False, arguments,
    )  # fmt: skip
    there = name in vhost.queues
    async with call.amqp(vhost.name) as client:
        await client.call("queue.declare", args)
    return Reply(204 if there else 201)


async def delete_queue(call: Call) -> Reply:
    queue = queue_of(call)
    args = (queue.name, call.flag("if-unused"), call.flag("if-empty"), False)
    async with call.amqp(queue.vhost.name) as client:
        await client.call("queue.delete", args)
    return Reply(204)


async def purge_queue(call: Call) -> Reply:
    queue = queue_of(call)
    async with call.amqp(queue.vhost.name) as client:
        await client.call("queue.purge", (queue.name, False))
    return Reply(204)


async def act_on_queue(call: Call) -> Reply:
    """Synchronising is a no-op: every member that serves has every queue."""
    queue_of(call)
    if call.json().get("action") not in ("sync", "cancel_sync"):
        raise bad_request("action is neither sync nor cancel_sync")
    return Reply(204)


ROUTES = (
    Route("queues", {"GET": list_queues}),
    Route("queues/{vhost}", {"GET": list_queues}),
    Route("queues/{vhost}/{queue}", {"GET": show_queue, "PUT": put_queue, "DELETE": delete_queue}),
    Route("queues/{vhost}/{queue}/contents", {"DELETE": purge_queue}),
    Route("queues/{vhost}/{queue}/actions", {"POST": act_on_queue}),
)
