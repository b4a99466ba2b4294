"""Rows of control records: those that grow with views and queues, not with traffic."""

from __future__ import annotations

from collections.abc import Iterator

from tools.verify.format.records import (
    KINDS,
    Active,
    Checkpoint,
    Lease,
    Queues,
    Record,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from tools.verify.input.rows import Row, signed


def control_rows(row: Row, record: Record, reached: int, durable: int) -> Iterator[Row]:
    """Yield the rows of a record other than a BATCH or CONFIRM.

    `row` has the source, `reached` is the position that its incarnation had applied, `durable` the
    one that its segment reported to be on disk; -1 = not known.
    """
    row = row._replace(kind=int(KINDS[type(record)]))
    match record:
        case Start(epoch, position, chain, root) | Snapshot(epoch, position, chain, root):
            row = row._replace(epoch=epoch, position=position, last=position, chain=chain)
            yield row._replace(root=signed(root), text=getattr(record, "donor", None))
        case Vote(position, chain, root, verdict):
            row = row._replace(position=position, text=verdict)
            if verdict == "undecided":  # the state is this incarnation's own, if known
                yield row._replace(flag=None, chain=chain or None, root=signed(root))
            else:
                yield row._replace(last=position, chain=chain, root=signed(root))
        case Stop(reason, position, chain):
            yield row._replace(position=position, last=position, chain=chain, text=reason)
        case Checkpoint(position, root):
            yield row._replace(position=position, last=position, root=signed(root))
        case Queues(queues):
            for number, vhost, name, durable, _ in queues:
                yield row._replace(seq=number, origin=vhost, text=name, flag=durable)
        case Lease(what, token, owner, source, clock, at_us, until_us):
            row = row._replace(text=what, seq=token, origin=owner, ring_seq=source, ring_rep=clock)
            yield row._replace(positions=[at_us, until_us], position=reached)
        case ViewSeen(ring_seq, ring_rep, regular, members):
            names = [f"{name}/{incarnation}" for name, incarnation in members]
            row = row._replace(ring_seq=ring_seq, ring_rep=ring_rep, flag=regular)
            yield row._replace(names=names, position=reached, seq=durable)
        case Active():
            yield row._replace(
                epoch=record.epoch,
                seq=durable,
                ring_seq=record.ring_seq,
                ring_rep=record.ring_rep,
                position=record.base_position,
                chain=record.base_chain,
                names=[
                    f"{n}/{incarnation}{'+' * bool(new)}" for n, incarnation, new in record.members
                ],
                voters=list(record.voters),
                flag=record.cold,
            )
        case _:
            yield row
