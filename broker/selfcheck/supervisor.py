"""The supervisor of a member's own failures: the shell around quarantine, split votes, scrubbing.

It decides nothing about the history. It keeps evidence, re-executes this member's store when votes
are split, and logs each event in one sentence.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path

from broker.divergence.digest_vote import DigestVerdict, Value
from broker.divergence.split_vote import FAILED, report_of
from broker.durability.backup_pruning import BackupPruner
from broker.durability.store_writer import (
    LmdbPersister,
    exit_of_store,
)
from broker.exit_codes import Exit
from broker.file_thread import FileThread
from broker.incidents.incidents import Facts, Incidents
from broker.incidents.quarantine import ORDERED, Quarantine
from broker.machine.clock.voters import voter_names
from broker.machine.image.scrub import Fault
from broker.machine.state import QueueRow
from broker.options.retention import BackupPolicy
from broker.release import version
from broker.replication.controller import Controller
from broker.replication.replica import ExecutionFailed, Withheld
from broker.selfcheck.reexecution import Reexecution, reexecute
from broker.selfcheck.scrubber import DiskFault, DiskScrubber, MemoryScrubber
from broker.waiting.pager import PageDamaged, PageLost
from store.errors import StoreError
from store.lmdb_store import LmdbStore

log = logging.getLogger("qpidd")

DISPUTE, SCRUB = "dispute", "scrub"
DISK_PERIOD_S = 1.0
"""Time between two slices of the disk scrubber."""
LOOK_PERIOD_S = 2.0
"""Time between two checks that the store's file is in its place."""
ROWS_MAX = 1000
"""The most queues listed in a piece of evidence."""
DISK_FAULTS_MAX = 3
"""A disk found corrupt this often is no longer written to."""


def is_damage(error: BaseException) -> bool:
    """Whether this says that the member's store is wrong, so that it needs another's state."""
    return isinstance(error, PageDamaged) or isinstance(error.__cause__, PageDamaged)


