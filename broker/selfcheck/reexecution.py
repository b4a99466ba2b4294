"""Re-executes a member's own store up to a position, beside the running member.

Runs on a worker thread, from the store alone; it does not look at the machine in memory.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.divergence.split_vote import ABSENT, FAILED, PROVEN, UNPROVEN
from broker.durability.recovery import restored
from broker.machine.state import QueueRow
from broker.replication.replica import Divergence, ExecutionFailed
from broker.waiting.pager import Pager
from store.api import Store
from store.errors import StoreError


class Reexecution(NamedTuple):
    """The store's result at `position`. `base` is the position of its checkpoint."""

    position: int
    base: int
    verdict: int
    chain: bytes
    root: int
    rows: list[QueueRow]
    reason: str


def reexecute(
    local: str, store: Store, position: int, agreed: int, pager: Pager | None = None
) -> Reexecution:
    """Return the result of `store`, which must reach `position`, at that position.

    `agreed` is the highest position at which a vote agreed with this member; `pager` is that of the
    machine in use.
    """
    saved = store.checkpoint()
    base = saved[0] if saved is not None else 0
    if base > position:
        reason = f"the checkpoint is of position {base} already"
        return Reexecution(position, base, ABSENT, bytes(16), 0, [], reason)
    try:
        replica = restored(local, store, pager.another() if pager is not None else None)
        for first, entry in store.log(base):
            if first > position:
                break
            replica.replay(entry, position, checks=False)  # votes compare the result
    except (StoreError, Divergence, ExecutionFailed, ValueError) as error:
        reason = f"the store cannot be re-executed: {error}"
        return Reexecution(position, base, FAILED, bytes(16), 0, [], reason)
    if replica.history.position != position:
        reason = f"the store gives {replica.history}, not position {position}"
        return Reexecution(position, base, FAILED, bytes(16), 0, [], reason)
    machine = replica.machine
    verdict = PROVEN if base <= agreed else UNPROVEN
    return Reexecution(
        position, base, verdict, replica.history.chain, machine.root(), machine.queue_rows(),
        f"re-executed from the checkpoint at position {base}",
    )  # fmt: skip
