"""The contract of a store: one member's durable state, as a meta record, a checkpoint and a log.

The store knows positions and bytes, nothing of brokers, messages or rings. Invariants of every
implementation (one shared test class runs against all of them):

- `meta.position` is the last position of the last entry, or of the checkpoint if it is newer;
- entries are contiguous: each starts one past the end of the one before;
- meta and the entry it describes are committed together, or not at all;
- after any failed commit the object is poisoned: every later call but `close` raises `StoreFailed`;
- an entry whose `commit` has returned survives a crash of process and machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

LOG_BYTES_KEPT = 64 << 20
"""The least amount of log that a store keeps before its checkpoint, for members that come back with
the state of a little while ago: as much as is written between two checkpoints of a small state. A
store keeps as much log as its checkpoint is large, if that is more, because sending it is no more
work."""


class Marker(Enum):
    """The state of the store when its member starts."""

    EMPTY = "empty"  # never had a cluster's state: no vote
    DIRTY = "dirty"  # default while running: compare positions with the others
    CLEAN = "clean"  # an ordered shutdown, or an operator's declaration
    JOINING = "joining"  # a state transfer is under way: unusable until it is complete
    INCONSISTENT = "inconsistent"  # lost a digest vote; kept as evidence
    BACKUP = "backup"  # a state of the past: no vote until an operator declares it clean


@dataclass(frozen=True, slots=True)
class Meta:
    """The meta record: whose state this is, and up to which position."""

    cluster_name: str
    member: str
    store_id: str
    cluster_id: str = ""  # hex; "" until a cluster filled the store
    incarnation: int = 0
    voters: tuple[str, ...] = ()
    promised_epoch: int = 0
    state_epoch: int = 0
    position: int = 0
    chain: bytes = b""
    order: bytes = b""
    marker: Marker = Marker.EMPTY
    shutdown_id: str = ""
    note: str = ""
    version: int = 0  # of the machine in force at this position; 0: none yet


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint of one store; its generation distinguishes it from the others."""

    generation: int
    chunks: int
    position: int
    bytes: int


class Staging(Protocol):
    """A checkpoint being written, invisible until `finish`.

    It is written in slices, so that a writer thread can commit entries in between and a large
    checkpoint does not delay confirms.
    """

    def add(self, chunks: list[bytes]) -> None:
        """Make these chunks durable, after those added before."""

    def finish(self, meta: Meta | None = None) -> None:
        """Switch to this checkpoint in one transaction; None keeps the present meta."""

    def abandon(self) -> None:
        """Give it up; everything written so far is garbage for `trim`."""


class Store(Protocol):
    """An open store. One thread writes; any thread may use `log`, `checkpoint` and `meta`."""

    @property
    def meta(self) -> Meta:
        """The last committed meta."""

    def commit(self, entry: bytes, first: int, last: int, meta: Meta) -> None:
        """Make `entry`, which covers positions first..last, and `meta` durable together.

        The caller ensures `first == store.meta.position + 1` and `meta.position == last`.
        """

    def put_meta(self, meta: Meta) -> None:
        """Make `meta` durable; its position must be the current one."""

    def log(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield (first position, entry) for each entry that reaches beyond `after`, in order.

        The first entry may begin at or before `after`. Checks contiguity and checksums, and raises
        `StoreCorrupt` when `after` is before the oldest remaining entry.
        """

    def stage(self, position: int) -> Staging:
        """Begin a checkpoint of the state at `position`."""

    def write_checkpoint(self, position: int, chunks: Iterable[bytes], meta: Meta) -> None:
        """Write a whole checkpoint, switch to it, and delete the one it replaces."""

    def checkpoint(self) -> tuple[int, Iterator[bytes]] | None:
        """Return the position and the chunks of the current checkpoint.

        The chunks must be read before the next checkpoint is finished.
        """

    def log_begins(self) -> int:
        """Return the first position that the log holds; one past the end when it holds none."""

    def bytes_to_start(self) -> tuple[int, int]:
        """Return the size of the checkpoint, and of the log that a start executes again."""

    def pin(self) -> SavedCheckpoint | None:
        """Keep the current checkpoint, and the log behind it, until `unpin` was called as often."""

    def unpin(self, generation: int) -> None:
        """Release a pinned checkpoint."""

    def chunks(self, saved: SavedCheckpoint, start: int) -> Iterator[bytes]:
        """Yield the chunks of a pinned checkpoint from number `start` on."""

    def trim(self, entries_max: int = 256) -> bool:
        """Delete a bounded amount of garbage; True while there is more.

        Garbage is replaced checkpoints, and the log that the checkpoint covers except for its last
        `log_bytes_kept`. Pinned data is never garbage.
        """

    def size_bytes(self) -> int:
        """Bytes in use."""

    def close(self) -> None:
        """Close the store. Idempotent, also after a failure."""


def check_commit(before: Meta, entry: bytes, first: int, last: int, meta: Meta) -> None:
    """Assert the caller's obligations of `commit`."""
    assert entry, "an empty entry has no positions"
    assert first == before.position + 1, f"entry starts at {first}, store ends at {before.position}"
    assert last >= first, f"entry {first}..{last} is reversed"
    assert meta.position == last, f"meta says {meta.position}, entry ends at {last}"


def check_switch(before: Meta, position: int, meta: Meta) -> None:
    """Assert that a checkpoint's meta ends where the state ends."""
    expected = max(position, before.position)
    assert meta.position == expected, f"meta says {meta.position}, state reaches {expected}"