class Supervisor:
    """Keeps one member's evidence, and checks whether its memory and its disk can be trusted."""

    def __init__(self, data_dir: Path, member: str) -> None:
        self.member, self._data_dir = member, data_dir
        self.evidence = Incidents(data_dir)
        self.quarantine = Quarantine(self.evidence, version())
        self.counters: dict[str, int] = {
            "executions_failed": 0, "disputes": 0, "reexecuted": 0, "convictions": 0,
        }  # fmt: skip
        self._disputed: DigestVerdict | None = None  # to be re-executed when it is durable
        self._last_reexecuted = 0

    def start(
        self, controller: Controller, persister: LmdbPersister,
        record_vote: Callable[[int, bytes, int, str], None], scrub_rate: int,
        backups: BackupPolicy, loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        """Begin, once the member is assembled."""
        self._controller, self._persister, self._loop = controller, persister, loop
        self._files = FileThread(loop, lambda error: log.critical("ours: %r", error))
        self.evidence.do = self._files.do
        self.backups = BackupPruner(self._data_dir, backups, loop)
        self._looks_at = loop.time()
        self._misplaced: LmdbStore | None = None
        self._record_vote = record_vote
        self._memory = MemoryScrubber(scrub_rate, loop.time())
        self._disk = DiskScrubber(persister.store)
        self._disk_due = loop.time() if scrub_rate else math.inf
        self._disk_faults = self._disk_waits_for = 0

    def failed(self, error: BaseException) -> tuple[Exit, str]:
        """Our own code, or the disk, raised; return how to stop, and the reason."""
        self._controller.stop_serving()
        lost = error if isinstance(error, PageLost) else error.__cause__
        if isinstance(lost, PageLost):  # the failure of a checkpoint has it as its cause
            return Exit.INTERNAL if is_damage(error) else Exit.LATE_DISK, str(lost)
        if isinstance(error, StoreError):
            return exit_of_store(error), f"the store failed: {error}"
        return Exit.INTERNAL, self._own_failed(error)

    def _own_failed(self, error: BaseException) -> str:
        log.critical("this member's own code failed", exc_info=error)
        if isinstance(error, ExecutionFailed):
            self.counters["executions_failed"] += 1
            return self.quarantine.add(error, ORDERED, self.member)
        if isinstance(error, Withheld):
            return f"{error} and ordered here again: it is not executed, and may not be passed over"
        return f"this member's own code failed, it cannot continue: {error!r}"

    def wake(self) -> None:
        """Do what is due."""
        self._look_after_the_store()
        # Level, it may still be putting a received store in the place of one that is closed.
        store = self._persister.for_others if self._is_level() else None
        try:
            present = None if store is None else store.meta
        except StoreError as error:  # a reader met it, and no commit that would tell may follow
            code = exit_of_store(error)
            self._controller.distrusted(f"the store failed: {error}", disk=False, code=code)
            return
        self.backups.wake(present)
        self._persister.hold_checkpoints = bool(self._controller.halted)
        self._scrub()
        verdict = None if self._persister.switching else self._disputed
        if verdict is not None and self._persister.store.meta.position >= verdict.position:
            self._reexecute(verdict)
        for outcome in self._controller.judgement.take_outcomes():
            log.critical("%s", outcome.reason)
            self._last_reexecuted = 0
            self.counters["convictions"] += len(outcome.diverged)
            self.evidence.keep(DISPUTE, {"member": self.member, "settlement": outcome.as_facts()})

    def all_counters(self) -> dict[str, int]:
        """Return the counters of all parts here."""
        memory, disk = self._memory.counters, self._disk.counters
        return {
            **self.counters,
            **{f"memory_{name}": count for name, count in memory.items()},
            **{f"disk_{name}": count for name, count in disk.items()},
            **{f"backups_{name}": count for name, count in self.backups.counters.items()},
        }

    async def settled(self, patience_s: float) -> bool:
        """Wait until all evidence is durable; False: the disk does not answer."""
        return await self._files.settled(patience_s)

    def _is_level(self) -> bool:
        controller = self._controller
        sound = self._misplaced is None and not self._disk_faults and not controller.halted
        return sound and controller.serving and controller.primary.has_caught_up

    # -- whether the store is where it was opened ------------------------------------------------

    def _look_after_the_store(self) -> None:
        if self._loop.time() < self._looks_at:
            return
        self._looks_at = math.inf  # not before this check is over
        store = self._persister.store

        def look() -> Callable[[], None]:
            reason = store.misplaced()
            return lambda: self._looked(store, reason)

        self._files.do(look)

    def _looked(self, store: LmdbStore, reason: str) -> None:
        """Believe it if the same store is misplaced twice, because a transfer replaces one, and not
        while that takes its time."""
        self._looks_at = self._loop.time() + LOOK_PERIOD_S
        if self._persister.switching:
            reason = ""
        if reason and store is self._persister.store and store is self._misplaced:
            self._controller.distrusted(
                f"the store of this member is gone: {reason}; a restart would not find what it "
                "confirms from here on; mount or repair that file system, or start with an empty "
                "--data-dir",
                disk=False,
                code=Exit.IO_ERROR,
            )
        self._misplaced = store if reason else None

    # -- scrubbing -------------------------------------------------------------------------------

    def _scrub(self) -> None:
        controller, now = self._controller, self._loop.time()
        if controller.replica.broken or controller.replica.half_way or not controller.filled:
            return
        try:
            fault = self._memory.wake(controller.replica.machine, now)
        except PageLost as error:
            controller.shell.stop(*self.failed(error), inconsistent=is_damage(error))
            return
        if fault is not None:
            self._on_memory_fault(fault)
        due = now >= self._disk_due and not self._persister.switching
        if due and self._persister.checkpoints >= self._disk_waits_for:
            self._disk_due = math.inf
            if self._disk.store is not self._persister.store:
                self._disk = self._disk.of(self._persister.store)
            done = self._loop.run_in_executor(None, self._disk.step)
            done.add_done_callback(self._disk_read)

    def _on_memory_fault(self, fault: Fault) -> None:
        """This member's memory is no longer trusted: stop, and restart from the disk."""
        history = self._controller.replica.history
        facts: Facts = {
            "member": self.member, "where": fault.where, "what": fault.what,
            "now": str(history), "agreed": self._controller.judgement.agreed,
            "root": f"{self._controller.replica.machine.root():016x}",
            "queues": _rows(self._controller.replica.machine.queue_rows()),
        }  # fmt: skip
        path = self.evidence.keep(SCRUB, facts)
        self._controller.distrusted(
            f"memory is corrupt here: {fault.where}: {fault.what} (at {history}); the evidence is "
            f"in {path}; the next start takes the state from the disk",
            disk=False,
        )

    def _disk_read(self, done: asyncio.Future[DiskFault | None]) -> None:
        self._disk_due = self._loop.time() + DISK_PERIOD_S
        fault = DiskFault(repr(done.exception())) if done.exception() else done.result()
        if fault is None:
            return
        self._disk_faults += 1
        facts: Facts = {
            "member": self.member, "where": "store", "what": fault.what,
            "meta": str(self._persister.meta), "faults": self._disk_faults,
        }  # fmt: skip
        path = self.evidence.keep(SCRUB, facts)
        log.critical(
            "the disk is corrupt here: %s; the evidence is in %s; a checkpoint of the state in "
            "memory takes the place of what cannot be read", fault.what, path,
        )  # fmt: skip
        others = len(voter_names(self._controller.promise.voters)) > 1
        if others and self._disk_faults >= DISK_FAULTS_MAX:
            self._controller.distrusted(
                f"the disk is corrupt here, {self._disk_faults} times by now: {fault.what}",
                disk=True,
            )
        else:
            self._disk_waits_for = self._persister.checkpoints + 1
            self._persister.request_checkpoint()

    # -- votes -----------------------------------------------------------------------------------

    def voted(self, verdict: DigestVerdict) -> None:
        """Record a verdict; re-execute if it is split."""
        if verdict.divergent:
            log.critical(
                "digest vote at position %d: %s computed something else than the majority",
                verdict.position, ", ".join(verdict.divergent),
            )  # fmt: skip
        if self.member in verdict.divergent:
            self.evidence.keep(DISPUTE, self._facts(verdict))
        result = "undecided" if verdict.split else "divergent" if verdict.divergent else "agreed"
        _, chain, root = verdict.value or (0, bytes(16), 0)
        self._record_vote(verdict.position, chain, root, result)
        if verdict.split:
            self._on_split(verdict)

    def _on_split(self, verdict: DigestVerdict) -> None:
        split_vote = self._controller.judgement.split_vote
        votes = {name: _as_facts(value) for name, value in verdict.votes.items()}
        log.critical("digest vote at position %d is split: %s", verdict.position, votes)
        if split_vote is None or split_vote.position != verdict.position:
            return  # an earlier one is being settled
        self._persister.hold_checkpoints = True
        if self.member in verdict.votes and self._last_reexecuted != verdict.position:
            self.counters["disputes"] += 1
            self._disputed, self._last_reexecuted = verdict, verdict.position

    def _reexecute(self, verdict: DigestVerdict) -> None:
        """On a worker thread, while the ring keeps running."""
        self._disputed = None
        future = self._loop.run_in_executor(
            None, reexecute, self.member, self._persister.store, verdict.position,
            self._controller.judgement.agreed, self._controller.replica.machine.pager,
        )  # fmt: skip
        future.add_done_callback(lambda done: self._reexecuted(verdict, done))

    def _reexecuted(self, verdict: DigestVerdict, done: asyncio.Future[Reexecution]) -> None:
        position, error = verdict.position, done.exception()
        if error is not None:  # whatever it is: this member cannot reproduce its state
            log.critical("re-executing this member's store failed", exc_info=error)
            found = Reexecution(position, 0, FAILED, bytes(16), 0, [], repr(error))
        else:
            found = done.result()
        self.counters["reexecuted"] += 1
        path = self.evidence.keep(DISPUTE, self._facts(verdict, found))
        log.critical("%s; the evidence is in %s", found.reason, path)
        self._controller.submit([report_of(position, found.verdict, found.chain, found.root)])

    def _facts(self, verdict: DigestVerdict, found: Reexecution | None = None) -> Facts:
        facts: Facts = {
            "member": self.member,
            "position": verdict.position,
            "votes": {name: _as_facts(value) for name, value in verdict.votes.items()},
            "majority": _as_facts(verdict.value),
            "agreed": self._controller.judgement.agreed,
            "now": str(self._controller.replica.history),
            "queues_now": _rows(self._controller.replica.machine.queue_rows()),
        }
        if found is not None:
            facts["reexecuted"] = {
                "from": found.base,
                "chain": found.chain.hex(),
                "root": f"{found.root:016x}",
                "result": found.reason,
                "queues": _rows(found.rows),
            }
        return facts


def _as_facts(value: Value | None) -> Facts | None:
    if value is None:
        return None
    epoch, chain, root = value
    return {"epoch": epoch, "chain": chain.hex(), "root": f"{root:016x}"}


def _rows(rows: list[QueueRow]) -> list[Facts]:
    found = [{**row._asdict(), "digest": f"{row.digest:016x}"} for row in rows[:ROWS_MAX]]
    return found if len(rows) <= ROWS_MAX else [*found, {"and": f"{len(rows) - ROWS_MAX} more"}]
