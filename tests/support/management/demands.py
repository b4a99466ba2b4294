"""The permissions that each path and method of the management API demands: one row for each.

The matrix of tests/unit/management/test_permission_matrix.py requests all of them as every kind of
user; docs/reference/http-api.md shows the table.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.management.resources.federation import link_id

VHOST = "theirs"
QUEUE, OTHER_QUEUE, NEW = "mine-queue", "mine-other", "mine-new"
EXCHANGE, OTHER_EXCHANGE = "mine-exchange", "mine-fanout"
SUBJECT = "subject"
"""The user that paths refer to."""

NAMES = {
    "vhost": VHOST, "queue": QUEUE, "exchange": EXCHANGE, "source": EXCHANGE,
    "destination": OTHER_EXCHANGE, "props": "key", "user": SUBJECT, "node": "a",
    "name": "max-queues",
    "component": "shown", "port": "5672", "protocol": "amqp", "within": "1", "unit": "weeks",
    "channel": "none", "id": link_id((VHOST, "exchange", "amq.fanout", "far")),
}  # fmt: skip
"""The values for the names in a path."""

CONFIGURE, WRITE, READ = "configure", "write", "read"
SEE, ENTER = "see", "enter"
OWN = "own"


class Demand(NamedTuple):
    """One path and method; `good` is the status for a permitted user."""

    method: str
    path: str
    tag: str = "management"
    """The least tag; empty: no login is needed."""
    vhost: str = ""
    """`see`: a permission of any kind in the virtual host, or monitoring of all; `enter`: a
    permission of any kind, whatever the tags; empty: it belongs to none, or invisible objects are
    left out."""
    amqp: tuple[str, ...] = ()
    """Permissions of AMQP, each on the object that the path names."""
    good: int = 200
    body: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    """Values other than NAMES."""
    on: str = ""
    """The objects of the permissions, for readers."""


def _listed(*paths: str, tag: str = "management") -> list[Demand]:
    """Lists: objects that a user may not see are left out; the list of one virtual host is
    refused."""
    return [Demand("GET", path, tag, SEE if "{vhost}" in path else "") for path in paths]


_ADMIN, _MAKER, _MONITOR = "administrator", "policymaker", "monitoring"
_PERMISSION = '{"configure": "", "write": "", "read": ""}'
_POLICY = '{"pattern": "^none$", "definition": {"max-length": 1}}'
_LIMIT = '{"value": 100}'
_GET = '{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}'
_MESSAGE = '{"routing_key": "key", "payload": "x", "payload_encoding": "string", "properties": {}}'
_MOVE = f'{{"to": "{OTHER_QUEUE}"}}'
_NAMED_P, _NAMED_G, _NAMED_S = (("name", "kept"),), (("name", "set"),), (("name", "moving"),)
_TOPIC = (("exchange", "amq.topic"),)
_QUEUES, _EXCHANGES = "queues/{vhost}/{queue}", "exchanges/{vhost}/{exchange}"
_TO_QUEUE = "bindings/{vhost}/e/{source}/q/{queue}"
_TO_EXCHANGE = "bindings/{vhost}/e/{source}/e/{destination}"

DEMANDS: tuple[Demand, ...] = (
    *_listed("overview", "whoami", "cluster-name", "extensions", "auth", "feature-flags"),
    *_listed("nodes", "nodes/{node}", "nodes/{node}/memory", "auth/attempts/{node}",
             "auth/attempts/{node}/source", "top/{node}", "qpid/cluster", "qpid/findings",
             tag=_MONITOR),
    Demand("PUT", "feature-flags/{name}/enable", _ADMIN, good=204,
           names=(("name", "quorum_queue"),)),
    Demand("DELETE", "qpid/members/{node}", _ADMIN, good=204),
    Demand("PUT", "qpid/members/{node}/drain", _ADMIN, good=204),
    Demand("DELETE", "qpid/members/{node}/drain", _ADMIN, good=204),
    Demand("POST", "rebalance/queues", _ADMIN, good=204),
    # queues and exchanges
    *_listed("queues", "queues/{vhost}", _QUEUES, f"{_QUEUES}/bindings"),
    Demand("PUT", _QUEUES, vhost=ENTER, amqp=(CONFIGURE,), good=201, body="{}",
           names=(("queue", NEW),), on="the queue"),
    Demand("DELETE", _QUEUES, vhost=ENTER, amqp=(CONFIGURE,), good=204, on="the queue"),
    Demand("DELETE", f"{_QUEUES}/contents", vhost=ENTER, amqp=(READ,), good=204, on="the queue"),
    Demand("POST", f"{_QUEUES}/actions", vhost=SEE, good=204, body='{"action": "sync"}'),
    Demand("POST", f"{_QUEUES}/get", vhost=ENTER, amqp=(READ,), body=_GET, on="the queue"),
    Demand("POST", f"{_QUEUES}/move", vhost=ENTER, amqp=(READ, WRITE), body=_MOVE,
           on="the queue (read), the default exchange (write)"),
    *_listed("exchanges", "exchanges/{vhost}", _EXCHANGES, f"{_EXCHANGES}/bindings/source",
             f"{_EXCHANGES}/bindings/destination"),
    Demand("PUT", _EXCHANGES, vhost=ENTER, amqp=(CONFIGURE,), good=201, body='{"type": "fanout"}',
           names=(("exchange", NEW),), on="the exchange"),
    Demand("DELETE", _EXCHANGES, vhost=ENTER, amqp=(CONFIGURE,), good=204, on="the exchange"),
    Demand("POST", f"{_EXCHANGES}/publish", vhost=ENTER, amqp=(WRITE,), body=_MESSAGE,
           on="the exchange"),
    # bindings
    *_listed("bindings", "bindings/{vhost}", _TO_QUEUE, f"{_TO_QUEUE}/{{props}}", _TO_EXCHANGE,
             f"{_TO_EXCHANGE}/{{props}}"),
    Demand("POST", _TO_QUEUE, vhost=ENTER, amqp=(WRITE, READ), good=201,
           body='{"routing_key": "new"}', on="the queue (write), the exchange (read)"),
    Demand("DELETE", f"{_TO_QUEUE}/{{props}}", vhost=ENTER, amqp=(WRITE, READ), good=204,
           on="the queue (write), the exchange (read)"),
    Demand("POST", _TO_EXCHANGE, vhost=ENTER, amqp=(WRITE, READ), good=201,
           body='{"routing_key": "new"}', on="the destination (write), the source (read)"),
    Demand("DELETE", f"{_TO_EXCHANGE}/{{props}}", vhost=ENTER, amqp=(WRITE, READ), good=204,
           on="the destination (write), the source (read)"),
    Demand("GET", "aliveness-test/{vhost}", vhost=ENTER, amqp=(CONFIGURE, WRITE, READ),
           on="the queue `aliveness-test`, the default exchange (write)"),
    # clients
    *_listed("connections", "connections/username/{user}", "vhosts/{vhost}/connections",
             "vhosts/{vhost}/channels", "channels", "consumers", "consumers/{vhost}"),
    Demand("GET", "connections/{name}", vhost=OWN),
    Demand("GET", "connections/{name}/channels", vhost=OWN),
    Demand("GET", "channels/{channel}", vhost=OWN),
    Demand("DELETE", "connections/{name}", vhost=OWN, good=204),
    Demand("DELETE", "connections/username/{user}", vhost=OWN, good=204),
    # health
    *_listed("health/checks/alarms", "health/checks/local-alarms", "health/checks/virtual-hosts",
             "health/checks/port-listener/{port}", "health/checks/protocol-listener/{protocol}",
             "health/checks/node-is-quorum-critical", "health/checks/node-is-mirror-sync-critical",
             "health/checks/certificate-expiration/{within}/{unit}",
             "health/checks/reached-target-cluster-size", "healthchecks/node",
             "healthchecks/node/{node}"),
    *_listed("health/checks/ready-to-serve-clients", "health/checks/is-in-service", tag=""),
    # virtual hosts, users, permissions
    *_listed("vhosts", "vhosts/{vhost}"),
    Demand("PUT", "vhosts/{vhost}", _ADMIN, good=201, body="{}", names=(("vhost", "new"),)),
    Demand("DELETE", "vhosts/{vhost}", _ADMIN, good=204, names=(("vhost", "empty"),)),
    Demand("POST", "vhosts/{vhost}/start/{node}", _ADMIN, SEE, good=204),
    *_listed("vhosts/{vhost}/permissions", "vhosts/{vhost}/topic-permissions", "users",
             "users/without-permissions", "users/{user}", "users/{user}/permissions",
             "users/{user}/topic-permissions", "permissions", "permissions/{vhost}/{user}",
             "topic-permissions", "topic-permissions/{vhost}/{user}", tag=_ADMIN),
    Demand("PUT", "users/{user}", _ADMIN, good=201, body='{"tags": ""}', names=(("user", "new"),)),
    Demand("DELETE", "users/{user}", _ADMIN, good=204),
    Demand("POST", "users/bulk-delete", _ADMIN, good=204, body=f'{{"users": ["{SUBJECT}"]}}'),
    Demand("PUT", "permissions/{vhost}/{user}", _ADMIN, SEE, good=204, body=_PERMISSION),
    Demand("DELETE", "permissions/{vhost}/{user}", _ADMIN, SEE, good=204),
    Demand("PUT", "topic-permissions/{vhost}/{user}", _ADMIN, SEE, good=204,
           body='{"exchange": "amq.topic", "write": "", "read": ""}'),
    Demand("DELETE", "topic-permissions/{vhost}/{user}", _ADMIN, SEE, good=204),
    Demand("GET", "topic-permissions/{vhost}/{user}/{exchange}", _ADMIN, SEE, names=_TOPIC),
    Demand("PUT", "topic-permissions/{vhost}/{user}/{exchange}", _ADMIN, SEE, good=204,
           names=_TOPIC, body='{"exchange": "amq.topic", "write": "", "read": ""}'),
    Demand("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", _ADMIN, SEE, good=204,
           names=_TOPIC),
    # policies, parameters, limits
    *_listed("policies", "policies/{vhost}", "operator-policies", "operator-policies/{vhost}"),
    Demand("GET", "policies/{vhost}/{name}", _MAKER, SEE, names=_NAMED_P),
    Demand("PUT", "policies/{vhost}/{name}", _MAKER, SEE, good=201, body=_POLICY),
    Demand("DELETE", "policies/{vhost}/{name}", _MAKER, SEE, good=204, names=_NAMED_P),
    Demand("GET", "operator-policies/{vhost}/{name}", _ADMIN, SEE, names=_NAMED_P),
    Demand("PUT", "operator-policies/{vhost}/{name}", _ADMIN, SEE, good=201, body=_POLICY),
    Demand("DELETE", "operator-policies/{vhost}/{name}", _ADMIN, SEE, good=204, names=_NAMED_P),
    *_listed("parameters", "parameters/{component}", "parameters/{component}/{vhost}", tag=_MAKER),
    Demand("GET", "parameters/{component}/{vhost}/{name}", _MAKER, SEE, names=_NAMED_P),
    Demand("PUT", "parameters/{component}/{vhost}/{name}", _MAKER, SEE, good=201, body=_LIMIT),
    Demand("DELETE", "parameters/{component}/{vhost}/{name}", _MAKER, SEE, good=204,
           names=_NAMED_P),
    *_listed("shovels", "shovels/{vhost}", tag=_MONITOR),
    *_listed("queue-replicas", "queue-replicas/{vhost}", tag=_MONITOR),
    Demand("GET", "shovels/vhost/{vhost}/{name}", _MONITOR, SEE, names=_NAMED_S),
    Demand("DELETE", "shovels/vhost/{vhost}/{name}", _MAKER, SEE, good=204, names=_NAMED_S),
    Demand("DELETE", "shovels/vhost/{vhost}/{name}/restart", _MAKER, SEE, good=204,
           names=_NAMED_S),
    *_listed("federation-links", "federation-links/{vhost}", "federation-links/state/down",
             tag=_MONITOR),
    Demand("DELETE", "federation-links/vhost/{vhost}/{id}/restart", _MAKER, SEE, good=204,
           ),
    Demand("DELETE", "federation-links/vhost/{vhost}/{id}/{node}/restart", _MAKER, SEE, good=204,
           ),
    *_listed("global-parameters", tag=_MAKER),
    Demand("GET", "global-parameters/{name}", _ADMIN, names=_NAMED_G),
    Demand("PUT", "global-parameters/{name}", _ADMIN, good=201, body=_LIMIT),
    Demand("DELETE", "global-parameters/{name}", _ADMIN, good=204, names=_NAMED_G),
    *_listed("vhost-limits", "vhost-limits/{vhost}"),
    Demand("PUT", "vhost-limits/{vhost}/{name}", _ADMIN, SEE, good=204, body=_LIMIT),
    Demand("DELETE", "vhost-limits/{vhost}/{name}", _ADMIN, SEE, good=204),
    *_listed("user-limits", "user-limits/{user}", tag=_ADMIN),
    Demand("PUT", "user-limits/{user}/{name}", _ADMIN, good=204, body=_LIMIT,
           names=(("name", "max-channels"),)),
    Demand("DELETE", "user-limits/{user}/{name}", _ADMIN, good=204,
           names=(("name", "max-connections"),)),
    # definitions
    *_listed("definitions", "definitions/{vhost}", "all-configuration", tag=_ADMIN),
    Demand("POST", "definitions", _ADMIN, good=204, body="{}"),
    Demand("POST", "definitions/{vhost}", _ADMIN, SEE, good=204, body="{}"),
    Demand("POST", "all-configuration", _ADMIN, good=204, body="{}"),
)  # fmt: skip

_VHOST_WORDS = {
    "": "-", SEE: "any permission there, or monitoring", ENTER: "any permission there",
    OWN: "-; connections of others: monitoring to see, administrator to close",
}  # fmt: skip


def table() -> str:
    """The rows for readers."""
    lines = [
        "| path | method | tag | virtual host | permission |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in sorted(DEMANDS, key=lambda one: (one.path, one.method)):
        needed = f"{', '.join(one.amqp)} on {one.on}" if one.amqp else "-"
        tag = one.tag or "no login"
        lines.append(
            f"| `{one.path}` | {one.method} | {tag} | {_VHOST_WORDS[one.vhost]} | {needed} |"
        )
    return "\n".join([*lines, ""])
