"""How a shovel changes a message: its destination, its properties, and its number.

Properties travel byte for byte unless the definition asks for changes. A number makes the
destination take a message only once (G23). The producer is named after the queue from which the
message was taken and everything that shapes the sent message; the number is the message's place in
that queue. So the next runner of the shovel names and numbers the same message alike.
Decision: docs/decisions/0069-a-shovel-numbers-messages-by-their-places.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import NamedTuple

from broker.amqp import codec
from broker.amqp.fields import Value
from broker.machine.publishing.producers import HEADERS as PRODUCER_HEADERS
from broker.machine.publishing.producers import ID as PRODUCER_ID
from broker.machine.publishing.producers import SEQUENCE as PRODUCER_SEQUENCE
from broker.machine.publishing.queue_numbers import HEADERS as QUEUE_HEADERS
from broker.machine.publishing.queue_numbers import QUEUE_ID, SEQUENCE
from broker.machine.requests.properties import (
    decode_value,
    encode_value,
    entry,
    items_of,
    raw_headers,
    with_headers,
)
from broker.shovels.definition import Shovel, Table
from tools.client.amqp_client import Delivery
from tools.shovel.doubts import Doubts
from tools.shovel.received_from import Way

HAS_USER_ID = 0x10
"""A flag in the second byte of properties."""
SHOVELLED, TIMESTAMP = "x-shovelled", "x-shovelled-timestamp"
DROPPED = frozenset((*QUEUE_HEADERS, *PRODUCER_HEADERS, "x-delivery-count"))
"""Properties about the source: the last one counts returns to it, and grows with them."""


class Outgoing(NamedTuple):
    """A message in the form in which it is published."""

    exchange: str
    key: str
    properties: bytes
    queue_id: str
    """Id of the queue it was taken from; empty: the source does not tell."""
    place: int
    producer: str
    """The producer of its number; empty: it is sent without one."""


class Content:
    """Turns deliveries into outgoing messages."""

    def __init__(
        self,
        shovel: Shovel,
        cluster: str,
        doubts: Doubts,
        *,
        numbers: bool,
        frame_max: int,
        way: Way | None = None,
    ) -> None:
        """`frame_max` bytes is the destination's limit: a number that does not fit is left out.
        `way`: that of a federation link.

        An attempt's own queue is deleted with it, so no other attempt takes its messages: numbers
        would only use up the producer names that a user may have.
        """
        self._shovel, self._doubts, self._frame_max = shovel, doubts, frame_max
        self._way = way
        self._numbers = numbers and bool(shovel.source_queue)
        self._shovelled = encode_value(_forwarded(shovel, cluster))
        self._shape = _shape(shovel, cluster, way)
        self._producers: dict[str, str] = {}

    def of(self, delivery: Delivery) -> Outgoing | None:
        """Return the message to publish; None: it has been here, and goes no further."""
        shovel = self._shovel
        queue_id, place = "", 0
        entries = []
        properties = delivery.properties
        for one in raw_headers(properties):
            name, _, value = one
            if name == QUEUE_ID:
                queue_id = str(decode_value(value))
            elif name == SEQUENCE:
                number = decode_value(value)
                place = number if isinstance(number, int) else 0
            if name not in DROPPED:
                entries.append(one)
        if shovel.publish_properties:
            properties = codec.encode_properties(
                codec.decode_properties(properties) | shovel.publish_properties
            )
            if "headers" in shovel.publish_properties:
                entries = raw_headers(properties)
        if self._way is not None:
            assert shovel.link is not None
            found = self._way.with_step(entries)
            if found is None:
                return None
            entries = found
            if properties[1] & HAS_USER_ID and not shovel.link.trusts_user_ids:
                plain = codec.decode_properties(properties)
                del plain["user_id"]
                properties = codec.encode_properties(plain)
        if shovel.forward_headers:
            before = [value for name, _, value in entries if name == SHOVELLED]
            items = [*(items_of(before[0]) if before else ()), self._shovelled]
            joined = b"".join(items)
            entries = [one for one in entries if one[0] != SHOVELLED]
            entries.append(entry(SHOVELLED, b"A" + len(joined).to_bytes(4, "big") + joined))
        if shovel.timestamp_header:
            entries = [one for one in entries if one[0] != TIMESTAMP]
            entries.append(entry(TIMESTAMP, encode_value(int(time.time()))))
        producer = ""
        if self._numbers and queue_id and not self._doubts.has(queue_id, place):
            name = self._producer(queue_id)
            numbering = [
                entry(PRODUCER_ID, encode_value(name)),
                entry(PRODUCER_SEQUENCE, encode_value(place)),
            ]  # fmt: skip
            numbered = with_headers(properties, [*entries, *numbering], keep_expiration=True)
            if codec.content_header_fits(numbered, self._frame_max):
                properties, producer = numbered, name
        if not producer and (entries or raw_headers(properties)):
            properties = with_headers(properties, entries, keep_expiration=True)
        if shovel.destination_queue:
            return Outgoing("", shovel.destination_queue, properties, queue_id, place, producer)
        exchange = shovel.destination_exchange
        key = shovel.destination_key
        return Outgoing(
            delivery.exchange if exchange is None else exchange,
            delivery.key if key is None else key, properties, queue_id, place, producer,
        )  # fmt: skip

    def _producer(self, queue_id: str) -> str:
        found = self._producers.get(queue_id)
        if found is None:
            named = blake2b(f"{queue_id}\0{self._shape}".encode(), digest_size=16).hexdigest()
            found = self._producers[queue_id] = f"shovel-{named}"
        return found


def relabelled(properties: bytes, dropped: Collection[str], added: Mapping[str, Value]) -> bytes:
    """The properties with other headers; the rest stays byte for byte."""
    entries = [one for one in raw_headers(properties) if one[0] not in dropped]
    entries += [entry(name, encode_value(value)) for name, value in added.items()]
    return with_headers(properties, entries, keep_expiration=True)


def number_of(properties: bytes) -> tuple[str, int]:
    """Return producer and number of a message published by us; an empty name if it has none."""
    values = {name: decode_value(value) for name, _, value in raw_headers(properties)}
    producer, number = values.get(PRODUCER_ID), values.get(PRODUCER_SEQUENCE)
    if not isinstance(producer, str) or not isinstance(number, int):
        return "", -1
    return producer, number


def _forwarded(shovel: Shovel, cluster: str) -> Table:
    """One entry of the header that records a message's way. Of several URIs it uses the first,
    which is the same in each attempt."""
    row = shovel.row()
    names = (
        "src_uri", "dest_uri", "src_queue", "src_exchange", "src_exchange_key", "dest_queue",
        "dest_exchange", "dest_exchange_key",
    )  # fmt: skip
    return {
        "shovelled-by": cluster, "shovel-type": "dynamic", "shovel-name": shovel.name,
        "shovel-vhost": shovel.vhost,
        **{name.replace("_", "-"): str(row[name]) for name in names if name in row},
    }  # fmt: skip


def _shape(shovel: Shovel, cluster: str, way: Way | None) -> str:
    """The parts of the definition that shape the sent message; other parts make another message."""
    shape: list[object] = [
        shovel.destination_queue, shovel.destination_exchange, shovel.destination_key,
        shovel.publish_properties,
    ]  # fmt: skip
    if shovel.forward_headers:
        shape.append(_forwarded(shovel, cluster))
    if way is not None:
        shape.append(way.step)
    return json.dumps(shape, sort_keys=True)
