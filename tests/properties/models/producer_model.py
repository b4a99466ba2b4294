"""A dumb model of producers that number their messages: dicts and lists, nothing forgotten in time.

It says what becomes of a publish, and which bodies each queue has taken, in order.
"""

from typing import NamedTuple

from broker.machine import commands as c


class Sent(NamedTuple):
    """A publish of a producer, as its client sends it."""

    producer: str
    epoch: int
    number: int
    key: str
    persistent: bool
    body: bytes


class ProducerModel:
    def __init__(self, queues: tuple[str, ...], producers_max: int, numbers_max: int) -> None:
        self.producers_max, self.numbers_max = producers_max, numbers_max
        self.taken: dict[str, list[bytes]] = {queue: [] for queue in queues}
        # By producer, the one heard of last at the end: its epoch, and all that it sent in it.
        self.producers: dict[str, tuple[int, dict[int, Sent]]] = {}
        self.highest: dict[str, int] = {}

    def publish(self, sent: Sent) -> int:
        """The outcome."""
        epoch, numbers = self.producers.get(sent.producer, (sent.epoch, {}))
        if sent.epoch < epoch:
            return 406
        if sent.epoch > epoch or sent.producer not in self.producers:
            numbers, self.highest[sent.producer] = {}, -1
        if sent.number <= self.highest[sent.producer] - self.numbers_max:
            return 406
        if sent.number in numbers:
            before = numbers[sent.number]._replace(persistent=sent.persistent)
            return c.REPEATED if before == sent else 406
        self.producers.pop(sent.producer, None)
        self.producers[sent.producer] = sent.epoch, {**numbers, sent.number: sent}
        self.highest[sent.producer] = max(sent.number, self.highest[sent.producer])
        if len(self.producers) > self.producers_max:
            del self.producers[next(iter(self.producers))]
        if sent.key not in self.taken:
            return c.UNROUTABLE
        self.taken[sent.key].append(sent.body)
        return c.OK

    def cold(self, durable: str) -> None:
        """What is not persistent and in this queue is gone, with its number."""
        for name, (epoch, numbers) in self.producers.items():
            kept = {n: one for n, one in numbers.items() if one.persistent and one.key == durable}
            self.producers[name] = epoch, kept
