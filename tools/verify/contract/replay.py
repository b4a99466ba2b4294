"""G12, G20, G29, G14: a segment's moves, executed again in the reference model, lead to its
checkpoints, whose root is that of the state before them."""

from __future__ import annotations

from collections.abc import Iterable

from tools.verify.contract.plain_moves import take_plain
from tools.verify.contract.queue_model import Model, ModelMismatch, QueueFigures, ReaderRow
from tools.verify.contract.reasons import Reasons
from tools.verify.contract.rules import Breach, Rule
from tools.verify.format.moves import CAUSE_SHIFT, FLAG, MOVE, Op, expand
from tools.verify.format.records import (
    CHECKPOINT_ROW,
    READER_ROW,
    Batch,
    Checkpoint,
    Queues,
    Readers,
    Record,
    Snapshot,
    Start,
)
from tools.verify.input.tables import ORDINAL_MAX, Columns

_WHATS = [(what & 15, what >= FLAG, (what & (FLAG - 1)) >> CAUSE_SHIFT) for what in range(256)]
"""Kind, flag and cause, by the value of a move."""

RULES = {
    "other root": Rule("G14", "a checkpoint has another state root than the state before it"),
    "wrong message": Rule("G12", "was taken from the queue while an older one was ready"),
    "wrong state": Rule("G20", "the model of queues arrives at another state than the log says"),
    "wrong read": Rule("G29", "a reader was sent another message than the next one"),
    "impossible": Rule("G20", "the model of queues knows no such message there"),
}


class Replay:
    """Takes the records of one segment in order, checkpoints joined."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self.moves = 0
        self.checkpoints = 0  # that were compared with the model
        self.compared = 0  # queues whose figures were compared
        self._model: Model | None = None
        self._reasons = Reasons()
        self._priorities: dict[int, int] = {}  # the highest ones, of queues; -1: a plain one
        self._readers: list[ReaderRow] = []  # of the next checkpoint
        self._position = -1
        self._root = 0

    def take(self, record: Record) -> None:
        match record:
            case Batch():
                if 0 <= self._position != record.first_position - 1:
                    self._model = None  # something is missing
                self._position = record.first_position + record.commands - 1
                self._root = record.root
                if self._model is not None:
                    self._batch(record, self._model)
            case Queues(queues):
                for number, vhost, name, _, max_priority in queues:
                    self._reasons.name(number, vhost, name)
                    self._priorities[number] = max_priority
            case Readers(rows):
                self._readers += READER_ROW.iter_unpack(rows)
            case Checkpoint():
                self._compare(record)
                if self._model is not None:
                    self._model.take_readers(self._readers)
                self._readers.clear()
            case Start() | Snapshot():
                self._model = None
                self._position, self._root = record.position, record.root
            case _:
                pass

    def take_part(self, records: Iterable[Record], moves: Columns, commands: Columns) -> bool:
        """Take the records of consecutive batches; return whether their moves are plain, and so
        break no rule but those about the whole life of a message.
        """
        waiting = iter(records)
        for record in waiting:
            if isinstance(record, Batch):
                break
            self.take(record)
        rest = [record, *waiting]
        batches = [one for one in rest if isinstance(one, Batch)]
        plain = (
            self._model is not None
            and not any(isinstance(one, Checkpoint) for one in rest)
            and self._position == batches[0].first_position - 1
            and take_plain(self._model, self._reasons, self._priorities, moves, commands)
        )
        if plain:
            rest = [one for one in rest if not isinstance(one, Batch)]
            self.moves += len(moves["op"])
            self._position = batches[-1].first_position + batches[-1].commands - 1
            self._root = batches[-1].root
        for record in rest:
            self.take(record)
        return plain

    def _compare(self, checkpoint: Checkpoint) -> None:
        position, root, next_message, rows = checkpoint
        logged = {row[0]: QueueFigures(*row[1:]) for row in CHECKPOINT_ROW.iter_unpack(rows)}
        if self._position == position and self._root != root:
            more = f"{root:016x}, not {self._root:016x}"
            self._report("other root", position, 0, -1, -1, more)
        if self._model is not None:
            self.checkpoints += 1
            self.compared += len(logged)
            differences = self._model.differences(logged)
            if self._model.next_message != next_message:
                differences.append((-1, f"the next number is {self._model.next_message}"))
            for number, more in self._model.misplaced(self._readers):
                self._report("wrong read", position, ORDINAL_MAX, number, -1, more)
            for number, more in differences:
                self._report("wrong state", position, ORDINAL_MAX, number, -1, more)
            if not differences:
                return  # the model, which holds more than these figures, continues
        self._model = Model(next_message)
        self._reasons.begin(position)
        self._position, self._root = position, root
        for number, one in logged.items():
            self._model.begin(number, one, self._priorities.get(number, -1))

    def _batch(self, batch: Batch, model: Model) -> None:
        first, reasons = batch.first_position, self._reasons
        reasons.commands(first, batch.kinds, batch.outcomes)
        moves = expand(batch.moves)
        self.moves += len(moves) // MOVE.size
        for ordinal, (what, index, queue, seq, of, detail) in enumerate(MOVE.iter_unpack(moves)):
            position = first + ((index - first) & 0xFFFF)
            op, flag, cause = _WHATS[what]
            try:
                model.move(op, flag, cause, queue, seq, of, detail)
                reasons.take(position, op, flag, cause, queue, seq, of, detail, model)
            except ModelMismatch as mismatch:
                of_queue = -1 if op == Op.PUBLISHED else queue  # else it is a number
                self._report(mismatch.rule, position, ordinal, of_queue, seq, mismatch.more)
                self._model = None  # further differences would follow from this one
                break
        reasons.commands(first, batch.kinds, batch.outcomes)

    def _report(
        self, rule: str, position: int, ordinal: int, queue: int, seq: int, more: str
    ) -> None:
        # A number in the log may be beyond the range of a column.
        self.breaches.append(Breach(rule, position, ordinal, queue, seq, more=more))
