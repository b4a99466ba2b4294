"""Reconfiguration of the voter set: the first set of a cluster, and every change to it.

Pure functions from terms (see `voter_set`) to terms. Each returns a set that is safe to use, or
raises `ConfigError` with one sentence: nothing here yields a set under which two disjoint groups
could act. A change is ordered in two steps, `old -> new` and then `new`, each when the previous one
is durable; between them both sets must agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from vsync.errors import ConfigError
from vsync.quorum.voter_set import CHANGE, Terms, VoterSet, pair_terms, parse, voter_set


def checked(voters: VoterSet) -> Terms:
    """Return the terms of a set that is safe to use; otherwise ConfigError with the reason."""
    flaw = voters.flaw()
    if flaw:
        raise ConfigError(flaw)
    return voters.terms


def check_requested(size: int, requested: Terms) -> None:
    """Refuse options under which a first start with `size` data members could not be safe.

    Members that the options do not name get invented names, because names do not matter here.
    """
    asked = voter_set(requested)
    named = set(asked.votes) | {n for n in asked.tie_breaker if n not in ("lowest", "highest")}
    named |= {asked.pair} if asked.pair else set()
    if len(named) > size:
        raise ConfigError(
            f"{len(named)} members are named ({', '.join(sorted(named))}), but only {size} vote"
        )
    others = (f"member {number}" for number in range(len(named) + 1, size + 1))
    checked(replace(asked, votes={**dict.fromkeys((*sorted(named), *others), 1), **asked.votes}))


def first_voters(names: Collection[str], requested: Terms) -> Terms:
    """Return the voters of a new cluster: `names` hold data, and all members requested the same.

    ConfigError when `requested` names other members.
    """
    asked = voter_set(requested)
    unknown = sorted(set(asked.votes) - set(names))
    if unknown:
        here = ", ".join(sorted(names)) or "nobody"
        raise ConfigError(f"votes are set for {', '.join(unknown)}, but here are {here}")
    return checked(replace(asked, votes={**dict.fromkeys(sorted(names), 1), **asked.votes}))


def mismatch(requested: Terms, terms: Terms) -> str:
    """Return how a member's options contradict the voter set of its cluster; empty if they do not.

    Commands change which members vote. The rule, and the number of votes of each member, must agree
    with the options; otherwise an operator would read one thing and get another.
    """
    asked, given = voter_set(requested), voter_set(terms)
    if asked.rule != given.rule:
        return (
            f"this member was started with {_options(asked)}, the cluster's voter set was made "
            f"with {_options(given)}"
        )
    for name, votes in sorted(asked.votes.items()):
        if given.votes.get(name, votes) != votes:
            return (
                f"this member was started with {votes} votes for {name}, the cluster's voter set "
                f"has {given.votes[name]}"
            )
    return ""


def _options(voters: VoterSet) -> str:
    """Return the rule as command line options."""
    if voters.pair:
        return f"the options of a pair of which {voters.pair} keeps its history"
    typed = [f"--cluster-{term[1:].replace('_', '-').replace('+', ',')}" for term in voters.rule]
    return " ".join(typed) or "none of the quorum options"


# -- changes ---------------------------------------------------------------------------------------


def change_to(terms: Terms, new: Terms) -> Terms:
    """Return the first step of a change: both sets, which must both agree from now on."""
    old = parse(terms)
    if old.changing:
        raise ConfigError("another change of the voters is under way; wait until it is done")
    if old.latest.terms == new:
        raise ConfigError("that would change nothing")
    return (*old.latest.terms, CHANGE, *new)


def finished(terms: Terms) -> Terms:
    """Return the second step: the new set alone."""
    return parse(terms).latest.terms


def added(terms: Terms, name: str, votes: int = 1, *, arbitrator: bool = False) -> Terms:
    """Let one more member vote."""
    now = _changeable(terms)
    if name in now.names:
        raise ConfigError(f"{name} votes already")
    if not arbitrator:
        return checked(replace(now, votes={**now.votes, name: votes}))
    if now.arbitrator:
        raise ConfigError(f"{now.arbitrator} is the arbitrator already; replace it instead")
    return checked(replace(now, arbitrator=name, arbitrator_votes=votes))


def removed(terms: Terms, name: str) -> Terms:
    """Take the vote of one member away."""
    now = _voting(terms, name)
    if name == now.arbitrator:
        return checked(replace(now, arbitrator="", arbitrator_votes=1))
    votes = {one: number for one, number in now.votes.items() if one != name}
    return checked(replace(now, votes=votes, away=now.away - {name}))


def replaced(terms: Terms, old: str, new: str, *, arbitrator: bool = False) -> Terms:
    """Let `new` vote in place of `old`, with the same number of votes."""
    now = _voting(terms, old)
    if new in now.names:
        raise ConfigError(f"{new} votes already; remove {old} instead")
    if (old == now.arbitrator) != arbitrator:
        holds = {True: "is an arbitrator", False: "holds data"}
        raise ConfigError(f"{old} {holds[not arbitrator]} and {new} {holds[arbitrator]}")
    if arbitrator:
        return checked(replace(now, arbitrator=new))
    votes = {new if one == old else one: number for one, number in now.votes.items()}
    breaker = tuple(new if one == old else one for one in now.tie_breaker)
    return checked(replace(now, votes=votes, tie_breaker=breaker, away=now.away - {old}))


def with_votes(terms: Terms, name: str, votes: int) -> Terms:
    """Give a voter another number of votes."""
    now = _voting(terms, name)
    if name == now.arbitrator:
        return checked(replace(now, arbitrator_votes=votes))
    return checked(replace(now, votes={**now.votes, name: votes}))


def with_expected(terms: Terms, expected: int) -> Terms:
    """Compute the quorum from this number of votes; 0: from the sum of all votes."""
    return checked(replace(_changeable(terms), expected=expected))


def with_away(terms: Terms, away: Collection[str]) -> Terms:
    """Stop counting exactly these voters (last_man_standing)."""
    now = _settled(terms)
    kept = frozenset(away) & now.votes.keys()
    return checked(replace(now, away=kept, declared=now.declared and bool(kept)))


# -- pairs -----------------------------------------------------------------------------------------


def alone(terms: Terms, name: str) -> Terms:
    """Return the voters with which this member of a pair continues alone; nothing if it must not.

    It may do so even while the other member is being made to count again: the other one acts on
    that change only when it is finished, and its finish is ordered only when the change itself is
    on this member's disk.
    """
    sets = parse(terms).sets
    if any(name in one.away for one in sets):
        return ()
    return _alone(terms, name, declared=any(one.declared for one in sets))


def go_on(terms: Terms, others: Collection[str]) -> bool:
    """Whether these can act if all others stop: a quorum, or one of a pair with its vote."""
    return parse(terms).quorate(others) or any(alone(terms, name) for name in others)


def declared_alone(terms: Terms, name: str) -> Terms:
    """Return the same by an operator's word, whatever the terms say of it; () without a pair.

    The terms record the declaration: when the other member comes back, the history of this one is
    kept.
    """
    return _alone(terms, name, declared=True)


def _alone(terms: Terms, name: str, *, declared: bool) -> Terms:
    latest = voter_set(terms)
    if not latest.pair or name not in latest.votes:
        return ()
    return pair_terms(latest.pair, latest.votes, latest.votes.keys() - {name}, declared=declared)


def _settled(terms: Terms) -> VoterSet:
    electorate = parse(terms)
    if electorate.changing:
        raise ConfigError("another change of the voters is under way; wait until it is done")
    return electorate.latest


def _changeable(terms: Terms) -> VoterSet:
    now = _settled(terms)
    if now.pair:
        raise ConfigError(
            "the voters of a pair are its two members: let a new machine take the address of the "
            "one that it replaces (--cluster-bind), with an empty --data-dir"
        )
    return now


def _voting(terms: Terms, name: str) -> VoterSet:
    now = _changeable(terms)
    if name not in now.names:
        raise ConfigError(f"{name} does not vote; the voters are {', '.join(now.names)}")
    return now


# -- options ---------------------------------------------------------------------------------------


def requested_terms(
    *, votes: Mapping[str, int], arbitrator: str, expected: int, two_node: bool,
    wait_for_all: bool, tie_breaker: tuple[str, ...], last_man_standing_ms: int, pair: str = "",
) -> Terms:  # fmt: skip
    """Return an operator's options for the first start, as terms."""
    data = {name: number for name, number in votes.items() if name != arbitrator}
    return VoterSet(
        data, arbitrator, votes.get(arbitrator, 1), expected, two_node, wait_for_all,
        tie_breaker, last_man_standing_ms, pair=pair,
    ).terms  # fmt: skip
