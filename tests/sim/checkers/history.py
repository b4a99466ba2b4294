"""The events of every process: the input of all checkers.

A *process* is one incarnation of one member.  Its events are in the order in which they happened to
it; `at` is virtual time and serves only readers and the one-primary-at-a-time check.  A process
without an `Ended` entry was still running when the run stopped.
"""

from __future__ import annotations

from typing import NamedTuple

from vsync.types import Guarantee, RingId

Who = tuple[str, int]  # (name, incarnation)


class Item(NamedTuple):
    """One submitted message as a process saw it."""

    source: Who
    number: int  # counts the accepted submits of this process, from 1
    digest: int


class Submitted(NamedTuple):
    at: float
    item: Item
    guarantee: Guarantee
    ring: RingId  # of the last delivery before the submit ...
    seq: int  # ... for causality; 0 if there was none


class Delivered(NamedTuple):
    at: float
    ring: RingId
    seq: int
    sender: Who
    items: tuple[Item, ...]
    guarantee: Guarantee
    transitional: bool


class Transited(NamedTuple):
    at: float
    ring: RingId
    members: tuple[Who, ...]


class Installed(NamedTuple):
    at: float
    ring: RingId
    members: tuple[Who, ...]


class Ended(NamedTuple):
    at: float
    how: str  # crash, stop


Entry = Submitted | Delivered | Transited | Installed | Ended


class Process:
    """One incarnation of one member and its events."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.who: Who = (name, incarnation)
        self.entries: list[Entry] = []

    @property
    def ended(self) -> str:
        """How it ended, or an empty string while it is up."""
        last = self.entries[-1] if self.entries else None
        return last.how if isinstance(last, Ended) else ""

    def __str__(self) -> str:
        return f"{self.who[0]}/{self.who[1]}"


class Passage:
    """One regular configuration as one process passed through it.

    `regular` are the deliveries before the transitional configuration, `after` those in it.
    """

    def __init__(
        self, process: Process, ring: RingId, members: tuple[Who, ...], prev: RingId
    ) -> None:
        self.process = process
        self.ring = ring
        self.members = members
        self.prev = prev
        self.trans: tuple[Who, ...] | None = None
        self.next: RingId | None = None
        self.regular: list[Delivered] = []
        self.after: list[Delivered] = []

    def deliveries(self) -> list[Delivered]:
        return self.regular + self.after

    def __str__(self) -> str:
        return f"{self.process} in ring {self.ring}"


class History:
    """All processes of a run."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def new_process(self, name: str, incarnation: int) -> Process:
        process = Process(name, incarnation)
        self.processes.append(process)
        return process

    def changes(self) -> int:
        """The number of regular configurations after the first."""
        rings = {
            entry.ring
            for process in self.processes
            for entry in process.entries
            if isinstance(entry, Installed)
        }
        return max(0, len(rings) - 1)

    def passages(self) -> list[Passage]:
        """Cut each process's events into the configurations it passed through, malformed or not.

        Deliveries outside any configuration are left out here; the checker of B5 finds them.
        """
        found: list[Passage] = []
        for process in self.processes:
            current: Passage | None = None
            for entry in process.entries:
                if isinstance(entry, Installed):
                    prev = current.ring if current is not None else RingId(0, "", 0)
                    if current is not None:
                        current.next = entry.ring
                    current = Passage(process, entry.ring, entry.members, prev)
                    found.append(current)
                elif current is None:
                    continue
                elif isinstance(entry, Transited):
                    current.trans = entry.members
                elif isinstance(entry, Delivered):
                    (current.regular if current.trans is None else current.after).append(entry)
        return found
