"""The options of the member log: when a segment ends, and what becomes of it then.

Nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.memberlog.archive import Policy

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


class MemberlogOptionError(Exception):
    """One option's value cannot be used."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option, self.reason = option, reason


class MemberlogWish(NamedTuple):
    """How the member log is cut and kept."""

    segment_bytes: int
    segment_us: int
    policy: Policy


def memberlog_wish(text: Mapping[str, str]) -> MemberlogWish:
    """Read the options.  Raises MemberlogOptionError."""
    number = {option: _number(option, text[option]) for option in _NUMBERS}
    keep_days, keep_mib = number["memberlog-keep-days"], number["memberlog-keep-size"]
    drop_unverified = _yes("memberlog-drop-unverified", text["memberlog-drop-unverified"])
    if drop_unverified and not keep_days and not keep_mib:
        raise MemberlogOptionError(
            "memberlog-drop-unverified",
            "it needs --memberlog-keep-days or --memberlog-keep-size: nothing is dropped otherwise",
        )
    policy = Policy(
        compress=_yes("memberlog-compress", text["memberlog-compress"]),
        keep_s=keep_days * 86_400,
        keep_bytes=keep_mib << 20,
        drop_unverified=drop_unverified,
    )
    return MemberlogWish(
        number["memberlog-segment-size"] << 20,
        number["memberlog-segment-time"] * 60_000_000,
        policy,
    )


def _number(option: str, text: str) -> int:
    low, high = _NUMBERS[option]
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        reason = f"'{text}' is not a whole number from {low} to {high}"
        raise MemberlogOptionError(option, reason)
    return int(text)


def _yes(option: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise MemberlogOptionError(option, f"'{text}' is neither yes nor no")
    return text == "yes"
