"""How a shovel transforms a message, and which producer number the message gets."""

from __future__ import annotations

from broker.amqp import codec
from broker.machine.commands import Table
from broker.shovels.definition import parse_shovel
from tools.client.amqp_client import Delivery
from tools.shovel.content import Content, Outgoing
from tools.shovel.doubts import Doubts

SMALL: Table = {
    "src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://ada:sesame@far", "dest-queue": "b",
}  # fmt: skip


def outgoing(
    change: Table | None = None,
    headers: Table | None = None,
    *,
    place: int = 7,
    numbers: bool = True,
    doubtful: dict[str, list[int]] | None = None,
    properties: Table | None = None,
    frame_max: int = 131_072,
) -> Outgoing:
    shovel = parse_shovel("/", "s", {**SMALL, **(change or {})})
    told: Table = {"x-queue-id": "id/1", "x-queue-sequence": place}
    packed = codec.encode_properties({"headers": {**(headers or {}), **told}, **(properties or {})})
    content = Content(shovel, "near", Doubts(doubtful or {}), numbers=numbers, frame_max=frame_max)
    message = content.of(Delivery(1, False, "from", "key", packed, b"body"))
    assert message is not None
    return message


def headers_of(message: Outgoing) -> Table:
    found = codec.decode_properties(message.properties).get("headers", {})
    assert isinstance(found, dict)
    return found


def test_the_number_is_the_place_and_the_producer_names_queue_and_shape() -> None:
    first, second = headers_of(outgoing(place=7)), headers_of(outgoing(place=8))
    assert (first["x-sequence"], second["x-sequence"]) == (7, 8)
    assert first["x-producer-id"] == second["x-producer-id"]
    other_shape = headers_of(outgoing({"dest-publish-properties": {"app_id": "x"}}))
    assert other_shape["x-producer-id"] != first["x-producer-id"]
    same = headers_of(outgoing({"src-prefetch-count": 3, "dest-uri": ("amqp://x", "amqp://y")}))
    assert same == first, "settings that do not shape the message keep the producer"


def test_a_number_that_does_not_fit_the_frame_is_left_out() -> None:
    """It would stop the shovel: the headers of a message must fit one frame."""
    filled: Table = {"h": "x" * 4000}
    unnumbered = outgoing(headers=filled, numbers=False)
    size = len(outgoing(headers=filled).properties) + 20
    fits = outgoing(headers=filled, frame_max=size)
    assert fits.producer
    assert headers_of(fits)["x-sequence"] == 7
    too_small = outgoing(headers=filled, frame_max=size - 1)
    assert too_small == unnumbered._replace(producer="")


def test_messages_through_a_temporary_queue_have_no_number() -> None:
    """Otherwise each attempt would use up one of the producer names of the destination's user."""
    assert headers_of(outgoing({"src-queue": None, "src-exchange": "e"})) == {}


def test_properties_about_the_source_are_removed() -> None:
    came: Table = {
        "a": 1, "x-delivery-count": 3, "x-producer-id": "other", "x-sequence": 99,
        "x-producer-epoch": 2, "x-death": (),
    }  # fmt: skip
    plain = headers_of(outgoing(headers=came, numbers=False))
    assert plain == {"a": 1, "x-death": ()}
    numbered = headers_of(outgoing(headers=came))
    assert set(numbered) == {"a", "x-death", "x-producer-id", "x-sequence"}
    assert numbered["x-sequence"] == 7


def test_a_message_has_the_same_bytes_in_each_attempt() -> None:
    first = outgoing({"dest-add-forward-headers": True}, {"x-delivery-count": 1})
    again = outgoing({"dest-add-forward-headers": True}, {"x-delivery-count": 2})
    assert first == again


def test_doubtful_messages_have_no_number() -> None:
    assert "x-sequence" not in headers_of(outgoing(doubtful={"id/1": [7]}))
    assert "x-sequence" in headers_of(outgoing(place=8, doubtful={"id/1": [7]}))
    assert "x-sequence" in headers_of(outgoing(doubtful={"id/2": [7]}))


def test_the_destination_of_a_message() -> None:
    assert outgoing()[:2] == ("", "b")
    onward: Table = {"dest-queue": None}
    assert outgoing(onward)[:2] == ("from", "key")
    assert outgoing(onward | {"dest-exchange": "e"})[:2] == ("e", "key")
    assert outgoing(onward | {"dest-exchange": "e", "dest-exchange-key": "k"})[:2] == ("e", "k")
    assert outgoing(onward | {"dest-exchange-key": "k"})[:2] == ("from", "k")


def test_properties_of_the_definition_replace_those_of_the_message() -> None:
    own: Table = {"app_id": "own", "type": "kept", "delivery_mode": 1}
    new: Table = {"app_id": "new", "delivery_mode": 2}
    message = outgoing({"dest-publish-properties": new}, properties=own, numbers=False)
    found = codec.decode_properties(message.properties)
    assert (found["app_id"], found["type"], found["delivery_mode"]) == ("new", "kept", 2)
    replaced = outgoing({"dest-publish-properties": {"headers": {"b": 2}}}, {"a": 1})
    assert {"a", "b"} & set(headers_of(replaced)) == {"b"}


def test_the_forwarding_header_is_appended_to_earlier_ones() -> None:
    message = outgoing({"dest-add-forward-headers": True}, {"x-shovelled": ({"old": 1},)})
    assert headers_of(message)["x-shovelled"] == (
        {"old": 1},
        {
            "shovelled-by": "near", "shovel-type": "dynamic", "shovel-name": "s",
            "shovel-vhost": "/", "src-uri": "amqp://", "dest-uri": "amqp://far",
            "src-queue": "a", "dest-queue": "b",
        },
    )  # fmt: skip


def test_a_timestamp_is_added() -> None:
    found = headers_of(outgoing({"dest-add-timestamp-header": True}, numbers=False))
    assert isinstance(found["x-shovelled-timestamp"], int)
