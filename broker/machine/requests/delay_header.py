"""The delay that a message requests in its header `x-delay`, and how it is kept.

An exchange of type `x-delayed-message` routes as the type in its argument `x-delayed-type`. A
message with a delay, in milliseconds, first waits in the exchange's own queue, which is invisible
to clients, in the order of due times. Then it is routed, and its header gets the opposite sign, so
no other exchange delays it again. The delay counts from the horizon, as times to live do: no
message is early. Names and signs are those of RabbitMQ's plugin of this name.
Decision: docs/decisions/0064-a-delayed-message-waits-in-a-queue-of-its-exchange.md.
"""

import struct
from math import isnan

from broker.machine.commands import Table
from broker.machine.requests.exchange_types import EXCHANGE_TYPES
from broker.machine.requests.properties import (
    decode_value,
    encode_value,
    entry,
    raw_headers,
    with_headers,
)
from broker.machine.requests.refusals import (
    Refusal,
    plain,
    precondition_failed,
    unknown_exchange_type,
)
from broker.machine.state import (
    ARRIVAL_BITS,
    CREATED_US,
    DELAYED_MESSAGE,
    DELAYED_TYPE,
    DUE_SHIFT,
    PROPERTIES,
    Message,
    Queue,
)

DELAY = "x-delay"
DELAY_MS_MAX = (1 << 32) - 1
"""As in the plugin: 49 days."""
_DELAY_BYTES = bytes((len(DELAY),)) + DELAY.encode()
_ARRIVALS = (1 << ARRIVAL_BITS) - 1
_NAME = "amq.delayed."
_WHOLE = (b"b", b"B", b"s", b"u", b"I", b"i", b"l", b"L")
_LARGE = 1e18
_SHOWN_MAX = 40
"""Characters of a client's text shown in the refusal; only ASCII is shown."""
_SIGNED_INT = struct.Struct(">i")


def check_type(arguments: Table) -> Refusal | None:
    """Check the type of an exchange that is declared."""
    kind = arguments.get(DELAYED_TYPE)
    if type(kind) is not str or kind == DELAYED_MESSAGE:
        others = ", ".join(one for one in EXCHANGE_TYPES if one != DELAYED_MESSAGE)
        return precondition_failed(
            f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type other than "
            f"{DELAYED_MESSAGE}: one of {others}"
        )
    return unknown_exchange_type(kind) if kind not in EXCHANGE_TYPES else None


def queue_name(exchange: str) -> str:
    """The name of the queue in which its messages wait; no client can declare this name."""
    return _NAME + exchange


def may_be_delayed(properties: bytes) -> bool:
    """Whether the headers are worth a look: in most messages they are not."""
    return len(properties) > 2 and properties[0] & 0x20 != 0 and _DELAY_BYTES in properties


def check_delay(properties: bytes) -> Refusal | None:
    """Check a message that is published to an exchange that delays."""
    value = _value(properties)
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
        shown = "".join(one if " " <= one <= "~" else "?" for one in shown)
        return precondition_failed(f"invalid {DELAY} '{shown}': not an integer")
    if value > DELAY_MS_MAX:
        return precondition_failed(
            f"{DELAY} of {value} milliseconds, the limit is {DELAY_MS_MAX} (49 days); publish the "
            "message when less is left, or keep it in a database until then"
        )
    return None


def delay_ms_of(properties: bytes) -> int:
    """How long the message is to wait; 0: not at all. A bad delay that nobody can be refused for,
    because the message comes from another exchange, becomes the limit, or 0 if it is no number."""
    value = _value(properties) if may_be_delayed(properties) else 0
    return 0 if isinstance(value, str) else min(max(value, 0), DELAY_MS_MAX)


def with_turned_delay(properties: bytes) -> bytes:
    """The properties for routing when the delay is over: with the negated delay."""
    delay_ms = delay_ms_of(properties)
    kept = [one for one in raw_headers(properties) if one[0] != DELAY]
    try:
        raw = b"I" + _SIGNED_INT.pack(-delay_ms)
    except struct.error:
        raw = encode_value(-delay_ms)
    return with_headers(properties, [*kept, entry(DELAY, raw)], keep_expiration=True)


def due_ms_of(message: Message) -> int:
    """When it is due, by the machine's time."""
    return -(-message[CREATED_US] // 1000) + delay_ms_of(message[PROPERTIES])


def place_when_due(queue: Queue, message: Message) -> int:
    """The place of an incoming message, by its due time and then by its number."""
    due_ms = due_ms_of(message)
    arrival = (queue.next_seq & _ARRIVALS) << 1
    taken = queue.returned
    # The numbers wrap after two million: of messages due at once some are then later.
    while (place := due_ms << DUE_SHIFT | arrival) in taken or place | 1 in taken:
        due_ms += 1
    return place


def _value(properties: bytes) -> int | str:
    """The value of the last header of this name; 0 if there is none, or it has no number. A text
    must be a whole number; any other text is returned."""
    raws = [raw for name, _, raw in raw_headers(properties) if name == DELAY]
    kind, value = (raws[-1][:1], decode_value(raws[-1])) if raws else (b"V", None)
    if kind in _WHOLE and isinstance(value, int):
        return value
    if isinstance(value, float) and not isnan(value):
        return int(min(max(value, -_LARGE), _LARGE))
    if kind == b"S":
        text = plain(value)
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(text) < 20 else text
    return 0
