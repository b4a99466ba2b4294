"""A world of peers and rings for `explore`, its steps, and which of them are possible."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, combinations
from typing import NamedTuple

from tests.sim.explore.peer import Image, Peer, voters_item
from vsync.primary.component import Primary
from vsync.primary.events import ACTIVATE, APP, PROMISED, STATE, Activated
from vsync.quorum import reconfiguration
from vsync.quorum.voter_set import Terms, parse, voter_set
from vsync.totem.events import Deliver, Marks, Output, Transitional, View
from vsync.types import Guarantee, Member, RingId

MESSAGES_MAX = 400
"""This many messages in one view mean that it never comes to rest."""


class Case(NamedTuple):
    """One voter set to explore: `spare` members run and do not vote at first."""

    terms: Terms
    change: Terms = ()
    spare: tuple[str, ...] = ()


class Step(NamedTuple):
    """One view: its members, where it breaks, and what is lost then."""

    members: tuple[str, ...]
    until: bytes = b""  # the tag of the message that is delivered last; empty: it comes to rest
    seen_by: tuple[str, ...] = ()  # who gets that message before the view breaks
    slow: tuple[str, ...] = ()  # whose transfers come late, and whose disks do nothing after that
    crash: tuple[str, ...] = ()
    wipe: str = ""
    change: bool = False
    lags: tuple[str, ...] = ()  # whose disks get no further than the promise, and late

    def __str__(self) -> str:
        names = {STATE: "state", PROMISED: "promise", ACTIVATE: "activation", APP: "command"}
        text = "+".join(self.members)
        if self.until:
            text += f" until a {names[self.until]} reached {'+'.join(self.seen_by) or 'nobody'}"
        for word, who in (
            ("slow", self.slow),
            ("lag", self.lags),
            ("crash", self.crash),
            ("wipe", self.wipe),
        ):
            text += f", {word} {'+'.join(who)}" if who else ""
        return text + (", voters change" if self.change else "")


class Ring:
    """One regular configuration."""

    def __init__(self, ident: RingId, members: tuple[str, ...]) -> None:
        self.id, self.members = ident, members
        self.log: list[tuple[Member, bytes]] = []
        self.delivered = dict.fromkeys(members, 0)
        self.lagged: set[str] = set()  # whose lagging disk has done its part


class World:
    """Members, rings, and the observer of all."""

    def __init__(self, case: Case) -> None:
        self.case = case
        one = voter_set(case.terms)
        requested = tuple(term for term in one.terms if term.startswith("@") or "=" in term)
        coming = voter_set(case.change)
        arbitrators = {one.arbitrator, coming.arbitrator}
        self.peers = {
            name: Peer(
                name, self, len(one.votes), requested,
                arbitrator=name in arbitrators, newcomer=name in case.spare,
            )
            for name in sorted({*one.names, *case.spare})
        }  # fmt: skip
        self.rings: dict[str, Ring] = {}
        self.seq = 0
        self.epochs: dict[int, tuple[RingId, bytes, frozenset[str]]] = {}
        self.confirmed_position, self.confirmed_order = 0, b""
        self.path: list[Step] = []

    # -- what is seen ----------------------------------------------------------------------------

    def activated(self, peer: Peer, event: Activated) -> None:
        epoch, order = event.activation.epoch, peer.memory.order
        caught_up = peer.primary.caught_up_names if peer.primary.ring == event.ring else frozenset()
        fresh = epoch not in self.epochs  # others may enter it late, from the same base
        ring, base, known = self.epochs.setdefault(epoch, (event.ring, order, caught_up))
        assert (ring, base) == (event.ring, order), f"G7: epoch {epoch} twice"
        self.epochs[epoch] = (ring, base, known | caught_up)
        before = max((other for other in self.epochs if other < epoch), default=0)
        if before and caught_up and self.epochs[before][2]:
            shared = caught_up & self.epochs[before][2]
            assert shared, f"G7: epochs {before} and {epoch} share nobody"
        if self.confirmed_position and fresh:
            held = peer.memory.order_at(self.confirmed_position)
            assert held == self.confirmed_order, (
                f"G8: {peer.name} enters epoch {epoch} without the confirmed "
                f"position {self.confirmed_position}"
            )

    def confirmed(self, peer: Peer, position: int) -> None:
        order = peer.memory.order_at(position)
        assert order is not None
        if position >= self.confirmed_position:
            if self.confirmed_position:
                held = peer.memory.order_at(self.confirmed_position)
                assert held == self.confirmed_order, f"G8: {peer.name} confirms another history"
            self.confirmed_position, self.confirmed_order = position, order
        newest = max(self.epochs)
        base = self.epochs[newest][1]
        if peer.primary.epoch < newest and base not in (e.order for e in peer.memory.entries):
            assert self._known_to(newest, position, order), (
                f"G8: {peer.name} confirms {position} after epoch {newest} began without it"
            )

    def _known_to(self, epoch: int, position: int, order: bytes) -> bool:
        holders = (p.memory for p in self.peers.values() if p.memory.epoch >= epoch)
        return all(memory.order_at(position) == order for memory in holders if memory.entries)

    # -- one step --------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Take one view from its installation to its end."""
        self.path.append(step)
        self._install(step.members)
        self._run(step)
        for name in step.crash:
            self.rings.pop(name, None)
            peer = self.peers[name]
            if name == step.wipe:
                peer.disk, peer.newcomer = Image(), True
            peer.restart()

    def _install(self, names: tuple[str, ...]) -> None:
        self.seq += 1
        members = tuple(self.peers[name].me for name in names)
        groups: dict[RingId | str, list[str]] = {}
        for name in names:
            old = self.rings.get(name)
            groups.setdefault(old.id if old is not None else name, []).append(name)
        ring = Ring(RingId(self.seq, names[0], 1), names)
        for group in groups.values():
            old = self.rings.get(group[0])
            companions = tuple(self.peers[name].me for name in group)
            if old is not None:
                for name in group:
                    self._give(name, Transitional(old.id, companions))
                    for index in range(old.delivered[name], len(old.log)):
                        self._deliver(old, name, index, transitional=True)
        for name in names:
            self.rings[name] = ring
            self._give(name, View(ring.id, members, (), ()))

    def _give(self, name: str, output: Output) -> None:
        peer = self.peers[name]
        peer.primary.on_output(output)
        peer.work()

    def _deliver(self, ring: Ring, name: str, index: int, *, transitional: bool = False) -> None:
        sender, payload = ring.log[index]
        ring.delivered[name] = index + 1
        self._give(
            name,
            Deliver(ring.id, index + 1, sender, [payload], Guarantee.SAFE, transitional),
        )

    def _run(self, step: Step) -> None:
        ring = self.rings[step.members[0]]
        orders = 3 if voter_set(self.case.terms).pair else 1 + step.change
        while len(ring.log) < MESSAGES_MAX:
            self._collect(ring, busy=bool(step.lags))
            if all(count == len(ring.log) for count in ring.delivered.values()):
                self._rest(ring, step)
                self._take_votes(ring)
                self._collect(ring)
                if ring.delivered[step.members[0]] == len(ring.log):
                    if orders and self._order(ring, step, first=orders == 2):
                        orders -= 1
                        continue
                    for name in (*step.slow, *step.lags):
                        self._settle(ring, name, step, late=True)
                    self._collect(ring)
                    if ring.delivered[step.members[0]] == len(ring.log):
                        return
                continue
            index = min(ring.delivered.values())
            last = bool(step.until) and ring.log[index][1][:1] == step.until
            for name in step.seen_by if last else ring.members:
                self._deliver(ring, name, index)
                self._settle(ring, name, step)
            if last:
                return
            if step.lags:
                self._show_marks(ring, step)
        raise AssertionError("the view never comes to rest")

    def _take_votes(self, ring: Ring) -> None:
        """A pair's vote is for a member whose partner is dead; otherwise both could get it, which
        is another subject (`test_pairs.py`)."""
        for name in ring.members:
            if all(self.rings.get(other, ring) is ring for other in self.peers):
                self.peers[name].primary.take_vote()

    def _settle(self, ring: Ring, name: str, step: Step, *, late: bool = False) -> None:
        """Disk and transfers of one member.

        A slow disk keeps a promise and nothing after the activation; a slow transfer is an early
        copy that arrives late.  A lagging disk keeps the promise after all else, and nothing that
        was applied since it was requested.
        """
        peer, slow = self.peers[name], name in step.slow
        if name in step.lags:
            if late and name not in ring.lagged:
                ring.lagged.add(name)
                peer.write(one_promise=True)
        elif not (slow and peer.primary.active):
            peer.write()
        if peer.wanted is not None and peer.wanted.donor.name in ring.members:
            peer.copy_from(self.peers[peer.wanted.donor.name])
            if not slow or late:
                peer.install()
                if not slow and name not in step.lags:
                    peer.write()

    def _rest(self, ring: Ring, step: Step) -> None:
        for name in ring.members:
            self._settle(ring, name, step)
        self._show_marks(ring, step)

    def _show_marks(self, ring: Ring, step: Step) -> None:
        marks = {name: self.peers[name].mark for name in ring.members}
        for name in ring.members:
            self._give(name, Marks(marks))
            self._settle(ring, name, step)

    def _collect(self, ring: Ring, *, busy: bool = False) -> None:
        """Order the members' messages; with `busy` a command follows an activation at once."""
        for name in ring.members:
            peer = self.peers[name]
            for payload in peer.primary.take_outgoing():
                ring.log.append((peer.me, payload))
                if busy and payload[:1] == ACTIVATE:
                    item = f"entry behind an activation {len(ring.log)} {ring.id.seq}".encode()
                    ring.log.append((peer.me, Primary.wrap(item)))

    def _order(self, ring: Ring, step: Step, *, first: bool) -> bool:
        """Let the first voter that has caught up order due events; False if none is due."""
        for name in ring.members:
            peer = self.peers[name]
            electorate = parse(peer.memory.voters)
            if peer.primary.has_caught_up and name in electorate.data_names and peer.wanted is None:
                break
        else:
            return False
        item = f"entry {peer.primary.epoch} {name} {len(ring.log)}".encode()
        terms, caught_up = peer.memory.voters, peer.primary.caught_up_names
        if electorate.changing:
            if peer.primary.durable() >= peer.since:
                item = voters_item(terms, reconfiguration.finished(terms))
        elif electorate.latest.pair:
            if electorate.latest.away & caught_up:
                whole = reconfiguration.with_away(terms, ())
                item = voters_item(terms, reconfiguration.change_to(terms, whole))
        elif first and step.change and terms == self.case.terms:
            joint = reconfiguration.change_to(terms, self.case.change)
            newcomers = set(parse(joint).names) - set(electorate.names)
            if parse(joint).quorate(caught_up) and newcomers <= caught_up:
                item = voters_item(terms, joint)
        ring.log.append((peer.me, Primary.wrap(item)))
        return True

    # -- what may come next ----------------------------------------------------------------------

    def steps(self, chance: random.Random | None = None) -> Iterator[Step]:
        """All next steps; with `chance`, a drawn one."""
        names = tuple(self.peers)
        if chance is not None:
            yield self._draw(names, chance)
            return
        for members in parts(names):
            for until, seen_by in cuts(members):
                for slow in ((), *((name,) for name in members)) if not until else ((),):
                    for crash, wipe in self._losses(members):
                        yield Step(members, until, seen_by, slow, crash, wipe)
                        if self.case.change and not until:
                            yield Step(members, until, seen_by, slow, crash, wipe, True)
            if self.case.change:
                yield Step(members, APP, members[:1], change=True)

    def _draw(self, names: tuple[str, ...], chance: random.Random) -> Step:
        count = chance.choice((len(names), len(names) // 2 + 1, chance.randint(1, len(names))))
        members = tuple(sorted(chance.sample(names, count)))
        until = chance.choice((b"", b"", STATE, PROMISED, ACTIVATE, APP))
        some = [name for name in members if chance.random() < 0.5]
        slow = tuple(name for name in members if chance.random() < 0.2)
        lags = tuple(n for n in members if n not in slow and chance.random() < 0.1)
        losses = list(self._losses(members))
        crash, wipe = chance.choice(losses) if chance.random() < 0.5 else ((), "")
        if slow and not wipe and chance.random() < 0.3:
            crash = slow
        elif not wipe and chance.random() < 0.3:
            crash = tuple(name for name in names if chance.random() < 0.4)
        change = bool(self.case.change) and chance.random() < 0.5
        return Step(members, until, tuple(some) if until else (), slow, crash, wipe, change, lags)

    def _losses(self, members: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        yield (), ""
        yield members, ""
        for name in members:
            if len(members) > 1:
                yield (name,), ""
            if self._can_do_without(name):
                yield (name,), name

    def _can_do_without(self, name: str) -> bool:
        """The failure model: a disk may be lost while all others are there, and are quorate."""
        disks = {n: p.disk for n, p in self.peers.items() if n != name}
        latest = max(disks.values(), key=lambda d: (d.epoch, len(d.entries)))
        electorate = parse(latest.voters)
        voting = [n for n in electorate.names if n != name]
        whole = all(disks[n].filled and disks[n].epoch for n in voting)
        return whole and not electorate.changing and electorate.quorate(voting)

    def key(self) -> tuple[object, ...]:
        """The identity of this state."""
        places = {ring.id: place for place, ring in enumerate(self.rings.values())}
        found: list[object] = [self.confirmed_order]
        for name, peer in self.peers.items():
            ring, primary = self.rings.get(name), peer.primary
            unstable, latest = primary._unstable, primary._requests * bool(primary._awaited)
            writes = [(image, request and request == latest) for image, request in peer.writes]
            found.append(
                (
                    peer.disk, peer.memory, peer.ran, tuple(writes), peer.mark,
                    primary.phase, primary.epoch, primary._waits, primary._replaced,
                    primary._is_current,
                    tuple(unstable.bodies()), unstable.complete, primary.caught_up_names,
                    None if ring is None else (places[ring.id], ring.delivered[name]),
                )
            )  # fmt: skip
        return tuple(found)


def parts(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All non-empty subsets, the largest first."""
    sizes = (combinations(names, size) for size in range(len(names), 0, -1))
    return list(chain.from_iterable(sizes))


def cuts(members: tuple[str, ...]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Where a view breaks, and who has the last message."""
    yield b"", ()
    yield STATE, ()
    yield PROMISED, members
    for tag in (ACTIVATE, APP):
        yield tag, ()
        yield tag, members[:1]
        if len(members) > 1:
            yield tag, members[1:]
            yield tag, members
