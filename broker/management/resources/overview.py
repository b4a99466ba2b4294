"""The cluster, its members and whoever asks: what a page begins with."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp.web import StreamResponse

from broker.machine.queueing.routing import types_of
from broker.management.call import Call, Reply, Route, not_found
from broker.management.json_values import Json, Object, figures
from broker.management.listing import Listing, chosen
from broker.management.slices import Slices
from broker.release import version

API_RELEASE = "3.10.8"
"""The release of RabbitMQ whose API this follows; tools decide by it what they may ask."""
SAMPLED = ("msg_rates", "lengths", "data_rates")
"""The parameters by which a chart asks for samples: `msg_rates_age`, `msg_rates_incr`."""


async def show_overview(call: Call) -> Reply:
    broker, machine = call.broker, call.broker.machine
    vhosts = call.vhosts()
    slices = Slices()
    connections = channels = consumers = 0
    for one in list(machine.connections.values()):
        if call.user.monitors or one.user == call.user.name:
            connections += 1
            channels += len(one.channels)
            consumers += sum([len(channel.consumers) for channel in one.channels.values()])
        await slices.step()
    row: Object = {
        "management_version": version(),
        "product_name": "qpid-cluster-py",
        "product_version": version(),
        "rabbitmq_version": API_RELEASE,
        "cluster_name": broker.cluster or broker.name,
        "node": broker.name,
        "rates_mode": "basic",
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "exchange_types": [
            {"name": name, "description": f"AMQP {name} exchange", "enabled": True}
            for name in sorted(types_of(machine.version))
        ],
        "object_totals": {
            "channels": channels,
            "connections": connections,
            "consumers": consumers,
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
        },
        "listeners": _listeners(call),
        "contexts": [
            {
                "node": broker.name, "description": "management", "path": "/",
                "port": str(port), "ip": host,
            }
            for protocol, host, port in broker.listeners
            if protocol in ("http", "https")
        ],
    }  # fmt: skip
    if call.user.monitors:
        spans = (_seconds(call, f"{what}_age", f"{what}_incr") for what in SAMPLED)
        row |= figures(broker.statistics.overview(*next(filter(any, spans), (0.0, 0.0))))
    else:
        row |= {"message_stats": {}, "queue_totals": _totals(call), "churn_rates": {}}
    return chosen(call, row)


def _seconds(call: Call, *names: str) -> tuple[float, float]:
    """How far back samples go, and how far apart they are; none unless both are asked for."""
    texts = [call.query.get(name, "") for name in names]
    if not all(text.isascii() and text.isdigit() and len(text) < 9 for text in texts):
        return 0.0, 0.0
    age, step = (float(text) for text in texts)
    return age, step


def _totals(call: Call) -> Object:
    """The messages of the virtual hosts that this user may see."""
    sums = dict.fromkeys(("messages", "messages_ready", "messages_unacknowledged"), 0)
    for vhost in call.vhosts():
        found = call.broker.statistics.vhost(vhost.name)
        for name in sums:
            value = found.get(name, 0)
            sums[name] += value if isinstance(value, int) else 0
    return {**sums}


def _listeners(call: Call) -> list[Json]:
    return [
        {
            "node": call.broker.name, "protocol": protocol, "ip_address": host, "port": port,
            "socket_opts": {},
        }
        for protocol, host, port in call.broker.listeners
    ]  # fmt: skip


def node_rows(call: Call) -> list[Object]:
    """The members as nodes; of this one more is known than of the others."""
    status = call.broker.operations.status()
    members = status["members"]
    assert isinstance(members, list)
    drained = status["drained"]
    assert isinstance(drained, list)
    alarms = call.broker.machine.alarms
    roles = roles_in(status)
    rows: list[Object] = []
    for member in members:
        name = str(member["id"])
        rows.append(
            {
                "name": name,
                "type": "disc",
                "running": member["state"] == "ACTIVE",
                "state": member["state"],
                "voter": member["voter"],
                "votes": member["votes"],
                "arbitrator": member["arbitrator"],
                "url": member["url"],
                "position": member["position"],
                "local": member["local"],
                **{name: member[name] for name in ("received_percent",) if name in member},
                "being_drained": name in drained,
                **({"ha_role": roles[name]} if name in roles else {}),
                "mem_alarm": (name, "memory") in alarms,
                "disk_free_alarm": (name, "disk") in alarms,
                "partitions": [],
                "rates_mode": "basic",
                "applications": [
                    {"name": "qpid-cluster-py", "version": version(), "description": "broker"}
                ],
                **figures(call.broker.statistics.node(name)),
            }
        )
    return rows


def roles_in(status: Mapping[str, object]) -> dict[str, str]:
    """The roles of members, where the cluster is an active-passive one."""
    ha = status.get("ha")
    members = ha.get("members") if isinstance(ha, dict) else None
    listed = members if isinstance(members, list) else []
    return {str(one["id"]): str(one["status"]) for one in listed if isinstance(one, dict)}


async def list_nodes(call: Call) -> Reply | StreamResponse:
    return await Listing(
        node_rows(call), lambda row: row, lambda row: (str(row["name"]),),
        lambda row: str(row["name"]),
    ).reply(call)  # fmt: skip


async def show_node(call: Call) -> Reply:
    for row in node_rows(call):
        if row["name"] == call.names["node"]:
            return chosen(call, row)
    raise not_found()


async def show_memory(call: Call) -> Reply:
    """What processes of the node take; there is one, so this names it and no more."""
    reply = await show_node(call)
    assert isinstance(reply.body, dict)
    return Reply(body={"node": call.names["node"], "processes": []})


async def who_am_i(call: Call) -> Reply:
    return Reply(body={"name": call.user.name, "tags": sorted(call.user.tags)})


async def cluster_name(call: Call) -> Reply:
    return Reply(body={"name": call.broker.cluster or call.broker.name})


async def extensions(_call: Call) -> Reply:
    return Reply(body=[])


async def auth_kind(_call: Call) -> Reply:
    return Reply(body={"oauth_enabled": False, "enable_uaa": False})


async def cluster(call: Call) -> Reply:
    """The members, the votes and the history of this member, as `qpid-cluster --json` has them."""
    return Reply(body=call.broker.operations.status())


async def force_out(call: Call) -> Reply:
    """Make a member leave."""
    call.broker.operations.stop_member(call.names["node"])
    return Reply(204)


async def drain(call: Call) -> Reply:
    """Have a member take no clients, until it is undrained or restarted."""
    force = call.flag("force")
    call.broker.operations.drain(call.names["node"], on=True, force=force)
    return Reply(204)


async def undrain(call: Call) -> Reply:
    call.broker.operations.drain(call.names["node"], on=False, force=False)
    return Reply(204)


async def rebalance(_call: Call) -> Reply:
    """There is nothing to move: no queue has a leader."""
    return Reply(204)


ROUTES = (
    Route("overview", {"GET": show_overview}),
    Route("whoami", {"GET": who_am_i}),
    Route("cluster-name", {"GET": cluster_name}),
    Route("extensions", {"GET": extensions}),
    Route("auth", {"GET": auth_kind}),
    Route("nodes", {"GET": list_nodes}, "monitoring"),
    Route("nodes/{node}", {"GET": show_node}, "monitoring"),
    Route("top/{node}", {"GET": show_memory}, "monitoring"),
    Route("qpid/cluster", {"GET": cluster}, "monitoring"),
    Route("qpid/members/{node}", {"DELETE": force_out}, "administrator"),
    Route("qpid/members/{node}/drain", {"PUT": drain, "DELETE": undrain}, "administrator"),
    Route("rebalance/queues", {"POST": rebalance}, "administrator"),
)
