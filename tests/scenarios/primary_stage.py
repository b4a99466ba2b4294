"""The verbs of primary stories: the real primary layer over logs and disks of a few lines.

Each activation and each confirmed position is also checked as in `tests.sim.explore`: an epoch has
one base, and no confirmed command is forgotten.
"""

from __future__ import annotations

from tests.scenarios.view_stage import ViewStage
from tests.sim.explore.peer import VOTERS, Image, Peer, voters_item
from tests.sim.explore.world import Case, World
from tests.sim.stacks.toy_log import LogEntry, next_order
from vsync.primary.component import Primary
from vsync.primary.events import (
    Activated,
    Activation,
    DurableMark,
    Holders,
    Inquorate,
    NeverJoins,
    Ordered,
    PersistEpoch,
    PrimaryEvent,
    Suspended,
    Transfer,
)
from vsync.quorum import reconfiguration
from vsync.totem.events import Output
from vsync.types import Member


class StoryPeer(Peer):
    """A peer whose decisions are printed."""

    stage: PrimaryStage

    def _follow(self, event: PrimaryEvent) -> None:
        if line := describe(event):
            self.stage.saw(self.name, line)
        if not isinstance(event, NeverJoins):
            super()._follow(event)


class PrimaryStage(ViewStage):
    """The primary layer of each member on scripted views, over a toy log and a toy disk."""

    subject = "primary"

    def do_members(self, *terms: str) -> None:
        """TERM... [spare NAME...]: the voters that are wanted, by name and options, and others.

        Terms are those of a voter set: a, b=2, @arbitrator=t, @wait_for_all, @auto_tie_breaker=a...
        """
        self.rings, self.held = {}, set()
        voting, _, spare = " ".join(terms).partition(" spare ")
        self.world = World(Case(tuple(voting.split()), spare=tuple(spare.split())))
        self.peers: dict[str, StoryPeer] = {}
        for name, peer in self.world.peers.items():
            mine = self.peers[name] = StoryPeer(
                name, self.world, peer.size, peer.requested,
                arbitrator=peer.arbitrator, newcomer=peer.newcomer,
            )  # fmt: skip
            mine.stage = self
        self.world.peers = dict(self.peers)

    def do_formed(self, *terms: str) -> None:
        """TERM... [spare NAME...]: as `members`, with epoch 1 formed; prints nothing."""
        self.do_members(*terms)
        self.do_view(*(name for name in self.peers if not self.peers[name].newcomer))
        self.do_run()
        self.output()

    def do_submit(self, name: str, *payloads: str) -> None:
        """NAME PAYLOAD...: a member orders payloads of its application in its view."""
        for payload in payloads:
            self._order(name, payload.encode())

    def do_change(self, name: str, *terms: str) -> None:
        """NAME TERM...: order the first step of a change of the voters, after which both decide."""
        before = self.peers[name].memory.voters
        self._order(name, voters_item(before, reconfiguration.change_to(before, terms)))

    def do_finish(self, name: str) -> None:
        """NAME: order the second step of a change, after which the new voters decide alone."""
        before = self.peers[name].memory.voters
        self._order(name, voters_item(before, reconfiguration.finished(before)))

    def do_crash(self, *names: str) -> None:
        """NAME...: kill members; they come back, from their disks, with their next view."""
        for name in names:
            self.rings.pop(name, None)
            self.peers[name].restart()

    def do_wipe(self, name: str) -> None:
        """NAME: kill a member and lose its disk."""
        self.peers[name].disk = Image()
        self.do_crash(name)

    def do_store(self, name: str, cluster: str, *entries: str) -> None:
        """NAME CLUSTER [ENTRY...]: kill a member and give it the disk of another cluster."""
        disk = Image((), cluster, (name,), 1, True, 1 if entries else 0)
        for entry in entries:
            item = entry.encode()
            logged = LogEntry(1, next_order(disk.order, item), item)
            disk = disk._replace(entries=(*disk.entries, logged))
        self.peers[name].disk = disk
        self.do_crash(name)

    def do_states(self) -> None:
        """Print each member's phase, epoch, history ([2] is the activation of epoch 2) and disk."""
        self.print()
        for name, peer in self.peers.items():
            primary, memory = peer.primary, peer.memory
            caught_up = ", caught up" if primary.has_caught_up else ""
            history = " ".join(item_text(entry.item) for entry in memory.entries) or "nothing"
            disk = f"; on disk {len(peer.disk.entries)}" if peer.disk != memory else ""
            if peer.arbitrator:
                history = f"record of epoch {memory.epoch}: {' '.join(memory.holders)}"
            self.saw(name, f"{primary.phase.value}{caught_up}; {history}{disk}")
        self.print()

    def do_reasons(self) -> None:
        """Print why each member's view may go on or not."""
        self.print()
        for name, peer in self.peers.items():
            self.saw(name, peer.primary.reason)
        self.print()

    def do_counters(self) -> None:
        """Print what the primary layer of each member dropped."""
        self.print()
        for name, peer in self.peers.items():
            counters = peer.primary.counters
            self.saw(name, ", ".join(f"{c} {counters[c]}" for c in sorted(counters)) or "none")
        self.print()

    # -- members, for the views --------------------------------------------------------------

    def member(self, name: str) -> Member:
        return self.peers[name].me

    def give(self, name: str, output: Output) -> None:
        self.peers[name].primary.on_output(output)
        self.peers[name].work()

    def outgoing(self, name: str) -> list[bytes]:
        return self.peers[name].primary.take_outgoing()

    def settle(self, name: str) -> None:
        peer = self.peers[name]
        if ("disk", name) not in self.held:
            peer.write()
        if peer.wanted is not None and ("transfer", name) not in self.held:
            donor = peer.wanted.donor.name
            if self.rings.get(donor) is self.rings[name]:
                peer.copy_from(self.peers[donor])
                if peer.copy is not None:
                    self.saw(name, f"install {len(peer.copy.entries)} from {donor}")
                peer.install()
                self.settle(name)

    def mark(self, name: str) -> int:
        return self.peers[name].mark

    def _order(self, name: str, item: bytes) -> None:
        self.rings[name].log.append((self.member(name), Primary.wrap(item)))


def describe(event: PrimaryEvent) -> str:
    """An event as a story prints it; empty if a story does not show it."""
    match event:
        case Ordered():
            return f"apply {item_text(event.payload)}{_decided(event.decided_by)}"
        case Activated():
            made = event.activation
            fresh = " ".join(name for name, _, new in made.members if new)
            cold = " cold" if made.cold else ""
            behind = "" if event.caught_up else ", not caught up"
            clients = f", fresh: {fresh}" if fresh else ""
            decided = _decided(event.decided_by)
            return f"activate{cold} epoch {made.epoch}{behind}{clients}{decided}"
        case Inquorate(reason):
            return f"inquorate: {reason}"
        case PersistEpoch(epoch):
            return f"persist the promise of epoch {epoch}"
        case Transfer(donor=donor, base=base):
            return f"fetch the state at {base} from {donor}"
        case NeverJoins(reason):
            return f"never joins: {reason}"
        case DurableMark(position):
            return f"durable {position}"
        case Holders(epoch, names):
            return f"record epoch {epoch}, held by {' '.join(sorted(names))}"
        case Suspended():
            return ""


def _decided(epoch: int) -> str:
    return f", decided by epoch {epoch}" if epoch else ""


def item_text(item: bytes | Activation) -> str:
    """One entry of a history."""
    if isinstance(item, Activation):
        return f"[{item.epoch}]"
    text = item.decode()
    return f"voters({text.partition(' | ')[2]})" if item.startswith(VOTERS) else text
