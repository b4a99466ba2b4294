"""Who a client says it is: the SASL mechanisms, without a judgement on the answer."""

from typing import NamedTuple

from broker.amqp.errors import COMMAND_INVALID, SYNTAX_ERROR, ProtocolFault
from broker.amqp.fields import decode_table, encode_long_string

MECHANISMS = ("PLAIN", "AMQPLAIN", "ANONYMOUS")
ANONYMOUS_USER = "guest"


class Credentials(NamedTuple):
    user: str
    password: str


def credentials_of(mechanism: str, response: bytes) -> Credentials:
    """What the response of the client claims; a fault if it is none of that mechanism."""
    match mechanism:
        case "PLAIN":
            return _plain(response)
        case "AMQPLAIN":
            return _amqplain(response)
        case "ANONYMOUS":
            return Credentials(ANONYMOUS_USER, ANONYMOUS_USER)
        case _:
            text = f"unknown authentication mechanism '{mechanism}'"
            raise ProtocolFault(COMMAND_INVALID, text, 10, 11)


def _plain(response: bytes) -> Credentials:
    """RFC 4616: authorisation identity (not used here), user, password."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise ProtocolFault(SYNTAX_ERROR, "PLAIN response without user and password", 10, 11)
    return Credentials(_text(parts[1]), _text(parts[2]))


def _amqplain(response: bytes) -> Credentials:
    """A field table without its length."""
    framed = encode_long_string(response)
    table, _ = decode_table(framed, 0, len(framed))
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise ProtocolFault(SYNTAX_ERROR, "AMQPLAIN response without LOGIN and PASSWORD", 10, 11)
    return Credentials(user, password)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolFault(SYNTAX_ERROR, "credentials are no UTF-8", 10, 11) from None
