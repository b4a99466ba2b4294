"""Shared by the checks of clients' histories: extent of the history, the tables, and sentences."""

from __future__ import annotations

from typing import NamedTuple

FINDINGS_MAX = 20
U64 = (1 << 64) - 1  # Spark has no unsigned numbers


class HistoryExtent(NamedTuple):
    """How much of the canonical history the members' logs hold."""

    begin: bool  # it begins at position 1
    end: bool  # every named member stopped in order: there is nothing after it
    whole: bool  # no position in between is missing
    confirms: Confirms | None = None  # None: some of what members confirmed is not known
    routes: bool = False  # queues are of one virtual host, so that a name is at most one queue


class Confirms(NamedTuple):
    """That the logs hold what members confirmed, but for positions `unsure`: first and last each.

    A member writes to its clients before it records so: what it confirmed as it was killed, or
    before its power failed, is not in its log.
    """

    unsure: tuple[tuple[int, int], ...] = ()


_PLACES = (
    "queue bigint, content bigint, ends bigint, end_time bigint, end_op bigint, "
    "end_cause bigint, last_time bigint, last_op bigint, persistent boolean"
)
SCHEMAS = {
    # What members did.  `low` is the low half of a message's number, by which moves name it.
    "moves": "position bigint, ordinal bigint, op bigint, flag boolean, cause bigint, "
    "queue bigint, seq bigint, of bigint, detail bigint",
    "publishes": "epoch bigint, position bigint, low bigint, number bigint, publish_no bigint, "
    "body bigint, cause bigint, channel bigint, answered boolean",
    "entries": "epoch bigint, position bigint, low bigint, queue bigint, content bigint, "
    "body bigint",
    "confirms": "position bigint",
    # What the steps make of it
    "places": _PLACES,
    "lives": f"{_PLACES}, purged boolean, body bigint",
    "handed": "queue bigint, content bigint, plain bigint, again bigint, position bigint",
    "deliveries": "name string, body bigint, plain bigint, again bigint, position bigint",
    "unknown": "name string, n bigint",
    # What clients did: `place` ascends within a client
    "ops": "client string, life bigint, session bigint, place bigint, queue string, op bigint, "
    "flag boolean, body bigint, number bigint",
    "did": "client string, life bigint, op bigint, n bigint",
    "damage": "client string, life bigint, what string",
    "results": "kind string, name string, queue string, client string, life bigint, place bigint, "
    "until bigint, position bigint, n bigint, more string, session bigint",
}
# The moves of queues as a whole are needed by each step, in each bin.
WHOLE = tuple(f"queues_of_step_{step}" for step in range(3))
SCHEMAS |= dict.fromkeys(WHOLE, SCHEMAS["moves"])


def by_client(client: str, session: int, body: int, what: str) -> str:
    """Return a sentence about what a client was told."""
    return f"client {client} (connection {session}), body {body & U64:016x}: {what}"


def times(count: int) -> str:
    """Return how often, for people."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
