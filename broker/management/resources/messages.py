"""Messages over HTTP: publish one, look at some, and check that a member moves messages at all.

For people and checks, not for programs that move many: each call opens its own connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
from collections.abc import AsyncIterator, Iterator

from aiohttp.web import StreamResponse

from broker.amqp import codec
from broker.amqp.fields import Table
from broker.machine.state import ready_count
from broker.management.amqp_client import Answer
from broker.management.call import (
    Call,
    Reply,
    Route,
    bad_request,
    number_field,
    short,
    table_field,
    text_field,
    unavailable,
)
from broker.management.json_values import Object, table, text_of, to_amqp
from broker.management.listing import stream
from broker.management.resources.exchanges import exchange_of
from broker.management.resources.queues import queue_of
from broker.management.slices import Slices

GET_MAX = 5000
GET_BYTES_MAX = 32 * 1024 * 1024
"""A reply ends after this many bytes of messages: fewer messages than requested are allowed."""
MOVE_S = 20.0
"""One call moves as many messages as fit into this time; the rest needs another call."""
TRUNCATE_DEFAULT = 1 << 31
PIECE = 3 << 14
"""Bytes of a payload handled at once: whole base64 groups, of three bytes or four characters."""
MODES = {
    "ack_requeue_true": (True, True), "reject_requeue_true": (True, True),
    "ack_requeue_false": (False, False), "reject_requeue_false": (False, True),
}  # fmt: skip
"""Ack mode to: requeue, and reject instead of acknowledge."""
TEXTS = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
    "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
NUMBERS = {"delivery_mode": 255, "priority": 255, "timestamp": (1 << 64) - 1}


async def publish(call: Call) -> Reply:
    vhost, exchange = exchange_of(call)
    body = await call.large_json()
    payload = await _payload(body)
    key = short(text_field(body, "routing_key"), "routing_key")
    properties = _properties(table_field(body, "properties"))
    if alarm := call.broker.machine.alarm:
        raise unavailable(f"publishers are blocked: {alarm}")
    async with call.amqp(vhost.name) as client:
        routed = await client.publish(exchange.name, key, properties, payload)
    return Reply(body={"routed": routed})


async def _payload(body: Object) -> bytes:
    text = text_field(body, "payload")
    encoding = text_field(body, "payload_encoding", "string")
    if encoding not in ("string", "base64"):
        raise bad_request(f"unsupported encoding {encoding[:50]!r}: string or base64")
    decode = _utf8 if encoding == "string" else _from_base64
    slices = Slices()
    found = bytearray()
    for start in range(0, len(text), PIECE):
        if start and encoding == "base64" and found and text[start - 1] == "=":
            raise bad_request("payload is no base64")  # its end is missing
        found += decode(text[start : start + PIECE])
        await slices.step()
    return bytes(found)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_request("payload holds half of a surrogate pair") from None


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("payload is no base64") from None


def _properties(given: Object) -> Table:
    found: Table = {}
    for name, value in given.items():
        if name == "headers" and isinstance(value, dict):
            found[name] = to_amqp(value)
        elif name in TEXTS and isinstance(value, str | int):
            found[name] = short(str(value), name)
        elif name in NUMBERS and type(value) is int and 0 <= value <= NUMBERS[name]:
            found[name] = value
        else:
            raise bad_request(f"properties: {name[:50]!r} is unknown, or its value does not fit")
    return found


async def get(call: Call) -> StreamResponse:
    """Take some messages, and settle or return them as requested."""
    queue = queue_of(call)
    body = call.json()
    count = number_field(body, "count")
    if not 0 <= count <= GET_MAX:
        raise bad_request(f"count is not a number from 0 to {GET_MAX}")
    mode = text_field(body, "ackmode", _mode_before(body))
    if mode not in MODES:
        raise bad_request(f"ackmode is none of {', '.join(MODES)}")
    requeue, reject = MODES[mode]
    encoding = text_field(body, "encoding", "auto")
    if encoding not in ("auto", "base64"):
        raise bad_request("encoding is neither auto nor base64")
    truncate = max(0, number_field(body, "truncate", TRUNCATE_DEFAULT))
    found: list[Answer] = []
    size, last = 0, 0
    async with call.amqp(queue.vhost.name) as client:
        while len(found) < count and size < GET_BYTES_MAX:
            answer = await client.call("basic.get", (queue.name, False))
            if answer.method == "basic.get-empty":
                break
            last = _number(answer.args[0])
            size += len(answer.body)
            found.append(answer)
        if last and reject:
            client.tell("basic.nack", (last, True, requeue))
        elif last:
            client.tell("basic.ack", (last, True))
    return await stream(call, _rows(found, encoding, truncate))


async def move(call: Call) -> Reply:
    """Move messages to another queue, in order, each acknowledged once its copy is confirmed.

    A failure on the way may leave one message in both queues, but never one in neither.
    """
    queue = queue_of(call)
    body = call.json()
    target = short(text_field(body, "to"), "to")
    if queue.vhost.queues.get(target) in (None, queue):
        raise bad_request(f"no other queue '{target}' in vhost '{queue.vhost.name}'")
    count = number_field(body, "count", ready_count(queue))
    if count < 0:
        raise bad_request("count is below 0")
    loop = asyncio.get_running_loop()
    until, moved = loop.time() + MOVE_S, 0
    async with call.amqp(queue.vhost.name) as client:
        while moved < count and loop.time() < until:
            answer = await client.call("basic.get", (queue.name, False))
            if answer.method == "basic.get-empty":
                break
            if not await client.publish("", target, answer.properties, answer.body):
                raise unavailable(f"queue '{target}' does not take messages; {moved} were moved")
            client.tell("basic.ack", (_number(answer.args[0]), False))
            moved += 1
    return Reply(body={"moved": moved, "left": ready_count(queue)})


def _mode_before(body: Object) -> str | None:
    """The mode before ack modes existed: `requeue`."""
    if "ackmode" in body or "requeue" not in body:
        return None
    return "ack_requeue_true" if body["requeue"] in (True, "true") else "ack_requeue_false"


async def _rows(answers: list[Answer], encoding: str, truncate: int) -> AsyncIterator[bytes]:
    """The messages in JSON, in parts: some are as large as a message may be."""
    slices = Slices()
    yield b"["
    for number, answer in enumerate(answers):
        body = memoryview(answer.body)[:truncate]
        as_text = encoding == "auto" and await _is_text(body, slices)
        head = text_of(_head(answer, "string" if as_text else "base64"))[:-1]
        yield (b"," if number else b"") + head + b',"payload":"'
        for part in _quoted(body) if as_text else _in_base64(body):
            yield part
        yield b'"}'
    yield b"]"


def _head(answer: Answer, encoding: str) -> Object:
    """Everything of a message except its payload."""
    _, redelivered, exchange, key, left = answer.args
    return {
        "payload_bytes": len(answer.body),
        "redelivered": bool(redelivered),
        "exchange": str(exchange),
        "routing_key": str(key),
        "message_count": _number(left),
        "properties": table(codec.decode_properties(answer.properties)),
        "payload_encoding": encoding,
    }


async def _is_text(body: memoryview, slices: Slices) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(body), PIECE):
            decoder.decode(body[start : start + PIECE])
            await slices.step()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _quoted(body: memoryview) -> Iterator[bytes]:
    """A text of JSON, without its quotation marks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), PIECE):
        yield text_of(decoder.decode(body[start : start + PIECE]))[1:-1]


def _in_base64(body: memoryview) -> Iterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield base64.b64encode(body[start : start + PIECE])


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


async def aliveness(call: Call) -> Reply:
    """Declare a queue, publish to it and get a message back. The queue stays, as in RabbitMQ:
    other monitors may be checking at the same moment, at whatever member, and need it."""
    vhost, queue = call.vhost(), "aliveness-test"
    async with call.amqp(vhost.name) as client:
        await client.call("queue.declare", (queue, False, False, False, False, False, {}))
        if not await client.publish("", queue, {}, b"test_message"):
            raise unavailable("the message was not routed")
        answer = await client.call("basic.get", (queue, True))
        if answer.method != "basic.get-ok":
            raise unavailable("the message did not come back")
    return Reply(body={"status": "ok"})


ROUTES = (
    Route("exchanges/{vhost}/{exchange}/publish", {"POST": publish}),
    Route("queues/{vhost}/{queue}/get", {"POST": get}),
    Route("queues/{vhost}/{queue}/move", {"POST": move}),
    Route("aliveness-test/{vhost}", {"GET": aliveness}),
)
