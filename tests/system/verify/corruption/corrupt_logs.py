"""Ways to corrupt a correct log; each returns the promise, member and position of the finding."""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker.machine.commands import PUBLISH
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
    ViewSeen,
    Vote,
)
from tests.system.verify.support.make_logs import IncarnationId, LogMaker, moves_of

A, B, C, C2 = ("a", 1), ("b", 1), ("c", 1), ("c", 2)
Corruption = Callable[[LogMaker], tuple[str, str, int]]


def at(maker: LogMaker, incarnation: tuple[str, int], kind: type[Record], number: int = 0) -> int:
    """Return the index of the n-th record of a kind."""
    found = [i for i, record in enumerate(maker.logs[incarnation]) if isinstance(record, kind)]
    return found[number]


def batch(maker: LogMaker, incarnation: tuple[str, int], number: int) -> Batch:
    """Return the n-th batch of an incarnation."""
    record = maker.logs[incarnation][at(maker, incarnation, Batch, number)]
    assert isinstance(record, Batch)
    return record


def position_before(maker: LogMaker, incarnation: IncarnationId, index: int) -> int:
    """Return the position that was applied before the record at that index."""
    before = [r for r in maker.logs[incarnation][:index] if isinstance(r, Batch)]
    return before[-1].first_position + before[-1].commands - 1


def flipped(data: bytes, index: int) -> bytes:
    """Return data with one bit changed."""
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def swap_two_batches(maker: LogMaker) -> tuple[str, str, int]:
    i, j = at(maker, C, Batch, 3), at(maker, C, Batch, 4)
    records = maker.logs[C]
    first = batch(maker, C, 3).first_position
    records[i], records[j] = records[j], records[i]
    return "G1", "c", first


def drop_a_batch(maker: LogMaker) -> tuple[str, str, int]:
    first = batch(maker, B, 5).first_position
    del maker.logs[B][at(maker, B, Batch, 5)]
    return "G1", "b", first


def drop_a_confirmed_publish(maker: LogMaker) -> tuple[str, str, int]:
    first = batch(maker, B, 1).first_position  # a published it and confirmed its first command
    del maker.logs[B][at(maker, B, Batch, 1)]
    return "G8", "b", first


def apply_a_batch_twice(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, C, Batch, 4)
    maker.logs[C].insert(i + 1, maker.logs[C][i])
    return "G1", "c", batch(maker, C, 4).first_position


def change_an_item(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, B, Batch, 4), batch(maker, B, 4)
    maker.logs[B][i] = old._replace(blob_hash=flipped(old.blob_hash, 3))
    return "G1", "b", old.first_position


def change_a_command(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, C, Batch, 4), batch(maker, C, 4)
    maker.logs[C][i] = old._replace(kinds=old.kinds[:2] + bytes([PUBLISH]) + old.kinds[3:])
    return "G1", "c", old.first_position + 2


def change_an_outcome(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, B, Batch, 3), batch(maker, B, 3)
    maker.logs[B][i] = old._replace(outcomes=old.outcomes[:2] + b"\x94\x01" + old.outcomes[4:])
    return "G14", "b", old.first_position + 1


def change_a_chain(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, A, Batch, 6), batch(maker, A, 6)
    maker.logs[A][i] = old._replace(chain=flipped(old.chain, 0))
    return "G14", "a", old.first_position


def change_a_root(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, C2, Batch, 2), batch(maker, C2, 2)
    maker.logs[C2][i] = old._replace(root=old.root ^ 1)
    return "G14", "c", old.first_position + old.commands - 1


def recover_something_else(maker: LogMaker) -> tuple[str, str, int]:
    old = maker.logs[C2][0]
    assert isinstance(old, Start)
    maker.logs[C2][0] = old._replace(chain=flipped(old.chain, 0))
    return "G14", "c", old.position


def transfer_something_else(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, C2, Snapshot)
    old = maker.logs[C2][i]
    assert isinstance(old, Snapshot)
    maker.logs[C2][i] = old._replace(root=old.root ^ 1)
    return "G14", "c", old.position


def vote_for_something_else(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, Vote)
    old = maker.logs[B][i]
    assert isinstance(old, Vote)
    maker.logs[B][i] = old._replace(chain=flipped(old.chain, 0))
    return "G10", "b", old.position


def note_another_verdict(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, Vote)
    old = maker.logs[B][i]
    assert isinstance(old, Vote)
    maker.logs[B][i] = old._replace(verdict="divergent")
    return "G10", "b", old.position


