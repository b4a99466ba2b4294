"""A member's measurements of itself, and the timer that drives its statistics."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable

from broker.durability.pages import Pages
from broker.durability.store_writer import StoreWriter
from broker.durability.transfer import StateTransfer
from broker.frontend.connections import Connections
from broker.histogram import Histogram
from broker.machine.machine import Machine
from broker.replication.member import ReplicatedMember
from broker.statistics.figures import Figures
from broker.statistics.members import MemberFigures
from broker.statistics.statistics import Statistics
from broker.watchdogs.lateness import Lateness
from broker.watchdogs.process_pauses import MEMORY, WORK
from broker.watchdogs.watchdogs import Watchdogs
from store.lmdb_store import LmdbStore
from vsync.io.redundant_transport import RedundantTransport
from vsync.quorum.voter_set import parse
from vsync.totem.node import Node
from vsync.types import Member

SLICE_S = 0.001
"""The sweep's share of each step: half a per cent of the loop's time, and a delay of the token that
is shorter than its rotation."""
PROCESS_S = 5.0
"""How often the system is asked about this process, on a thread."""
SLOW_COMMIT_S = 0.25
"""A longer commit counts as one of a slow disk, as in conf/prometheus/alerts.yml."""


class Observation:
    """The statistics of one member, and the steps that keep them current."""

    def __init__(
        self,
        member: ReplicatedMember[LmdbStore, StoreWriter],
        clients: Connections,
        node: Node,
        transport: RedundantTransport,
        transfer: StateTransfer,
        watchdogs: Watchdogs,
        loop: asyncio.AbstractEventLoop,
        send_direct: Callable[[Member, bytes], None],
        pages: Pages,
    ) -> None:
        self._pages = pages
        self._controller = controller = member.controller
        self._member, self._clients = member, clients
        self._node, self._transport = node, transport
        self._transfer, self._watchdogs = transfer, watchdogs
        self._loop = loop
        self._began = loop.time()
        self._max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._open_fds = 0
        self._asked_at = -PROCESS_S
        self._asking: asyncio.Future[int] | None = None
        self.commit_took = Histogram()
        self._slow_commits = Lateness()
        self._certificate_ends_at: Callable[[], float] = float
        self._count_refused: Callable[[], int] = int
        self._refused, self._refusals = 0, Lateness()
        self.members = MemberFigures(
            controller.me,
            controller.primary,
            lambda: controller.submissions.session,
            lambda: controller.replica.machine.connections,
            self.figures,
            lambda: [*clients.links()],
            send_direct,
        )
        self.statistics = Statistics(controller, self.members, lambda: time.time_ns() // 1_000_000)

    @property
    def machine(self) -> Machine:
        """The replicated state."""
        return self._controller.replica.machine

    def wake(self) -> None:
        """Take the next step; called several times a second."""
        now = self._loop.time()
        took = self._member.persister.writer.commit_took_s
        while took:
            seconds = took.popleft()
            self.commit_took.observe(seconds)
            if seconds > SLOW_COMMIT_S:
                self._slow_commits.add(now, seconds)
        if (refused := self._count_refused()) != self._refused:
            self._refusals.add(now, refused - self._refused)
            self._refused = refused
        if self._asking is None and now - self._asked_at >= PROCESS_S:
            self._asked_at = now
            self._asking = self._loop.run_in_executor(None, _open_fds)
            self._asking.add_done_callback(self._told)
        clock = time.perf_counter
        deadline = clock() + SLICE_S
        self.statistics.step(now, lambda: clock() < deadline)
        self.members.step(now)

    def _told(self, open_fds: asyncio.Future[int]) -> None:
        self._asking = None
        if not open_fds.cancelled() and open_fds.exception() is None:
            self._open_fds = open_fds.result()

    def watch_ports(self, ends_at: Callable[[], float], refused: Callable[[], int]) -> None:
        """From now on report when the certificate ends (0: there is none), and how many clients
        were refused lately: `refused` counts all."""
        self._certificate_ends_at, self._count_refused = ends_at, refused

    def local_alarms(self) -> tuple[dict[str, str], str, str]:
        """Return the alarms that only this member has: clocks, by member, its own disk that lags,
        and why that disk's free space is unknown."""
        watchdogs = self._watchdogs
        return watchdogs.clocks.alarms, watchdogs.disk.alarm, watchdogs.gauge.failure

    def received(self, member: str) -> float | None:
        """Return the share of the state that a member has received; None: unknown."""
        found = self.members.of(member)
        return None if found is None else found["transfer_share"]

    def figures(self) -> Figures:
        """Return the current figures of this member."""
        return {
            **self._of_process(), **self._of_clients(), **self._of_ring(), **self._of_quorum(),
            **self._of_store(), **self._of_pages(),
        }  # fmt: skip

    def _of_process(self) -> Figures:
        reading = self._watchdogs.gauge.reading
        room, used, floor, bound = 0, 0, 0, 0
        if reading is not None:
            room, used = reading.room, reading.used
            floor, bound = self._watchdogs.resources.bounds(reading)
        late = self._watchdogs.pauses.late.recent(self._loop.time())
        return {
            "uptime_s": self._loop.time() - self._began,
            "pid": os.getpid(),
            "processors": len(os.sched_getaffinity(0)),
            "cpu_s_total": time.process_time(),
            "open_fds": self._open_fds,
            "max_fds": self._max_fds,
            "memory_bytes": used,
            "memory_limit_bytes": bound,
            "disk_free_bytes": room,
            "disk_free_limit_bytes": floor,
            "late_recent": late.times,
            "late_recent_s": late.sum_s,
            "late_longest_s": late.longest_s,
            "late_since_s": late.since_s,
            "late_by_work_s": late.of(WORK),
            "late_by_memory_s": late.of(MEMORY),
            "certificate_ends_at": self._certificate_ends_at(),
        }

    def _of_clients(self) -> Figures:
        clients = self._clients
        counters = clients.counters
        refusals = self._refusals.recent(self._loop.time())
        return {
            "client_sockets": counters["connected"],
            "clients_refused_recent": refusals.sum_s,
            "clients_refused_since_s": refusals.since_s,
            "client_received_bytes_total": counters["bytes_in"],
            "client_sent_bytes_total": counters["bytes_out"],
            "client_blocked_total": counters["blocked"],
            **{
                f"logins_{kind}_total": count
                for kind, count in clients.gateway.logins.checks.counters.items()
            },
            "messages_confirmed_total": counters["confirmed"],
            "confirm_p50_s": clients.confirm_took.quantile(0.5),
            "confirm_p99_s": clients.confirm_took.quantile(0.99),
        }

    def _of_ring(self) -> Figures:
        node, transport = self._node, self._transport.counters
        counted, tempo = node.counters.get, node.tempo
        return {
            "ring_members": len(node.members),
            "ring_view_changes_total": counted("phase_operational", 0),
            "ring_rotations_total": tempo.rotations,
            "ring_rotation_s_total": tempo.rotations_s,
            "ring_rotation_s": tempo.smoothed_s if len(node.members) > 1 else 0.0,
            "ring_retransmitted_total": counted("retransmitted", 0),
            "ring_asked_total": counted("asked", 0),
            "ring_token_lost_total": counted("token_lost", 0),
            "ring_suspected_falsely_total": counted("suspected_falsely", 0),
            "ring_frames_sent_total": transport.get("frames_sent", 0),
            "ring_frames_received_total": transport.get("frames_received", 0),
            "ring_sent_bytes_total": transport.get("bytes_sent", 0),
            "ring_received_bytes_total": transport.get("bytes_received", 0),
            "ring_backlog_bytes": self._controller.submissions.bytes_outstanding,
        }

    def _of_quorum(self) -> Figures:
        controller = self._controller
        primary, electorate = controller.primary, parse(controller.promise.voters)
        votes = needed = expected = 0
        if electorate.sets:
            latest = electorate.latest
            votes = latest.votes_of(primary.caught_up_names) if primary.active else 0
            needed, expected = latest.quorum, latest.total
        return {
            "quorum_quorate": primary.active,
            "quorum_serving": controller.serving,
            "ha_active": primary.active
            and controller.serving
            and controller.replica.machine.active == controller.me.name,
            "pair_alone": primary.active
            and bool(electorate.sets)
            and bool(electorate.latest.pair)
            and controller.me.name in electorate.latest.counted
            and len(electorate.latest.counted) == 1,
            "quorum_votes": votes,
            "quorum_needed": needed,
            "quorum_expected": expected,
            "quorum_epoch": controller.replica.history.epoch,
            "quorum_position": controller.replica.history.position,
            "quorum_durable": primary.durable(),
            "quorum_halted": bool(controller.halted),
            "transfer_share": self._transfer.share,
        }

    def _of_store(self) -> Figures:
        persister = self._member.persister
        counters = persister.writer.all_counters()
        slow = self._slow_commits.recent(self._loop.time())
        return {
            "store_commits_total": counters["commits"],
            "store_entries_total": counters["entries"],
            "store_checkpoints_total": counters["checkpoints"],
            "store_checkpoints_given_up_total": counters["checkpoints_given_up"],
            "store_checkpoint_under_way": persister.checkpoint_to_come,
            "store_log_bytes": persister.bytes_to_start[1],
            "store_log_limit_bytes": persister.log_bytes_limit(self._controller.replica),
            "store_commit_p50_s": self.commit_took.quantile(0.5),
            "store_commit_p99_s": self.commit_took.quantile(0.99),
            "slow_commits_recent": slow.times,
            "slow_commits_recent_s": slow.sum_s,
            "slow_commits_longest_s": slow.longest_s,
            "slow_commits_since_s": slow.since_s,
            "store_waiting_bytes": counters["waiting_bytes"],
            "store_full": bool(persister.writer.full),
        }

    def _of_pages(self) -> Figures:
        return {
            f"pages_{name}" if name.endswith("_bytes") else f"pages_{name}_total": count
            for name, count in self._pages.counters.items()
        }


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))
