"""Keeps the longest lease that this member agreed to on disk, so that a later incarnation waits for
it.

A starting member knows nothing of the rings that its former incarnation was in, and promises
nothing before their leases are over (`vsync/totem/ordering/lease.py`). Most disks have no such
file: only a slow ring has a longer lease than the settings' own. Once the wait is over, the file is
lowered to the lease that the current incarnation agreed to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Final

from store.files.durable_files import replace_file
from vsync.totem.config import RingConfig
from vsync.totem.ordering.lease import SLACK
from vsync.totem.ordering.tempo import Tempo

log = logging.getLogger("qpidd")

FILE_NAME: Final = "lease"
LOOK_S: Final = 0.25


def read_kept_lease(data_dir: Path, config: RingConfig) -> int:
    """Return the kept lease in ms; an unreadable file counts as the longest possible lease."""
    try:
        return min(int((data_dir / FILE_NAME).read_text("ascii")), config.lease_max_ms)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return config.lease_max_ms


def write_kept_lease(data_dir: Path, lease_ms: int) -> None:
    """Make the lease durable; after an error the file holds the old number or the new one."""
    replace_file(data_dir / FILE_NAME, f"{lease_ms}\n".encode("ascii"))


class KeptLease:
    """Writes the lease that the ring asks for, on a thread, and then grants it to the ring."""

    def __init__(self, data_dir: Path, config: RingConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.counters = {"leases_kept": 0, "leases_not_kept": 0}
        former_ms = read_kept_lease(data_dir, config)
        self.tempo = Tempo(config, former_ms)
        self._data_dir, self._loop = data_dir, loop
        self._on_disk_ms = max(former_ms, config.lease_ms)
        self._lower_at = math.inf
        self._writing: asyncio.Future[None] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check periodically whether something must be written, until `stop`.

        The node has started: it waits from now on.
        """
        self._lower_at = self._loop.time() + self._on_disk_ms * (1 + SLACK) / 1000
        self._beat()

    def _beat(self) -> None:
        self.look()
        self._handle = self._loop.call_later(LOOK_S, self._beat)

    def stop(self) -> None:
        """Stop checking; a write under way may still complete."""
        if self._handle is not None:
            self._handle.cancel()

    def look(self) -> None:
        """Begin to write the wanted lease, unless the disk has it or a write is under way."""
        wanted_ms = self.tempo.wanted_ms
        calm = self._loop.time() > self._lower_at
        if wanted_ms <= self._on_disk_ms:
            self.tempo.keep(wanted_ms)
        if self._writing is not None or wanted_ms == self._on_disk_ms:
            return
        if wanted_ms > self._on_disk_ms or calm:
            self._on_disk_ms = min(wanted_ms, self._on_disk_ms)  # either may be there meanwhile
            self._writing = self._loop.run_in_executor(
                None, write_kept_lease, self._data_dir, wanted_ms
            )
            self._writing.add_done_callback(lambda done: self._written(wanted_ms, done))

    def _written(self, lease_ms: int, done: asyncio.Future[None]) -> None:
        self._writing = None
        if (error := done.exception()) is not None:
            self.counters["leases_not_kept"] += 1
            if self.counters["leases_not_kept"] == 1:
                path = self._data_dir / FILE_NAME
                log.warning("%s cannot be written, so the lease stays short: %s", path, error)
            return
        self.counters["leases_kept"] += 1
        self._on_disk_ms = lease_ms
        self.tempo.keep(lease_ms)
