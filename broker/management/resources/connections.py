"""Connections, channels and consumers of all members over HTTP.

The list of connections is replicated. Facts that only the client's own member knows (its product,
its encryption, since when) reach the others from that member now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp.web import StreamResponse

from broker.frontend.connections import CLIENT_TEXTS
from broker.machine.limits import CHANNEL_HELD_MAX
from broker.machine.queueing.streams import first_offset, lag
from broker.machine.requests.arguments import NO_CONSUME
from broker.machine.state import Channel, ConnectionRecord, Consumer, Queue, Reader
from broker.management.call import Call, Problem, Reply, Route, not_found
from broker.management.json_values import Json, Object, figures
from broker.management.listing import Listing, chosen
from broker.management.slices import Slices
from broker.statistics.samples import NO_SPANS, Spans

PROTOCOL = "AMQP 0-9-1"
OF_CLIENT = (
    "connected_s", "connected_at", "auth_mechanism", "timeout", "channel_max", "frame_max",
    "ssl", "ssl_protocol", "ssl_cipher", "peer_cert_subject", "peer_cert_issuer",
    "peer_cert_validity",
)  # fmt: skip
"""A client's facts known to its own member, as shown."""


OF_ENCRYPTION = (
    "ssl_protocol", "ssl_cipher", "ssl_key_exchange", "ssl_hash", "peer_cert_subject",
    "peer_cert_issuer", "peer_cert_validity",
)  # fmt: skip
"""None unless the connection is encrypted."""


def _member_of(call: Call, session: int) -> str:
    for name, record in call.broker.machine.sessions.items():
        if record.session == session:
            return name
    return ""


def _server_address(call: Call, member: str) -> tuple[str, int]:
    """Where clients connect to this member, as it told the others."""
    controller = call.broker.controller
    own = member == call.broker.name
    label = controller.label if own else controller.primary.labels().get(member, "")
    first = label.removeprefix("amqp:").partition(",")[0].removeprefix("tcp:")
    host, _, port = first.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def connection_name(call: Call, one: ConnectionRecord) -> str:
    """`CLIENT -> SERVER`, as RabbitMQ names connections; the same at every member."""
    host, port = _server_address(call, _member_of(call, one.key[0]))
    shown = f"[{host}]" if ":" in host else host
    return f"{one.peer} -> {shown}:{port}"


def _split(peer: str) -> tuple[str, int]:
    host, _, port = peer.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def connection_row(
    call: Call,
    one: ConnectionRecord,
    known: dict[str, dict[str, object]],
    spans: Spans = NO_SPANS,
) -> Object:
    member = _member_of(call, one.key[0])
    host, port = _server_address(call, member)
    peer_host, peer_port = _split(one.peer)
    row: Object = {
        "name": connection_name(call, one),
        "node": member,
        "user": one.user,
        "user_who_performed_action": one.user,
        "vhost": one.vhost.name,
        "channels": len(one.channels),
        "number": one.key[1],
        "host": host,
        "port": port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "protocol": PROTOCOL,
        "state": "running",
        "type": "network",
        "client_properties": {},
        **dict.fromkeys(OF_ENCRYPTION),
        **figures(call.broker.statistics.connection(one, spans)),
    }
    here = member == call.broker.name
    told = known.get(one.peer) if here else call.broker.statistics.members.client(one.key)
    if told:
        properties: Object = {name: str(told[name]) for name in CLIENT_TEXTS if name in told}
        capabilities = str(told.get("capabilities", "")).split()
        if capabilities:
            properties["capabilities"] = dict.fromkeys(capabilities, True)
        row["client_properties"] = properties
        if "connection_name" in properties:
            row["user_provided_name"] = properties["connection_name"]
        row |= {name: _json(told[name]) for name in OF_CLIENT if name in told}
    return row


def _json(value: object) -> Json:
    return value if isinstance(value, bool | int | float | str) else None


def _connections(call: Call) -> Iterator[ConnectionRecord]:
    """The connections that this user may see: its own, or all."""
    vhost = call.vhost().name if "vhost" in call.names else None
    user = call.names.get("user")
    for one in list(call.broker.machine.connections.values()):
        if (
            (vhost is None or one.vhost.name == vhost)
            and (user is None or one.user == user)
            and (call.user.monitors or one.user == call.user.name)
        ):
            yield one


async def list_connections(call: Call) -> Reply | StreamResponse:
    known = call.broker.clients.details()
    return await Listing(
        _connections(call),
        lambda one: connection_row(call, one, known),
        lambda one: (one.vhost.name, one.peer, one.key),
        lambda one: connection_name(call, one),
        lambda one: one.ended,
    ).reply(call)


def _connection(call: Call) -> ConnectionRecord:
    wanted = call.names["name"]
    peer = wanted.partition(" -> ")[0]
    for one in _connections(call):
        if one.peer == peer and wanted in (peer, connection_name(call, one)):
            return one
    raise not_found()


async def show_connection(call: Call) -> Reply:
    one = _connection(call)
    return chosen(call, connection_row(call, one, call.broker.clients.details(), call.spans()))


async def close_connection(call: Call) -> Reply:
    """Close it, at whatever member; the header X-Reason may give a reason."""
    _close(call, _connection(call))
    return Reply(204)


async def close_of_user(call: Call) -> Reply:
    slices = Slices()
    for one in list(_connections(call)):
        _close(call, one)
        await slices.step()
    return Reply(204)


