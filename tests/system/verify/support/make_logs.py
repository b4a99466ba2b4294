"""Makes the logs of a small cluster that did everything right, for tests that then corrupt them.

The records of each incarnation are plain lists until `write`, so that a test can change, drop or
swap any of them; they are linked and numbered when written, as by a broken member.
"""

from __future__ import annotations

import copy
import struct
from collections import Counter
from hashlib import blake2b
from pathlib import Path

from broker.machine.commands import ACK, ACTIVATE, OK, PUBLISH, TX_COMMIT, UNROUTABLE
from broker.machine.move_log import BY_CLIENT, INDEX_MASK, row
from broker.memberlog.records import (
    Active,
    Batch,
    ConfirmRecord,
    Decided,
    Durable,
    Inactive,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History

VOTERS = ("a", "b", "c")
IncarnationId = tuple[str, int]


class LogMaker:
    """A cluster of three members; `logs` has the records that each of them would write."""

    def __init__(self, voters: tuple[str, ...] = VOTERS) -> None:
        self.voters = voters
        self.logs: dict[IncarnationId, list[Record]] = {}
        self.history = History()
        self.ring = (0, "")
        self.epoch = 0
        self.seq = 0
        self.blob_no = 0
        self.submitted: Counter[str] = Counter()  # by origin, which has one session
        self.first_session = 1

    def start(self, incarnation: IncarnationId, history: History | None = None) -> None:
        """Begin an incarnation with the state in its store."""
        found = history or History()
        self.logs[incarnation] = [Start(found.epoch, found.position, found.chain, root_of(found))]

    def view(self, ring_seq: int, *logs: IncarnationId) -> None:
        """Form a ring of these incarnations."""
        self.ring = (ring_seq, logs[0][0])
        self.seq = 0
        for incarnation in logs:
            self.logs[incarnation].append(ViewSeen(*self.ring, True, tuple(logs)))

    def leave(self, *logs: IncarnationId) -> None:
        """End the view for these incarnations."""
        for incarnation in logs:
            self.logs[incarnation].append(ViewSeen(*self.ring, False, tuple(logs)))
            self.logs[incarnation].append(Inactive("view ended"))

    def activate(self, *logs: IncarnationId, fresh: tuple[IncarnationId, ...] = ()) -> None:
        """Make the view primary; the fresh members receive their state later."""
        self.epoch += 1
        members = tuple((*incarnation, incarnation in fresh) for incarnation in logs)
        base = self.history
        for incarnation in logs:
            active = Active(
                self.epoch, *self.ring, base.position, base.chain, members, self.voters,
                self.epoch == 1,
            )  # fmt: skip
            self.logs[incarnation].append(active)
        self.item(
            "a",
            bytes([ACTIVATE]),
            *(incarnation for incarnation in logs if incarnation not in fresh),
        )

    def item(self, origin: str, kinds: bytes, *logs: IncarnationId, refuse: int = 0) -> Batch:
        """Apply one item at these incarnations; its first `refuse` commands get a 404."""
        self.seq += 1
        self.blob_no += 1
        codes = [404] * refuse + [UNROUTABLE if kind == PUBLISH else OK for kind in kinds[refuse:]]
        outcomes = struct.pack(f"<{len(codes)}H", *codes)
        blob_hash = blake2b(b"blob %d" % self.blob_no, digest_size=16).digest()
        first = self.history.position + 1
        self.submitted[origin] += 1
        session = self.first_session + VOTERS.index(origin)
        self.history = self.history.after(self.epoch, len(kinds), blob_hash, outcomes)
        batch = Batch(
            self.epoch, self.ring[0], self.seq, first, len(kinds), origin, session,
            self.submitted[origin], 1_000 * self.blob_no, kinds, outcomes, blob_hash,
            self.history.chain, root_of(self.history), self.history.order, moves_of(first, codes),
        )  # fmt: skip
        for incarnation in logs:
            self.logs[incarnation].append(batch)
        return batch

    def traffic(self, rounds: int, *logs: IncarnationId) -> None:
        """Each member in turn publishes and acks; all is made durable and confirmed."""
        for i in range(rounds):
            origin = logs[i % len(logs)]
            batch = self.item(
                origin[0], bytes([PUBLISH, PUBLISH, ACK, TX_COMMIT]), *logs, refuse=i % 2
            )
            last = batch.first_position + 3
            for incarnation in logs:
                self.logs[incarnation].append(Durable(last))
            confirmed = tuple(batch.first_position + at for at in ((1, 3) if i % 2 else (0, 1, 3)))
            self.logs[origin].append(ConfirmRecord(self.epoch, last, confirmed))

    def vote(self, *logs: IncarnationId) -> None:
        """Vote; all agree about the present state."""
        h = self.history
        for incarnation in logs:
            self.logs[incarnation].append(Vote(h.position, h.chain, root_of(h), "agreed"))

    def stop(self, *logs: IncarnationId) -> None:
        """Stop cleanly."""
        for incarnation in logs:
            stop = Stop("shutdown", self.history.position, self.history.chain)
            self.logs[incarnation].append(stop)

    def copy(self) -> LogMaker:
        """Return a copy whose lists can be changed; the records themselves cannot change."""
        twin = copy.copy(self)
        twin.logs = {incarnation: list(records) for incarnation, records in self.logs.items()}
        return twin

    def write(self, directory: Path, segment_bytes: int = 3000, cluster: str = "c1") -> None:
        """Write the logs, each member's into its own directory."""
        for (name, incarnation), records in self.logs.items():
            log = MemberLogWriter(
                directory / name, "prod", cluster, name, incarnation, lambda: 1, segment_bytes
            )
            for record in records:
                log.append(record)
                log.flush()
            log.close()


def moves_of(first: int, codes: list[int]) -> bytes:
    """Each accepted publish was taken and reached no queue: these logs are not about queues."""
    rows = [
        row(BY_CLIENT, first + i & INDEX_MASK, 0, 0, 1, first + i)
        for i, code in enumerate(codes)
        if code == UNROUTABLE
    ]
    return b"".join(rows)


def root_of(history: History) -> int:
    """Return a state root that depends on all outcomes, 0 for nothing."""
    if not history.position:
        return 0
    return int.from_bytes(blake2b(history.chain, digest_size=8).digest(), "little")


def of_three(rounds: int = 0) -> LogMaker:
    """A primary of a, b and c in their first view, with so many rounds of traffic."""
    members = [("a", 1), ("b", 1), ("c", 1)]
    maker = LogMaker()
    for incarnation in members:
        maker.start(incarnation)
    maker.view(1, *members)
    maker.activate(*members)
    maker.traffic(rounds, *members)
    return maker


def good_history(rounds: int = 6) -> LogMaker:
    """Start, run, lose c, continue without it, take it back by a snapshot, stop.

    b learns late that a message before the loss was safe, and another is unstable at both: both are
    applied on the way into the next primary view.
    """
    a, b, c, c2 = ("a", 1), ("b", 1), ("c", 1), ("c", 2)
    maker = of_three(rounds)
    maker.vote(a, b, c)
    held_by_c = maker.history
    maker.traffic(1, a, b)  # c crashes: its log ends here
    late = maker.item("a", bytes([PUBLISH]), a)
    maker.leave(a, b)
    maker.logs[a].append(Decided(2))
    maker.logs[b] += [Decided(2), late]
    maker.item("c", bytes([PUBLISH]), a, b)
    maker.view(2, a, b)
    maker.activate(a, b)
    maker.traffic(rounds, a, b)
    maker.start(c2, held_by_c)
    maker.leave(a, b)
    maker.view(3, a, b, c2)
    maker.activate(a, b, c2, fresh=(c2,))
    maker.item("b", bytes([PUBLISH]), a, b)
    h = maker.history
    maker.logs[c2].append(Snapshot(h.epoch, h.position, h.chain, root_of(h), "a"))
    maker.traffic(rounds, a, b, c2)
    maker.vote(a, b, c2)
    maker.stop(a, b, c2)
    return maker