def deliver_at_another_place(maker: LogMaker) -> tuple[str, str, int]:
    i, old = at(maker, B, Batch, 4), batch(maker, B, 4)
    maker.logs[B][i] = old._replace(seq=old.seq + 1)
    return "G2", "b", old.first_position


def miss_the_end_of_a_view(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, Decided) + 1
    late = maker.logs[B].pop(i)
    maker.logs[B].pop(i)  # and the one that was undecided everywhere
    assert isinstance(late, Batch)
    return "G2", "b", late.first_position


def miss_a_view(maker: LogMaker) -> tuple[str, str, int]:
    del maker.logs[B][at(maker, B, ViewSeen, 2)]
    active = maker.logs[B][at(maker, B, Active, 1)]
    assert isinstance(active, Active)
    return "G6", "b", active.base_position


def see_another_membership(maker: LogMaker) -> tuple[str, str, int]:
    maker.logs[B][at(maker, B, ViewSeen, 2)] = ViewSeen(2, "a", True, (A, B, C))
    late = batch(maker, B, 9)  # applied before it saw the view
    return "G6", "b", late.first_position + late.commands - 1


def omit_member(maker: LogMaker) -> tuple[str, str, int]:
    return "G6", "a", change_transitional(maker, A, A)


def add_crashed_member(maker: LogMaker) -> tuple[str, str, int]:
    return "G6", "b", change_transitional(maker, B, A, B, C)


def add_member_of_no_view(maker: LogMaker) -> tuple[str, str, int]:
    return "G6", "b", change_transitional(maker, B, A, B, C2)


def omit_itself(maker: LogMaker) -> tuple[str, str, int]:
    return "G6", "b", change_transitional(maker, B, A)


def change_transitional(maker: LogMaker, writer: IncarnationId, *members: IncarnationId) -> int:
    """Change the members of the first transitional view; return the position at that view."""
    i = at(maker, writer, ViewSeen, 1)
    maker.logs[writer][i] = ViewSeen(1, "a", False, members)
    return position_before(maker, writer, i)


def hide_the_end_of_a_view(maker: LogMaker) -> tuple[str, str, int]:
    del maker.logs[B][at(maker, B, ViewSeen, 1)]
    return "G6", "b", position_before(maker, B, at(maker, B, ViewSeen, 1))


def end_another_view(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, ViewSeen, 1)
    maker.logs[B][i] = ViewSeen(7, "a", False, (A, B))
    return "G6", "b", position_before(maker, B, i)


def end_a_view_twice(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, ViewSeen, 1)
    maker.logs[B].insert(i, maker.logs[B][i])
    return "G6", "b", position_before(maker, B, i)


def second_primary_in_one_epoch(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, C2, Active)
    old = maker.logs[C2][i]
    assert isinstance(old, Active)
    maker.logs[C2][i] = old._replace(members=(("c", 2, False), ("b", 9, False)))
    return "G7", "c", old.base_position


def primary_without_majority(maker: LogMaker) -> tuple[str, str, int]:
    base = -1
    for incarnation in (A, B):
        i = at(maker, incarnation, Active, 1)
        old = maker.logs[incarnation][i]
        assert isinstance(old, Active)
        maker.logs[incarnation][i] = old._replace(members=(("a", 1, False),))
        base = old.base_position
    return "G7", "a", base


def minority_goes_on(maker: LogMaker) -> tuple[str, str, int]:
    last = batch(maker, C, -1)
    first = last.first_position + last.commands
    codes = list(struct.unpack(f"<{last.commands}H", last.outcomes))
    own = last._replace(first_position=first, seq=last.seq + 5, moves=moves_of(first, codes))
    maker.logs[C] += [Inactive("alone"), own]
    return "G7", "c", own.first_position


def batch_of_another_epoch(maker: LogMaker) -> tuple[str, str, int]:
    for incarnation in (A, B):
        number = 10
        i, old = at(maker, incarnation, Batch, number), batch(maker, incarnation, number)
        maker.logs[incarnation][i] = old._replace(epoch=1)
    return "G7", "a", batch(maker, A, 10).first_position


def confirm_outside_of_the_primary(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, A, Inactive)
    position = batch(maker, A, 1).first_position
    maker.logs[A].insert(i + 1, ConfirmRecord(1, position + 9, (position,)))
    return "G7", "a", position