def _close(call: Call, one: ConnectionRecord) -> None:
    """A monitoring user sees the connections of others, but may end none."""
    if not call.user.administers and one.user != call.user.name:
        raise Problem(401, "not_authorised", "User not authorised to access object")
    given = call.request.headers.get("X-Reason", "").encode(errors="replace").decode()
    reason = "".join(character for character in given if character.isprintable())
    call.broker.operations.disconnect(one.peer, _member_of(call, one.key[0]), reason)


# -- channels and consumers ----------------------------------------------------------------------


def _channel_name(call: Call, one: Channel) -> str:
    return f"{connection_name(call, one.connection)} ({one.key[2]})"


def connection_details(call: Call, one: ConnectionRecord) -> Object:
    host, port = _split(one.peer)
    return {"name": connection_name(call, one), "peer_host": host, "peer_port": port}


def channel_row(call: Call, one: Channel, spans: Spans = NO_SPANS) -> Object:
    connection = one.connection
    if one.local:
        facts = call.broker.clients.channel(connection.key[1], one.key[2])
    else:
        facts = call.broker.statistics.members.channel(one.key)
    return {
        "name": _channel_name(call, one),
        "number": one.key[2],
        "node": _member_of(call, one.key[0]),
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.vhost.name,
        "connection_details": connection_details(call, connection),
        "consumer_count": len(one.consumers),
        "messages_unacknowledged": len(one.unacked),
        "global_prefetch_count": one.limit if one.limit < CHANNEL_HELD_MAX else 0,
        "state": "running",
        **(figures(facts.shown()) if facts is not None else {}),
        **figures(call.broker.statistics.channel(one, spans)),
    }


def _channels(call: Call) -> Iterator[Channel]:
    if "name" in call.names:
        yield from list(_connection(call).channels.values())
        return
    for connection in _connections(call):
        yield from list(connection.channels.values())


async def list_channels(call: Call) -> Reply | StreamResponse:
    return await Listing(
        _channels(call),
        lambda one: channel_row(call, one),
        lambda one: (one.connection.vhost.name, one.connection.peer, one.key),
        lambda one: _channel_name(call, one),
        lambda one: one.connection.ended,
    ).reply(call)


async def show_channel(call: Call) -> Reply:
    for one in _channels_of(call):
        if _channel_name(call, one) == call.names["channel"]:
            row = channel_row(call, one, call.spans())
            row["consumer_details"] = [consumer_row(call, two) for two in one.consumers.values()]
            row |= {"publishes": [], "deliveries": []}  # rates of the mode "detailed"
            return chosen(call, row)
    raise not_found()


def _channels_of(call: Call) -> Iterator[Channel]:
    """The channels of the connection in the channel's name."""
    wanted = call.names["channel"].partition(" -> ")[0]
    for connection in _connections(call):
        if connection.peer == wanted:
            yield from list(connection.channels.values())


def consumer_row(call: Call, one: Consumer) -> Object:
    channel, queue = one.channel, one.queue
    return {
        "ack_required": not one.no_ack,
        "active": one.active,
        "activity_status": "up" if one.active else "waiting",
        "arguments": {
            **({"x-priority": one.priority} if one.priority else {}),
            **({NO_CONSUME: True} if one.reader is not None and queue.stream is None else {}),
        },
        "channel_details": {
            "name": _channel_name(call, channel),
            "number": channel.key[2],
            "node": _member_of(call, channel.key[0]),
            "user": channel.connection.user,
            "connection_name": connection_name(call, channel.connection),
            "peer_host": _split(channel.connection.peer)[0],
            "peer_port": _split(channel.connection.peer)[1],
        },
        "consumer_tag": one.tag,
        "exclusive": one.exclusive,
        "prefetch_count": one.prefetch,
        "queue": {"name": queue.name, "vhost": queue.vhost.name},
        **(_reading(queue, one.reader) if one.reader is not None else {}),
        **_keeping(one),
    }


def _keeping(one: Consumer) -> Object:
    """For a queue whose groups stay with consumers: how many stay with this one."""
    groups = one.queue.groups
    return {"groups_kept": groups.count_kept_by(one)} if groups is not None and groups.keeps else {}


def _reading(queue: Queue, reader: Reader) -> Object:
    """How far it has read in its stream, or that it browses, and how much is ahead of it."""
    behind = lag(queue, reader)
    if queue.stream is None:
        return {"browses": True, "offset_lag": behind}
    offset = max(reader.offset, first_offset(queue))
    return {"offset": offset, "offset_lag": behind, "filtered": bool(reader.filter)}


def _consumers(call: Call) -> Iterator[Consumer]:
    for vhost in call.vhosts():
        for queue in list(vhost.queues.values()):
            yield from list(queue.consumers.values())


async def list_consumers(call: Call) -> Reply | StreamResponse:
    return await Listing(
        _consumers(call),
        lambda one: consumer_row(call, one),
        lambda one: (one.queue.vhost.name, one.queue.name, one.tag, one.channel.key),
        lambda one: one.tag,
        lambda one: one.queue.deleted,
    ).reply(call)


ROUTES = (
    Route("connections", {"GET": list_connections}),
    Route("connections/{name}", {"GET": show_connection, "DELETE": close_connection}),
    Route("connections/username/{user}", {"GET": list_connections, "DELETE": close_of_user}),
    Route("connections/{name}/channels", {"GET": list_channels}),
    Route("vhosts/{vhost}/connections", {"GET": list_connections}),
    Route("vhosts/{vhost}/channels", {"GET": list_channels}),
    Route("channels", {"GET": list_channels}),
    Route("channels/{channel}", {"GET": show_channel}),
    Route("consumers", {"GET": list_consumers}),
    Route("consumers/{vhost}", {"GET": list_consumers}),
)
