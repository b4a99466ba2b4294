"""The lists that qpidctl prints: their API paths, and their columns by scripts' names for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.client.http_api import Api, Json
from tools.operate.output import Column, asked, at
from vsync.types import record

PATHS_OF_VHOSTS = frozenset(
    ("queues", "exchanges", "bindings", "consumers", "policies", "operator-policies")
)
"""Lists that the API offers for one virtual host under `/VHOST`; other lists are filtered here."""


@record
class Listing:
    """One list."""

    path: str
    default: tuple[str, ...]
    columns: Mapping[str, Column]
    per_vhost: bool = True
    help: str = ""
    of_user: bool = False
    """The verb names a user: the rows are those of `users/USER/PATH`."""
    narrowed_by: tuple[str, ...] = ()
    """Options of the verb: `global` means all virtual hosts, `user` only the rows of this user."""

    def rows(
        self, api: Api, vhost: str | None, columns: Sequence[str], user: str | None = None
    ) -> list[list[Json]]:
        """Request the list and extract the columns."""
        inside = vhost is not None and self.path in PATHS_OF_VHOSTS
        chosen = [self.columns[name] for name in columns]
        names: tuple[str, ...] = (self.path, vhost) if inside and vhost else (self.path,)
        if user is not None:
            names = ("users", user, self.path) if self.of_user else (self.path, user)
        found = api.rows(*names, columns=asked(chosen, "vhost"))
        return [
            [column(row) for column in chosen]
            for row in found
            if vhost is None or row.get("vhost", vhost) == vhost
        ]


def fields(*names: str, **others: str) -> dict[str, Column]:
    """Columns that are fields of the API's rows: under the same name, or `column="path"`."""
    found = {name: at(name) for name in names}
    return found | {name: at(path) for name, path in others.items()}


def nothing_here(*names: str) -> dict[str, Column]:
    """Columns that scripts request and that are always empty here."""
    return dict.fromkeys(names, NOTHING)


NOTHING = Column("name", lambda _: None)


def _tags(tags: Json) -> Json:
    if isinstance(tags, str):
        return [*tags.split(",")] if tags else []
    return tags or []


_STATS = {
    column: at(f"message_stats.{stat}_details.rate")
    for column, stat in (
        ("publish_rate", "publish"), ("deliver_rate", "deliver_get"), ("ack_rate", "ack"),
    )
}  # fmt: skip

QUEUES = Listing(
    "queues",
    ("name", "messages"),
    fields(
        "name", "durable", "auto_delete", "exclusive", "arguments", "policy", "operator_policy",
        "effective_policy_definition", "messages", "messages_ready", "messages_unacknowledged",
        "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "consumers",
        "consumer_utilisation", "consumer_capacity", "state", "type", "vhost", "slave_nodes",
        "synchronised_slave_nodes", "idle_since", "exclusive_consumer_tag", "deduplication_keys",
        "deduplicated", "replaced", "groups", "groups_held", "groups_kept", "browsers",
        "first_offset", "next_offset", "max_offset_lag", "messages_dlx", "message_bytes_dlx",
        "memory", "messages_ram", "messages_ready_ram", "messages_unacknowledged_ram",
        "message_bytes_ram", "messages_paged_out", "message_bytes_paged_out",
        "leader", "members", "online",
        retention_bytes="retention.bytes", retention_seconds="retention.seconds",
        pid="node", slave_pids="slave_nodes", synchronised_slave_pids="synchronised_slave_nodes",
        mirror_pids="slave_nodes", synchronised_mirror_pids="synchronised_slave_nodes",
        owner_pid="owner_pid_details.name",
    )
    | nothing_here(
        "messages_persistent", "message_bytes_persistent", "disk_reads", "disk_writes",
        "head_message_timestamp", "exclusive_consumer_pid",
    )
    | _STATS,
    help="Queues of one virtual host.",
)  # fmt: skip
EXCHANGES = Listing(
    "exchanges",
    ("name", "type"),
    fields(
        "name", "type", "durable", "auto_delete", "internal", "arguments", "policy", "vhost",
        "messages_delayed",
        publish_in_rate="message_stats.publish_in_details.rate",
        publish_out_rate="message_stats.publish_out_details.rate",
    ),
    help="Exchanges of one virtual host.",
)  # fmt: skip
BINDINGS = Listing(
    "bindings",
    (
        "source_name", "source_kind", "destination_name", "destination_kind", "routing_key",
        "arguments",
    ),
    fields(
        "routing_key", "arguments", "vhost", "properties_key", source_name="source",
        destination_name="destination", destination_kind="destination_type",
    )
    | {"source_kind": Column("source", lambda _: "exchange")},
    help="Bindings of one virtual host.",
)  # fmt: skip
CONNECTIONS = Listing(
    "connections",
    ("user", "peer_host", "peer_port", "state"),
    fields(
        "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol", "ssl_cipher",
        "ssl_hash", "ssl_key_exchange", "peer_cert_subject", "peer_cert_issuer",
        "peer_cert_validity", "state", "channels", "protocol", "auth_mechanism", "user", "vhost",
        "timeout", "frame_max", "channel_max", "client_properties", "recv_oct", "recv_cnt",
        "send_oct", "send_cnt", "send_pend", "connected_at", "node", pid="name",
    ),
    per_vhost=False,
    help="Clients' connections at all members; `pid` is what close_connection takes.",
)  # fmt: skip
CHANNELS = Listing(
    "channels",
    ("pid", "user", "consumer_count", "messages_unacknowledged"),
    fields(
        "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count",
        "messages_unacknowledged", "messages_uncommitted", "acks_uncommitted",
        "messages_unconfirmed", "prefetch_count", "global_prefetch_count", "state", "node",
        pid="name", connection="connection_details.name",
    ),
    per_vhost=False,
    help="Open channels at all members.",
)  # fmt: skip
CONSUMERS = Listing(
    "consumers",
    (
        "queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active",
        "arguments",
    ),
    fields(
        "consumer_tag", "ack_required", "prefetch_count", "active", "activity_status", "arguments",
        "exclusive", "offset", "offset_lag", "filtered", "browses", "groups_kept",
        queue_name="queue.name", channel_pid="channel_details.name",
        vhost="queue.vhost",
    ),
    help="Consumers of one virtual host.",
)  # fmt: skip
USERS = Listing(
    "users", ("user", "tags"), fields(user="name") | {"tags": Column("tags", _tags)},
    per_vhost=False, help="Users and their tags.",
)  # fmt: skip
VHOSTS = Listing(
    "vhosts", ("name",),
    fields("name", "description", "tags", "tracing", "messages", "messages_ready",
           "messages_unacknowledged", "cluster_state", "default_queue_type"),
    per_vhost=False, help="Virtual hosts.",
)  # fmt: skip
PERMISSION = fields("user", "vhost", "configure", "write", "read")
TOPIC_PERMISSION = fields("user", "vhost", "exchange", "write", "read")
POLICY = fields("vhost", "name", "pattern", "definition", "priority", **{"apply-to": "apply-to"})
POLICY_COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")

