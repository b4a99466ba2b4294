"""The shovels and federation links of this member: started, watched, restarted, ended.

`wake` compares the replicated state with the running attempts, a few times a second. It begins the
shovels that are this member's and ends those that no longer are, at once where the member does not
serve. It knows no process, clock or socket; `Begin` makes each attempt, which reports events:

    {"event": "running"}                            both ends are open, messages move
    {"event": "moved", "count": 12}                 so many more were taken by the destination
    {"event": "blocked", "why": "..."}              it takes nothing now; empty: it does again
    {"event": "ended", "why": "...", "done": false,
     "doubtful": {"QUEUE-ID": [118, 120, 124]}}

`doubtful` are messages whose numbers the destination has answered for good (all up to the first
place, and the others): the next attempt sends them without a number
(docs/decisions/0069-a-shovel-numbers-messages-by-their-places.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker.machine.commands import Table
from broker.shovels.amqp_uri import bare, parse_uri
from broker.shovels.definition import (
    COMPONENT,
    REPLICA,
    BadShovel,
    NotDefined,
    Shovel,
    name_in,
    parse_shovel,
)
from broker.shovels.federation import Change, Found, LocalSide
from broker.shovels.handover import Attempt, Handover
from broker.shovels.replicas import COMPONENT as QUEUE_REPLICA
from broker.shovels.replicas import parse_replica
from broker.shovels.status import (
    HEARD_S,
    RESTART,
    RUNNING,
    STARTING,
    STATES_ARE,
    TELL_S,
    TERMINATED,
    Key,
    Status,
    datagrams,
    printable,
    read_datagram,
    runner,
)
from broker.shovels.upstreams import EXCHANGE
from vsync.totem.events import Direct

log = logging.getLogger("qpidd.shovels")

BACK_OFF_MAX_S = 60.0
"""The longest pause between attempts, unless the definition sets a longer one."""
DELETE_S = 5.0
"""How often a finished shovel requests its deletion."""
SETTLED_S = 30.0
"""A shovel that ran for this long restarts after its shortest pause."""

SHOVEL, LINK_KEY = 2, 4
"""The number of parts in the key of a shovel, and of a federation link; a replica has 3."""
LINK = "link_"
"""Prefix of the counters of federation links."""

Event = Mapping[str, object]


class Machine(Protocol):
    """The replicated state, as seen here."""

    @property
    def definitions(self) -> Mapping[str, Mapping[tuple[str, str], Table]]:
        """The operators' definitions."""

    @property
    def defined(self) -> int:
        """How many times they changed."""

    @property
    def sessions(self) -> Mapping[str, object]:
        """The sessions of the view's members."""

    @property
    def ending(self) -> Collection[object]:
        """Connections that ended, for example of members that are gone, and still hold messages."""


class Federation(Protocol):
    """Knows the links of federation (federation.py)."""

    def links(self, now: float, *, afresh: bool) -> Found:
        """Return the existing links; those of a moment ago will do, unless `afresh`."""

    def local_side(self, shovel: Shovel) -> LocalSide | None:
        """Return the facts about this side for an attempt."""


@dataclass
class Job:
    """The input of one attempt."""

    shovel: Shovel
    number: int
    """The number of earlier attempts of this shovel here."""
    doubtful: dict[str, list[int]]
    here: Change | None = None
    """Facts about this side for a link; changes follow."""


Begin = Callable[[Job, Callable[[Event], None]], Attempt]


@dataclass
class _Run:
    """One of this member's shovels."""

    shovel: Shovel
    status: Status
    attempt: Attempt | None = None
    local_side: LocalSide | None = None
    due: float | None = 0.0
    """When it is to be started (again); None: never."""
    failures: int = 0
    ran_since: float | None = None
    done: bool = False
    """Everything is moved: only the definition remains to be deleted."""
    doubtful: dict[str, list[int]] = field(default_factory=dict)


