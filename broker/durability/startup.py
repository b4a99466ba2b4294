"""A member's start: decides whether its own store is usable, and which state to go on from.

Most starts re-execute the store and go on. A store that must not or cannot be re-executed keeps its
place on disk but has no vote: it was out-voted, is damaged, or holds a command that this release
cannot execute. The member then joins like an empty one, and its old store is set aside once another
member's state is in force. The member never goes on from the part before the command: others may
count on everything it has durable.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from broker.durability.data_directory import filled
from broker.durability.recovery import checkpoint_of, history_of, log_progress, recover
from broker.incidents.quarantine import RECOVERY, Quarantine
from broker.machine.clock.voters import voter_names
from broker.machine.image.restore import SnapshotError
from broker.machine.machine import Machine
from broker.replication.replica import Divergence, ExecutionFailed, Replica, Withheld
from broker.waiting.pager import PageDamaged, PageLost, Pager
from store.api import Marker, Meta, Store
from store.errors import DiskFailed, StoreCorrupt, StoreUnreadable

log = logging.getLogger("qpidd")


class Resumed(NamedTuple):
    """The state to start from. `filled`: whether it counts in a state exchange."""

    replica: Replica
    filled: bool


class Unusable(StoreUnreadable):
    """The store cannot be used, and no other member can give the state."""


def resume(store: Store, quarantine: Quarantine, pager: Pager | None = None) -> Resumed:
    """Return the state that this member starts from.

    If its member is the only voter, raises the errors of `recover` for a damaged store, and
    `Unusable` for one that may not be used. `DiskFailed`: pages cannot be read back.
    """
    try:
        return _resume(store, quarantine, pager)
    except PageLost as error:
        raise DiskFailed(str(error)) from error


def _resume(store: Store, quarantine: Quarantine, pager: Pager | None) -> Resumed:
    meta = store.meta
    if meta.marker in (Marker.INCONSISTENT, Marker.BACKUP):
        found = "is a backup" if meta.marker is Marker.BACKUP else "was found inconsistent"
        why = f"this member's store {found} ({meta.note or 'no reason is noted'})"
        return _aside(meta, why, "qpid-cluster-store -c DIR makes the store count again", pager)
    try:
        replica = recover(meta.member, store, log_progress, quarantine.withheld(), pager, own=True)
    except ExecutionFailed as failure:
        why = quarantine.add(failure, RECOVERY, meta.member)
    except Withheld as hit:
        record = quarantine.of(hit.order)
        assert record is not None
        if record.during != RECOVERY:
            quarantine.adopt(record)
        why = (
            f"this member's store holds a quarantined command, {record}, which is not executed "
            f"again; the evidence is in {record.path}"
        )
    except (Divergence, SnapshotError, StoreCorrupt, PageDamaged) as error:
        if _alone(meta):
            if isinstance(error, PageDamaged):
                raise Unusable(f"{error}; no other member has its state") from error
            raise
        return _aside(
            meta, f"this member's store is damaged: {error}", "nothing was changed in it", pager
        )
    else:
        saved = store.checkpoint()
        log.info(
            "the store is at position %d; %d positions after its checkpoint were executed again",
            meta.position, meta.position - (saved[0] if saved else 0),
        )  # fmt: skip
        if replica.skipped:
            _settle(store, replica)
        return Resumed(replica, filled(meta))
    return _aside(
        meta, why,
        "where no member can execute it: qpid-cluster-store --skip-quarantined DIR for each of "
        "them, or --retry-quarantined after the cause is mended", pager,
    )  # fmt: skip


def _alone(meta: Meta) -> bool:
    return voter_names(meta.voters) in ((), (meta.member,))


def _aside(meta: Meta, why: str, remedy: str, pager: Pager | None) -> Resumed:
    if _alone(meta):
        raise Unusable(f"{why}; no other member has its state: {remedy}")
    log.critical(
        "%s; the store has no vote until another member has given this one its state, and is then "
        "set aside (%s)", why, remedy,
    )  # fmt: skip
    # The state that takes its place gets the same pager.
    # The point that the store reached still shows that this member is not empty (see `make_plan`).
    replica = Replica(meta.member, Machine(meta.member, pager), history_of(meta))
    replica.broken = True  # nothing may be applied to it, nor be made durable
    return Resumed(replica, False)


def _settle(store: Store, replica: Replica) -> None:
    """Write a checkpoint beyond the skipped commands, so that this store never re-executes them."""
    history = replica.history
    log.critical(
        "an operator declared %d command(s) skipped: outcome 541, no change; the history continues "
        "from %s", replica.skipped, history,
    )  # fmt: skip
    meta = replace(store.meta, chain=history.chain)
    chunks = checkpoint_of(replica)
    store.write_checkpoint(history.position, chunks, meta)
    replica.skipped = 0