LISTINGS: dict[str, Listing] = {
    "list_queues": QUEUES,
    "list_exchanges": EXCHANGES,
    "list_bindings": BINDINGS,
    "list_connections": CONNECTIONS,
    "list_channels": CHANNELS,
    "list_consumers": CONSUMERS,
    "list_users": USERS,
    "list_vhosts": VHOSTS,
    "list_permissions": Listing(
        "permissions", ("user", "configure", "write", "read"), PERMISSION,
        help="What users may do in one virtual host.",
    ),
    "list_topic_permissions": Listing(
        "topic-permissions", ("user", "exchange", "write", "read"), TOPIC_PERMISSION,
        help="What users may do by topic in one virtual host.",
    ),
    "list_user_permissions": Listing(
        "permissions", ("vhost", "configure", "write", "read"), PERMISSION, per_vhost=False,
        help="What one user may do, in all virtual hosts.", of_user=True,
    ),
    "list_user_topic_permissions": Listing(
        "topic-permissions", ("vhost", "exchange", "write", "read"), TOPIC_PERMISSION,
        per_vhost=False, help="What one user may do by topic, in all virtual hosts.", of_user=True,
    ),
    "list_policies": Listing(
        "policies", POLICY_COLUMNS, POLICY, help="Policies of one virtual host."
    ),
    "list_operator_policies": Listing(
        "operator-policies", POLICY_COLUMNS, POLICY, help="Operator policies of one virtual host."
    ),
    "list_parameters": Listing(
        "parameters", ("component", "name", "value"), fields("component", "name", "value", "vhost"),
        help="Parameters of one virtual host.",
    ),
    "shovel_status": Listing(
        "shovels",
        ("name", "vhost", "state", "node", "forwarded", "reason"),
        fields(
            "name", "vhost", "type", "state", "node", "timestamp", "reason", "forwarded",
            "blocked_status", "src_uri", "src_queue", "src_exchange", "src_exchange_key",
            "src_protocol", "dest_uri", "dest_queue", "dest_exchange", "dest_exchange_key",
            "dest_protocol",
        ),
        per_vhost=False, help="Shovels of all virtual hosts, and their states.",
    ),
    "federation_status": Listing(
        "federation-links",
        ("id", "vhost", "exchange", "queue", "upstream", "status", "node", "forwarded", "error"),
        fields(
            "id", "vhost", "type", "upstream", "status", "node", "forwarded", "error", "exchange",
            "queue", "upstream_exchange", "upstream_queue", "uri", "timestamp", "blocked_status",
        ),
        per_vhost=False, help="Federation links of all virtual hosts, and their states.",
    ),
    "replica_status": Listing(
        "queue-replicas", ("queue", "vhost", "state", "level", "behind", "node", "reason"),
        fields(
            "queue", "vhost", "state", "level", "behind", "node", "timestamp", "reason",
            "forwarded", "src_uri", "src_queue",
        ),
        per_vhost=False, help="Queues that are replicas of queues elsewhere.",
    ),
    "list_global_parameters": Listing(
        "global-parameters", ("name", "value"), fields("name", "value"), per_vhost=False,
        help="Parameters of the cluster.",
    ),
    "list_vhost_limits": Listing(
        "vhost-limits", ("vhost", "limits"), fields("vhost", limits="value"),
        help="Limits of one virtual host, or of all.", narrowed_by=("global",),
    ),
    "list_user_limits": Listing(
        "user-limits", ("user", "limits"), fields("user", limits="value"), per_vhost=False,
        help="Limits of users.", narrowed_by=("global", "user"),
    ),
}  # fmt: skip
"""Each list by its verb."""
