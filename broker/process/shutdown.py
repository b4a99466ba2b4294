"""The last things that a member writes: what is left for the store, the marker, the log's end."""

from __future__ import annotations

import logging

from broker.durability.persister import Keeper
from broker.exit_codes import Exit
from broker.machine.clock.voters import voter_names
from broker.memberlog.recorder import Logbook
from broker.memberlog.writer import LogWriteFailed
from broker.replication.controller import Core
from store.api import Marker
from store.errors import StoreError

log = logging.getLogger("qpidd")


async def close_books(
    core: Core, keeper: Keeper, logbook: Logbook, code: Exit, reason: str, *, inconsistent: bool
) -> Exit:
    """Close store and member log in order; return the exit code that this leaves.

    An ordered shutdown marks the store clean.  An inconsistent one is marked so only where another
    member can give this one its state: a sole voter re-executes its store when it starts again.
    """
    clean = code is Exit.OK and bool(core.shutdown_position)
    alone = voter_names(core.promise.voters) in ((), (core.me.name,))
    marker = Marker.CLEAN if clean else Marker.DIRTY
    note = ""
    if inconsistent and not alone:
        marker, note = Marker.INCONSISTENT, reason
    try:
        keeper.keep(core.replica, core.promise)
        await keeper.close(marker, core.replica, shutdown_id=core.replica.shutdown_id, note=note)
    except StoreError as error:
        log.critical("the store could not be closed in order: %s", error)
        code = Exit.INTERNAL if code is Exit.OK else code
    try:
        logbook.stop(reason, core.replica.history)
        logbook.close()
    except LogWriteFailed as error:
        log.error("the member log could not be closed in order: %s", error)
    return code
