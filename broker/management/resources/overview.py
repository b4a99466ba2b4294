"""The cluster, its members and the current user: the first data of a page."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp.web import StreamResponse

from broker.machine.requests.exchange_types import EXCHANGE_TYPES
from broker.management.call import Call, Reply, Route, at_any_member, bad_request, not_found
from broker.management.json_values import Json, Object, figures
from broker.management.listing import Listing, chosen
from broker.management.slices import Slices
from broker.release import version
from broker.statistics.samples import NO_SPANS, Spans

API_RELEASE = "3.10.8"
"""The release of RabbitMQ whose API this follows; tools decide by it what they may ask for."""
AS_PLUGINS = (
    "rabbitmq_consistent_hash_exchange", "rabbitmq_delayed_message_exchange",
    "rabbitmq_federation", "rabbitmq_federation_management", "rabbitmq_management",
    "rabbitmq_prometheus", "rabbitmq_random_exchange", "rabbitmq_shovel",
    "rabbitmq_shovel_management",
)  # fmt: skip
"""Plug-ins that tools look for before they use features which RabbitMQ has as plug-ins."""
FEATURE_FLAGS = {
    "drop_unroutable_metric": "Count unroutable publishes to be dropped in stats",
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": (
        "Default bindings are now implicit, instead of being stored in the database"),
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}  # fmt: skip
"""The flags of RabbitMQ 3.10 that mean something here: their features are always on."""


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
        "exchange_types": _exchange_types(),
        "object_totals": {
            "channels": channels,
            "connections": connections,
            "consumers": consumers,
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
        },
        "listeners": _listeners(call),
        "contexts": [{"node": broker.name, **one} for one in _contexts(call)],
    }
    if call.user.monitors:
        row |= figures(broker.statistics.overview(call.spans()))
    else:
        row |= {"message_stats": {}, "queue_totals": _totals(call), "churn_rates": {}}
    return chosen(call, row)


def _exchange_types() -> list[Json]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True}
        for name in sorted(EXCHANGE_TYPES)
    ]


def _contexts(call: Call) -> list[Object]:
    return [
        {
            "description": "management", "path": "/", "port": str(port), "ip": host,
            "protocol": protocol,
        }
        for protocol, host, port in call.broker.listeners
        if protocol in ("http", "https")
    ]  # fmt: skip


def _totals(call: Call) -> Object:
    """The message counts of the virtual hosts that this user may see."""
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


def node_rows(call: Call, spans: Spans = NO_SPANS) -> list[Object]:
    """The members as nodes; more is known of this one than of the others."""
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
                "cluster_links": [],
                "rates_mode": "basic",
                "mem_calculation_strategy": "rss",
                "enabled_plugins": [*AS_PLUGINS],
                "applications": [
                    {"name": "qpid-cluster-py", "version": version(), "description": "broker"}
                ],
                **(_of_asked(call) if name == call.broker.name else {}),
                **figures(call.broker.statistics.node(name, spans)),
            }
        )
    return rows


def _of_asked(call: Call) -> Object:
    """What a member shows only of itself."""
    mechanisms = call.broker.clients.gateway.logins.mechanisms
    return {
        "contexts": [*_contexts(call)],
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True} for name in mechanisms
        ],
    }


def roles_in(status: Mapping[str, object]) -> dict[str, str]:
    """The roles of members, in an active-passive cluster."""
    ha = status.get("ha")
    members = ha.get("members") if isinstance(ha, dict) else None
    listed = members if isinstance(members, list) else []
    return {str(one["id"]): str(one["status"]) for one in listed if isinstance(one, dict)}


async def list_nodes(call: Call) -> Reply | StreamResponse:
    return await Listing(
        node_rows(call), lambda row: row, lambda row: (str(row["name"]),),
        lambda row: str(row["name"]),
    ).reply(call)  # fmt: skip


def _node(call: Call) -> Object:
    """The member in the path."""
    for row in node_rows(call, call.spans()):
        if row["name"] == call.names["node"]:
            return row
    raise not_found()


def _memory_of(node: Object) -> Object:
    """The system's figures; how the memory is used is not broken down."""
    total: Object = {"rss": node["mem_used"]} if "mem_used" in node else {}
    return {"memory": {"strategy": "rss", "total": total}}


async def show_node(call: Call) -> Reply:
    node = _node(call)
    return chosen(call, node | _memory_of(node) if call.flag("memory") else node)


