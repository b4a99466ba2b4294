"""What a member does about its own failures: the shell around quarantine, disputes and scrubbing.

It decides nothing about the history; it keeps evidence and says what happened in one sentence.
"""

from __future__ import annotations

import logging
from pathlib import Path

from broker.evidence import Evidence
from broker.quarantine import ORDERED, Quarantine
from broker.replica import ExecutionFailed
from broker.status import version

log = logging.getLogger("qpidd")


class Care:
    """One member's evidence and quarantine."""

    def __init__(self, data_dir: Path, member: str) -> None:
        self.member = member
        self.evidence = Evidence(data_dir)
        self.quarantine = Quarantine(self.evidence, version())
        self.counters: dict[str, int] = {"executions_failed": 0}

    def failed(self, error: BaseException) -> str:
        """Something of ours raised while a turn of work was done; return the reason to stop."""
        log.critical("applying failed here", exc_info=error)
        if isinstance(error, ExecutionFailed):
            self.counters["executions_failed"] += 1
            return self.quarantine.add(error, ORDERED, self.member)
        return f"applying an ordered item failed here: {error!r}"
