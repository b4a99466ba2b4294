"""The list of metrics: names, meanings, and the source of each.

The names are those that RabbitMQ's dashboards query, and this broker's own.
docs/reference/metrics.md lists them all; `python -m tests.metrics_page --write` renews it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.machine.queueing.streams import first_offset, max_lag
from broker.machine.state import Channel, Queue, ready_count
from broker.statistics.exposition import labels
from broker.statistics.figures import FIGURES, Figures

PROTOCOL = labels(protocol="amqp091")
QUEUE_TYPE = "rabbit_classic_queue"
OF_QUEUES = labels(protocol="amqp091", queue_type=QUEUE_TYPE)

Value = Callable[[Figures], float]


class Global(NamedTuple):
    """A counter over all clients of this member, including those that left."""

    name: str
    text: str
    labels: str
    counts: tuple[str, ...]


GLOBAL = (
    Global("messages_received_total", "Messages received from publishers", PROTOCOL, ("publish",)),
    Global("messages_received_confirm_total",
           "Messages received from publishers, accepted, and to be confirmed", PROTOCOL,
           ("confirm",)),
    Global("messages_routed_total", "Messages routed to queues", PROTOCOL, ("routed",)),
    Global("messages_unroutable_dropped_total",
           "Messages published as non-mandatory and dropped as unroutable", PROTOCOL,
           ("drop_unroutable",)),
    Global("messages_unroutable_returned_total",
           "Messages published as mandatory and returned as unroutable", PROTOCOL,
           ("return_unroutable",)),
    Global("messages_delivered_total", "Messages delivered to consumers", OF_QUEUES,
           ("deliver", "deliver_no_ack", "get", "get_no_ack")),
    Global("messages_delivered_consume_manual_ack_total",
           "Messages delivered to consumers that acknowledge", OF_QUEUES, ("deliver",)),
    Global("messages_delivered_consume_auto_ack_total",
           "Messages delivered to consumers that do not acknowledge", OF_QUEUES,
           ("deliver_no_ack",)),
    Global("messages_delivered_get_manual_ack_total",
           "Messages fetched with basic.get, to be acknowledged", OF_QUEUES, ("get",)),
    Global("messages_delivered_get_auto_ack_total",
           "Messages fetched with basic.get without acknowledgement", OF_QUEUES, ("get_no_ack",)),
    Global("messages_get_empty_total", "Times that basic.get found no message", OF_QUEUES,
           ("get_empty",)),
    Global("messages_redelivered_total", "Messages delivered again", OF_QUEUES, ("redeliver",)),
    Global("messages_acknowledged_total", "Messages acknowledged by consumers", OF_QUEUES,
           ("ack",)),
)  # fmt: skip
"""Metrics with the prefix `rabbitmq_global_`."""

DIED = {
    "maxlen": "Messages that a queue dropped, or refused, as it was full",
    "expired": "Messages that expired in a queue",
    "rejected": "Messages that consumers rejected",
    "delivery_limit": "Messages that came back to a queue more often than it lets them",
}
"""By reason, counters `rabbitmq_global_messages_dead_lettered_*_total`."""
STRATEGIES = ("disabled", "at_most_once", "at_least_once")
"""What becomes of dead letters; `disabled`: their queue has no dead-letter exchange."""

CHURN_TEXT = {
    "connections_opened": "Connections opened",
    "connections_closed": "Connections closed or lost",
    "channels_opened": "Channels opened",
    "channels_closed": "Channels closed",
    "queues_declared": "Queues declared, those that were there included",
    "queues_created": "Queues created",
    "queues_deleted": "Queues deleted",
}
OF_NOBODY = ("queues_created", "queues_deleted")
"""Reported by the first serving member, as dead letters are."""

NODE: tuple[tuple[str, str, Value], ...] = (
    ("process_open_fds", "Open file descriptors", lambda f: f["open_fds"]),
    ("process_max_fds", "Open file descriptors limit", lambda f: f["max_fds"]),
    ("process_open_tcp_sockets", "Sockets of clients", lambda f: f["client_sockets"]),
    ("process_max_tcp_sockets", "Open file descriptors limit", lambda f: f["max_fds"]),
    ("process_resident_memory_bytes", FIGURES["memory_bytes"], lambda f: f["memory_bytes"]),
    ("resident_memory_limit_bytes", FIGURES["memory_limit_bytes"],
     lambda f: f["memory_limit_bytes"]),
    ("disk_space_available_bytes", FIGURES["disk_free_bytes"], lambda f: f["disk_free_bytes"]),
    ("disk_space_available_limit_bytes", FIGURES["disk_free_limit_bytes"],
     lambda f: f["disk_free_limit_bytes"]),
    ("erlang_uptime_seconds", "Seconds since the broker process started", lambda f: f["uptime_s"]),
)  # fmt: skip
"""Gauges with the prefix `rabbitmq_`."""

NOT_FIGURES = (
    "pid", "processors", "open_fds", "max_fds", "client_sockets", "uptime_s", "memory_bytes",
    "memory_limit_bytes", "disk_free_bytes", "disk_free_limit_bytes", "messages_confirmed_total",
    "client_received_bytes_total", "client_sent_bytes_total",
)  # fmt: skip
"""Figures that are useless as a series, or exist under RabbitMQ's name."""


