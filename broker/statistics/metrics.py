"""The metrics pages of one member; `metric_names` lists the metrics.

Facts that all members know are reported by one of them (`Statistics.home`), so that sums over
members are right. Counts of events count those of this member's clients, and never go back.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from broker.frontend.connections import Connections
from broker.histogram import Histogram
from broker.machine.handlers.alarms import DISK, FULL, MEMORY
from broker.machine.machine import Machine
from broker.machine.state import Channel, Queue, ready_count
from broker.machine.tally import Tally
from broker.release import version
from broker.statistics.exposition import Row, histogram_lines, labels, lines
from broker.statistics.figures import FIGURES, Figures
from broker.statistics.metric_names import (
    AUTH,
    CHANNEL,
    CHURN_TEXT,
    CONNECTION,
    DETAILED,
    DIED,
    FEDERATION,
    GLOBAL,
    HTTP,
    NODE,
    NOT_FIGURES,
    OF_NOBODY,
    PROTOCOL,
    QUEUE,
    QUEUE_TYPE,
    SHOVEL,
    STRATEGIES,
    QueueMetric,
)
from broker.statistics.sampler import CHURN
from broker.statistics.statistics import Statistics


class Observed(Protocol):
    """The sources of the metrics."""

    statistics: Statistics
    commit_took: Histogram

    def figures(self) -> Figures:
        """Return the current figures of this member."""

    @property
    def machine(self) -> Machine:
        """The replicated state."""


class Metrics:
    """The pages of one member, each as text in pieces, so that the sender can pause between."""

    def __init__(
        self,
        observed: Observed,
        clients: Connections,
        node: str,
        cluster: str,
        http: Callable[[], Mapping[str, int]],
        shovels: Callable[[], Mapping[str, int]],
        findings: Callable[[], list[tuple[str, str, int]]],
    ) -> None:
        """`http`: counts at the ports of the management API, by the names in HTTP; `shovels`:
        counts of shovels and links, by those in SHOVEL and FEDERATION; `findings`: for each
        possible finding its name, its severity, and the number of objects to which it applies now.
        """
        self._observed, self._clients, self._http = observed, clients, http
        self._shovels, self._findings = shovels, findings
        self._node, self._cluster = node, cluster

    def aggregated(self) -> Iterator[str]:
        """Return /metrics: sums, with as many lines for ten queues as for a hundred thousand."""
        yield from self._of_node("rabbitmq_", "aggregated")
        share = self._observed.statistics.sampler.share
        if self._observed.statistics.home_is_known:
            for name, text, value in (
                ("queue_messages_ready", QUEUE[0].text, share.ready),
                ("queue_messages_unacked", QUEUE[1].text, share.unacked),
                ("queue_messages", QUEUE[2].text, share.ready + share.unacked),
                ("queue_consumers", QUEUE[3].text, share.consumers),
                (
                    "channel_consumers",
                    "Consumers of the queues that this member reports",
                    share.consumers,
                ),
            ):
                yield from lines(f"rabbitmq_{name}", "gauge", text, [("", value)])
        yield from self._unconfirmed()
        sums = self._sums()
        for name, text, value in (
            ("queue_messages_published_total", "Messages that came into queues", sums.routed),
            ("channel_messages_published_total", "Messages published", sums.publish),
            ("channel_messages_confirmed_total",
             "Messages accepted, and to be confirmed", sums.confirm),
            ("channel_messages_unroutable_returned_total",
             "Messages returned as unroutable", sums.return_unroutable),
            ("channel_messages_unroutable_dropped_total",
             "Messages dropped as unroutable", sums.drop_unroutable),
            ("channel_messages_delivered_ack_total",
             "Messages delivered, to be acknowledged", sums.deliver),
            ("channel_messages_delivered_total",
             "Messages delivered without acknowledgement", sums.deliver_no_ack),
            ("channel_get_ack_total",
             "Messages fetched with basic.get, to be acknowledged", sums.get),
            ("channel_get_total",
             "Messages fetched with basic.get without acknowledgement", sums.get_no_ack),
            ("channel_get_empty_total",
             "Times that basic.get found no message", sums.get_empty),
            ("channel_messages_redelivered_total", "Messages delivered again", sums.redeliver),
            ("channel_messages_acked_total", "Messages acknowledged", sums.ack),
        ):  # fmt: skip
            yield from lines(f"rabbitmq_{name}", "counter", text, [("", value)])
        counters = self._clients.counters
        for name, text, count in (
            ("connection_incoming_bytes_total", "Bytes received", "bytes_in"),
            ("connection_outgoing_bytes_total", "Bytes sent", "bytes_out"),
        ):
            rows: list[Row] = [("", counters[count])]
            yield from lines(f"rabbitmq_{name}", "counter", text, rows)

    def _unconfirmed(self) -> Iterator[str]:
        """One sum over all channels here: a pause after each connection that has some."""
        waiting = 0
        for link in self._clients.links():
            for channel in link.client.channels.values():
                waiting += channel.publish_no - channel.confirms.taken
            yield ""
        text = "Messages published by clients of this member and not confirmed yet"
        name = "rabbitmq_channel_messages_unconfirmed"
        yield from lines(name, "gauge", text, [("", waiting)])

    def per_object(self) -> Iterator[str]:
        """Return /metrics/per-object: series for each queue, channel, connection and exchange."""
        yield from self._of_node("rabbitmq_", "per-object")
        yield from self._of_objects("rabbitmq_", DETAILED, ())

    def detailed(self, families: Collection[str], vhosts: Collection[str]) -> Iterator[str]:
        """Return /metrics/detailed: these families, in these virtual hosts or all."""
        yield from self._identity("detailed")
        prefix = "rabbitmq_detailed_"
        if "node_coarse_metrics" in families:
            yield from self._gauges(prefix, self._observed.figures())
        if "connection_churn_metrics" in families:
            yield from self._churn(prefix)
        if "auth_attempt_metrics" in families:
            yield from self._logins(prefix, self._observed.figures())
        if "global_metrics" in families:
            yield from self._globals()
        yield from self._of_objects(prefix, families, vhosts)

    # -- of the member ---------------------------------------------------------------------------

    def _of_node(self, prefix: str, endpoint: str) -> Iterator[str]:
        figures = self._observed.figures()
        yield from self._identity(endpoint)
        yield from self._gauges(prefix, figures)
        yield from self._globals()
        yield from self._churn(prefix)
        yield from self._logins(prefix, figures)
        yield from self._alarms(prefix)
        yield from self._own(figures)
        yield from self._found()

    def _identity(self, endpoint: str) -> Iterator[str]:
        """The identity of this member and of RabbitMQ's matching endpoint: series are joined with
        one of them."""
        node, cluster = self._node, self._cluster
        permanent = self._observed.machine.cluster_id
        identity = labels(
            rabbitmq_node=node, rabbitmq_cluster=cluster, rabbitmq_cluster_permanent_id=permanent,
            rabbitmq_endpoint=endpoint,
        )  # fmt: skip
        build = labels(
            rabbitmq_version=version(), product_name="qpid-cluster-py", product_version=version(),
            python_version=platform.python_version(), erlang_version="",
        )  # fmt: skip
        for name, text, found in (
            ("identity_info", "Node and cluster", identity),
            ("build_info", "Release", build),
        ):
            yield from lines(f"rabbitmq_{name}", "gauge", text, [(found, 1)])

    def _gauges(self, prefix: str, figures: Figures) -> Iterator[str]:
        for name, text, value in NODE:
            yield from lines(f"{prefix}{name}", "gauge", text, [("", value(figures))])

    def _sums(self) -> Tally:
        sums, machine = Tally(), self._observed.machine
        own = [one.messages for (member, _), one in machine.totals.items() if member == self._node]
        for name in {name for metric in GLOBAL for name in metric.counts}:
            setattr(sums, name, sum(getattr(tally, name) for tally in own))
        return sums

    def _globals(self) -> Iterator[str]:
        sums, counters = self._sums(), self._clients.counters
        for name, text, found, counts in GLOBAL:
            value = sum(getattr(sums, count) for count in counts)
            row = [(found, value)]
            yield from lines(f"rabbitmq_global_{name}", "counter", text, row)
        yield from self._dead_letters()
        links = self._clients.links()
        publishers = sum(link.client.is_publisher for link in links)
        share = self._observed.statistics.sampler.share
        connections = sum(link.conn > 0 for link in links)
        channels = sum(len(link.client.channels) for link in links)
        for name, kind, text, found, number in (
            ("global_messages_confirmed_total", "counter", "Messages confirmed to publishers",
             PROTOCOL, counters["confirmed"]),
            ("global_publishers", "gauge", "Connections that have published", PROTOCOL, publishers),
            ("global_consumers", "gauge", "Consumers", PROTOCOL, share.consumers),
            ("consumers", "gauge", "Consumers", "", share.consumers),
            ("queues", "gauge", "Queues", "", share.queues),
            ("connections", "gauge", "Connections open at this member", "", connections),
            ("channels", "gauge", "Channels open at this member", "", channels),
        ):  # fmt: skip
            yield from lines(f"rabbitmq_{name}", kind, text, [(found, number)])

    def _dead_letters(self) -> Iterator[str]:
        if not self._observed.statistics.is_first:
            return
        died = self._observed.machine.died
        for reason, text in DIED.items():
            rows: list[Row] = [
                (labels(queue_type=QUEUE_TYPE, dead_letter_strategy=one), died[reason, one])
                for one in STRATEGIES
            ]
            name = f"rabbitmq_global_messages_dead_lettered_{reason}_total"
            yield from lines(name, "counter", text, rows)

    def _logins(self, prefix: str, figures: Figures) -> Iterator[str]:
        """The figures of `auth/attempts` in the management API."""
        both = [
            (labels(protocol=protocol), figures[f"logins_{who}_total"],
             figures[f"logins_{who}_refused_total"])
            for protocol, who in (("amqp091", "clients"), ("http", "operators"))
        ]  # fmt: skip
        good: list[Row] = [(found, count) for found, count, _ in both]
        bad: list[Row] = [(found, count) for found, _, count in both]
        rows: list[Row] = [(found, count + refused) for found, count, refused in both]
        for name, text, of in (
            ("attempts", "Logins", rows), ("attempts_succeeded", "Logins that were good", good),
            ("attempts_failed", "Logins that were refused", bad),
        ):  # fmt: skip
            yield from lines(f"{prefix}auth_{name}_total", "counter", text, of)

    def _churn(self, prefix: str) -> Iterator[str]:
        totals, first = self._observed.machine.totals, self._observed.statistics.is_first
        for name in CHURN:
            of = "" if name in OF_NOBODY else self._node
            value = sum(getattr(one, name) for (member, _), one in totals.items() if member == of)
            rows: list[Row] = [("", value)] if of or first else []
            yield from lines(f"{prefix}{name}_total", "counter", CHURN_TEXT[name], rows)

    def _alarms(self, prefix: str) -> Iterator[str]:
        alarms, node = self._observed.machine.alarms, self._node
        disk = (node, DISK) in alarms or (node, FULL) in alarms
        away = self._observed.statistics.members_away
        for name, text, value in (
            (
                "alarms_memory_used_watermark",
                "1: too much memory is used",
                (node, MEMORY) in alarms,
            ),
            ("alarms_free_disk_space_watermark", "1: too little disk space is free", disk),
            ("alarms_file_descriptor_limit", "Always 0: the broker has no such alarm", False),
            ("unreachable_cluster_peers_count", "Voters that are not in the view", away),
        ):
            yield from lines(f"{prefix}{name}", "gauge", text, [("", value)])

    def _own(self, figures: Figures) -> Iterator[str]:
        for name, text in FIGURES.items():
            if name not in NOT_FIGURES and not name.endswith(("_p50_s", "_p99_s")):
                kind = "counter" if name.endswith("_total") else "gauge"
                rows: list[Row] = [("", figures[name])]
                yield from lines(metric_name(name), kind, text, rows)
        for part, texts, counted in (
            ("auth", AUTH, self._clients.auth_counters), ("http", HTTP, self._http()),
            ("shovel", SHOVEL, self._shovels()), ("federation", FEDERATION, self._shovels()),
        ):  # fmt: skip
            for name, text in texts.items():
                rows = [("", counted.get(name, 0))]
                yield from lines(f"qpidd_{part}_{name}_total", "counter", text, rows)
        yield from histogram_lines(
            "qpidd_confirm_seconds", "Seconds from a publish to its confirm, one at a time of a "
            "channel", self._clients.confirm_took,
        )  # fmt: skip
        yield from histogram_lines(
            "qpidd_store_commit_seconds", "Seconds of a commit to the store, its fsync "
            "included", self._observed.commit_took,
        )  # fmt: skip

    def _found(self) -> Iterator[str]:
        """Each member reports its own view: of several take the largest."""
        rows = [
            (labels(name=name, severity=severity), count)
            for name, severity, count in self._findings()
        ]
        text = "Of how many objects something is wrong, as this member sees it (docs/ONCALL.md)"
        yield from lines("qpidd_finding", "gauge", text, rows)

    # -- of objects ------------------------------------------------------------------------------

    def _of_objects(
        self, prefix: str, families: Collection[str], vhosts: Collection[str]
    ) -> Iterator[str]:
        metrics = [
            metric for metric in QUEUE
            if metric.family in families or (
                metric.family == "queue_consumer_count" and "queue_metrics" in families)
        ]  # fmt: skip
        if metrics:
            yield from self._of_queues(prefix, metrics, vhosts)
        channels = [row for row in CHANNEL if row[0] in families]
        if channels:
            yield from self._of_channels(prefix, channels, vhosts)
        if any(row[0] in families for row in CONNECTION):
            yield from self._of_connections(prefix, families, vhosts)
        if "exchange_metrics" in families and self._observed.statistics.is_first:
            yield from self._of_exchanges(prefix, vhosts)

    def _of_queues(
        self, prefix: str, metrics: list[QueueMetric], vhosts: Collection[str]
    ) -> Iterator[str]:
        is_mine = self._observed.statistics.is_mine
        queues: list[tuple[str, Queue]] = []
        for vhost in list(self._observed.machine.vhosts.values()):
            if vhosts and vhost.name not in vhosts:
                continue
            for queue in list(vhost.queues.values()):
                if is_mine(queue):
                    queues.append((labels(vhost=vhost.name, queue=queue.name), queue))
                yield ""  # a place to pause
        for metric in metrics:
            rows = ((found, metric.value(one)) for found, one in queues if metric.of(one))
            yield from lines(f"{prefix}{metric.name}", metric.kind, metric.text, rows)

    def _of_channels(
        self, prefix: str,
        metrics: list[tuple[str, str, str, str, Callable[[Channel], float]]],
        vhosts: Collection[str],
    ) -> Iterator[str]:  # fmt: skip
        channels: dict[str, Channel] = {}  # a duplicate series would spoil the scrape
        for channel in list(self._observed.machine.channels.values()):
            vhost, peer = channel.connection.vhost.name, channel.connection.peer
            if channel.local and (not vhosts or vhost in vhosts):
                found = labels(channel=f"{peer} ({channel.key[2]})", vhost=vhost)
                channels[found] = channel
            yield ""
        for _, name, kind, text, value in metrics:
            rows = ((found, value(channel)) for found, channel in channels.items())
            yield from lines(f"{prefix}{name}", kind, text, rows)

    def _of_connections(
        self, prefix: str, families: Collection[str], vhosts: Collection[str]
    ) -> Iterator[str]:
        connections = self._observed.machine.connections
        rows: dict[str, tuple[int, int, int]] = {}
        links = {link.conn: link for link in self._clients.links() if link.conn}
        for connection in list(connections.values()):
            link = links.get(connection.key[1]) if connection.local else None
            if link is not None and (not vhosts or connection.vhost.name in vhosts):
                found = labels(connection=connection.peer)
                rows[found] = (link.received, link.sent, len(connection.channels))
            yield ""
        for place, (family, name, text) in enumerate(CONNECTION):
            if family in families:
                kind = "counter" if name.endswith("_total") else "gauge"
                chosen = ((found, values[place]) for found, values in rows.items())
                yield from lines(f"{prefix}{name}", kind, text, chosen)

    def _of_exchanges(self, prefix: str, vhosts: Collection[str]) -> Iterator[str]:
        wanted = [
            vhost for vhost in list(self._observed.machine.vhosts.values())
            if not vhosts or vhost.name in vhosts
        ]  # fmt: skip
        exchanges = [
            (labels(vhost=vhost.name, exchange=exchange.name), exchange)
            for vhost in wanted for exchange in list(vhost.exchanges.values())
        ]  # fmt: skip
        rows = ((found, exchange.tally.publish) for found, exchange in exchanges)
        text = "Messages published to the exchange"
        yield from lines(f"{prefix}exchange_messages_in_total", "counter", text, rows)
        rows = ((found, exchange.tally.routed) for found, exchange in exchanges)
        text = "Copies that went on to queues"
        yield from lines(f"{prefix}exchange_messages_out_total", "counter", text, rows)
        waiting = (
            (labels(vhost=vhost.name, exchange=name), ready_count(queue))
            for vhost in wanted for name, queue in list(vhost.delays.items())
        )  # fmt: skip
        text = "Messages that wait in an x-delayed-message exchange until they are due"
        yield from lines(f"{prefix}exchange_messages_delayed", "gauge", text, waiting)


def metric_name(figure: str) -> str:
    """Return the name of a figure as a metric."""
    parts = ["seconds" if part == "s" else part for part in figure.split("_")]
    return "_".join(["qpidd", *parts])
