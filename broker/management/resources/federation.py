"""Federation links over HTTP: their status, at whatever member, and their restart.

They come from policies (`federation-upstream`, `federation-upstream-set`) and parameters of the
components `federation-upstream` and `federation-upstream-set`.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from broker.management.call import Call, Reply, Route, not_found
from broker.management.resources.shovels import MONITORING, POLICYMAKER, stamped
from broker.shovels.status import TERMINATED, Key

Row = Mapping[str, object]
STATES = {TERMINATED: "error"}
"""RabbitMQ's names for the states of links."""


def link_id(key: Key) -> str:
    """A short name of a link, the same at all members."""
    return blake2b("\0".join(key).encode(), digest_size=4).hexdigest()


def _rows(call: Call) -> list[Row]:
    vhosts = {vhost.name for vhost in call.vhosts()}
    rows = []
    for one in call.broker.shovels.link_rows():
        key = one.pop("key")
        if one["vhost"] in vhosts:
            assert isinstance(key, tuple)
            rows.append(_row(link_id(key), one))
    return rows


def _row(name: str, one: dict[str, object]) -> Row:
    row = stamped(one)
    state = str(row.pop("state"))
    row |= {"id": name, "status": STATES.get(state, state)}
    if "reason" in row:
        row["error"] = row.pop("reason")
    return row


async def list_links(call: Call) -> Reply:
    """All links that this user may see, or those of one virtual host."""
    return Reply(body=_rows(call))


async def list_links_down(call: Call) -> Reply:
    """Links that do not run."""
    return Reply(body=[row for row in _rows(call) if row["status"] != "running"])


async def restart_link(call: Call) -> Reply:
    """Restart it at the member that runs it."""
    call.vhost()
    vhost, name = call.names["vhost"], call.names["id"]
    for one in call.broker.shovels.link_rows():
        key = one["key"]
        assert isinstance(key, tuple)
        if key[0] == vhost and link_id(key) == name and call.broker.shovels.restart(key):
            return Reply(204)
    raise not_found(f"there is no federation link '{name}' in vhost '{vhost}'")


ROUTES = (
    Route("federation-links", {"GET": list_links}, MONITORING),
    Route("federation-links/{vhost}", {"GET": list_links}, MONITORING),
    Route("federation-links/state/down", {"GET": list_links_down}, MONITORING),
    Route("federation-links/vhost/{vhost}/{id}/restart", {"DELETE": restart_link}, POLICYMAKER),
    Route(
        "federation-links/vhost/{vhost}/{id}/{node}/restart", {"DELETE": restart_link}, POLICYMAKER
    ),
)
