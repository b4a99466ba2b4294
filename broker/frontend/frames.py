"""How the outbox's longer words become bytes in a client's output."""

from broker.amqp import codec
from broker.amqp.fields import Value, encode_short_string
from broker.frontend.channel import LocalChannel
from broker.frontend.client import Client

_SHORT_STRINGS_KEPT_MAX = 1024


def write_confirms(client: Client, number: int, channel: LocalChannel) -> None:
    out = client.connection.out
    for publish_no, multiple, ack in channel.confirms.take():
        if ack:
            codec.append_ack(out, number, publish_no, multiple)
        else:
            codec.append_nack(out, number, publish_no, multiple, False)
    client.gateway.mark_writable(client)


def write_content(
    client: Client,
    number: int,
    method: str,
    args: tuple[Value, ...],
    properties: bytes,
    body: bytes,
) -> None:
    client.say(number, method, args)
    connection = client.connection
    codec.append_content(connection.out, number, properties, body, connection.frame_bytes_max)


def keep_short(kept: dict[str, bytes], text: str) -> bytes:
    if len(kept) >= _SHORT_STRINGS_KEPT_MAX:
        kept.clear()
    return kept.setdefault(text, encode_short_string(text))


def keep_address(client: Client, exchange: str, key: str) -> bytes:
    kept = client.short_addresses
    if len(kept) >= _SHORT_STRINGS_KEPT_MAX:
        kept.clear()
    address = encode_short_string(exchange) + encode_short_string(key)
    kept[(exchange, key)] = address
    return address