AUTH = {
    "asked": "Questions about users to the server of --auth-backends http",
    "allowed": "Those of them that were answered with yes",
    "denied": "Those of them that were answered with no",
    "failed": "Questions to it that had no answer, or none in time: refusals, too",
}
"""Counters with the prefix `qpidd_auth_`."""

HTTP = {
    "requests": "Requests at the ports of the management API",
    "requests_refused": "Those of them that were refused, logins and what is not there included",
    "requests_failed": "Those of them that failed by a fault of the broker",
    "logins": "Logins that were asked for and good, at the ports of the management API",
    "logins_refused": "Logins that were refused there",
    "connections_refused": "Connections that were not let in there, as there were too many",
}
"""Counters with the prefix `qpidd_http_`."""


SHOVEL = {
    "attempts": "Attempts of this member to run a shovel",
    "failed": "Those of them that ended with an error",
    "moved": "Messages that destinations took from shovels of this member",
}
"""Counters with the prefix `qpidd_shovel_`."""

FEDERATION = {
    "link_attempts": "Attempts of this member to run a link of federation",
    "link_failed": "Those of them that ended with an error",
    "link_moved": "Messages that came here over links that this member runs",
}
"""Counters with the prefix `qpidd_federation_`."""


class QueueMetric(NamedTuple):
    """A series for each queue."""

    family: str
    """Its family in /metrics/detailed."""
    name: str
    kind: str
    text: str
    value: Callable[[Queue], float]
    of: Callable[[Queue], bool] = lambda _: True
    """The queues that have it."""


def is_stream(queue: Queue) -> bool:
    return queue.stream is not None


def is_browsed(queue: Queue) -> bool:
    return queue.stream is None and queue.readers is not None


def has_groups(queue: Queue) -> bool:
    return queue.groups is not None


def _ready(queue: Queue) -> int:
    return len(queue.ready) + len(queue.returned)


QUEUE = (
    QueueMetric("queue_coarse_metrics", "queue_messages_ready", "gauge",
                "Messages ready to be delivered to consumers", _ready),
    QueueMetric("queue_coarse_metrics", "queue_messages_unacked", "gauge",
                "Messages delivered to consumers but not yet acknowledged", lambda q: q.unacked),
    QueueMetric("queue_coarse_metrics", "queue_messages", "gauge",
                "Sum of ready and unacknowledged messages: the depth of the queue; of a stream "
                "all that is kept", lambda q: _ready(q) + q.unacked * (q.stream is None)),
    QueueMetric("queue_consumer_count", "queue_consumers", "gauge", "Consumers of the queue",
                lambda q: len(q.consumers)),
    QueueMetric("queue_consumer_count", "queue_browsers", "gauge",
                "Those of them that browse: they take nothing from the queue",
                lambda q: q.readers.count if q.readers is not None else 0, is_browsed),
    QueueMetric("queue_coarse_metrics", "queue_groups", "gauge",
                "Message groups of the queue of which something waits, is held or is kept",
                lambda q: len(q.groups.by_key) if q.groups is not None else 0, has_groups),
    QueueMetric("queue_coarse_metrics", "queue_groups_held", "gauge",
                "Those of them of which somebody holds messages",
                lambda q: len(q.groups.held) if q.groups is not None else 0, has_groups),
    QueueMetric("queue_coarse_metrics", "queue_groups_kept", "gauge",
                "Those of them that stay with a consumer",
                lambda q: len(q.groups.kept) if q.groups is not None else 0, has_groups),
    QueueMetric("queue_coarse_metrics", "queue_messages_dlx", "gauge",
                "Dead letters of the queue that wait, as their exchange cannot pass them on",
                lambda q: ready_count(q.letters) if q.letters is not None else 0),
    QueueMetric("stream_consumer_metrics", "stream_consumer_max_offset_lag", "gauge",
                "Messages of the stream that its reader furthest behind has not looked at yet",
                max_lag, is_stream),
    QueueMetric("stream_metrics", "stream_first_offset", "gauge",
                "Offset of the first message that the stream keeps", first_offset, is_stream),
    QueueMetric("stream_metrics", "stream_next_offset", "gauge",
                "Offset that the stream's next message gets", lambda q: q.next_seq, is_stream),
    QueueMetric("queue_delivery_metrics", "queue_messages_published_total", "counter",
                "Messages that came into the queue", lambda q: q.tally.publish),
    QueueMetric("queue_delivery_metrics", "queue_messages_deduplicated_total", "counter",
                "Messages that the queue did not take, as it took one of the same key before",
                lambda q: q.tally.drop_duplicate),
    QueueMetric("queue_delivery_metrics", "queue_messages_replaced_total", "counter",
                "Messages of the queue that a newer one of the same key replaced",
                lambda q: q.tally.replaced),
    QueueMetric("queue_delivery_metrics", "queue_messages_delivered_ack_total", "counter",
                "Messages delivered to consumers that acknowledge", lambda q: q.tally.deliver),
    QueueMetric("queue_delivery_metrics", "queue_messages_delivered_total", "counter",
                "Messages delivered to consumers that do not acknowledge",
                lambda q: q.tally.deliver_no_ack),
    QueueMetric("queue_delivery_metrics", "queue_get_ack_total", "counter",
                "Messages fetched with basic.get, to be acknowledged", lambda q: q.tally.get),
    QueueMetric("queue_delivery_metrics", "queue_get_total", "counter",
                "Messages fetched with basic.get without acknowledgement",
                lambda q: q.tally.get_no_ack),
    QueueMetric("queue_delivery_metrics", "queue_get_empty_total", "counter",
                "Times that basic.get found no message", lambda q: q.tally.get_empty),
    QueueMetric("queue_delivery_metrics", "queue_messages_redelivered_total", "counter",
                "Messages delivered again", lambda q: q.tally.redeliver),
    QueueMetric("queue_delivery_metrics", "queue_messages_acked_total", "counter",
                "Messages acknowledged by consumers", lambda q: q.tally.ack),
)  # fmt: skip

