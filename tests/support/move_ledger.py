"""Follows the moves on a machine's tape and derives from them alone where every message is."""

from broker.machine.digest import MASK, ready_element
from broker.machine.machine import Machine
from broker.machine.move_log import AGAIN, CAUSE_SHIFT, FLAG, MOVE, REPLACED, Op
from broker.machine.state import CONTENT_HASH, NUMBER, all_queues


class Ledger:
    """The result of moves that began with an empty machine; asserts that each is consistent."""

    def __init__(self) -> None:
        # By queue and place: content, persistent, redelivered; and its holder.
        self.ready: dict[int, dict[int, tuple[int, bool, bool]]] = {}
        self.held: dict[tuple[int, int], tuple[int, tuple[int, bool, bool]]] = {}
        self.bodies: dict[int, int] = {}  # by message number
        self.entered: dict[tuple[int, int], bool] = {}  # all that ever did, by queue and place
        self.replaced_by: tuple[
            int, ...
        ] = ()  # the queue and number of the message that must enter next
        self.kept: dict[int, tuple[int, bool, bool]] = {}  # between PURGED and RECOVERED
        self.readers: dict[tuple[int, int], int] = {}  # what each reads next, at least
        self.filtered: set[int] = set()  # readers that are not sent everything
        self.reads: dict[tuple[int, int, int], int] = {}  # not settled: how many

    def take(self, moves: bytes) -> None:
        """Follow the moves of one or more commands."""
        for what, _, queue, seq, of, detail in MOVE.iter_unpack(moves):
            op, flag = Op(what & 15), what & FLAG != 0
            cause = (what & ~FLAG) >> CAUSE_SHIFT
            if self.replaced_by:
                assert (op, queue, of) == (Op.ENQUEUED, *self.replaced_by), "what replaces it"
                self.replaced_by = ()
            if what & ~FLAG == REPLACED:
                self.replaced_by = queue, of
            if op is Op.PUBLISHED:
                if seq and cause == AGAIN >> CAUSE_SHIFT:
                    assert self.bodies[seq] == detail
                elif seq:
                    assert seq not in self.bodies
                    self.bodies[seq] = detail
            elif op is Op.DECLARED:
                assert not self.ready.get(queue)
                self.ready[queue] = {}
            elif op is Op.REPEATED:
                assert of in self.bodies
                assert (queue, seq) in self.entered
            elif op in (Op.PURGED, Op.RECOVERED):
                self._many(op, cause, queue, seq, of)
            elif op in (Op.READER, Op.READ, Op.READ_END):
                self._read(op, flag, queue, seq, of, detail)
            elif op is not Op.NOTED:
                self._one(op, flag, queue, seq, of, detail)

    def _one(self, op: Op, flag: bool, queue: int, seq: int, of: int, detail: int) -> None:
        at = (queue, seq)
        if op is Op.ENQUEUED:
            assert of in self.bodies
            assert seq not in self.ready[queue]
            assert at not in self.held
            self.entered[at] = True
            self.ready[queue][seq] = (detail, flag, False)
        elif op in (Op.DELIVERED, Op.DROPPED):
            content, _, redelivered = message = self.ready[queue].pop(seq)
            assert (content, redelivered) == (detail, flag)
            if op is Op.DELIVERED:
                self.held[at] = (of, message)
        else:
            holder, (content, persistent, _) = self.held.pop(at)
            assert holder == of
            if op is Op.RETURNED:
                assert detail == content
                self.ready[queue][seq] = (content, persistent, True)

    def _read(self, op: Op, flag: bool, queue: int, seq: int, of: int, detail: int) -> None:
        """G29: each reader gets all messages that are kept, or wait, from its start on, in
        order."""
        if op is Op.READER:
            assert (queue, detail) not in self.readers
            self.readers[queue, detail] = seq
            if flag:
                self.filtered.add(detail)
        elif op is Op.READ:
            ahead = [place for place in self.ready[queue] if place >= self.readers[queue, detail]]
            assert seq in ahead, "it is there, and was not read"
            passed_over = seq > min(ahead) and detail in self.filtered
            assert seq == min(ahead) or passed_over, "the next one that is there"
            self.readers[queue, detail] = seq + 1
            self.reads[queue, seq, of] = self.reads.get((queue, seq, of), 0) + 1
        else:
            self.reads[queue, seq, of] -= 1
            if not self.reads[queue, seq, of]:
                del self.reads[queue, seq, of]

    def _many(self, op: Op, cause: int, queue: int, seq: int, of: int) -> None:
        ready = self.ready[queue]
        if op is Op.PURGED:
            assert of == len(ready)
            self.kept = {place: one for place, one in ready.items() if one[1]}
            ready.clear()
            if cause == 1:
                del self.ready[queue]
            return
        assert of == len(self.kept)
        places = sorted(self.kept) if not seq else range(seq, seq + of)
        for place, old in zip(places, sorted(self.kept), strict=True):
            ready[place] = (*self.kept[old][:2], True)

    def agrees_with(self, machine: Machine) -> None:
        """Assert that each queue and each channel holds what the moves lead to."""
        assert not self.replaced_by
        queues = [queue for vhost in machine.vhosts.values() for queue in all_queues(vhost)]
        assert {queue.number for queue in queues} == set(self.ready)
        for queue in queues:
            ready = self.ready[queue.number]
            total = sum(
                ready_element(content, queue.number, seq, redelivered)
                for seq, (content, _, redelivered) in ready.items()
            )
            assert total & MASK == queue.ready_sum
        held = {}
        reads: dict[tuple[int, int, int], int] = {}
        for channel in machine.channels.values():
            for entries in (channel.unacked, channel.unsent):
                for queue, seq, message, _, _ in entries.values():
                    if message[NUMBER]:
                        held[queue.number, seq] = channel.mark, message[CONTENT_HASH]
                    else:
                        at = (queue.number, seq, channel.mark)
                        reads[at] = reads.get(at, 0) + 1
        assert reads == self.reads
        assert held == {at: (of, content) for at, (of, (content, *_)) in self.held.items()}
