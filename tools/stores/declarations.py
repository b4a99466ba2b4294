"""An operator's declarations about a store, for facts that only a person can know.

Each declaration refuses while a broker uses the store, raises the store's incarnation, and stays in
its note for good.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from broker.incidents.incidents import Incidents
from broker.incidents.quarantine import QuarantineRecord, declare
from store.api import Marker, Meta
from store.errors import StoreError
from store.lmdb_store import LmdbStore
from vsync.quorum.reconfiguration import declared_alone
from vsync.quorum.voter_set import voter_set


class StoreRefused(StoreError):
    """A declaration that would not help."""


def declare_clean(path: Path, sole_voter: bool) -> tuple[Meta, bool]:
    """Mark a store clean under a fresh id; return its meta and whether anything changed."""
    store = LmdbStore(path)
    try:
        meta = store.meta
        voters = _alone(meta) if sole_voter else meta.voters
        if meta.marker is Marker.CLEAN and meta.voters == voters:
            return meta, False
        aside = sole_voter and _is_set_aside(meta)
        if meta.marker in (Marker.EMPTY, Marker.JOINING) and not aside:
            what = f"{path} is {meta.marker.value}: it holds no state that could be kept"
            raise StoreRefused(what)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        declared = (
            f"{at}: an operator declared this {meta.marker.value} store clean at position "
            f"{meta.position} of epoch {meta.state_epoch}, digest {meta.chain.hex()}; "
            "what only other stores held is given up"
        )
        if voters != meta.voters:
            declared += f"; the voters were {', '.join(meta.voters)}"
        declared = "\n".join(filter(None, [meta.note, declared]))
        # A fresh id, so that two stores both declared clean by hand never match each other.
        meta = replace(
            meta,
            marker=Marker.CLEAN,
            incarnation=meta.incarnation + 1,
            voters=voters,
            shutdown_id=secrets.token_hex(16),
            note=declared,
        )
        store.put_meta(meta)
        return meta, True
    finally:
        store.close()


def _is_set_aside(meta: Meta) -> bool:
    """Whether it is complete, of one of a pair that went on alone and was to get the other's
    state.
    """
    one = voter_set(meta.voters)
    return bool(one.pair and one.away and meta.member in one.counted and meta.position)


def _alone(meta: Meta) -> tuple[str, ...]:
    """The voters with which its member needs no other: one of a pair is the one that continued."""
    return declared_alone(meta.voters, meta.member) or (meta.member,)


def declare_quarantined(
    path: Path, evidence: Incidents, word: str
) -> tuple[Meta, list[QuarantineRecord]]:
    """Record an operator's decision on quarantined commands, as evidence and in the store."""
    store = LmdbStore(path)
    try:
        declared = declare(evidence, skip=word == "skip")
        if not declared:
            what = f"there is no quarantined command of {path} to which this applies"
            raise StoreRefused(what)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        what = "skipped: outcome 541, no change" if word == "skip" else "to be tried once more"
        lines = [f"{at}: an operator declared {one} {what}" for one in declared]
        meta = replace(
            store.meta,
            incarnation=store.meta.incarnation + 1,
            note="\n".join(filter(None, [store.meta.note, *lines])),
        )
        store.put_meta(meta)
        return meta, declared
    finally:
        store.close()
