"""The options of stores that were set aside: how many stay, for how long, and how much they take.

Nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import amount, number

DEFAULTS: Mapping[str, str] = {
    "backups-keep": "3",
    "backups-keep-days": "7",
    "backups-keep-size": "0.2",
}


class BackupPolicy(NamedTuple):
    """Which stores that were set aside stay; those that may be the only copy stay in any case."""

    keep: int = 3
    """So many of the newest; 0: all, whatever the other limits are."""
    keep_s: int = 7 * 86_400
    """And those that were written since."""
    keep_bytes: int | float = 0.2
    """But together no more, or no larger a share of the file system; 0: without a limit."""


def read_backup_options(text: Mapping[str, str]) -> BackupPolicy:
    """Read the options.  Raises OptionError."""
    return BackupPolicy(
        number("backups-keep", text["backups-keep"], 0, 10_000),
        number("backups-keep-days", text["backups-keep-days"], 0, 36_500) * 86_400,
        amount("backups-keep-size", text["backups-keep-size"]),
    )
