"""G7, G9: what a record may say after those before it, in its own segment or in another one."""

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


def foreign_batch(of: tuple[int, int], primary: tuple[int, int] | None) -> str:
    """Return the text for a batch of another primary than the one this incarnation is in."""
    here = "no primary" if primary is None else f"epoch {primary[0]}, ring {primary[1]}"
    return f"a batch of epoch {of[0]}, ring {of[1]} is applied in {here}"


def foreign_confirm(
    epoch: int, active: bool | None, deciding: int | None, primary: tuple[int, int] | None
) -> str:
    """Return how a confirm contradicts what its incarnation is in; "" if not, as far as known.

    What a primary decides before it is active is confirmed afterwards.
    """
    if active is False or (active and deciding is not None):
        return "confirmed outside of the primary"
    if active and primary is not None and epoch != primary[0]:
        return f"confirmed in epoch {epoch}, while in epoch {primary[0]}"
    return ""


def not_applied(does: str, reached: int) -> str:
    """Return the text for a statement about a position that was not applied yet."""
    return f"{does}, but applied only up to position {reached}"


def falls(before: int) -> str:
    """Return the text for a DURABLE below an earlier one."""
    return f"reports less to be on disk than the {before} before"


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
