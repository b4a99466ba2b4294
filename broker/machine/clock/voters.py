"""The members whose clocks and poison reports count: the names in the replicated voter set.

The machine keeps the set as terms and leaves votes to the layer below (vsync/quorum/voter_set.py);
it counts each voter that runs a machine as one.
"""

from functools import lru_cache


@lru_cache(maxsize=64)
def voter_names(terms: tuple[str, ...]) -> tuple[str, ...]:
    """The voters with data; during a change, those of the new set."""
    if "->" in terms:
        terms = terms[terms.index("->") + 1 :]
    return tuple(term.rpartition("=")[0] or term for term in terms if not term.startswith("@"))
