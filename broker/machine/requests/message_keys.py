"""The key by which a queue identifies a message: a 16-byte hash of a header or property.

A queue with last values or groups uses the value of the header that its argument names (`key_by`).
A queue that takes no message twice uses the header `x-deduplication-header`, or else the property
message-id (`key_of_repeat`).
"""

from functools import lru_cache
from hashlib import blake2b

from broker.machine.commands import Value
from broker.machine.digest import canonical
from broker.machine.requests.properties import HAS_HEADERS, header_of, property_of, raw_headers

HEADER = "x-deduplication-header"
DEATHS = "x-death"
_HEADER_BYTES = bytes((len(HEADER),)) + HEADER.encode()
_DEATHS_BYTES = bytes((len(DEATHS),)) + DEATHS.encode()


@lru_cache(maxsize=16)
def key_by(properties: bytes, raw_name: bytes) -> bytes:
    """The key from the value of this header; none if it has no value. Each queue that a message
    reaches asks several times."""
    value = header_of(properties, raw_name)
    return _key_of_value(value) if value not in (None, "", b"") else b""


def key_of_repeat(properties: bytes) -> bytes:
    """The key that identifies a repeat; none if the message names none, or is a dead letter. A text
    is the same key in either place."""
    if len(properties) < 3:
        return b""
    value = None
    if properties[0] & (HAS_HEADERS >> 8):
        if _DEATHS_BYTES in properties and any(
            name == DEATHS for name, _, _ in raw_headers(properties)
        ):
            return b""
        value = header_of(properties, _HEADER_BYTES)
    if value not in (None, "", b""):
        return _key_of_value(value)
    text = property_of(properties, "message_id")
    return _key_of_text(text) if text else b""


def _key_of_text(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _key_of_value(value: Value) -> bytes:
    """A text is the same key whether it came as text or as bytes."""
    if isinstance(value, str | bytes):
        return _key_of_text(value.encode() if isinstance(value, str) else value)
    return blake2b(canonical({"": value}), digest_size=16, person=b"value").digest()
