"""The last things that a member writes: what is left for the store, the marker, the log's end."""

from __future__ import annotations

import logging

from broker.durability.persister import Persister
from broker.exit_codes import Exit
from broker.machine.clock.voters import voter_names
from broker.memberlog.recorder import Recorder
from broker.memberlog.writer import LogWriteFailed
from broker.replication.controller import Controller
from store.api import Marker
from store.errors import StoreError

log = logging.getLogger("qpidd")


async def close_books(
    controller: Controller,
    persister: Persister,
    recorder: Recorder,
    code: Exit,
    reason: str,
    *,
    inconsistent: bool,
) -> Exit:
    """Close store and member log in order; return the exit code that this leaves.

    An ordered shutdown marks the store clean.  An inconsistent one is marked so only where another
    member can give this one its state: a sole voter re-executes its store when it starts again.
    """
    clean = code is Exit.OK and bool(controller.shutdown_position)
    alone = voter_names(controller.promise.voters) in ((), (controller.me.name,))
    marker = Marker.CLEAN if clean else Marker.DIRTY
    note = ""
    if inconsistent and not alone:
        marker, note = Marker.INCONSISTENT, reason
    try:
        persister.keep(controller.replica, controller.promise)
        await persister.close(
            marker, controller.replica, shutdown_id=controller.replica.shutdown_id, note=note
        )
    except StoreError as error:
        log.critical("the store could not be closed in order: %s", error)
        code = Exit.INTERNAL if code is Exit.OK else code
    try:
        recorder.stop(reason, controller.replica.history)
        recorder.close()
    except LogWriteFailed as error:
        log.error("the member log could not be closed in order: %s", error)
    return code
