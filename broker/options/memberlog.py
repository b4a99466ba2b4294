"""The options of the member log: when a segment ends, and what happens to closed segments.

Nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.options.values import OptionError, number, yes

DEFAULTS: Mapping[str, str] = {
    "memberlog-segment-size": "64",
    "memberlog-segment-time": "60",
    "memberlog-compress": "yes",
    "memberlog-keep-days": "0",
    "memberlog-keep-size": "0",
    "memberlog-drop-unverified": "no",
}
_NUMBERS = {  # lowest and highest
    "memberlog-segment-size": (1, 512),  # readers hold one whole
    "memberlog-segment-time": (1, 10_080),
    "memberlog-keep-days": (0, 36_500),
    "memberlog-keep-size": (0, 1 << 30),
}


class Policy(NamedTuple):
    """How long closed segments are kept and in which form; 0 = without a limit."""

    compress: bool = True
    keep_s: int = 0
    keep_bytes: int = 0
    drop_unverified: bool = False


class MemberlogOptions(NamedTuple):
    """How the member log is cut and kept."""

    segment_bytes: int
    segment_us: int
    policy: Policy


def read_memberlog_options(text: Mapping[str, str]) -> MemberlogOptions:
    """Read the options.  Raises OptionError."""
    numbers = {name: number(name, text[name], low, high) for name, (low, high) in _NUMBERS.items()}
    keep_days, keep_mib = numbers["memberlog-keep-days"], numbers["memberlog-keep-size"]
    drop_unverified = yes("memberlog-drop-unverified", text["memberlog-drop-unverified"])
    if drop_unverified and not keep_days and not keep_mib:
        raise OptionError(
            "memberlog-drop-unverified",
            "it needs --memberlog-keep-days or --memberlog-keep-size: nothing is dropped otherwise",
        )
    policy = Policy(
        compress=yes("memberlog-compress", text["memberlog-compress"]),
        keep_s=keep_days * 86_400,
        keep_bytes=keep_mib << 20,
        drop_unverified=drop_unverified,
    )
    return MemberlogOptions(
        numbers["memberlog-segment-size"] << 20,
        numbers["memberlog-segment-time"] * 60_000_000,
        policy,
    )
