"""The retention options: for stores that were set aside, and for the member log.

Nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import Option, OptionError, amount, defaults_of, number, yes

OPTIONS: Mapping[str, Option] = {
    "backups-keep": Option("3", "N",
        "How many replaced stores (DIR/_cluster.bak.NNNN) to keep. One that may be the only copy "
        "of something is always kept. 0: all. Default 3."),
    "backups-keep-days": Option("7", "N", "Also keep those written in the last N days. Default 7."),
    "backups-keep-size": Option("0.2", "SIZE|SHARE",
        "Limit for all of them together, as a size or a share of the disk; 0: none. Default 0.2."),
    "memberlog-segment-size": Option("64", "MB",
        "Start a new file of the member log at this size. Default 64."),
    "memberlog-segment-time": Option("60", "MINUTES",
        "Start a new file of the member log after this time, if anything was written. Default 60."),
    "memberlog-compress": Option("yes", "yes|no",
        "Compress closed files of the member log, in a process of low priority. Default yes."),
    "memberlog-keep-days": Option("30", "N",
        "Delete closed files of the member log that are older; 0: never. Default 30."),
    "memberlog-keep-size": Option("0.1", "SIZE|SHARE",
        "Delete the oldest closed files above this total (2GB, 0.1 of the disk); 0: never. "
        "Default 0.1."),
    "memberlog-drop-unverified": Option("yes", "yes|no",
        "Delete them even if DIR/memberlog/verified does not name them. Default yes."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)
_NUMBERS = {  # lowest and highest
    "memberlog-segment-size": (1, 512),  # readers hold one whole
    "memberlog-segment-time": (1, 10_080),
    "memberlog-keep-days": (0, 36_500),
}
_KEEP_BYTES_MIN = 1 << 20


class BackupPolicy(NamedTuple):
    """Which stores that were set aside are kept; a possible only copy is always kept."""

    keep: int = 3
    """The number of newest stores that are kept; 0: all, whatever the other limits are."""
    keep_s: int = 7 * 86_400
    """The age in seconds up to which stores are also kept."""
    keep_bytes: int | float = 0.2
    """The most bytes, or share of the file system, for all of them together; 0: no limit."""


def read_backup_options(text: Mapping[str, str]) -> BackupPolicy:
    """Read the options.  Raises OptionError."""
    return BackupPolicy(
        number("backups-keep", text["backups-keep"], 0, 10_000),
        number("backups-keep-days", text["backups-keep-days"], 0, 36_500) * 86_400,
        amount("backups-keep-size", text["backups-keep-size"]),
    )


class Policy(NamedTuple):
    """How long closed segments are kept and in which form; 0 = without a limit."""

    compress: bool = True
    keep_s: int = 0
    keep_bytes: int | float = 0  # a float is a share of the file system
    drop_unverified: bool = False


class MemberlogOptions(NamedTuple):
    """How the member log is split into segments and kept."""

    segment_bytes: int
    segment_us: int
    policy: Policy


def read_memberlog_options(text: Mapping[str, str]) -> MemberlogOptions:
    """Read the options.  Raises OptionError."""
    numbers = {name: number(name, text[name], low, high) for name, (low, high) in _NUMBERS.items()}
    keep_bytes = amount("memberlog-keep-size", text["memberlog-keep-size"])
    if isinstance(keep_bytes, int) and 0 < keep_bytes < _KEEP_BYTES_MIN:
        raise OptionError("memberlog-keep-size", f"{keep_bytes} bytes hold nothing; name the unit")
    policy = Policy(
        compress=yes("memberlog-compress", text["memberlog-compress"]),
        keep_s=numbers["memberlog-keep-days"] * 86_400,
        keep_bytes=keep_bytes,
        drop_unverified=yes("memberlog-drop-unverified", text["memberlog-drop-unverified"]),
    )
    return MemberlogOptions(
        numbers["memberlog-segment-size"] << 20,
        numbers["memberlog-segment-time"] * 60_000_000,
        policy,
    )
