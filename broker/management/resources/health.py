"""Health checks over HTTP: 200 when healthy, otherwise 503 with a reason.

Alive, ready and safe to stop are different questions, each with its own path. The two that an
orchestrator asks need no login, because a member that is still joining knows no users; strangers
get only yes or no.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from broker.management.call import Call, Reply, Route, at_any_member, bad_request
from broker.management.json_values import Json, Object, figures
from vsync.quorum.reconfiguration import go_on
from vsync.quorum.voter_set import parse

PROTOCOLS = {"amqp091": "amqp", "amqp": "amqp", "amqp/ssl": "amqp/ssl", "amqps": "amqp/ssl",
             "http": "http", "https": "https"}  # fmt: skip


DAYS = {"days": 1, "weeks": 7, "months": 31, "years": 366}
"""The units of time, at their longest."""


def _well(**more: Json) -> Reply:
    return Reply(body={"status": "ok", **more})


def _ill(reason: str, **more: Json) -> Reply:
    return Reply(503, {"status": "failed", "reason": reason, **more})


def _alarms(call: Call, member: str | None = None) -> list[Json]:
    return [
        {"node": name, "resource": subject}
        for name, subject in call.broker.machine.alarms
        if member in (None, name)
    ]


async def alarms(call: Call) -> Reply:
    found = _alarms(call)
    text = "There are alarms in effect in the cluster"
    return _ill(text, alarms=found) if found else _well()


async def local_alarms(call: Call) -> Reply:
    found = _alarms(call, call.broker.name)
    text = "There are alarms in effect on the node"
    return _ill(text, alarms=found) if found else _well()


async def virtual_hosts(call: Call) -> Reply:
    """All virtual hosts run where this member serves."""
    serving = call.broker.controller.serving
    return _well() if serving else _ill("Some virtual hosts are down", **_why(call))


async def port_listener(call: Call) -> Reply:
    text = call.names["port"]
    if not (text.isascii() and text.isdigit()) or len(text) > 5:
        raise bad_request("Invalid port")
    ports: list[Json] = [port for _, _, port in call.broker.listeners]
    if int(text) in ports:
        return _well(port=int(text))
    return _ill("No active listener", missing=int(text), ports=ports)


async def protocol_listener(call: Call) -> Reply:
    wanted = call.names["protocol"].lower()
    protocols: list[Json] = [protocol for protocol, _, _ in call.broker.listeners]
    if PROTOCOLS.get(wanted, wanted) in protocols:
        return _well(protocol=wanted)
    return _ill("No active listener", missing=wanted, protocols=protocols)


async def quorum_critical(call: Call) -> Reply:
    """Whether the cluster would stop serving without this member."""
    controller, me = call.broker.controller, call.broker.name
    voters = controller.promise.voters
    electorate, others = parse(voters), controller.primary.caught_up_names - {me}
    if len(electorate.names) < 2 or me not in electorate.names or go_on(voters, others):
        return _well()
    return _ill(
        "The cluster would lose its quorum if the target node is shut down",
        quorum=electorate.latest.quorum, votes=electorate.latest.votes_of(others),
    )  # fmt: skip


async def mirror_critical(call: Call) -> Reply:
    """Whether some member of the view lacks the whole state."""
    controller = call.broker.controller
    primary = controller.primary
    joining = {member.name for member in primary.members} - primary.caught_up_names
    if len(primary.caught_up_names - {call.broker.name}) or not joining:
        return _well()
    return _ill("No other member has the whole state yet", joining=[*sorted(joining)])


async def certificates(call: Call) -> Reply:
    """Whether the certificate that clients see is valid for this long, if there is TLS."""
    within, unit = call.names["within"], call.names["unit"]
    if not (within.isascii() and within.isdigit()) or len(within) > 5 or unit not in DAYS:
        raise bad_request(f"Invalid time: a whole number, then one of {', '.join(DAYS)}")
    tls = call.broker.tls()
    if tls is None:
        return _well()
    ends_at = tls.ends_at
    if ends_at is None:
        return _ill("The certificate cannot be read back", warning=tls.warning)
    if ends_at - time.time() > int(within) * DAYS[unit] * 86_400:
        return _well()
    until = datetime.fromtimestamp(ends_at, UTC).isoformat()
    return _ill("Certificates expiring", expired=[{"name": call.broker.name, "until": until}])


async def ready(call: Call) -> Reply:
    """Whether clients that connect here are served."""
    if not call.broker.controller.serving:
        return _ill("This member does not serve clients now", **_why(call))
    if call.broker.clients.gateway.admission.standby:
        return _ill("This member is a backup", **_why(call))
    return _ill("This member is drained", **_why(call)) if _is_drained(call) else _well()


async def in_service(call: Call) -> Reply:
    """Whether this member takes part, if only by waiting, and no operator has drained it."""
    if call.broker.controller.halted:
        return _ill("This member is not in service", **_why(call))
    return _ill("This member is drained", **_why(call)) if _is_drained(call) else _well()


async def target_size(call: Call) -> Reply:
    """Whether all voters are present and have the state."""
    controller = call.broker.controller
    voters = set(parse(controller.promise.voters).data_names)
    missing = sorted(voters - controller.primary.caught_up_names)
    if voters and not missing:
        return _well()
    return _ill("The cluster has not reached its size", missing=[*missing])


async def node(call: Call) -> Reply:
    """The check of older releases: this member serves, and has no alarm."""
    if call.names.get("node", call.broker.name) != call.broker.name:
        return _ill("only the node that is asked can be checked")
    if not call.broker.controller.serving:
        return _ill("not serving", **_why(call))
    return await local_alarms(call)


async def findings(call: Call) -> Reply:
    """What is wrong with the cluster as this member sees it, and what to do."""
    return Reply(body=figures(call.broker.findings.document()))


def _is_drained(call: Call) -> bool:
    return bool(call.broker.clients.gateway.admission.drained)


def _why(call: Call) -> Object:
    """The reason, for users who may see it."""
    return {"detail": call.broker.controller.reason} if call.user.manages else {}


ANYBODY = ""
CHECK = "health/checks"
ROUTES = at_any_member(
    Route(f"{CHECK}/alarms", {"GET": alarms}),
    Route(f"{CHECK}/local-alarms", {"GET": local_alarms}),
    Route(f"{CHECK}/virtual-hosts", {"GET": virtual_hosts}),
    Route(f"{CHECK}/port-listener/{{port}}", {"GET": port_listener}),
    Route(f"{CHECK}/protocol-listener/{{protocol}}", {"GET": protocol_listener}),
    Route(f"{CHECK}/node-is-quorum-critical", {"GET": quorum_critical}),
    Route(f"{CHECK}/node-is-mirror-sync-critical", {"GET": mirror_critical}),
    Route(f"{CHECK}/certificate-expiration/{{within}}/{{unit}}", {"GET": certificates}),
    Route(f"{CHECK}/reached-target-cluster-size", {"GET": target_size}),
    Route(f"{CHECK}/ready-to-serve-clients", {"GET": ready}, ANYBODY),
    Route(f"{CHECK}/is-in-service", {"GET": in_service}, ANYBODY),
    Route("qpid/findings", {"GET": findings}, "monitoring"),
    Route("healthchecks/node", {"GET": node}),
    Route("healthchecks/node/{node}", {"GET": node}),
)