CHANNEL: tuple[tuple[str, str, str, str, Callable[[Channel], float]], ...] = (
    ("channel_metrics", "channel_consumers", "gauge", "Consumers on the channel",
     lambda c: len(c.consumers)),
    ("channel_metrics", "channel_messages_unacked", "gauge",
     "Messages delivered and not yet acknowledged", lambda c: len(c.unacked)),
    ("channel_exchange_metrics", "channel_messages_published_total", "counter",
     "Messages published on the channel", lambda c: c.tally.publish),
    ("channel_exchange_metrics", "channel_messages_confirmed_total", "counter",
     "Messages published on the channel, accepted, and to be confirmed",
     lambda c: c.tally.confirm),
    ("channel_exchange_metrics", "channel_messages_unroutable_returned_total", "counter",
     "Messages returned as unroutable", lambda c: c.tally.return_unroutable),
    ("channel_exchange_metrics", "channel_messages_unroutable_dropped_total", "counter",
     "Messages dropped as unroutable", lambda c: c.tally.drop_unroutable),
    ("channel_queue_metrics", "channel_messages_delivered_ack_total", "counter",
     "Messages delivered, to be acknowledged", lambda c: c.tally.deliver),
    ("channel_queue_metrics", "channel_messages_delivered_total", "counter",
     "Messages delivered without acknowledgement", lambda c: c.tally.deliver_no_ack),
    ("channel_queue_metrics", "channel_get_ack_total", "counter",
     "Messages fetched with basic.get, to be acknowledged", lambda c: c.tally.get),
    ("channel_queue_metrics", "channel_get_total", "counter",
     "Messages fetched with basic.get without acknowledgement", lambda c: c.tally.get_no_ack),
    ("channel_queue_metrics", "channel_messages_redelivered_total", "counter",
     "Messages delivered again", lambda c: c.tally.redeliver),
    ("channel_queue_metrics", "channel_messages_acked_total", "counter",
     "Messages acknowledged", lambda c: c.tally.ack),
)  # fmt: skip

CONNECTION = (
    ("connection_coarse_metrics", "connection_incoming_bytes_total", "Bytes received"),
    ("connection_coarse_metrics", "connection_outgoing_bytes_total", "Bytes sent"),
    ("connection_metrics", "connection_channels", "Channels on the connection"),
)

DETAILED = tuple(
    dict.fromkeys(
        [
            "connection_churn_metrics", "auth_attempt_metrics", "node_coarse_metrics",
            "global_metrics",
            *[metric.family for metric in QUEUE], "queue_metrics",
            *[row[0] for row in CHANNEL], *[row[0] for row in CONNECTION], "exchange_metrics",
        ]
    )
)  # fmt: skip
"""The families that /metrics/detailed offers."""
