"""Shovels over HTTP: their status, at whatever member, their restart and deletion.

They are defined as parameters of the component `shovel` (`/api/parameters/shovel/VHOST/NAME`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from broker.management.call import Call, Reply, Route, not_found
from broker.management.json_values import Object, figures
from broker.management.resources.definitions import define
from broker.shovels.definition import COMPONENT

MONITORING, POLICYMAKER = "monitoring", "policymaker"


def _rows(call: Call) -> list[Object]:
    vhosts = {vhost.name for vhost in call.vhosts()}
    return [stamped(one) for one in call.broker.shovels.rows() if one["vhost"] in vhosts]


def stamped(one: dict[str, object]) -> Object:
    """A row with the time at which its state began, in words."""
    row = figures(one)
    since_ms = row.pop("since_ms", 0)
    if isinstance(since_ms, int) and since_ms:
        since = datetime.fromtimestamp(since_ms // 1000, UTC)
        row["timestamp"] = since.strftime("%Y-%m-%d %H:%M:%S")
    return row


async def list_shovels(call: Call) -> Reply:
    """All shovels that this user may see, or those of one virtual host."""
    return Reply(body=_rows(call))


def _key(call: Call) -> tuple[str, str]:
    call.vhost()
    return call.names["vhost"], call.names["name"]


async def show_shovel(call: Call) -> Reply:
    vhost, name = _key(call)
    for row in _rows(call):
        if row["name"] == name:
            return Reply(body=row)
    raise not_found(f"there is no shovel '{name}' in vhost '{vhost}'")


async def delete_shovel(call: Call) -> Reply:
    vhost, name = _key(call)
    return await define(call.broker, call.user, "parameter", vhost, f"{COMPONENT}/{name}", None)


async def restart_shovel(call: Call) -> Reply:
    """Restart it at the member that runs it."""
    vhost, name = _key(call)
    if not call.broker.shovels.restart((vhost, name)):
        raise not_found(f"there is no shovel '{name}' in vhost '{vhost}'")
    return Reply(204)


async def list_replicas(call: Call) -> Reply:
    """Queues kept the same as queues elsewhere that this user may see. They are defined as
    parameters of the component `queue-replica`."""
    vhosts = {vhost.name for vhost in call.vhosts()}
    rows = call.broker.shovels.replica_rows()
    return Reply(body=[stamped(one) for one in rows if one["vhost"] in vhosts])


ROUTES = (
    Route("queue-replicas", {"GET": list_replicas}, MONITORING),
    Route("queue-replicas/{vhost}", {"GET": list_replicas}, MONITORING),
    Route("shovels", {"GET": list_shovels}, MONITORING),
    Route("shovels/{vhost}", {"GET": list_shovels}, MONITORING),
    Route("shovels/vhost/{vhost}/{name}", {"GET": show_shovel}, MONITORING),
    Route("shovels/vhost/{vhost}/{name}", {"DELETE": delete_shovel}, POLICYMAKER),
    Route("shovels/vhost/{vhost}/{name}/restart", {"DELETE": restart_shovel}, POLICYMAKER),
)
