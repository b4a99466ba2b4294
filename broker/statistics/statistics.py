"""Statistics of a cluster as RabbitMQ's management API shows them, available at any member.

Every member applies every command, so each one knows all queues, exchanges, channels and totals,
and answers alike. Facts that only a member itself knows (memory, disk, its ring, bytes of its
clients) it sends to the others in a datagram every few seconds; missing ones were not received.

    statistics.queue(queue)             "message_stats", "messages_details" ... of one queue
    statistics.exchange(exchange)       "message_stats" with publish_in and publish_out
    statistics.channel(channel)         "message_stats" of one channel
    statistics.connection(connection)   "message_stats"; "recv_oct", "send_oct", where known
    statistics.user(name, channels)     "message_stats" of a user's open channels
    statistics.vhost(name)              "message_stats", "messages", "messages_ready" ...
    statistics.overview()               "message_stats", "queue_totals", "churn_rates"
    statistics.node(name)               "mem_used", "disk_free", "fd_used", "uptime", "qpidd" ...

Each returns a new dict, with which a reply can be updated; a key without a value is absent. A rate
is `{"rate": a second, lately, "avg_rate": a second, over a minute}`; with `Spans`, which all but
`user` take, the samples of this time are beside it. None of them takes longer than the object has
consumers.
Decisions: docs/decisions/0033-every-member-counts-and-reports-its-share.md,
docs/decisions/0141-samples-of-one-object.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from broker.machine.state import Channel, ConnectionRecord, Exchange, Queue
from broker.machine.tally import COUNTS, Tally
from broker.replication.controller import Controller
from broker.statistics.figures import Figures
from broker.statistics.members import MemberFigures
from broker.statistics.sampler import CHURN, READY, UNACKED, WATCHED_MAX, Sampler
from broker.statistics.samples import NO_SPANS, TAKEN, Fragment, Row, Samples, Span, Spans
from vsync.quorum.voter_set import parse

CHURN_NAMES = {
    "connections_opened": "connection_created",
    "connections_closed": "connection_closed",
    "channels_opened": "channel_created",
    "channels_closed": "channel_closed",
    "queues_declared": "queue_declared",
    "queues_created": "queue_created",
    "queues_deleted": "queue_deleted",
}
OF_CHANNEL = tuple(name for name in COUNTS if name != "routed")
OF_QUEUE = (
    "publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack",
)  # fmt: skip
OF_EXCHANGE = {"publish": "publish_in", "routed": "publish_out"}
OF_NODE = {
    "mem_used": "memory_bytes", "disk_free": "disk_free_bytes", "fd_used": "open_fds",
    "sockets_used": "client_sockets", "io_sync_count": "store_commits_total",
}  # fmt: skip
"""The figures that have rates and samples."""
DEPTH = ("messages_ready", "messages_unacknowledged")
BYTES = ("recv_oct", "send_oct")
IN_TOTALS = (*COUNTS, *[CHURN_NAMES[name] for name in CHURN])
CLOCK_SET_MS = 1000.0
"""Time of day follows the other clock, unless it was set by more than this."""
FINE, COARSE_EVERY, COARSE = 120, 10, 360
"""Samples of the whole cluster kept of each sweep, and of each tenth: two minutes, an hour."""


class _Sums(NamedTuple):
    """Sums of several tallies' counts, and their rates."""

    counts: Mapping[str, int]
    last: Mapping[str, float]
    minute: Mapping[str, float]

    def details(self, name: str) -> dict[str, float]:
        return {
            "rate": round(self.last.get(name, 0.0), 3),
            "avg_rate": round(self.minute.get(name, 0.0), 3),
        }

    def stats(self, names: Iterable[str]) -> Fragment:
        """Return a `message_stats`, empty if nothing ever happened."""
        found: Fragment = {}
        if any(self.counts.values()):
            for name in names:
                found[name] = self.counts[name]
                found[f"{name}_details"] = self.details(name)
            if TAKEN[0] in found:
                found["deliver_get"] = sum(self.counts[name] for name in TAKEN)
                found["deliver_get_details"] = {
                    "rate": round(sum(self.last.get(name, 0.0) for name in TAKEN), 3),
                    "avg_rate": round(sum(self.minute.get(name, 0.0) for name in TAKEN), 3),
                }
        return found


