"""Checks the member logs that tests leave behind when the last process of a cluster has ended.

Any test that starts brokers through `BrokerProcess` runs a cluster under some fault, so its logs
must be consistent, whatever the test is for.  Where a test makes members lie, or destroys what they
promised, the marker `logs_tell_of_it` says so, with a reason.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from tools.demo.local_cluster import BrokerProcess

MARKER = "logs_tell_of_it"
BYTES_MAX = 20 << 20
"""The most bytes of members' logs; checking more would take longer than the test itself."""
CLIENTS = "clients"
"""The directory beside the members' where clients of a test keep their histories."""


class LeftLogs:
    """The clusters that tests started, by the directory of their members' directories."""

    def __init__(self) -> None:
        self._started: dict[Path, dict[Path, BrokerProcess]] = {}
        self._excused: set[Path] = set()
        self.judged = 0
        self.excused = True
        """Whether clusters started now are exempt."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Record every start from now on."""
        start = BrokerProcess.start

        def noted(process: BrokerProcess) -> None:
            root = process.data_dir.parent
            self._started.setdefault(root, {})[process.data_dir] = process
            if self.excused:
                self._excused.add(root)
            start(process)

        patch.setattr(BrokerProcess, "start", noted)

    def judge(self) -> list[str]:
        """Check and forget all clusters without a running process; return the findings, in
        sentences."""
        wrong: list[str] = []
        for root, members in list(self._started.items()):
            if any(one.alive for one in members.values()):
                continue
            del self._started[root]
            if root not in self._excused:
                wrong += self._findings(root, {_store_of(one) for one in members.values()})
        return wrong

    def _findings(self, root: Path, stores: set[Path]) -> list[str]:
        places = [one for one in (*sorted(stores), root / CLIENTS) if one.is_dir()]
        sizes = [log.stat().st_size for one in places for log in one.rglob("*.qml*")]
        if not sizes or sum(sizes) > BYTES_MAX or find_spec("duckdb") is None:
            return []
        from tools.verify.findings import BadInput
        from tools.verify.job import verify

        try:
            report = verify(None, places)
        except BadInput:  # nothing was applied, or there is nothing to compare
            return []
        self.judged += 1
        return [f"{root}: {one}" for one in report.findings]


def _store_of(process: BrokerProcess) -> Path:
    """The store that holds its member log: several brokers may share one."""
    given = dict(pairwise(process.arguments))
    return Path(given.get("--shared-store", process.data_dir))
