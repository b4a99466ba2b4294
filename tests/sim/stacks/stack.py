"""The layers above the rings of a run, as one choice: none, or the primary layer over a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tests.sim.checkers.primary import Judge
from tests.sim.checkers.violation import Violation
from tests.sim.stacks.primary import Replica
from tests.sim.stacks.ring import Plain
from tests.sim.stacks.toy_log import Disk, Image
from tests.sim.world.member import SimMember, Upper
from tests.sim.world.tap import Tap
from vsync.quorum.voter_set import majority


class Stack(Protocol):
    """Builds the layers above the ring for each process, and judges them."""

    def make(self, member: SimMember, tap: Tap) -> Upper: ...
    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool: ...
    def catch_up_s(self, live: Sequence[SimMember]) -> float: ...
    def finish(self, live: Sequence[SimMember]) -> list[Violation]: ...
    def describe(self) -> str: ...


@runtime_checkable
class Wipeable(Protocol):
    """A stack whose members have disks that can be lost."""

    def wipe(self, name: str, names: Sequence[str]) -> None: ...


@runtime_checkable
class Restorable(Protocol):
    """A stack whose members' disks can be copied, and put back when the copies are old."""

    def backup(self, name: str) -> object: ...
    def restore(
        self, name: str, image: object, names: Sequence[str], forgetful: int = 0
    ) -> bool: ...


class PlainStack:
    """Rings alone."""

    def make(self, member: SimMember, tap: Tap) -> Upper:
        return Plain(tap)

    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool:
        return True

    def catch_up_s(self, live: Sequence[SimMember]) -> float:
        return 0

    def finish(self, live: Sequence[SimMember]) -> list[Violation]:
        return []

    def describe(self) -> str:
        return ""


class ReplicaStack:
    """The primary layer over a toy log on a fake disk."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.disks: dict[str, Disk] = {}

    def make(self, member: SimMember, tap: Tap) -> Upper:
        disk = self.disks.setdefault(member.name, Disk())
        replica = Replica(member.world, member, tap, disk, self.judge)
        self.judge.replicas[member.name] = replica
        return replica

    def can_do_without(self, dead: Sequence[str], names: Sequence[str]) -> bool:
        """Liveness may be demanded while a majority of the voters' filled stores is there.

        A first start that broke off before any of these applied it waits for all members that it
        named.
        """
        stores = {name: disk.durable for name, disk in self.disks.items() if disk.durable.filled}
        if not stores:
            return not dead
        voters = next(iter(stores.values())).voters
        here = [name for name in voters if name in stores and name not in dead]
        return len(here) >= majority(len(voters)) and any(stores[n].entries for n in here)

    def catch_up_s(self, live: Sequence[SimMember]) -> float:
        """A copy is transferred whole."""
        return 0

    def wipe(self, name: str, names: Sequence[str]) -> None:
        """Empty a disk, if all others are filled and are a majority without it."""
        others = [self.disks[other].durable.filled for other in names if other in self.disks]
        if all(others) and len(others) == len(names) and len(names) - 1 >= majority(len(names)):
            self.disks[name].durable = Image()

    def backup(self, name: str) -> object:
        return self.disks[name].durable

    def restore(self, name: str, image: object, names: Sequence[str], forgetful: int = 0) -> bool:
        """Put an old image back, if all other disks but this many hold what it forgets.

        Then each majority that counts the restored member has another voter that knows it.
        """
        if not isinstance(image, Image) or not image.filled:
            return False
        if any(other not in self.disks for other in names):
            return False  # one of them never ran: it holds nothing
        mine = self.disks[name].durable
        others = [self.disks[other].durable for other in names if other != name]
        if not others or sum(not covers(other, mine) for other in others) > forgetful:
            return False
        self.disks[name].durable = image
        return True

    def finish(self, live: Sequence[SimMember]) -> list[Violation]:
        """At the end all running members hold one log; then the judge's findings."""
        found = list(self.judge.finish())
        logs = {
            member.name: (replica.log.position, replica.log.order)
            for member in live
            if (replica := self.judge.replicas.get(member.name)) is not None
        }
        if len(set(logs.values())) > 1:
            positions = {name: position for name, (position, _) in logs.items()}
            found.append(Violation("G14", "primary", f"logs differ at the end: {positions}"))
        return found

    def describe(self) -> str:
        epochs = self.judge.epochs
        return f" epochs {len(epochs):<3} confirmed {self.judge.confirmed_position:<5}"


def covers(other: Image, mine: Image) -> bool:
    """Whether `other` has all entries and promises of `mine`."""
    end = len(mine.entries)
    return (
        other.filled
        and other.promised_epoch >= mine.promised_epoch
        and len(other.entries) >= end
        and (end == 0 or other.entries[end - 1].order == mine.entries[end - 1].order)
    )
