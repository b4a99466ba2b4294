"""G1, G7, G14: positions follow each other, chains follow from them, batches are of the primary."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from tools.verify.format.commands import Command, Outcome
from tools.verify.format.records import HASH_BYTES

CONFIRMABLE = (Command.PUBLISH, Command.TX_COMMIT)
_NOTHING_HASHED = blake2b(digest_size=HASH_BYTES)  # its copy is made sooner than a new one
_OUTCOMES_OK = frozenset(
    code.to_bytes(2, "little") for code in (Outcome.OK, Outcome.UNROUTABLE, Outcome.REPEATED)
)


def digest(data: bytes) -> bytes:
    """Return the chain hash of the log's only hash kind."""
    hashed = _NOTHING_HASHED.copy()
    hashed.update(data)
    return hashed.digest()


def out_of_sequence(reached: int, first: int, last: int) -> tuple[int, int, str] | None:
    """Return (first, last, text) of a gap or overlap before a batch; None when it follows."""
    if first > reached + 1:
        return reached + 1, first - 1, f"positions {reached + 1} to {first - 1} are missing"
    if first <= reached:
        until = min(reached, last)
        return first, until, f"positions {first} to {until} are applied again"
    return None


def foreign_batch(of: tuple[int, int], primary: tuple[int, int] | None) -> str:
    """Return the text for a batch of another primary than the one this incarnation is in."""
    here = "no primary" if primary is None else f"epoch {primary[0]}, ring {primary[1]}"
    return f"a batch of epoch {of[0]}, ring {of[1]} is applied in {here}"


@lru_cache(4096)
def confirmable(kinds: bytes, outcomes: bytes) -> tuple[int, ...]:
    """Return the indexes of the accepted publishes of a batch."""
    return tuple(
        i
        for i, kind in enumerate(kinds)
        if kind in CONFIRMABLE and outcomes[2 * i : 2 * i + 2] in _OUTCOMES_OK
    )


def accepted(kind: int, first: int, kinds: bytes, outcomes: bytes) -> list[int]:
    """Return the positions of the commands of this kind in a batch that were carried out."""
    done = Outcome.OK.to_bytes(2, "little")
    return [
        first + i
        for i, one in enumerate(kinds)
        if one == kind and outcomes[2 * i : 2 * i + 2] == done
    ]
