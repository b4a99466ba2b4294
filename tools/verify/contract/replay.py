"""One life's moves through one segment, made again in the second model of queues (`model`)."""

from __future__ import annotations

from broker.machine.move_log import CAUSE_SHIFT, FLAG, MOVE
from broker.memberlog.records import (
    STANDING_ROW,
    Batch,
    Checkpoint,
    Queues,
    Record,
    Snapshot,
    Start,
)
from tools.verify.contract.queue_model import Model, Said, Wrong
from tools.verify.contract.rules import Breach
from tools.verify.input.moves import ORDINAL_MAX


class Replay:
    """Takes the records of one segment in their order, each checkpoint in one."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self.moves = 0
        self.compared = 0  # queues whose figures the model reached, or not
        self._model: Model | None = None
        self._ranked: set[int] = set()
        self._stands = -1

    def take(self, record: Record) -> None:
        """Take the next record."""
        match record:
            case Batch():
                if 0 <= self._stands != record.first_position - 1:
                    self._model = None  # something is missing
                self._stands = record.first_position + record.commands - 1
                if self._model is not None:
                    self._batch(record, self._model)
            case Queues(queues):
                for number, _, _, _, max_priority in queues:
                    if max_priority >= 0:
                        self._ranked.add(number)
            case Checkpoint():
                self._stand(record)
            case Start() | Snapshot():
                self._model = None
                self._stands = record.position
            case _:
                pass

    def _stand(self, checkpoint: Checkpoint) -> None:
        said = {row[0]: Said(*row[1:]) for row in STANDING_ROW.iter_unpack(checkpoint.queues)}
        position, next_message = checkpoint.position, checkpoint.next_message
        if self._model is not None:
            self.compared += len(said)
            differences = self._model.differs(said)
            if self._model.next_message != next_message:
                differences.append((-1, f"the next number is {self._model.next_message}"))
            for number, more in differences:
                self._tell("wrong state", position, ORDINAL_MAX, number, -1, more)
            if not differences:
                return  # and go on with what the model knows besides these figures
        self._model = Model(next_message)
        self._stands = position
        for number, one in said.items():
            self._model.begin(number, one, ranked=number in self._ranked)

    def _batch(self, batch: Batch, model: Model) -> None:
        first = batch.first_position
        for ordinal, row in enumerate(MOVE.iter_unpack(batch.moves)):
            what, index, queue, seq, of, detail = row
            self.moves += 1
            try:
                cause = (what & 0x70) >> CAUSE_SHIFT
                model.move(what & 15, what & FLAG != 0, cause, queue, seq, of, detail)
            except Wrong as wrong:
                position = first + ((index - first) & 0xFFFF)
                self._tell(wrong.rule, position, ordinal, queue, seq, wrong.more)
                self._model = None  # what follows would follow from this
                return

    def _tell(
        self, rule: str, position: int, ordinal: int, queue: int, seq: int, more: str
    ) -> None:
        self.breaches.append(Breach(rule, position, ordinal, queue, seq, more=more))
