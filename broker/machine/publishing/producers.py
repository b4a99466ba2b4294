"""Producers that number their messages, so that a message resent after a failover is taken once.

A message with the headers `x-producer-id` and `x-sequence` is numbered by its producer: a name
valid for one user in one virtual host, over all connections. The outcome of a number is remembered,
and given again when the number comes again. A producer's successor raises `x-producer-epoch` (0 if
absent): numbers of lower epochs are refused from then on.
Decision: docs/decisions/0052-a-number-is-taken-once.md.
"""

from typing import NamedTuple

from broker.machine.digest import body_hash, item_hash, message_hash, producer_element
from broker.machine.limits import NUMBERS_MAX, PRODUCERS_MAX
from broker.machine.move_log import MARK_MASK
from broker.machine.publishing.numbers import VOLATILE, entry_of, forget_all, forget_volatile, put
from broker.machine.requests.properties import decode_value, raw_headers, with_headers
from broker.machine.requests.refusals import Refusal, precondition_failed
from broker.machine.state import Channel, Producer, State, Vhost
from broker.waiting.bodies import Body

HEADERS = ID, EPOCH, SEQUENCE = "x-producer-id", "x-producer-epoch", "x-sequence"
_ID_BYTES = bytes((len(ID),)) + ID.encode()
_NAME_MAX = 255
_NUMBER_MAX = (1 << 63) - 1

# An entry: what became of the number in the two lowest bits, then VOLATILE, then the low half of
# the message's number (0: it reached no queue), and 29 bits of a hash of what was published.
STORED, UNROUTED, REFUSED = 1, 2, 3
_MESSAGE_SHIFT, _HASH_SHIFT = 3, 35


class Attempt(NamedTuple):
    """A publish with a number."""

    producer: str
    epoch: int
    number: int
    content: int  # the hash bits of its entry
    entry: int  # what became of this number before; 0: it is new

    @property
    def outcome(self) -> int:
        return self.entry & 3

    @property
    def durable(self) -> bool:
        return not self.entry & VOLATILE

    @property
    def message(self) -> int:
        return self.entry >> _MESSAGE_SHIFT & MARK_MASK


def may_be_numbered(properties: bytes) -> bool:
    """Whether the headers are worth examining: in most messages they are not."""
    return len(properties) > 2 and properties[0] & 0x20 != 0 and _ID_BYTES in properties


def attempt_of(
    channel: Channel, exchange: str, key: str, properties: bytes, body: Body
) -> Attempt | Refusal | None:
    """Return the numbered attempt; None: the message is not numbered."""
    values = {name: raw for name, _, raw in raw_headers(properties) if name in HEADERS}
    if ID not in values or SEQUENCE not in values:
        return None
    name = decode_value(values[ID])
    epoch = decode_value(values[EPOCH]) if EPOCH in values else 0
    number = decode_value(values[SEQUENCE])
    if not isinstance(name, str) or not 0 < len(name.encode()) <= _NAME_MAX:
        return precondition_failed(f"{ID} is no text of 1 to {_NAME_MAX} bytes")
    if not _is_number(epoch) or not _is_number(number):
        which = EPOCH if _is_number(number) else SEQUENCE
        return precondition_failed(
            f"{which} of producer '{name}' is no whole number from 0 to {_NUMBER_MAX}"
        )
    assert isinstance(epoch, int)
    assert isinstance(number, int)
    hashed = message_hash(0, exchange, key, 0, 0, 0, properties, body, body_hash(body))
    content = hashed >> _HASH_SHIFT << _HASH_SHIFT
    known = _known(channel, name)
    if known is None or epoch > known.epoch:
        return Attempt(name, epoch, number, content, 0)
    if epoch < known.epoch:
        return precondition_failed(
            f"producer '{name}' has {EPOCH} {known.epoch} by now, this message {epoch}: "
            "another one took its place; stop, or take it back with a higher epoch"
        )
    entry = entry_of(known, number)
    if entry is None:
        return precondition_failed(
            f"{SEQUENCE} {number} of producer '{name}' is too old to be known, {NUMBERS_MAX} are "
            f"remembered up to {known.highest}; keep fewer messages unconfirmed, and begin "
            "a higher epoch"
        )
    if entry and entry >> _HASH_SHIFT << _HASH_SHIFT != content:
        return precondition_failed(
            f"{SEQUENCE} {number} of producer '{name}' was given to another message; send the same "
            "bytes again, a new message with a new number, and what is passed on without these "
            "headers"
        )
    return Attempt(name, epoch, number, content, entry)


def without_number(properties: bytes) -> bytes:
    """Return the properties as stored: a consumer that republishes the message is no producer of
    this name."""
    kept = [one for one in raw_headers(properties) if one[0] not in HEADERS]
    return with_headers(properties, kept, keep_expiration=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


def not_in_a_transaction() -> Refusal:
    return precondition_failed(
        f"messages with {ID} and {SEQUENCE} are not taken in a transaction: publish them with "
        "confirms, or leave the headers out"
    )


def _known(channel: Channel, name: str) -> Producer | None:
    connection = channel.connection
    return connection.vhost.producers.get(connection.user, {}).get(name)


def remember(
    state: State, channel: Channel, attempt: Attempt, outcome: int, durable: bool, message: int
) -> None:
    """Record the outcome of a new number."""
    connection = channel.connection
    producers = connection.vhost.producers.setdefault(connection.user, {})
    producer = producers.pop(attempt.producer, None)
    if producer is None:
        if len(producers) >= PRODUCERS_MAX:
            state.remove(element(producers.pop(next(iter(producers)))))
        salt = item_hash("producer", connection.vhost.name, connection.user, attempt.producer)
        producer = Producer(salt, attempt.epoch)
    else:
        state.remove(element(producer))
    if attempt.epoch > producer.epoch:
        producer.epoch = attempt.epoch
        forget_all(producer)
    flags = outcome if durable else outcome | VOLATILE
    entry = attempt.content | (message & MARK_MASK) << _MESSAGE_SHIFT | flags
    put(producer, attempt.number, entry)
    producer.used = state.position
    producers[attempt.producer] = producer
    state.add(element(producer))


def element(producer: Producer) -> int:
    """Return a producer's element in the digest, with all its numbers."""
    return producer.sum + producer_element(
        producer.salt, producer.epoch, producer.used, producer.highest
    )


def forget_volatile_numbers(state: State, vhost: Vhost) -> None:
    """Forget the numbers of messages lost in a cold start."""
    for producers in vhost.producers.values():
        for producer in producers.values():
            if producer.volatile:
                state.remove(element(producer))
                forget_volatile(producer)
                state.add(element(producer))


def forget_producers(state: State, vhost: Vhost) -> None:
    """Forget the producers of a deleted virtual host."""
    for producers in vhost.producers.values():
        for producer in producers.values():
            state.remove(element(producer))
    vhost.producers.clear()
