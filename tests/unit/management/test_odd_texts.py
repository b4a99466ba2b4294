"""Requests with texts and sizes that only one of AMQP and JSON can represent."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.amqp import codec
from tests.support.management.member import Answered, ApiMember, Http

ADMIN = "guest:guest"
GET = json.dumps({"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"})


def answered(*requests: tuple[str, str, str | None], published: bytes = b"\0\0") -> list[Answered]:
    """The answers to these requests; queue q has one message, with these properties."""

    async def run() -> list[Answered]:
        async with Http() as http:
            member = ApiMember()
            await http.serve(member)
            client = member.client("guest", "/")
            client.queue("q")
            client.publish("q", b"x", properties=published)
            return [await http.ask(*request, ADMIN) for request in requests]

    return asyncio.run(run())


@pytest.mark.parametrize("more", [-8, -7, 0, 1, 200_000, codec.RECEIVED_BYTES_MAX])
def test_a_message_is_shown_even_if_its_headers_exceed_a_frame(more: int) -> None:
    """A header frame may have the agreed size without its framing octets, and the broker adds
    headers to it. Output of its own that the broker could not read would stop the member."""
    bare = len(codec.encode_properties({"headers": {"a": ""}})) + 12
    text = "x" * (codec.FRAME_MAX_BYTES - bare + more)
    properties = codec.encode_properties({"headers": {"a": text}})
    got, queues = answered(
        ("POST", "/api/queues/%2F/q/get", GET), ("GET", "/api/queues", None), published=properties
    )
    (row,) = json.loads(got.body)
    assert row["properties"] == {"headers": {"a": text}}
    assert queues.status == 200


def test_a_property_that_is_not_text_is_shown_in_base64() -> None:
    (got,) = answered(
        ("POST", "/api/queues/%2F/q/get", GET),
        published=codec.encode_properties({"correlation_id": b"\xff\xfe", "type": "t"}),
    )
    (row,) = json.loads(got.body)
    assert row["properties"] == {"correlation_id": "//4=", "type": "t"}


PUBLISH = "/api/exchanges/%2F/amq.default/publish"
BIND = "/api/bindings/%2F/e/amq.direct/q/q"
IMPORT = "/api/definitions"
LIST = "/api/queues?page=1&page_size=" + "0" * 19 + "1"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", PUBLISH, '{"routing_key":"q","payload":"","properties":{"headers":{LONG:1}}}'),
        ("POST", PUBLISH, '{"routing_key":"q","payload":"","properties":{"headers":{HALF:1}}}'),
        ("POST", PUBLISH, '{"routing_key":"q","payload":"","properties":{"type":HALF}}'),
        ("POST", PUBLISH, '{"routing_key":HALF,"payload":""}'),
        ("PUT", "/api/queues/%2F/n", '{"arguments":{LONG:1}}'),
        ("PUT", "/api/queues/%2F/n", '{"arguments":{HALF:1}}'),
        ("PUT", "/api/exchanges/%2F/n", '{"type":HALF}'),
        ("POST", BIND, '{"routing_key":HALF}'),
        ("POST", BIND, '{"routing_key":"","arguments":{LONG:1}}'),
        ("POST", "/api/queues/%2F/q/move", '{"to":HALF}'),
        ("POST", IMPORT, '{"queues":[{"name":HALF,"vhost":"/"}]}'),
        ("POST", IMPORT, '{"queues":[{"name":"n","vhost":"/","arguments":{LONG:1}}]}'),
        ("POST", IMPORT, '{"exchanges":[{"name":"n","vhost":"/","type":LONG}]}'),
        ("POST", IMPORT, '{"users":[{"name":HALF,"password_hash":"","tags":""}]}'),
        ("GET", LIST + "0" * 9, None),
        ("GET", LIST + "0" * 5000, None),
    ],
)
def test_values_amqp_cannot_represent_are_refused_as_client_errors(
    method: str, path: str, body: str | None
) -> None:
    if body is not None:
        body = body.replace("LONG", f'"{"x" * 256}"').replace("HALF", r'"\ud800"')
    refused, again = answered((method, path, body), ("GET", "/api/queues/%2F/q", None))
    assert refused.status == 400
    assert json.loads(refused.body.decode())["error"] == "bad_request"
    assert again.status == 200
