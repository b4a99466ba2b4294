"""The options that bound a member's clock, disk and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import Kind, Option, OptionError, amount, defaults_of, number

OPTIONS: Mapping[str, Option] = {
    "clock-bound": Option("10", "SECONDS",
        "A member whose clock differs more than this from the cluster's time may not join; one "
        "that drifts off later is reported. Default 10.", Kind.ALIKE),
    "disk-lag-max": Option("30", "SECONDS",
        "A member whose disk falls further behind than this leaves the cluster; from a tenth of "
        "it on it slows down all members. Default 30.", Kind.ALIKE),
    "disk-backlog-max": Option("256", "MB",
        "The same limit in megabytes that were applied but are not durable yet. Default 256.",
        Kind.ALIKE),
    "disk-free-limit": Option("auto", "SIZE|SHARE",
        "With less free space than this (2GB, 512MiB, 0.1 of the disk), publishers of the whole "
        "cluster are blocked; consumers continue. 0: never. Default auto: 256MB, or a tenth of a "
        "smaller disk, plus room for a checkpoint."),
    "memory-limit": Option("0.6", "SIZE|SHARE",
        "The same when this broker uses more memory than this. 0: never. Default 0.6 of the "
        "memory of the machine or of its control group."),
    "page-memory": Option("32MiB", "SIZE",
        "About how much memory the messages of long queues may use (64MiB, 2GB); further messages "
        "wait in a file in the data directory. 0: keep all in memory. Default 32MiB."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)


class Bounds(NamedTuple):
    """The operator's bounds for a member's own machine (`broker.watchdogs.watchdogs`)."""

    clock_s: float
    lag_s: float
    backlog_bytes: int
    disk_free: int | float | None
    """Bytes, or a share of the file system; 0: never an alarm; None: what the state needs."""
    memory: int | float
    """Bytes, or a share of the memory that this process may hold; 0: never an alarm."""
    page_memory: int
    """Bytes of waiting messages in memory, before more of them wait on disk; 0: never on disk."""


def _page_memory(text: str) -> int:
    value = amount("page-memory", text)
    if isinstance(value, float):
        raise OptionError("page-memory", f"'{text}' is not an amount (64MiB, 2GB)")
    return value


def read_bounds(text: Mapping[str, str]) -> Bounds:
    """Read the options.  Raises OptionError."""
    free = text["disk-free-limit"]
    return Bounds(
        number("clock-bound", text["clock-bound"], 1, 86_400),
        number("disk-lag-max", text["disk-lag-max"], 1, 3600),
        number("disk-backlog-max", text["disk-backlog-max"], 8, 1 << 20) << 20,
        None if free.lower() == "auto" else amount("disk-free-limit", free),
        amount("memory-limit", text["memory-limit"]),
        _page_memory(text["page-memory"]),
    )