class Statistics:
    """One member's statistics of the cluster; call `step` a few times a second."""

    def __init__(
        self, controller: Controller, members: MemberFigures, wall_ms: Callable[[], int]
    ) -> None:
        self.sampler = Sampler()
        self.members = members
        self._controller, self._wall_ms = controller, wall_ms
        self._fine: deque[Row] = deque(maxlen=FINE)
        self._coarse: deque[Row] = deque(maxlen=COARSE)
        self._bytes: dict[tuple[int, int], deque[Row]] = {}  # of requested connections
        self._figures: dict[str, deque[Row]] = {}  # OF_NODE, of the members of the view
        self._serving: tuple[str, ...] = ()
        self._wall_at_0_ms = 0.0  # of the sampler's clock

    def step(self, now: float, more: Callable[[], bool]) -> None:
        """Continue the sweep while there is `more` time."""
        self._serving = self._members_serving()
        wall_at_0_ms = self._wall_ms() - now * 1000
        if abs(wall_at_0_ms - self._wall_at_0_ms) > CLOCK_SET_MS:
            self._wall_at_0_ms = wall_at_0_ms
        machine = self._controller.replica.machine
        serving, me = self._serving, self._controller.me.name
        share = (serving.index(me), len(serving)) if serving else (0, 0)
        if self.sampler.step(now, machine, share, more):
            whole = self._whole()
            self._fine.append(whole)
            if self.sampler.sweeps % COARSE_EVERY == 1:
                self._coarse.append(whole)
            for connection, rows in self._bytes.items():
                self._sample_bytes(connection, rows)
            members = [member.name for member in self._controller.primary.members]
            self._figures = {name: self._sampled(name) for name in members}

    # -- which member reports what ---------------------------------------------------------------

    def home(self, queue: Queue) -> str:
        """Return the member that reports this queue: each queue has one while a member serves, so
        that sums over members are right. It means nothing else: every member has the queue."""
        serving = self._serving
        return serving[queue.number % len(serving)] if serving else ""

    def is_mine(self, queue: Queue) -> bool:
        """Whether this member reports it."""
        return self.home(queue) == self._controller.me.name

    @property
    def home_is_known(self) -> bool:
        """Whether queues are reported at all: not while this member does not serve."""
        return bool(self._serving)

    @property
    def members_away(self) -> int:
        """How many of the voters are not in the view."""
        here = {member.name for member in self._controller.primary.members}
        return sum(name not in here for name in parse(self._controller.promise.voters).names)

    @property
    def is_first(self) -> bool:
        """Whether this member reports what belongs to no member."""
        return self._serving[:1] == (self._controller.me.name,)

    def _members_serving(self) -> tuple[str, ...]:
        """The members with the state and data of this primary view; empty if this one has not."""
        primary = self._controller.primary
        names = primary.caught_up_names - primary.mark.without_data
        if not self._controller.serving or self._controller.me.name not in names:
            return ()
        return tuple(sorted(names))

    # -- fragments -------------------------------------------------------------------------------

    def queue(self, queue: Queue, spans: Spans = NO_SPANS) -> Fragment:
        """Return the statistics of a queue."""
        found: Fragment = {}
        stats = self._sums(queue.tally).stats(OF_QUEUE)
        if stats:
            found["message_stats"] = stats
        rates = self.sampler.rates(queue.tally)
        ready, unacked = (rates.last[READY], rates.last[UNACKED]) if rates else (0.0, 0.0)
        depth = _depth_details(ready, unacked)
        self._add(spans.msg_rates, [queue.tally], COUNTS, stats)
        self._add(spans.lengths, [queue.tally], (*COUNTS, *DEPTH), depth)
        if queue.stream is not None:  # messages that are read stay
            depth["messages_details"] = depth["messages_ready_details"]
        return found | depth | self._idle(queue.tally)

    def exchange(self, exchange: Exchange, spans: Spans = NO_SPANS) -> Fragment:
        """Return the statistics of an exchange."""
        sums = self._sums(exchange.tally)
        stats: Fragment = {}
        for name, shown in OF_EXCHANGE.items():
            stats[shown], stats[f"{shown}_details"] = sums.counts[name], sums.details(name)
        names = [OF_EXCHANGE.get(name, name) for name in COUNTS]
        self._add(spans.msg_rates, [exchange.tally], names, stats)
        return {"message_stats": stats} if any(sums.counts.values()) else {}

    def channel(self, channel: Channel, spans: Spans = NO_SPANS) -> Fragment:
        """Return the statistics of a channel."""
        stats = self._sums(channel.tally).stats(OF_CHANNEL)
        self._add(spans.msg_rates, [channel.tally], COUNTS, stats)
        return ({"message_stats": stats} if stats else {}) | self._idle(channel.tally)

    def user(self, name: str, channels: Sequence[Channel]) -> Fragment:
        """Return what these open channels of a user did since they were opened."""
        stats = self._sums(*[one.tally for one in channels]).stats(OF_CHANNEL)
        connected = self._controller.replica.machine.connected.get(name, 0)
        found: Fragment = {"connections": connected, "channels": len(channels)}
        return found | ({"message_stats": stats} if stats else {})

    def _idle(self, tally: Tally) -> Fragment:
        """Since when nothing happened, if the last sweep saw nothing new and an earlier one did."""
        if not tally.changed_at or tally.changed_at >= self.sampler.at:
            return {}
        since = datetime.fromtimestamp((self._wall_at_0_ms / 1000) + tally.changed_at, UTC)
        return {"idle_since": since.isoformat(timespec="milliseconds")}

    def connection(self, connection: ConnectionRecord, spans: Spans = NO_SPANS) -> Fragment:
        """Return what its open channels did, and its bytes if its member reported them."""
        tallies = [one.tally for one in connection.channels.values()]
        stats = self._sums(*tallies).stats(OF_CHANNEL) if tallies else {}
        self._add(spans.msg_rates, tallies, COUNTS, stats)
        told: Fragment = {"message_stats": stats} if stats else {}
        found = self.members.traffic(connection.key)
        if found is None:
            return told
        octets: Fragment = {
            "recv_oct": found.received,
            "recv_oct_details": {"rate": round(found.received_rate, 3)},
            "send_oct": found.sent,
            "send_oct_details": {"rate": round(found.sent_rate, 3)},
        }
        samples = Samples(spans.data_rates, lambda: self._octets(connection.key), BYTES)
        samples.add_to(octets, self._wall_ms_at)
        return told | octets

    def vhost(self, name: str, spans: Spans = NO_SPANS) -> Fragment:
        """Return the statistics of a virtual host."""
        totals = self._controller.replica.machine.totals
        tallies = [one.messages for (_, vhost), one in totals.items() if vhost == name]
        stats = self._sums(*tallies).stats(OF_CHANNEL)
        self._add(spans.msg_rates, tallies, IN_TOTALS, stats)
        depths = self.sampler.by_vhost.get(name)
        depth: Fragment = {}
        if depths is not None:
            tally = self.sampler.depths_of[name]
            rates = self.sampler.rates(tally)
            changes = _depth_details(*(rates.last if rates is not None else (0.0, 0.0)))
            self._add(spans.lengths, [tally], DEPTH, changes)
            depth = _depth(depths.ready, depths.unacked) | changes
        return {"message_stats": stats, **depth} if stats else depth

    def overview(self, spans: Spans = NO_SPANS) -> Fragment:
        """Return the statistics of the cluster."""
        machine, sampler = self._controller.replica.machine, self.sampler
        sums = self._sums(*[one.messages for one in machine.totals.values()])
        stats = sums.stats(OF_CHANNEL)
        depths = sampler.depths
        totals = _depth(depths.ready, depths.unacked) | _depth_details(*sampler.depth_rates)
        churn: Fragment = {}
        for name, shown in CHURN_NAMES.items():
            churn[shown] = sum(getattr(one, name) for one in machine.totals.values())
            churn[f"{shown}_details"] = sums.details(name)
        for span, fragment in (
            (spans.msg_rates, stats), (spans.lengths, totals), (spans.lengths, churn),
        ):  # fmt: skip
            if span is not None:
                kept = self._fine if span.age_s <= FINE else self._coarse
                samples = Samples(span, lambda kept=kept: reversed(kept), (*IN_TOTALS, *DEPTH))  # type: ignore[misc]
                samples.add_to(fragment, self._wall_ms_at)
        return {"message_stats": stats, "queue_totals": totals, "churn_rates": churn}

    def node(self, name: str, spans: Spans = NO_SPANS) -> Fragment:
        """Return a member's figures; every member counts what that member's clients did."""
        own = [
            one
            for (member, _), one in self._controller.replica.machine.totals.items()
            if member == name
        ]
        tallies = [one.messages for one in own]
        sums = self._sums(*tallies)
        found: Fragment = {}
        for counted, shown in CHURN_NAMES.items():
            found[shown] = sum(getattr(one, counted) for one in own)
            found[f"{shown}_details"] = sums.details(counted)
        self._add(spans.node_stats, tallies, IN_TOTALS, found)
        figures = self.members.of(name)
        return found | (_node(figures) | self._changes(name, spans) if figures is not None else {})

    def _changes(self, name: str, spans: Spans) -> Fragment:
        rows = [*reversed(self._figures.get(name, ()))]
        changes: Fragment = {}
        for place, shown in enumerate(OF_NODE):
            rate = 0.0
            if len(rows) > 1:
                rate = (rows[0].values[place] - rows[1].values[place]) / (rows[0].at - rows[1].at)
            changes[f"{shown}_details"] = {"rate": round(rate, 3)}
        Samples(spans.node_stats, lambda: rows, [*OF_NODE]).add_to(changes, self._wall_ms_at)
        return changes

    # -- samples ---------------------------------------------------------------------------------

    def _add(
        self, span: Span | None, tallies: Sequence[Tally], names: Sequence[str], to: Fragment
    ) -> None:
        """Add the joint samples of these tallies."""
        Samples(span, lambda: self.sampler.rows(tallies), names).add_to(to, self._wall_ms_at)

    def _wall_ms_at(self, at: float) -> int:
        return round(self._wall_at_0_ms + at * 1000)

    def _octets(self, connection: tuple[int, int]) -> list[Row]:
        """The bytes of a connection, since they were first requested."""
        rows = self._bytes.pop(connection, None)
        if rows is None:
            rows = deque(maxlen=FINE)
            if len(self._bytes) == WATCHED_MAX:
                del self._bytes[next(iter(self._bytes))]
        self._bytes[connection] = rows  # the last one requested
        if not rows:
            self._sample_bytes(connection, rows)
        return [*reversed(rows)]

    def _sample_bytes(self, connection: tuple[int, int], rows: deque[Row]) -> None:
        found = self.members.traffic(connection)
        if found is not None:
            rows.append(Row(self.sampler.at, (found.received, found.sent)))

    # -- sums ------------------------------------------------------------------------------------

    def _sums(self, *tallies: Tally) -> _Sums:
        counts = dict.fromkeys(COUNTS, 0)
        last: dict[str, float] = {}
        minute: dict[str, float] = {}
        for tally in tallies:
            for name in COUNTS:
                counts[name] += getattr(tally, name)
            rates = self.sampler.rates(tally)
            if rates is not None:
                # A queue has its depth behind the counts, a member's totals the churn.
                names = COUNTS + CHURN if len(rates.last) > UNACKED + 1 else COUNTS
                for name, recent, slow in zip(names, rates.last, rates.minute, strict=False):
                    last[name] = last.get(name, 0.0) + recent
                    minute[name] = minute.get(name, 0.0) + slow
        return _Sums(counts, last, minute)

    def _sampled(self, name: str) -> deque[Row]:
        rows = self._figures.get(name) or deque(maxlen=FINE)
        told = self.members.told(name)
        if told is not None and not (rows and rows[-1].at == told[0]):
            values = [round(told[1][figure]) for figure in OF_NODE.values()]
            rows.append(Row(told[0], values))
        return rows

    def _whole(self) -> Row:
        sampler = self.sampler
        totals = self._controller.replica.machine.totals.values()
        counts = [sum(getattr(one.messages, name) for one in totals) for name in COUNTS]
        churn = [sum(getattr(one, name) for one in totals) for name in CHURN]
        return Row(sampler.at, (*counts, *churn, sampler.depths.ready, sampler.depths.unacked))


