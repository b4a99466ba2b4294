"""What one member knows of itself and the others at one moment: the input of all findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from broker.statistics.figures import Figures
from broker.statistics.noted_queues import NotedQueues
from vsync.types import record


@record
class MemberSeen:
    """One member, or an absent voter."""

    name: str
    state: str = "ACTIVE"
    figures: Figures | None = None
    """Its measurements of itself; None: none were received lately."""
    received_percent: float | None = None
    arbitrator: bool = False
    voter: bool = True


@record
class ViewSeen:
    """One remembered view."""

    at_ms: int
    members: Sequence[str]
    primary: bool = True
    left: Sequence[str] = ()
    """Members no longer in it that had left in order."""


@record
class LinkSeen:
    """One shovel, federation link or queue replica."""

    what: str
    """One of the names in `rules.LINKS`."""
    name: str
    state: str
    reason: str = ""


@record
class Situation:
    """The situation at one moment, at one member."""

    now_ms: int
    me: str
    cluster: str
    status: str
    """ACTIVE, WAITING, INQUORATE or JOINING, as shown by `qpid-cluster`."""
    reason: str = ""
    members: Sequence[MemberSeen] = ()
    votes: int = 0
    votes_needed: int = 0
    views: Sequence[ViewSeen] = ()
    """The oldest first."""
    alarms: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Of all members: member and subject, and the detail."""
    clock_alarms: Mapping[str, str] = field(default_factory=dict)
    """By this member's reading of the others' clocks, by member."""
    disk_alarm: str = ""
    """The alarm that this member's disk lags behind the ring."""
    space_unknown: str = ""
    """Why this member could not read its disk's free space lately."""
    drained: Sequence[str] = ()
    links_down: Sequence[str] = ()
    """Lost links of a ring with two networks."""
    roles: Sequence[str] = ()
    """The members' roles in an active-passive cluster; otherwise none."""
    pair: bool = False
    """Whether it is one of a pair, whose members have permanent seats."""
    version: int = 0
    version_possible: int = 0
    queues: NotedQueues | None = None
    """None: this member does not serve, so its queues may be outdated."""
    links: Sequence[LinkSeen] = ()
    unloaded: tuple[str, str] | None = None
    """The file of definitions that this member did not load completely, and why."""
    not_taken: str = ""
    """What the latest SIGHUP did not put in force at this member, and why."""
