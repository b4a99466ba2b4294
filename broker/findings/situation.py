"""What one member knows of itself and the others at one moment: the input of all findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from broker.statistics.figures import Figures
from broker.statistics.noted_queues import NotedQueues
from vsync.types import record


@record
class MemberSeen:
    """One member, or a voter that is away."""

    name: str
    state: str = "ACTIVE"
    figures: Figures | None = None
    """What it measures of itself; None: it was not heard lately."""
    received_percent: float | None = None
    arbitrator: bool = False
    voter: bool = True


@record
class ViewSeen:
    """One view of those that are remembered."""

    at_ms: int
    members: Sequence[str]
    primary: bool = True
    left: Sequence[str] = ()
    """Who is not in it any more and had taken its leave."""


@record
class LinkSeen:
    """One shovel, link of federation or replica of a queue."""

    what: str
    """One of the names in `rules.LINKS`."""
    name: str
    state: str
    reason: str = ""


@record
class Situation:
    """At one moment, at one member."""

    now_ms: int
    me: str
    cluster: str
    status: str
    """ACTIVE, WAITING, INQUORATE or JOINING, as `qpid-cluster` shows it."""
    reason: str = ""
    members: Sequence[MemberSeen] = ()
    votes: int = 0
    votes_needed: int = 0
    views: Sequence[ViewSeen] = ()
    """The eldest first."""
    alarms: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Of all members: member and subject, and the detail."""
    clock_alarms: Mapping[str, str] = field(default_factory=dict)
    """As this member reads the clocks of others, by member."""
    disk_alarm: str = ""
    """That the disk of this member lags behind the ring."""
    drained: Sequence[str] = ()
    links_down: Sequence[str] = ()
    """Of the ring where it has two networks."""
    roles: Sequence[str] = ()
    """What the members of an active-passive cluster are; of another one none."""
    pair: bool = False
    """Whether it is one of a pair, whose members have their seats for good."""
    version: int = 0
    version_possible: int = 0
    queues: NotedQueues | None = None
    """None: this member does not serve, so its queues may be old."""
    links: Sequence[LinkSeen] = ()
    unloaded: tuple[str, str] | None = None
    """The file of definitions that this member did not load to its end, and why."""
    not_taken: str = ""
    """What the latest SIGHUP did not put in force at this member, and why."""