def _depth(ready: int, unacked: int) -> Fragment:
    return {
        "messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked,
    }  # fmt: skip


def _depth_details(ready: float, unacked: float) -> Fragment:
    return {
        "messages_details": {"rate": round(ready + unacked, 3)},
        "messages_ready_details": {"rate": round(ready, 3)},
        "messages_unacknowledged_details": {"rate": round(unacked, 3)},
    }


def _node(figures: Figures) -> Fragment:
    """The figures by the names that tools read; figures unknown to RabbitMQ are in `qpidd`."""
    whole = {name: round(value) for name, value in figures.items()}
    return {
        "uptime": round(figures["uptime_s"] * 1000),
        "os_pid": str(whole["pid"]),
        "processors": whole["processors"],
        "run_queue": 0,
        "mem_used": whole["memory_bytes"],
        "mem_limit": whole["memory_limit_bytes"],
        "disk_free": whole["disk_free_bytes"],
        "disk_free_limit": whole["disk_free_limit_bytes"],
        "fd_used": whole["open_fds"],
        "fd_total": whole["max_fds"],
        "sockets_used": whole["client_sockets"],
        "sockets_total": whole["max_fds"],
        "io_sync_count": whole["store_commits_total"],
        "io_sync_avg_time": round(1000 * figures["store_commit_p50_s"], 3),
        "qpidd": {name: round(value, 6) for name, value in figures.items()},
    }
