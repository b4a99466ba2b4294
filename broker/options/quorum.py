"""The options that say who votes, and with how much: read, and refused when they cannot be safe.

The names are corosync's (votequorum) where it has them.  What they say becomes the voter set of a
new cluster; a cluster that exists keeps its own, and refuses a member whose options contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vsync.errors import ConfigError
from vsync.quorum.reconfiguration import check_requested, requested_terms
from vsync.quorum.voter_set import Terms

VOTES_MAX = 255
EXPECTED_MAX = 4096
STANDING_MS = 10_000
"""votequorum's window of last_man_standing."""

DEFAULTS: Mapping[str, str] = {
    "cluster-votes": "",
    "cluster-expected-votes": "",
    "cluster-two-node": "no",
    "cluster-wait-for-all": "no",
    "cluster-auto-tie-breaker": "no",
    "cluster-last-man-standing": "no",
    "cluster-last-man-standing-window": str(STANDING_MS),
    "cluster-arbitrator": "",
}


class QuorumOptionError(Exception):
    """One option's value cannot be used, alone or together with the others."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option, self.reason = option, reason


def quorum_wish(text: Mapping[str, str], size: int) -> Terms:
    """Return what the options ask of the voter set of a new cluster with `size` data members."""
    votes = _votes(text["cluster-votes"])
    expected = text["cluster-expected-votes"]
    arbitrator = text["cluster-arbitrator"]
    window = _number("cluster-last-man-standing-window", 1, 3_600_000, text)
    flags = {
        "two_node": _yes("cluster-two-node", text),
        "wait_for_all": _yes("cluster-wait-for-all", text),
    }
    try:
        wish = requested_terms(
            votes=votes,
            arbitrator=arbitrator,
            expected=_number("cluster-expected-votes", 1, EXPECTED_MAX, text) if expected else 0,
            tie_breaker=_tie_breaker(text["cluster-auto-tie-breaker"]),
            standing_ms=window if _yes("cluster-last-man-standing", text) else 0,
            **flags,
        )
        if wish:
            check_requested(size, wish)
    except ConfigError as refused:
        raise QuorumOptionError(_culprit(text), str(refused)) from None
    return wish


def _culprit(text: Mapping[str, str]) -> str:
    """The option to name when only the combination is at fault: the first that was given."""
    order = ("cluster-two-node", "cluster-expected-votes", "cluster-last-man-standing")
    return next(name for name in (*order, *DEFAULTS) if text[name] != DEFAULTS[name])


def _yes(option: str, text: Mapping[str, str]) -> bool:
    word = text[option].lower()
    if word not in ("yes", "no"):
        raise QuorumOptionError(option, f"'{text[option]}' is neither yes nor no")
    return word == "yes"


def _number(option: str, low: int, high: int, text: Mapping[str, str]) -> int:
    word = text[option]
    if not (word.isascii() and word.isdigit()) or not low <= int(word) <= high:
        raise QuorumOptionError(option, f"'{word}' is not a whole number from {low} to {high}")
    return int(word)


def _votes(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, equals, votes = part.rpartition("=")
        if not equals or not name:
            raise QuorumOptionError("cluster-votes", f"'{part}' is not of the form NAME=VOTES")
        if name in found:
            raise QuorumOptionError("cluster-votes", f"'{name}' is listed twice")
        found[name] = _number("cluster-votes", 1, VOTES_MAX, {"cluster-votes": votes})
    return found


def _tie_breaker(text: str) -> tuple[str, ...]:
    word = text.lower()
    if word in ("no", ""):
        return ()
    if word == "yes":
        return ("lowest",)
    if word in ("lowest", "highest"):
        return (word,)
    return tuple(part.strip() for part in text.split(",") if part.strip())