class Shovels:
    """All shovels, as this member knows them."""

    name = "shovels"

    def __init__(
        self,
        me: str,
        machine: Callable[[], Machine],
        serving: Callable[[], bool],
        begin: Begin,
        delete: Callable[[Shovel], None],
        tell: Callable[[bytes], None],
        wall_ms: Callable[[], int],
        federation: Federation | None = None,
        level: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`tell` sends a datagram to all other members of the view. `level`: the members that have
        the state, which never includes arbitrators; empty: unknown."""
        self._level = level
        self._federation = federation
        self._links: Found = {}
        self._me, self._machine, self._serving = me, machine, serving
        self._begin, self._delete, self._tell, self._wall_ms = begin, delete, tell, wall_ms
        self._now, self._told_at = 0.0, 0.0
        self._looked_at: tuple[int, int] = (0, -1)
        self._shovels: Found = {}
        self._bodies: dict[Key, Table] = {}
        self._known: Found = {}
        self._runs: dict[Key, _Run] = {}
        self._heard: dict[str, dict[Key, tuple[float, Status]]] = {}
        self._handover = Handover(me, tell)
        self._mine: dict[Key, Shovel] = {}
        self._mine_of: tuple[object, list[str]] = (None, [])
        self._closed = self._served = False
        self.counters = dict.fromkeys(
            (prefix + name for prefix in ("", LINK) for name in ("attempts", "failed", "moved")), 0
        )

    # -- what runs -------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Start and end what is due."""
        self._now = now
        if not self._serving():
            self._stop_all()
        elif not self._closed:
            self._turn(now)

    def _turn(self, now: float) -> None:
        members = self._members()
        joins = not self._served and self._me in members
        self._look(afresh=joins)  # others are asked about each one, also if it came meanwhile
        mine = self._of_this_member()
        if joins:
            self._served = True
            self._handover.joined(mine, members, now)
        self._handover.ask(members, now)
        for key, run in list(self._runs.items()):
            if mine.get(key) is not run.shovel:
                del self._runs[key]
                if _leaves_its_source(run.shovel, self._known.get(key)):
                    _tidy_up(run)
                self._stop(run, "it is deleted, defined anew or another member's")
        for key, shovel in mine.items():
            if key not in self._runs:
                self._runs[key] = _Run(shovel, Status(STARTING, self._wall_ms()), due=now)
        for run in self._runs.values():
            if run.attempt is None and run.due is not None and run.due <= now:
                if run.done:
                    run.due = now + DELETE_S  # unless it is gone by then
                    self._delete(run.shovel)
                elif self._handover.may_begin(run.shovel.key) and not self._machine().ending:
                    self._begin_attempt(run)
            elif run.attempt is not None and run.local_side is not None:
                change = run.local_side.change()
                if change is not None:
                    run.attempt.tell(change)
        if now - self._told_at >= TELL_S and self._runs:
            self._told_at = now
            for datagram in datagrams((key, run.status) for key, run in self._runs.items()):
                self._tell(datagram)

    def finish(self) -> bool:
        """The member is about to stop: start nothing more, and let work in progress be confirmed;
        return whether nothing runs any more."""
        self._closed = True
        for run in self._runs.values():
            self._stop(run, "its member stops")
        return self._handover.nothing_here()

    def close(self) -> None:
        """The member stops."""
        self._closed = True
        self._stop_all()

    def _stop_all(self) -> None:
        """This member does not serve: nothing that it would pass on counts."""
        runs, self._runs, self._served = self._runs, {}, False
        for run in runs.values():
            self._stop(run, "this member does not serve", at_once=True)
        self._handover.end_all()

    def _look(self, *, afresh: bool = False) -> None:
        """Read changed definitions."""
        links = self._links
        if self._federation is not None:
            links = self._federation.links(self._now, afresh=afresh)
        if self._look_at_shovels() or links is not self._links:
            self._links = links
            self._known = {**self._shovels, **links}

    def _look_at_shovels(self) -> bool:
        machine = self._machine()
        seen = id(machine), machine.defined
        if seen == self._looked_at:
            return False
        self._looked_at = seen
        bodies: dict[Key, Table] = {}
        for (vhost, parameter), body in machine.definitions["parameter"].items():
            if (name := name_in(COMPONENT, parameter)) is not None:
                bodies[vhost, name] = body
            elif (name := name_in(QUEUE_REPLICA, parameter)) is not None:
                bodies[vhost, REPLICA, name] = body
        self._shovels = {
            key: self._shovels[key] if self._bodies.get(key) == body else _read(key, body)
            for key, body in bodies.items()
        }
        self._bodies = bodies
        return True

    def _members(self) -> list[str]:
        """The members that may run one. Arbitrators have sessions, and so have members that still
        receive the state; neither serves."""
        sessions, level = list(self._machine().sessions), self._level()
        return [name for name in sessions if name in level] if level else sessions

    def _of_this_member(self) -> dict[Key, Shovel]:
        members = self._members()
        if self._mine_of[0] is not self._known or self._mine_of[1] != members:
            self._mine_of = self._known, members
            self._mine = {
                key: shovel
                for key, shovel in self._known.items()
                if isinstance(shovel, Shovel) and runner(members, *key) == self._me
            }
        return self._mine

    def _begin_attempt(self, run: _Run) -> None:
        run.due, run.ran_since = None, None
        self._enter(run, STARTING, run.status.reason)
        number = run.status.attempts
        run.status.attempts += 1
        self._count(run, "attempts", 1)
        job = Job(run.shovel, number, dict(run.doubtful))
        if self._federation is not None:
            run.local_side = self._federation.local_side(run.shovel)
            job.here = run.local_side.change() if run.local_side is not None else None
        run.attempt = self._begin(job, lambda event: self._on_event(run, event))
        self._handover.began(run.shovel.key, run.attempt)

    def _stop(self, run: _Run, why: str, *, at_once: bool = False) -> None:
        if run.attempt is not None:
            attempt, run.attempt = run.attempt, None
            attempt.stop(at_once=at_once)
            log.info("%s stops: %s", _title(run.shovel), why)

    # -- events of attempts ----------------------------------------------------------------------

    def _on_event(self, run: _Run, event: Event) -> None:
        if self._runs.get(run.shovel.key) is not run or run.attempt is None:
            return
        match event.get("event"):
            case "running":
                run.ran_since = self._now
                self._enter(run, RUNNING, "")
                ends = (run.shovel.source_uris[0], run.shovel.destination_uris[0])
                log.info("%s runs: %s to %s", _title(run.shovel), *map(bare, ends))
            case "moved":
                count = event.get("count")
                assert isinstance(count, int)
                run.status.moved += count
                self._count(run, "moved", count)
            case "blocked":
                run.status.blocked = printable(str(event.get("why", "")))
            case "ended":
                self._ended(run, event)
            case other:
                log.warning("%s: its process told of %a", _title(run.shovel), other)

    def _ended(self, run: _Run, event: Event) -> None:
        run.attempt = None
        why = printable(str(event.get("why", ""))) or "it ended"
        doubtful = event.get("doubtful")
        if isinstance(doubtful, Mapping):
            run.doubtful |= doubtful  # with those that it was given
        self._enter(run, TERMINATED, why)
        if event.get("done") is True:
            log.info("%s is done and deletes itself: %s", _title(run.shovel), why)
            run.done, run.due = True, self._now
            return
        self._count(run, "failed", 1)
        if run.ran_since is not None and self._now - run.ran_since >= SETTLED_S:
            run.failures = 0
        shortest = run.shovel.reconnect_s
        if not shortest:
            log.warning("%s ended, and 'reconnect-delay' is 0: %s", _title(run.shovel), why)
            return
        pause = min(shortest * 2.0 ** min(run.failures, 10), max(BACK_OFF_MAX_S, shortest))
        run.failures += 1
        run.due = self._now + pause
        log.warning("%s ended, again in %g s: %s", _title(run.shovel), pause, why)

    def _count(self, run: _Run, what: str, more: int) -> None:
        self.counters[what if run.shovel.link is None else LINK + what] += more

    def _enter(self, run: _Run, state: str, reason: str) -> None:
        run.status.state, run.status.reason = state, reason
        run.status.since_ms, run.status.blocked = self._wall_ms(), ""

    # -- operators -------------------------------------------------------------------------------

    def restart(self, key: Key) -> bool:
        """Restart it, at whatever member; False: there is no such shovel."""
        if self._restart_here(key):
            return True
        self._look()
        if key not in self._known:
            return False
        self._tell(RESTART + "\0".join(key).encode())
        return True

    def _restart_here(self, key: Key) -> bool:
        run = self._runs.get(key)
        if run is None:
            return False
        self._stop(run, "an operator restarts it")
        run.due, run.failures = self._now, 0
        return True

    def rows(self) -> list[dict[str, object]]:
        """All shovels, as rows of a list."""
        self._look()
        return self._rows({key: one for key, one in self._shovels.items() if len(key) == SHOVEL})

    def replica_rows(self) -> list[dict[str, object]]:
        """All queue replicas, likewise."""
        self._look()
        return self._rows({key: one for key, one in self._shovels.items() if len(key) != SHOVEL})

    def link_rows(self) -> list[dict[str, object]]:
        """All federation links, likewise, each with its `key`."""
        self._look()
        return [
            {"key": key, **row}
            for key, row in zip(sorted(self._links), self._rows(self._links), strict=True)
        ]

    def _rows(self, found: Found) -> list[dict[str, object]]:
        members = self._members()
        return [self._row(key, found[key], members) for key in sorted(found)]

    def _row(self, key: Key, shovel: Shovel | BadShovel, members: list[str]) -> dict[str, object]:
        if isinstance(shovel, BadShovel):
            return _row_of_none(key, shovel)
        node = runner(members, *key)
        found = self._status(node, key) or Status()
        row = {"node": node, "since_ms": found.since_ms, **shovel.row(), **found.row()}
        if shovel.is_replica:
            row |= {"level": found.state == RUNNING and not found.blocked, "behind": found.blocked}
        return row

    def _status(self, node: str, key: Key) -> Status | None:
        if node == self._me:
            run = self._runs.get(key)
            return run.status if run is not None else None
        heard_at, status = self._heard.get(node, {}).get(key, (0.0, None))
        return status if self._now - heard_at <= HEARD_S else None

    def counts(self) -> dict[str, int]:
        """The number of this member's shovels in each state."""
        states = [run.status.state for run in self._runs.values()]
        return {state: states.count(state) for state in (STARTING, RUNNING, TERMINATED)}

    def takes(self, direct: Direct) -> bool:
        """Whether this datagram belongs here; if so it has been handled."""
        kind, content = direct.payload[:2], direct.payload[2:]
        if kind == RESTART:
            self._restart_here(tuple(content.decode(errors="replace").split("\0")))
            return True
        if kind != STATES_ARE:
            return self._handover.takes(
                direct.sender.name, direct.payload,
                lambda key: runner(self._members(), *key),
            )  # fmt: skip
        try:
            told = read_datagram(content)
        except ValueError:
            return True
        now, before = self._now, self._heard.get(direct.sender.name, {})
        kept = {key: one for key, one in before.items() if now - one[0] <= HEARD_S}
        self._heard[direct.sender.name] = kept | {key: (now, one) for key, one in told.items()}
        return True


def _read(key: Key, body: Table) -> Shovel | BadShovel:
    try:
        parse = parse_shovel if len(key) == SHOVEL else parse_replica
        return parse(key[0], key[-1], body.get("value"))
    except BadShovel as bad:
        return bad


def _row_of_none(key: Key, bad: BadShovel) -> dict[str, object]:
    """The row of a shovel that no member can run."""
    if len(key) == LINK_KEY:
        vhost, kind, name, upstream = key
        named = {"vhost": vhost, kind: name, "type": kind, "upstream": upstream}
        return {**named, "node": "", **Status(TERMINATED, 0, str(bad)).row()}
    vhost, name = key[0], key[-1]
    status = Status(TERMINATED, 0, f"its definition is none: {bad}; define it anew")
    if len(key) != SHOVEL:
        return {"queue": name, "vhost": vhost, "node": "", **status.row()}
    return {"vhost": vhost, "name": name, "type": "dynamic", "node": "", **status.row()}


def _tidy_up(run: _Run) -> None:
    """Have the objects that a link created at its upstream deleted, or report that nobody can. An
    attempt that is still connecting reads this only if that succeeds."""
    link = run.shovel.link
    if run.attempt is not None:
        run.attempt.tell({"ends": True})
    if run.status.state != RUNNING and link and link.kind == EXCHANGE and link.cleans_up:
        log.warning(
            "%s is gone and was not connected: its queue '%s' may be left at the upstream; delete "
            "it there", _title(run.shovel), printable(run.shovel.source_queue),
        )  # fmt: skip


def _leaves_its_source(shovel: Shovel, other: Shovel | BadShovel | None) -> bool:
    """Whether nobody takes from its queue at the upstream any more, if that was created for it.
    Another password, or one more member of the same cluster, is no other source: messages published
    while the next attempt starts wait in that queue."""
    if isinstance(other, Shovel):
        same = shovel.source_queue == other.source_queue
        return not (same and _places(shovel) & _places(other))
    return other is None or isinstance(other, NotDefined)


def _places(shovel: Shovel) -> set[tuple[object, str | None]]:
    uris = map(parse_uri, shovel.source_uris)
    return {(uri.address, uri.vhost) for uri in uris}


def _title(shovel: Shovel) -> str:
    return printable(shovel.title)
