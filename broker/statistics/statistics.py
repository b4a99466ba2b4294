"""Statistics of a cluster as RabbitMQ's management API shows them, made at any member.

Every member applies every command, so each one knows all queues, exchanges, channels and totals,
and answers alike.  What only a member itself can know (memory, disk, its ring, bytes of its
clients) it tells the others in a datagram every few seconds; what is missing was not heard.

    statistics.queue(queue)             "message_stats", "messages_details" ... of one queue
    statistics.exchange(exchange)       "message_stats" with publish_in and publish_out
    statistics.channel(channel)         "message_stats" of one channel
    statistics.connection(connection)   "message_stats"; "recv_oct", "send_oct", where known
    statistics.user(name, channels)     "message_stats" of a user's open channels
    statistics.vhost(name)              "message_stats", "messages", "messages_ready" ...
    statistics.overview(age_s, step_s)  "message_stats", "queue_totals", "churn_rates"; with samples
    statistics.node(name)               "mem_used", "disk_free", "fd_used", "uptime", "qpidd" ...

Each returns a new dict that a reply can be updated with; a key is absent where there is nothing to
tell.  A rate is `{"rate": a second, lately, "avg_rate": a second, over a minute}`.  None of them
takes longer than the object has consumers.
Decision: docs/decisions/0033-every-member-counts-and-reports-its-share.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from broker.machine.state import Channel, ConnectionRecord, Exchange, Queue
from broker.machine.tally import COUNTS, Tally
from broker.replication.controller import Controller
from broker.statistics.figures import Figures
from broker.statistics.members import MemberFigures
from broker.statistics.sampler import CHURN, READY, UNACKED, Sampler
from vsync.quorum.voter_set import parse

Fragment: TypeAlias = dict[str, object]

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
TAKEN = ("deliver", "deliver_no_ack", "get", "get_no_ack")
CLOCK_SET_MS = 1000.0
"""Time of day goes on by the other clock, unless it was set by more than that."""
FINE, COARSE_EVERY, COARSE = 120, 10, 360
"""So many samples of the whole are kept of each sweep, and of each tenth: two minutes, an hour."""


class _Sums(NamedTuple):
    """Counts of several tallies, and their rates."""

    counts: Mapping[str, int]
    last: Mapping[str, float]
    minute: Mapping[str, float]

    def details(self, name: str) -> dict[str, float]:
        return {
            "rate": round(self.last.get(name, 0.0), 3),
            "avg_rate": round(self.minute.get(name, 0.0), 3),
        }

    def stats(self, names: Iterable[str]) -> Fragment:
        """Return a `message_stats`, empty where nothing ever happened."""
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


class Whole(NamedTuple):
    """The counts of the whole cluster at one time."""

    at: float
    wall_ms: int
    counts: tuple[int, ...]
    """COUNTS and CHURN, then ready and unacked messages."""


class Statistics:
    """What one member can say of the cluster; `step` is to be called a few times a second."""

    def __init__(
        self, controller: Controller, members: MemberFigures, wall_ms: Callable[[], int]
    ) -> None:
        self.sampler = Sampler()
        self.members = members
        self._controller, self._wall_ms = controller, wall_ms
        self._fine: deque[Whole] = deque(maxlen=FINE)
        self._coarse: deque[Whole] = deque(maxlen=COARSE)
        self._serving: tuple[str, ...] = ()
        self._wall_at_0_ms = 0.0  # of the clock that the sampler goes by

    def step(self, now: float, more: Callable[[], bool]) -> None:
        """Go on with the sweep while there is `more` time."""
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

    # -- which member reports what ---------------------------------------------------------------

    def home(self, queue: Queue) -> str:
        """Return the member that reports this queue: each has one while a member serves, so that
        sums over members are right.  It means nothing else: every member has the queue."""
        serving = self._serving
        return serving[queue.number % len(serving)] if serving else ""

    def is_mine(self, queue: Queue) -> bool:
        """Whether this member reports it."""
        return self.home(queue) == self._controller.me.name

    @property
    def home_is_known(self) -> bool:
        """Whether queues are reported by somebody: not while this member does not serve."""
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
        """The members that have the state and data of this primary view; none, unless this one."""
        primary = self._controller.primary
        names = primary.caught_up_names - primary.mark.without_data
        if not self._controller.serving or self._controller.me.name not in names:
            return ()
        return tuple(sorted(names))

    # -- fragments -------------------------------------------------------------------------------

    def queue(self, queue: Queue) -> Fragment:
        """Return the statistics of a queue."""
        found: Fragment = {}
        stats = self._sums(queue.tally).stats(OF_QUEUE)
        if stats:
            found["message_stats"] = stats
        rates = self.sampler.rates(queue.tally)
        ready, unacked = (rates.last[READY], rates.last[UNACKED]) if rates else (0.0, 0.0)
        return found | _depth_details(ready, unacked) | self._idle(queue.tally)

    def exchange(self, exchange: Exchange) -> Fragment:
        """Return the statistics of an exchange."""
        sums = self._sums(exchange.tally)
        if not any(sums.counts.values()):
            return {}
        return {
            "message_stats": {
                "publish_in": sums.counts["publish"],
                "publish_in_details": sums.details("publish"),
                "publish_out": sums.counts["routed"],
                "publish_out_details": sums.details("routed"),
            }
        }

    def channel(self, channel: Channel) -> Fragment:
        """Return the statistics of a channel."""
        stats = self._sums(channel.tally).stats(OF_CHANNEL)
        return ({"message_stats": stats} if stats else {}) | self._idle(channel.tally)

    def user(self, name: str, channels: Sequence[Channel]) -> Fragment:
        """Return what a user's open channels, which are these, did since they were opened."""
        stats = self._sums(*[one.tally for one in channels]).stats(OF_CHANNEL)
        connected = self._controller.replica.machine.connected.get(name, 0)
        found: Fragment = {"connections": connected, "channels": len(channels)}
        return found | ({"message_stats": stats} if stats else {})

    def _idle(self, tally: Tally) -> Fragment:
        """Since when nothing happened, if the last sweep saw nothing new and one before it did."""
        if not tally.changed_at or tally.changed_at >= self.sampler.at:
            return {}
        since = datetime.fromtimestamp((self._wall_at_0_ms / 1000) + tally.changed_at, UTC)
        return {"idle_since": since.isoformat(timespec="milliseconds")}

    def connection(self, connection: ConnectionRecord) -> Fragment:
        """Return what its open channels did, and its bytes as far as its member told them."""
        tallies = [one.tally for one in connection.channels.values()]
        stats = self._sums(*tallies).stats(OF_CHANNEL) if tallies else {}
        told: Fragment = {"message_stats": stats} if stats else {}
        found = self.members.traffic(connection.key)
        if found is None:
            return told
        return told | {
            "recv_oct": found.received,
            "recv_oct_details": {"rate": round(found.received_rate, 3)},
            "send_oct": found.sent,
            "send_oct_details": {"rate": round(found.sent_rate, 3)},
        }

    def vhost(self, name: str) -> Fragment:
        """Return the statistics of a virtual host."""
        totals = self._controller.replica.machine.totals
        tallies = [one.messages for (_, vhost), one in totals.items() if vhost == name]
        found = self._sums(*tallies).stats(OF_CHANNEL)
        depths = self.sampler.by_vhost.get(name)
        depth: Fragment = {}
        if depths is not None:
            depth = _depth(depths.ready, depths.unacked)
        return {"message_stats": found, **depth} if found else depth

    def overview(self, age_s: float = 0.0, step_s: float = 0.0) -> Fragment:
        """Return the statistics of the cluster; of the last `age_s` with a sample each `step_s`."""
        machine, sampler = self._controller.replica.machine, self.sampler
        sums = self._sums(*[one.messages for one in machine.totals.values()])
        stats = sums.stats(OF_CHANNEL)
        depths = sampler.depths
        totals = _depth(depths.ready, depths.unacked) | _depth_details(*sampler.depth_rates)
        churn: Fragment = {}
        for name, shown in CHURN_NAMES.items():
            churn[shown] = sum(getattr(one, name) for one in machine.totals.values())
            churn[f"{shown}_details"] = sums.details(name)
        if age_s > 0 and step_s > 0:
            self._add_samples(age_s, step_s, stats, totals, churn)
        return {"message_stats": stats, "queue_totals": totals, "churn_rates": churn}

    def node(self, name: str) -> Fragment:
        """Return what is known of a member; what its clients did every member counts."""
        own = [
            one
            for (member, _), one in self._controller.replica.machine.totals.items()
            if member == name
        ]
        churn: Fragment = {
            shown: sum(getattr(one, counted) for one in own)
            for counted, shown in CHURN_NAMES.items()
        }
        figures = self.members.of(name)
        return churn | (_node(figures) if figures is not None else {})

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
                # A queue has its depth behind the counts, the totals of a member the churn.
                names = COUNTS + CHURN if len(rates.last) > UNACKED + 1 else COUNTS
                for name, recent, slow in zip(names, rates.last, rates.minute, strict=False):
                    last[name] = last.get(name, 0.0) + recent
                    minute[name] = minute.get(name, 0.0) + slow
        return _Sums(counts, last, minute)

    def _whole(self) -> Whole:
        sampler = self.sampler
        totals = self._controller.replica.machine.totals.values()
        counts = [sum(getattr(one.messages, name) for one in totals) for name in COUNTS]
        churn = [sum(getattr(one, name) for one in totals) for name in CHURN]
        depths = (sampler.depths.ready, sampler.depths.unacked)
        return Whole(sampler.at, self._wall_ms(), (*counts, *churn, *depths))

    def _add_samples(
        self, age_s: float, step_s: float, stats: Fragment, totals: Fragment, churn: Fragment
    ) -> None:
        kept = self._fine if age_s <= FINE else self._coarse
        newest = kept[-1].at if kept else 0.0
        chosen: list[Whole] = []
        for whole in kept:
            late = newest - whole.at <= age_s
            if late and (not chosen or whole.at - chosen[-1].at >= step_s - 0.5):
                chosen.append(whole)
        columns = {name: [one.counts[place] for one in chosen] for place, name in enumerate(COUNTS)}
        columns["deliver_get"] = [
            sum(row) for row in zip(*[columns[n] for n in TAKEN], strict=True)
        ]
        place = len(COUNTS)
        for name in CHURN:
            columns[CHURN_NAMES[name]] = [one.counts[place] for one in chosen]
            place += 1
        columns["messages_ready"] = [one.counts[place] for one in chosen]
        columns["messages_unacknowledged"] = [one.counts[place + 1] for one in chosen]
        columns["messages"] = [sum(one.counts[place:]) for one in chosen]
        for fragment in (stats, totals, churn):
            for name, column in columns.items():
                details = fragment.get(f"{name}_details")
                if isinstance(details, dict):
                    details["samples"] = [
                        {"sample": value, "timestamp": one.wall_ms}
                        for value, one in zip(reversed(column), reversed(chosen), strict=True)
                    ]


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
    """Under the names that tools read; what RabbitMQ does not have is in `qpidd`."""
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
