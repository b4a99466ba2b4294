"""Shared by the checks of clients' histories: how much the members' logs tell."""

from __future__ import annotations

from typing import NamedTuple


class HistoryExtent(NamedTuple):
    """How much of the canonical history the members' logs hold."""

    begin: bool  # it begins at position 1
    end: bool  # every named member stopped in order: there is nothing after it
    whole: bool  # no position in between is missing
    confirms: Confirms | None = None  # None: some of what members confirmed is not known
    routes: bool = False  # queues are of one virtual host, so that a name is at most one queue
    sole: bool = False  # no log has anything that a later primary superseded


class Confirms(NamedTuple):
    """That the logs hold what members confirmed, but for positions `unsure`: first and last each.

    A member writes to its clients before it records so: what it confirmed as it was killed, or
    before its power failed, is not in its log.
    """

    unsure: tuple[tuple[int, int], ...] = ()
