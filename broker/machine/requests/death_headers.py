"""The x-death headers of a dead-lettered message, as RabbitMQ writes them.

`x-death` is an array of tables, the latest first, one per queue and reason, with a count.
`x-first-death-*` keep the first, `x-last-death-*` the latest. Other headers, and the records of
other deaths, stay byte for byte, whatever types a client used in them. The expiration property
moves into the record; otherwise the message would expire again at its destination.
"""

from functools import lru_cache
from typing import NamedTuple

from broker.machine.commands import Value
from broker.machine.requests.properties import (
    Entry,
    decode_value,
    encode_value,
    entries_of,
    entry,
    expiration_of,
    items_of,
    raw_headers,
    with_headers,
)
from broker.machine.state import Queue


def letters_name(queue: str) -> str:
    """The name of the queue in which this queue's dead letters wait until they can go."""
    return "amq.dead-letters." + queue


class Death(NamedTuple):
    """One record of x-death, in wire format."""

    queue: Value
    reason: Value
    raw: bytes


class Buried(NamedTuple):
    """A message as published to the dead-letter exchange."""

    properties: bytes
    deaths: tuple[Death, ...]  # the latest first

    def without_cycles(self, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
        """The queues without those that dead-lettered the message before, if no client rejected it
        since. So a cycle of dead-letter exchanges always ends."""
        dead: dict[Value, bool] = {}
        for queue, reason, _ in self.deaths:
            if reason == "rejected":
                break
            if isinstance(queue, str):
                dead[queue] = True
        return tuple(queue for queue in queues if queue.name not in dead)


def bury(
    properties: bytes,
    queue: str,
    exchange: str,
    keys: tuple[str, ...],
    reason: str,
    now_us: int,
) -> Buried:
    """The properties with which the message is published to the dead-letter exchange. `keys`: those
    with which it was published before."""
    entries = raw_headers(properties)
    deaths = _deaths(entries)
    same = next((d for d in deaths if d.queue == queue and d.reason == reason), None)
    if same is not None:
        latest = Death(queue, reason, _counted(same.raw))
    else:
        at = now_us // 1_000_000
        raw = _record(queue, exchange, keys, reason, at, expiration_of(properties))
        latest = Death(queue, reason, raw)
    deaths = [latest, *(one for one in deaths if one is not same)]
    kept = [
        one for one in entries if one[0] != "x-death" and not one[0].startswith("x-last-death-")
    ]
    if not any(name == "x-first-death-queue" for name, _, _ in entries):
        kept += _summary("x-first-death-", queue, exchange, reason)
    kept.append(entry("x-death", _array([one.raw for one in deaths])))
    kept += _summary("x-last-death-", queue, exchange, reason)
    return Buried(with_headers(properties, kept, keep_expiration=False), tuple(deaths))


def dug_up(properties: bytes) -> Buried:
    """A message that was buried before, and waited."""
    return Buried(properties, tuple(_deaths(raw_headers(properties))))


@lru_cache(maxsize=64)  # many of one queue die at once
def _record(
    queue: str,
    exchange: str,
    keys: tuple[str, ...],
    reason: str,
    at: int,
    expiration: bytes | None,
) -> bytes:
    entries = [
        entry("count", encode_value(1)),
        entry("reason", encode_value(reason)),
        entry("queue", encode_value(queue)),
        entry("time", b"T" + at.to_bytes(8, "big", signed=at < 0)),
        entry("exchange", encode_value(exchange)),
        entry("routing-keys", encode_value(keys)),
    ]
    if expiration is not None:
        entries.append(entry("original-expiration", encode_value(expiration)))
    return _table(entries)


def _counted(record: bytes) -> bytes:
    """The same record with its count raised by one."""
    entries = entries_of(record, 1)
    counts = [decode_value(raw) for name, _, raw in entries if name == "count"]
    count = counts[-1] if counts else None
    more = count + 1 if isinstance(count, int) else 1
    return _table([entry("count", encode_value(more)), *(e for e in entries if e[0] != "count")])


@lru_cache(maxsize=64)
def _summary(prefix: str, queue: str, exchange: str, reason: str) -> tuple[Entry, ...]:
    return (
        entry(prefix + "exchange", encode_value(exchange)),
        entry(prefix + "queue", encode_value(queue)),
        entry(prefix + "reason", encode_value(reason)),
    )


def _deaths(entries: list[Entry]) -> list[Death]:
    """The records of the last x-death header, which is the one that counts."""
    raws = [raw for name, _, raw in entries if name == "x-death"]
    deaths: list[Death] = []
    for raw in items_of(raws[-1]) if raws else ():
        record = decode_value(raw)
        if isinstance(record, dict):
            deaths.append(Death(record.get("queue"), record.get("reason"), raw))
    return deaths


def _table(entries: list[Entry]) -> bytes:
    body = b"".join(name + value for _, name, value in entries)
    return b"F" + len(body).to_bytes(4, "big") + body


def _array(items: list[bytes]) -> bytes:
    body = b"".join(items)
    return b"A" + len(body).to_bytes(4, "big") + body
