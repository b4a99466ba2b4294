"""What a member does about its own failures: the shell around quarantine, disputes and scrubbing.

It decides nothing about the history; it keeps evidence, re-executes the own store when votes are
split, and says what happened in one sentence.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from broker.consensus import Value, Verdict
from broker.core import Core
from broker.dispute import FAILED, report_of
from broker.evidence import Evidence, Facts
from broker.keeper import Keeper
from broker.logbook import Logbook
from broker.machine.entities import QueueRow
from broker.quarantine import ORDERED, Quarantine
from broker.reexecution import Reexecution, reexecute
from broker.replica import ExecutionFailed
from broker.status import version

log = logging.getLogger("qpidd")

DISPUTE = "dispute"


class Care:
    """One member's evidence, and what it does to find out whether to trust itself."""

    def __init__(self, data_dir: Path, member: str) -> None:
        self.member = member
        self.evidence = Evidence(data_dir)
        self.quarantine = Quarantine(self.evidence, version())
        self.counters: dict[str, int] = {
            "executions_failed": 0, "disputes": 0, "reexecuted": 0, "convictions": 0,
        }  # fmt: skip
        self._disputed: Verdict | None = None  # to be re-executed when it is durable

    def attend(self, core: Core, keeper: Keeper, logbook: Logbook) -> None:
        """Begin, once the member is put together."""
        self._core, self._keeper, self._logbook = core, keeper, logbook

    def failed(self, error: BaseException) -> str:
        """Something of ours raised while a turn of work was done; return the reason to stop."""
        log.critical("applying failed here", exc_info=error)
        if isinstance(error, ExecutionFailed):
            self.counters["executions_failed"] += 1
            return self.quarantine.add(error, ORDERED, self.member)
        return f"applying an ordered item failed here: {error!r}"

    def wake(self) -> None:
        """Do what is due."""
        self._keeper.hold_checkpoints = bool(self._core.halted)
        verdict = self._disputed
        if verdict is not None and self._keeper.store.meta.position >= verdict.position:
            self._reexecute(verdict)
        for settlement in self._core.tribunal.take_settlements():
            log.critical("%s", settlement.reason)
            self.counters["convictions"] += len(settlement.culprits)
            self.evidence.keep(DISPUTE, {"member": self.member, "settlement": settlement._asdict()})

    # -- votes -----------------------------------------------------------------------------------

    def voted(self, verdict: Verdict) -> None:
        """Note a verdict; find out more where it is split."""
        if verdict.divergent:
            log.critical(
                "digest vote at position %d: %s computed something else than the majority",
                verdict.position, ", ".join(verdict.divergent),
            )  # fmt: skip
        if self.member in verdict.divergent:
            self.evidence.keep(DISPUTE, self._facts(verdict))
        word = "undecided" if verdict.split else "divergent" if verdict.divergent else "agreed"
        _, chain, root = verdict.value or (0, bytes(16), 0)
        self._logbook.vote(verdict.position, chain, root, word)
        if verdict.split:
            self._on_split(verdict)

    def _on_split(self, verdict: Verdict) -> None:
        dispute = self._core.tribunal.dispute
        log.critical("digest vote at position %d is split: %s", verdict.position, verdict.votes)
        if dispute is None or dispute.position != verdict.position:
            return  # an earlier one is being settled
        self.counters["disputes"] += 1
        self._keeper.hold_checkpoints = True
        if self.member not in verdict.votes:
            return
        self._disputed = verdict

    def _reexecute(self, verdict: Verdict) -> None:
        """On a worker thread, while the ring runs on."""
        self._disputed = None
        future = asyncio.get_running_loop().run_in_executor(
            None, reexecute, self.member, self._keeper.store, verdict.position,
            self._core.tribunal.agreed,
        )  # fmt: skip
        future.add_done_callback(lambda done: self._reexecuted(verdict, done))

    def _reexecuted(self, verdict: Verdict, done: asyncio.Future[Reexecution]) -> None:
        position, error = verdict.position, done.exception()
        if error is not None:  # whatever it was: this member cannot reproduce itself
            log.critical("re-executing the own store failed", exc_info=error)
            found = Reexecution(position, 0, FAILED, bytes(16), 0, [], repr(error))
        else:
            found = done.result()
        self.counters["reexecuted"] += 1
        path = self.evidence.keep(DISPUTE, self._facts(verdict, found))
        log.critical("%s; the evidence is in %s", found.reason, path)
        self._core.reexecuted(report_of(position, found.verdict, found.chain, found.root))

    def _facts(self, verdict: Verdict, found: Reexecution | None = None) -> Facts:
        facts: Facts = {
            "member": self.member,
            "position": verdict.position,
            "votes": {name: _words(value) for name, value in verdict.votes.items()},
            "majority": _words(verdict.value),
            "agreed": self._core.tribunal.agreed,
            "now": str(self._core.replica.history),
            "queues_now": _rows(self._core.replica.machine.queue_rows()),
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


def _words(value: Value | None) -> Facts | None:
    if value is None:
        return None
    epoch, chain, root = value
    return {"epoch": epoch, "chain": chain.hex(), "root": f"{root:016x}"}


def _rows(rows: list[QueueRow]) -> list[Facts]:
    return [{**row._asdict(), "digest": f"{row.digest:016x}"} for row in rows]
