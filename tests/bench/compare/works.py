"""The measured workloads: named ones, and variants with given sizes, windows and rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from broker.options.addresses import Address
from tests.bench.load import BACKLOG_MESSAGES
from tests.bench.support.load_clients import Load
from vsync.types import record

BACKLOG_BYTES = 64 * 2**20
BACKLOG_MESSAGES_MIN = 16
PREFETCH = 100


@record
class Work:
    """Clients and their messages."""

    producers: int
    consumers: int
    window: int
    size: int = 256
    rate: int = 0
    persistent: bool = True

    def __str__(self) -> str:
        how = f"{self.rate}/s" if self.rate else f"window {self.window}"
        kind = "" if self.persistent else ", transient"
        return f"{self.producers}/{self.consumers}, {how}, {self.size} B{kind}"

    def load(
        self, addresses: tuple[Address, ...], queue: str, queue_type: str, seconds: float
    ) -> Load:
        """The load as the generator takes it."""
        fitting = max(BACKLOG_MESSAGES_MIN, BACKLOG_BYTES // self.size)
        return Load(
            addresses=addresses,
            producers=self.producers,
            consumers=self.consumers,
            window=self.window,
            prefetch=PREFETCH,
            body_bytes=self.size,
            persistent=self.persistent,
            rate=float(self.rate),
            backlog=min(BACKLOG_MESSAGES, fitting),
            seconds=seconds,
            warmup_seconds=min(2.0, seconds / 2),
            queue=queue,
            queue_type=queue_type,
        )


WORKS = {
    "full": Work(4, 4, 1000),
    "wide": Work(4, 4, 100),
    "pair": Work(1, 1, 100),
    "one": Work(1, 1, 1),
    "publish": Work(1, 0, 1000),
    "transient": Work(4, 4, 1000, persistent=False),
    "kib": Work(4, 4, 1000, size=1024),
    "large": Work(4, 4, 100, size=16_384),
    "huge": Work(4, 4, 10, size=262_144),
    "slow": Work(1, 1, 1000, rate=100),
    "steady": Work(1, 1, 1000, rate=1000),
    "brisk": Work(1, 1, 1000, rate=3000),
}


def chosen(
    names: Sequence[str],
    sizes: Sequence[int],
    windows: Sequence[int],
    rates: Sequence[int],
    persistent: bool | None,
) -> list[Work]:
    """The named workloads, each with all given sizes, windows and rates."""
    works: list[Work] = []
    for name in names or ("full", "pair", "publish", "large", "slow", "steady"):
        work = WORKS[name]
        of_each: Iterable[tuple[int, int, int]] = product(
            sizes or (work.size,), windows or (work.window,), rates or (work.rate,)
        )
        for size, window, rate in of_each:
            one = replace(work, size=size, window=window, rate=rate)
            works.append(one if persistent is None else replace(one, persistent=persistent))
    return works
