"""Definitions of shovels; no sentence about one shows a password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.machine.commands import Value
from broker.shovels.amqp_uri import BadUri, bare, obfuscated, parse_uri
from broker.shovels.definition import (
    COMPONENT,
    NEVER,
    QUEUE_LENGTH,
    BadShovel,
    ends,
    local_ends,
    parse_shovel,
    without_passwords,
)

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Value] = {
    "src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://ada:sesame@far", "dest-queue": "b",
}  # fmt: skip


def test_defaults_are_those_of_rabbitmq() -> None:
    shovel = parse_shovel("/", "s", SMALL)
    assert shovel.ack_mode == "on-confirm"
    assert shovel.prefetch == 1000
    assert shovel.reconnect_s == 5
    assert shovel.delete_after == NEVER
    assert (shovel.forward_headers, shovel.timestamp_header) == (False, False)


def test_older_keys_and_null_values_are_accepted() -> None:
    old: dict[str, Value] = {
        **SMALL, "prefetch-count": 7, "delete-after": "queue-length", "add-forward-headers": True,
        "dest-exchange": None, "src-protocol": "amqp091",
    }  # fmt: skip
    shovel = parse_shovel("/", "s", old)
    assert (shovel.prefetch, shovel.delete_after) == (7, QUEUE_LENGTH)
    assert shovel.forward_headers


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"src-uri": None}, "'src-uri' is missing"),
        ({"dest-uri": ()}, "1 to 16 URIs"),
        ({"dest-uri": "http://ada:sesame@far"}, "'dest-uri': it does not begin with amqp"),
        ({"dest-uri": "amqp://ada:sesame@far:port"}, "nor [HOST]:PORT"),
        ({"dest-uri": ("amqp://far", 3)}, "a list of URIs"),
        ({"src-queue": None}, "either 'src-queue' or 'src-exchange'"),
        ({"src-exchange": "e"}, "either 'src-queue' or 'src-exchange'"),
        ({"dest-exchange": "e"}, "either 'dest-queue' or 'dest-exchange'"),
        ({"dest-exchange-key": "k"}, "does not go with 'dest-queue'"),
        ({"src-exchange-key": "k"}, "needs 'src-exchange'"),
        ({"src-protocol": "amqp10"}, "other protocols are not spoken"),
        ({"dest-protocol": "local"}, "other protocols are not spoken"),
        ({"ack-mode": "sometimes"}, "on-confirm or on-publish or no-ack"),
        ({"ack-mode": "no-ack", "src-delete-after": 3}, "does not go with 'ack-mode' no-ack"),
        (
            {"ack-mode": "no-ack", "src-delete-after": "queue-length"},
            "does not go with 'ack-mode' no-ack",
        ),
        ({"src-delete-after": "soon"}, "never, queue-length or a number"),
        ({"src-delete-after": 0}, "never, queue-length or a number"),
        ({"src-prefetch-count": -1}, "from 0 to 65535"),
        ({"src-prefetch-count": True}, "from 0 to 65535"),
        ({"reconnect-delay": "5"}, "from 0 to 86400"),
        ({"dest-add-forward-headers": "yes"}, "true or false"),
        ({"dest-publish-properties": {"delivery_mode": 3}}, "1 or 2"),
        ({"dest-publish-properties": {"priority": 300}}, "does not fit"),
        ({"dest-publish-properties": {"app_id": "a" * 300}}, "does not fit"),
        ({"dest-publish-properties": {"app_id": 3}}, "'app_id' is a text"),
        ({"dest-publish-properties": {"colour": "red"}}, "no property 'colour'"),
        ({"src-queue-args": "x"}, "is an object"),
        ({"src-queue-args": {"k" * 300: 1}}, "'src-queue-args': AMQP has names of 255 bytes"),
        ({"src-consumer-args": {"n": 10**30}}, "whole numbers of 64 bits"),
        ({"dest-queue-args": {"deep": ({"n": -(10**30)},)}}, "whole numbers of 64 bits"),
        ({"dest-queue-args": {"n": "x" * 70_000}}, "more than 65536"),
        ({"dest-publish-properties": {"headers": {"k" * 300: 1}}}, "names of 255 bytes"),
        ({"src-queue": "a" * 256}, "255 bytes at most"),
        ({"src-predeclared": True}, "there is no key 'src-predeclared'"),
        (
            {"prefetch-count": 1, "src-prefetch-count": 1},
            "'prefetch-count' is the older name of 'src-prefetch-count'",
        ),
        (
            {"src-delete-after": "never", "delete-after": "never"},
            "'delete-after' is the older name of 'src-delete-after'",
        ),
    ],
)
def test_an_invalid_key_or_value_is_named(change: dict[str, Value], said: str) -> None:
    with pytest.raises(BadShovel) as bad:
        parse_shovel("/", "s", {**SMALL, **change})
    assert said in str(bad.value)
    assert "sesame" not in str(bad.value)


@pytest.mark.parametrize(
    "text",
    [
        "amqp://user:se/sesame@host",
        "amqp://user:77?sesame@host",
        "amqp://u:77/sesame@host",
        "amqp://user:se/same/sesame@host/v",
        "amqps://u:1/v?certfile=/sesame@b",
        "amqp://user:sesame",
        "amqp://user:a:sesame",
        "amqp://[user:sesame",
        "amqp://u?sesame=1",
        "amqp://far?heartbeat=" + "9" * 5000,
    ],
)
def test_an_error_about_a_uri_quotes_nothing_of_it(text: str) -> None:
    """A password with a `/` was quoted as an invalid port, or taken for a virtual host."""
    with pytest.raises(BadShovel) as bad:
        parse_shovel("/", "s", {**SMALL, "dest-uri": text})
    assert "sesame" not in str(bad.value)
    assert str(bad.value).startswith("'dest-uri': ")


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "\x00", "a\u2028b", "\u202egnp"])
def test_a_name_with_control_characters_is_refused(name: str) -> None:
    with pytest.raises(BadShovel, match="cannot be printed"):
        parse_shovel("/", name, SMALL)
    for uri in (f"amqp:///{name}", f"amqp://far/{name}", f"amqp://far?heartbeat={name}"):
        with pytest.raises(BadUri):
            parse_uri(uri)


def test_a_value_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(BadShovel):
        parse_shovel("/", "s", "src-uri")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("amqp://", (None, None, "", "", False)),
        ("amqp:///orders%2Fold", (None, "orders/old", "", "", False)),
        ("amqp://ada@/orders", (None, "orders", "ada", "", False)),
        ("amqp://far", ("far:5672", "/", "guest", "guest", False)),
        ("amqp://ada:s%40esame@far:1/", ("far:1", "/", "ada", "s@esame", False)),
        ("amqps://ada:pw@[::1]/%2F", ("[::1]:5671", "/", "ada", "pw", True)),
    ],
)
def test_uris(text: str, found: tuple[object, ...]) -> None:
    uri = parse_uri(text)
    address = None if uri.address is None else str(uri.address)
    assert (address, uri.vhost, uri.user, uri.password, uri.tls) == found


def test_parameters_of_uris() -> None:
    uri = parse_uri(
        "amqps://far?cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&verify=verify_none"
        "&auth_mechanism=external&heartbeat=3&connection_timeout=1500"
    )
    assert (uri.ca, uri.certificate, uri.key, uri.verify) == ("/ca.pem", "/c.pem", "/k.pem", False)
    assert (uri.mechanism, uri.heartbeat_s, uri.connect_s) == ("EXTERNAL", 3, 1.5)
    assert parse_uri("amqps://far").verify, "certificates are checked unless the URI says otherwise"


@pytest.mark.parametrize(
    "text",
    [
        "far", "amqp://a/b/c", "amqps://", "amqp://far?cacertfile=/a", "amqp://far?verify=maybe",
        "amqps://far?cacertfile=ca.pem", "amqps://far?keyfile=/k", "amqp://far?heartbeat=no",
        "amqp://far?heartbeat=1&heartbeat=2", "amqp://?heartbeat=1", "amqp://far?colour=red",
        "amqp://ada:***@far", "amqp://:pw@far", "amqp://ada:se#same@far",
        "amqps://far?auth_mechanism=external",
    ],
)  # fmt: skip
def test_invalid_uris_are_refused(text: str) -> None:
    with pytest.raises(BadUri):
        parse_uri(text)


def test_a_failover_list_is_refused_with_the_form_to_use() -> None:
    with pytest.raises(BadUri, match=r'a list of URIs, \["amqp://a", "amqp://b"\]'):
        parse_uri("failover:(tcp://a,tcp://b)")


def test_lists_show_no_passwords() -> None:
    assert obfuscated("amqp://ada:se:s@me@far/%2F") == "amqp://ada:***@far/%2F"
    assert obfuscated("amqp://ada@far") == "amqp://ada@far"
    assert obfuscated("amqp://far/v") == "amqp://far/v"
    assert bare("amqps://ada:sesame@far:1/v?certfile=/c") == "amqps://far:1/v"
    shown = without_passwords({**SMALL, "src-uri": ("amqp://a:sesame@b", "amqp://c")})
    assert "sesame" not in repr(shown)
    assert "sesame" not in repr(parse_shovel("/", "s", SMALL).row())


def test_ends_in_this_cluster_are_recognized() -> None:
    uris: Value = ("amqp:///a%2Fb", "amqp://", "amqp://far/c", "nonsense", 3)
    found = local_ends({"src-uri": uris, "dest-uri": "amqp://ada@/d"})
    assert [(uri.vhost, uri.user) for uri in found] == [("a/b", ""), (None, ""), ("d", "ada")]
    assert local_ends("src-uri") == []


def test_attempts_rotate_through_a_list_of_uris() -> None:
    shovel = parse_shovel("/", "s", {**SMALL, "dest-uri": ["amqp://a", "amqp://b"]})
    asked = [ends(shovel, attempt)[1].address for attempt in range(3)]
    assert [str(one) for one in asked] == ["a:5672", "b:5672", "a:5672"]


def test_the_sample_file_is_valid() -> None:
    document = json.loads((ROOT / "conf" / "shovel.json").read_text(encoding="utf-8"))
    (one,) = document["parameters"]
    assert one["component"] == COMPONENT
    assert parse_shovel(one["vhost"], one["name"], one["value"]).source_queue == "orders"
