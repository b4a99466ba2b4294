"""Whose clocks and deaths count: the names in the replicated voter set.

The machine carries the set as terms and leaves their votes to the layer below
(vsync/quorum/voter_set.py); what it counts itself it counts by heads, among the voters that run a
machine.
"""

from functools import lru_cache


@lru_cache(maxsize=64)
def voter_names(terms: tuple[str, ...]) -> tuple[str, ...]:
    """The voters with data; while a change is under way those that are to come."""
    if "->" in terms:
        terms = terms[terms.index("->") + 1 :]
    return tuple(term.rpartition("=")[0] or term for term in terms if not term.startswith("@"))


@lru_cache(maxsize=64)
def fewest_voters(terms: tuple[str, ...]) -> int:
    """How many voters with data a primary view has at least: with unequal votes, an arbitrator or a
    rule for two, one may do."""
    count = len(voter_names(terms))
    equal = count > 2 and not any("=" in term or term.startswith("@") for term in terms)
    return count // 2 + 1 if equal else 1
