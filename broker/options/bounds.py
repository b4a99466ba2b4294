"""The options of how far a member's clock, disk and memory may go before it is noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import OptionError, amount, number

DEFAULTS: Mapping[str, str] = {
    "clock-bound": "10",
    "disk-lag-max": "30",
    "disk-backlog-max": "256",
    "disk-free-limit": "auto",
    "memory-limit": "0.6",
    "page-memory": "32MiB",
}


class Bounds(NamedTuple):
    """What an operator allows of a member's own machine (`broker.watchdogs.watchdogs`)."""

    clock_s: float
    lag_s: float
    backlog_bytes: int
    disk_free: int | float | None
    """Bytes, or a share of the file system; 0: never an alarm; None: what the state needs."""
    memory: int | float
    """Bytes, or a share of the memory that this process may hold; 0: never an alarm."""
    page_memory: int
    """Bytes of messages that wait in memory, before more of them wait on disk; 0: never there."""


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