async def show_memory(call: Call) -> Reply:
    return Reply(body=_memory_of(_node(call)))


async def show_attempts(call: Call) -> Reply:
    """The logins at a member since its start, without those served from the cache."""
    found = _node(call).get("qpidd")
    told = found if isinstance(found, dict) else {}
    rows: list[Object] = []
    for protocol, who in (("http", "operators"), ("amqp091", "clients")):
        good, refused = (
            told.get(f"logins_{kind}_total") for kind in (who, f"{who}_refused")
        )  # None: nothing was received from that member
        if isinstance(good, int | float) and isinstance(refused, int | float):
            rows.append(
                {
                    "protocol": protocol,
                    "auth_attempts": round(good + refused),
                    "auth_attempts_failed": round(refused),
                    "auth_attempts_succeeded": round(good),
                }
            )
    return Reply(body=[*rows])


async def show_sources(call: Call) -> Reply:
    """The sources of logins are not counted; RabbitMQ counts them only when told to."""
    _node(call)
    return Reply(body=[])


async def show_processes(call: Call) -> Reply:
    """The processes of the node: there is one, so this names it and no more."""
    return Reply(body={"node": _node(call)["name"], "processes": []})


async def list_flags(_call: Call) -> Reply:
    return Reply(body=[
        {
            "name": name, "desc": text, "doc_url": "", "stability": "stable",
            "state": "enabled", "provided_by": "rabbit",
        }
        for name, text in FEATURE_FLAGS.items()
    ])  # fmt: skip


async def enable_flag(call: Call) -> Reply:
    """Flags need no switching: every feature is on."""
    if call.names["name"] not in FEATURE_FLAGS:
        raise bad_request("unsupported")
    return Reply(204)


async def who_am_i(call: Call) -> Reply:
    return Reply(body={"name": call.user.name, "tags": sorted(call.user.tags)})


async def cluster_name(call: Call) -> Reply:
    return Reply(body={"name": call.broker.cluster or call.broker.name})


async def extensions(_call: Call) -> Reply:
    return Reply(body=[])


async def auth_kind(_call: Call) -> Reply:
    return Reply(body={"oauth_enabled": False, "enable_uaa": False})


async def cluster(call: Call) -> Reply:
    """The members, the votes and the history of this member, in the form of `qpid-cluster
    --json`.
    """
    return Reply(body=call.broker.operations.status())


async def force_out(call: Call) -> Reply:
    """Make a member leave."""
    call.broker.operations.stop_member(call.names["node"])
    return Reply(204)


async def drain(call: Call) -> Reply:
    """Make a member refuse clients, until it is undrained or restarted."""
    force = call.flag("force")
    call.broker.operations.drain(call.names["node"], on=True, force=force)
    return Reply(204)


async def undrain(call: Call) -> Reply:
    call.broker.operations.drain(call.names["node"], on=False, force=False)
    return Reply(204)


async def rebalance(_call: Call) -> Reply:
    """There is nothing to move: no queue has a leader."""
    return Reply(204)


ROUTES = at_any_member(
    Route("overview", {"GET": show_overview}),
    Route("whoami", {"GET": who_am_i}),
    Route("cluster-name", {"GET": cluster_name}),
    Route("extensions", {"GET": extensions}),
    Route("auth", {"GET": auth_kind}),
    Route("auth/attempts/{node}", {"GET": show_attempts}, "monitoring"),
    Route("auth/attempts/{node}/source", {"GET": show_sources}, "monitoring"),
    Route("nodes", {"GET": list_nodes}, "monitoring"),
    Route("nodes/{node}", {"GET": show_node}, "monitoring"),
    Route("nodes/{node}/memory", {"GET": show_memory}, "monitoring"),
    Route("top/{node}", {"GET": show_processes}, "monitoring"),
    Route("feature-flags", {"GET": list_flags}),
    Route("feature-flags/{name}/enable", {"PUT": enable_flag}, "administrator"),
    Route("qpid/cluster", {"GET": cluster}, "monitoring"),
    Route("qpid/members/{node}", {"DELETE": force_out}, "administrator"),
    Route("qpid/members/{node}/drain", {"PUT": drain, "DELETE": undrain}, "administrator"),
    Route("rebalance/queues", {"POST": rebalance}, "administrator"),
)
