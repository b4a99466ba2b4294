"""The longest lease that this member agreed to, on its disk: a later incarnation waits for it.

A member that starts knows nothing of the rings that its former incarnation was in, and promises
nothing before their leases are over (`vsync/totem/ordering/lease.py`).  On most disks there is no
such file: only a ring that is slow has a lease longer than the settings' own.  Once the wait is
over the file is brought down to what the present incarnation agreed to.
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
    """Return what is kept there, in ms; what cannot be read counts as the longest possible."""
    try:
        return min(int((data_dir / FILE_NAME).read_text("ascii")), config.lease_max_ms)
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return config.lease_max_ms


def write_kept_lease(data_dir: Path, lease_ms: int) -> None:
    """Make it durable; after an error the old number or the new one is there."""
    replace_file(data_dir / FILE_NAME, f"{lease_ms}\n".encode("ascii"))


class KeptLease:
    """Writes what the ring would have, on a thread, and then lets the ring have it."""

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
        """Look now and then whether something is to be written; until `stop`.

        The node has started: it waits from now on.
        """
        self._lower_at = self._loop.time() + self._on_disk_ms * (1 + SLACK) / 1000
        self._beat()

    def _beat(self) -> None:
        self.look()
        self._handle = self._loop.call_later(LOOK_S, self._beat)

    def stop(self) -> None:
        """What is being written may still be written."""
        if self._handle is not None:
            self._handle.cancel()

    def look(self) -> None:
        """Begin to write what the disk should hold, unless it does or a write is under way."""
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
        if done.cancelled() or (error := done.exception()) is not None:
            self.counters["leases_not_kept"] += 1
            if not done.cancelled() and self.counters["leases_not_kept"] == 1:
                path = self._data_dir / FILE_NAME
                log.warning("%s cannot be written, so the lease stays short: %s", path, error)
            return
        self.counters["leases_kept"] += 1
        self._on_disk_ms = lease_ms
        self.tempo.keep(lease_ms)
