"""The options of voters and their votes: read, and refused when they cannot be safe.

The names are corosync's (votequorum) where it has them. The options become the voter set of a new
cluster; an existing cluster keeps its own, and refuses a member whose options contradict it.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.options.values import Kind, Option, OptionError, defaults_of, number, yes
from vsync.errors import ConfigError
from vsync.quorum.reconfiguration import check_requested, requested_terms
from vsync.quorum.voter_set import Terms

VOTES_MAX = 255
EXPECTED_MAX = 4096
LAST_MAN_STANDING_MS = 10_000
"""votequorum's window of last_man_standing."""

_WINDOW = "cluster-last-man-standing-window"
OPTIONS: Mapping[str, Option] = {
    "cluster-votes": Option("", "NAME=N,...",
        "Votes of members, by ring address; members that are not listed have 1. A group needs "
        "more than half.", Kind.EQUAL),
    "cluster-expected-votes": Option("", "N",
        "Compute the quorum from this number of votes. Default: the sum of all votes.", Kind.EQUAL),
    "cluster-two-node": Option("no", "yes|no",
        "Either of two members may continue alone. Refused without --cluster-arbitrator: after a "
        "network split both would. Default no.", Kind.EQUAL),
    "cluster-wait-for-all": Option("no", "yes|no",
        "After a start or a loss of quorum, wait until every voter is there. Default no.",
        Kind.EQUAL),
    "cluster-auto-tie-breaker": Option("no", "WHICH",
        "Of two equal halves, the one with this voter continues: lowest, highest, or a list of "
        "ring addresses, of which the first that counts decides. Default no.", Kind.EQUAL),
    "cluster-last-man-standing": Option("no", "yes|no",
        "While the others have a quorum, voters that are away longer than a window stop counting, "
        "one by one; they count again when they return. Default no.", Kind.EQUAL),
    "cluster-last-man-standing-window": Option(str(LAST_MAN_STANDING_MS), "MS",
        "How long a voter must be away before it stops counting. Default 10000.", Kind.EQUAL),
    "cluster-arbitrator": Option("", "HOST:PORT",
        "Ring address of a process that only votes and has neither data nor clients. The same on "
        "all members; the process with this --cluster-bind is the arbitrator. Lets either of two "
        "members continue alone.", Kind.EQUAL),
    "cluster-cman": Option("no", "yes|no",
        "A member that loses the quorum stops at once (code 79), as Qpid does under CMAN. "
        "Otherwise it serves nobody until it has the quorum again. Default no.", Kind.ALIKE),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)


def read_quorum_options(text: Mapping[str, str], size: int, pair: str = "") -> Terms:
    """Return the terms that the options request for a new cluster with `size` data members.

    `pair`: the member of a pair whose history is kept if both went on alone.
    """
    votes = _votes(text["cluster-votes"])
    expected = text["cluster-expected-votes"]
    arbitrator = text["cluster-arbitrator"]

    def flag(option: str) -> bool:
        return yes(option, text[option])

    window = number(_WINDOW, text[_WINDOW], 1, 3_600_000)
    two_node, wait_for_all = flag("cluster-two-node"), flag("cluster-wait-for-all")
    try:
        terms = requested_terms(
            votes=votes,
            arbitrator=arbitrator,
            expected=(
                number("cluster-expected-votes", expected, 1, EXPECTED_MAX) if expected else 0
            ),
            tie_breaker=_tie_breaker(text["cluster-auto-tie-breaker"]),
            last_man_standing_ms=window if flag("cluster-last-man-standing") else 0,
            two_node=two_node,
            wait_for_all=wait_for_all,
            pair=pair,
        )
        if terms:
            check_requested(size, terms)
    except ConfigError as refused:
        raise OptionError(_first_given(text), str(refused)) from None
    return terms


def _first_given(text: Mapping[str, str]) -> str:
    """The option to name when only the combination is at fault: the first that was given."""
    order = ("cluster-two-node", "cluster-expected-votes", "cluster-last-man-standing")
    return next(name for name in (*order, *DEFAULTS) if text[name] != DEFAULTS[name])


def _votes(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, equals, votes = part.rpartition("=")
        if not equals or not name:
            raise OptionError("cluster-votes", f"'{part}' is not of the form NAME=VOTES")
        if name in found:
            raise OptionError("cluster-votes", f"'{name}' is listed twice")
        found[name] = number("cluster-votes", votes, 1, VOTES_MAX)
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
