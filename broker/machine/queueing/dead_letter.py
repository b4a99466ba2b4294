"""The x-death headers of a dead-lettered message, as RabbitMQ writes them.

`x-death` is an array of tables, the latest first, one per queue and reason, with a count.
`x-first-death-*` keep the first, `x-last-death-*` the latest. The other headers stay byte for byte.
The expiration property moves into the record, or the message would expire again where it goes.
"""

from broker.machine.commands import Table, Value
from broker.machine.queueing.properties import (
    Entry,
    decode_value,
    encode_value,
    entry,
    expiration_of,
    raw_headers,
    with_headers,
)
from broker.machine.state import Queue


def dead_letter_properties(
    properties: bytes, queue: str, exchange: str, key: str, reason: str, now_us: int
) -> bytes:
    """The properties with which the message is published to the dead-letter exchange."""
    entries = raw_headers(properties)
    records = _x_death(entries)
    same = next((d for d in records if d.get("queue") == queue and d.get("reason") == reason), None)
    if same is not None:
        count = same.get("count")
        latest = {**same, "count": count + 1 if isinstance(count, int) else 1}
        records = [latest, *(d for d in records if d is not same)]
    else:
        latest = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": now_us // 1_000_000,
            "exchange": exchange,
            "routing-keys": (key,),
        }
        expiration = expiration_of(properties)
        if expiration is not None:
            latest["original-expiration"] = expiration
        records = [latest, *records]
    names = [name for name, _, _ in entries]
    kept = [
        one for one in entries if one[0] != "x-death" and not one[0].startswith("x-last-death-")
    ]
    if "x-first-death-queue" not in names:
        kept += _summary("x-first-death-", queue, exchange, reason)
    kept.append(entry("x-death", _encode_x_death(records)))
    kept += _summary("x-last-death-", queue, exchange, reason)
    return with_headers(properties, kept, keep_expiration=False)


def without_cycles(properties: bytes, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
    """The queues without those that dead-lettered the message before, if no client rejected it
    since. So a cycle of dead-letter exchanges always ends."""
    records = _x_death(raw_headers(properties))
    return tuple(queue for queue in queues if not _has_cycle(records, queue.name))


def _has_cycle(records: list[Table], queue: str) -> bool:
    for record in records:  # the latest first
        if record.get("reason") == "rejected":
            return False
        if record.get("queue") == queue:
            return True
    return False


def _summary(prefix: str, queue: str, exchange: str, reason: str) -> list[Entry]:
    return [
        entry(prefix + "exchange", encode_value(exchange)),
        entry(prefix + "queue", encode_value(queue)),
        entry(prefix + "reason", encode_value(reason)),
    ]


def _x_death(entries: list[Entry]) -> list[Table]:
    for name, _, raw in entries:
        if name == "x-death":
            value = decode_value(raw)
            if isinstance(value, tuple):
                return [record for record in value if isinstance(record, dict)]
    return []


def _encode_x_death(records: list[Table]) -> bytes:
    data = b"".join(_encode_record(record) for record in records)
    return b"A" + len(data).to_bytes(4, "big") + data


def _encode_record(record: Table) -> bytes:
    """Like any table, except that the time is a timestamp."""
    time: Value = record.get("time")
    rest = {name: value for name, value in record.items() if name != "time"}
    body = encode_value(rest)[5:]
    if isinstance(time, int):
        body += b"\x04timeT" + time.to_bytes(8, "big", signed=time < 0)
    return b"F" + len(body).to_bytes(4, "big") + body