def confirm_before_durable(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, ConfirmRecord, 1)
    old = maker.logs[B][i]
    assert isinstance(old, ConfirmRecord)
    maker.logs[B][i] = old._replace(durable_mark=old.positions[-1] - 1)
    return "G9", "b", old.positions[-1]


def raise_the_durable_mark(maker: LogMaker) -> tuple[str, str, int]:
    """c crashed in that primary, so only marks on disk at a and b are known."""
    old, reached = last_of_epoch(maker, B, ConfirmRecord, 1), last_of_epoch(maker, B, Durable, 1)
    assert isinstance(old, ConfirmRecord)
    assert isinstance(reached, Durable)
    changed = old._replace(durable_mark=reached.position + 3)
    maker.logs[B] = [changed if record is old else record for record in maker.logs[B]]
    return "G9", "b", reached.position + 1


def last_of_epoch(
    maker: LogMaker, incarnation: IncarnationId, kind: type[Record], epoch: int
) -> Record:
    """Return the last record of a kind that was written in a primary."""
    found: list[Record] = []
    now = 0
    for record in maker.logs[incarnation]:
        now = record.epoch if isinstance(record, Active) else now
        if now == epoch and isinstance(record, kind):
            found.append(record)
    return found[-1]


def confirm_what_is_no_publish(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, A, ConfirmRecord)
    position = batch(maker, A, 1).first_position + 2  # an ack
    old = maker.logs[A][i]
    assert isinstance(old, ConfirmRecord)
    maker.logs[A][i] = old._replace(positions=(position,))
    return "G9", "a", position


def confirm_what_was_refused(maker: LogMaker) -> tuple[str, str, int]:
    i = at(maker, B, ConfirmRecord)
    position = batch(maker, B, 2).first_position  # answered with 404
    old = maker.logs[B][i]
    assert isinstance(old, ConfirmRecord)
    maker.logs[B][i] = old._replace(positions=(position, *old.positions))
    return "G9", "b", position


def confirm_what_another_published(maker: LogMaker) -> tuple[str, str, int]:
    position = batch(maker, A, 1).first_position
    i = at(maker, C, ConfirmRecord)
    old = maker.logs[C][i]
    assert isinstance(old, ConfirmRecord)
    maker.logs[C][i] = old._replace(positions=(position, *old.positions))
    return "G9", "c", position


def confirm_on_one_disk_only(maker: LogMaker) -> tuple[str, str, int]:
    for incarnation in (B, C2):
        kept: list[Record] = [r for r in maker.logs[incarnation] if not isinstance(r, Durable)]
        maker.logs[incarnation] = kept
    last = [r for r in maker.logs[C2] if isinstance(r, ConfirmRecord)][-1]
    return "G9", "c", last.positions[-1]


def forget_what_was_confirmed(maker: LogMaker) -> tuple[str, str, int]:
    for incarnation in (A, B):
        i = at(maker, incarnation, Active, 1)
        old = maker.logs[incarnation][i]
        assert isinstance(old, Active)
        maker.logs[incarnation][i] = old._replace(base_position=10)
    given = [r for r in maker.logs[A] if isinstance(r, ConfirmRecord) and r.epoch == 1][-1]
    return "G8", "a", given.positions[-1]


ACROSS_MEMBERS: list[Corruption] = [
    drop_a_confirmed_publish, change_an_item, change_a_command, change_an_outcome, change_a_root,
    recover_something_else, transfer_something_else, vote_for_something_else,
    deliver_at_another_place, minority_goes_on, confirm_what_is_no_publish,
    confirm_what_was_refused, confirm_what_another_published, note_another_verdict,
]  # fmt: skip
"""Found only by comparing the batches of all members, or of all segments of an incarnation."""

WITHIN_INCARNATIONS: list[Corruption] = [
    swap_two_batches, drop_a_batch, apply_a_batch_twice, change_a_chain, batch_of_another_epoch,
    confirm_outside_of_the_primary, confirm_before_durable, confirm_on_one_disk_only, miss_a_view,
    miss_the_end_of_a_view, see_another_membership, second_primary_in_one_epoch,
    primary_without_majority, forget_what_was_confirmed, omit_member,
    add_crashed_member, add_member_of_no_view, omit_itself, hide_the_end_of_a_view,
    end_another_view, end_a_view_twice, raise_the_durable_mark,
]  # fmt: skip
"""Found in control records and in each incarnation by itself."""
