"""Further routing keys of a message, which its sender names in the headers CC and BCC.

At each exchange on its way the message is routed by all its keys, and reaches each queue once. BCC
is removed before anyone else sees the message. Decision:
docs/decisions/0048-arguments-that-nobody-knows-are-taken.md.
"""

from typing import NamedTuple

from broker.machine.requests.properties import HAS_HEADERS, decode_value, raw_headers, with_headers
from broker.machine.requests.refusals import Refusal, invalid_header

_KINDS = {
    ord("S"): "longstr", ord("F"): "table", ord("t"): "bool", ord("V"): "void", ord("x"): "binary",
    ord("T"): "timestamp", ord("D"): "decimal", ord("f"): "float", ord("d"): "double",
    ord("l"): "long",
}  # fmt: skip
"""Types as RabbitMQ names them in its refusal; all others are whole numbers."""


class Copies(NamedTuple):
    """The content of the two headers."""

    properties: bytes  # without BCC
    keys: tuple[str, ...]  # of CC
    blind: tuple[str, ...]  # of BCC


def may_name_copies(properties: bytes) -> bool:
    """Whether the headers are worth examining: in most messages they are not."""
    return (
        len(properties) > 2
        and properties[0] & (HAS_HEADERS >> 8) != 0
        and (b"\x02CC" in properties or b"\x03BCC" in properties)
    )


def copies_of(properties: bytes) -> Copies | Refusal:
    """Read both headers. Of equal names the last one counts; list items that are not text are
    ignored."""
    entries = raw_headers(properties)
    keys: dict[str, tuple[str, ...]] = {"CC": (), "BCC": ()}
    for name, _, raw in entries:
        if name in keys:
            value = decode_value(raw)
            if not isinstance(value, tuple):
                return invalid_header(name, _KINDS.get(raw[0], "signedint"))
            keys[name] = tuple(key for key in value if isinstance(key, str))
    if any(name == "BCC" for name, _, _ in entries):
        properties = without_header(properties, "BCC")
    return Copies(properties, keys["CC"], keys["BCC"])


def without_header(properties: bytes, name: str) -> bytes:
    kept = [one for one in raw_headers(properties) if one[0] != name]
    return with_headers(properties, kept, keep_expiration=True)
