"""The quarantine: commands that this member could not execute, and what it does instead.

Decision: docs/decisions/0007-quarantine-and-culprits.md.

A command at which the machine raises stops the member before it replies. The command, its position
in the history and the traceback are evidence that the next start reads:

- the item is named by the order chain after it, that is, together with everything before it. This
  release does not execute an item of that name again, neither from this member's store nor from a
  donor's copy;
- a transfer requests a checkpoint beyond that position from the donor, which contains the effect of
  the command without its execution here;
- in each new session the member reports the command's kind and content, and all members refuse a
  command that stopped a majority of the voters (`machine/handlers/poison`);
- when the command is in the stores themselves and no member can execute it, an operator declares it
  skipped, at all members alike (`qpid-cluster-store --skip-quarantined`): it gets the outcome 541
  and changes nothing.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

import msgpack

from broker.incidents.incidents import Facts, Incidents
from broker.machine.commands import ACTIVATE, CLASSES, POISONED, Poisoned
from broker.machine.handlers.poison import content_of
from broker.replication.replica import ExecutionFailed

KIND = "quarantine"
ORDERED, RECOVERY, TRANSFER = "order", "recovery", "transfer"
"""When it was executed: when ordered, from this member's store, or from a donor's copy."""


class QuarantineRecord(NamedTuple):
    """One quarantined command, as described by its evidence."""

    path: Path
    position: int
    at: int  # which command of its item
    order: bytes
    command: str
    of_kind: int
    content: bytes
    during: str
    release: str
    skip: bool
    retry: bool

    def __str__(self) -> str:
        return f"{self.command} at position {self.position}"


class Quarantine:
    """The quarantined commands of one member."""

    def __init__(self, evidence: Incidents, release: str) -> None:
        self._evidence, self._release = evidence, release
        self.records = [
            record
            for path, facts in evidence.all(KIND)
            if (record := _record(path, facts)) is not None
        ]

    def add(self, failure: ExecutionFailed, during: str, member: str) -> str:
        """Make a failure durable evidence; return the sentence for log and operator."""
        item, command = failure.item, failure.command
        content = content_of(command) if command is not None else None
        name = CLASSES[failure.kind].__name__ if failure.kind in CLASSES else str(failure.kind)
        cause = failure.__cause__ or failure
        facts: Facts = {
            "member": member,
            "release": self._release,
            "during": during,
            "epoch": item.epoch,
            "position": failure.position,
            "index": failure.index,
            "order": failure.order.hex(),
            "origin": item.sender,
            "ring": [*item.ring],
            "sequence": item.seq,
            "command": name,
            "of_kind": failure.kind,
            "content": content.hex() if content is not None else "",
            "error": "".join(traceback.format_exception_only(cause)).strip(),
            "traceback": traceback.format_exception(cause),
        }
        files = {"item.msgpack": bytes(msgpack.packb(item.body))}
        path = self._evidence.keep(KIND, facts, files)
        record = _record(path, facts)
        assert record is not None
        self.records.append(record)
        return (
            f"executing {name} of {item.sender} at position {failure.position} failed here "
            f"({facts['error']}); it is quarantined, the evidence is in {path}"
        )

    def adopt(self, record: QuarantineRecord) -> None:
        """This member's store holds a command that failed here before: it stops the start too."""
        facts = next(facts for path, facts in self._evidence.all(KIND) if path == record.path)
        self._evidence.amend(record.path, {**facts, "during": RECOVERY})

    def withheld(self) -> dict[bytes, tuple[int, ...]]:
        """Return the value of `Replica.withheld` for this member."""
        found: dict[bytes, tuple[int, ...]] = {}
        for record in self.records:
            if record.skip:
                found[record.order] = (*found.get(record.order, ()), record.at)
        # A further command of an item with a declared one stops it again.
        found.update({record.order: () for record in self.records if self._binding(record)})
        return found

    def reports(self) -> list[Poisoned]:
        """Return the reports that begin a new session, one for each kind and content."""
        found = {
            (record.of_kind, record.content): True
            for record in self.records
            if record.content and self._binding(record)
        }
        return [Poisoned(POISONED, kind, content) for kind, content in found]

    def beyond(self) -> int:
        """Return the position that the checkpoint of a transferred state must have reached."""
        return max((r.position for r in self.records if self._binding(r)), default=0)

    def of(self, order: bytes) -> QuarantineRecord | None:
        """Return the newest record of an item."""
        return next((r for r in reversed(self.records) if r.order == order), None)

    def _binding(self, record: QuarantineRecord) -> bool:
        """Another release, or an operator's declaration, is a reason to try again."""
        return record.release == self._release and not record.retry and not record.skip


def declare(evidence: Incidents, *, skip: bool) -> list[QuarantineRecord]:
    """Record an operator's declaration in each record to which it may apply; return these."""
    declared = []
    for path, facts in evidence.all(KIND):
        record = _record(path, facts)
        if record is None or record.skip:
            continue
        # A view cannot be skipped (the members would differ), nor a command that is not in this
        # store.
        if skip and (record.of_kind == ACTIVATE or record.during != RECOVERY):
            continue
        evidence.amend(path, {**facts, "skip" if skip else "retry": True})
        declared.append(record)
    return declared


def _record(path: Path, facts: Facts) -> QuarantineRecord | None:
    match facts:
        case {
            "position": int(position),
            "index": int(index),
            "order": str(order),
            "command": str(command),
            "of_kind": int(of_kind),
            "content": str(content),
            "during": str(during),
            "release": str(release),
        }:
            skip, retry = bool(facts.get("skip")), bool(facts.get("retry"))
            try:
                hashes = bytes.fromhex(order), bytes.fromhex(content)
            except ValueError:
                return None
            return QuarantineRecord(
                path, position, index, hashes[0], command, of_kind, hashes[1], during, release,
                skip, retry,
            )  # fmt: skip
        case _:
            return None
