"""A simple model of producers that number their messages: dicts and lists that never expire.

It gives the outcome of each publish, and the bodies that each queue has taken, in order.
"""

from typing import NamedTuple

from broker.machine import commands as c


class Sent(NamedTuple):
    """A producer's publish, as its client sends it."""

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
        # By producer, the most recent last: its epoch, and everything it sent in it.
        self.producers: dict[str, tuple[int, dict[int, Sent]]] = {}
        self.highest: dict[str, int] = {}

    def publish(self, sent: Sent) -> int:
        """Return the outcome."""
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
        """Non-persistent messages in this queue are gone, with their numbers."""
        for name, (epoch, numbers) in self.producers.items():
            kept = {n: one for n, one in numbers.items() if one.persistent and one.key == durable}
            self.producers[name] = epoch, kept
