"""EXTERNAL: a client is the user that its verified certificate names."""

from __future__ import annotations

import pytest

from broker.amqp import codec
from broker.frontend.encryption import Encryption, PeerCertificate
from broker.options.access import SOURCES
from tests.support.amqp_peer import ALL_CAPABILITIES, ServerMethod, method, methods_in
from tests.support.gateway_loop import Loop

CERTIFICATE = PeerCertificate(
    "CN=app,O=shop", "CN=ca", "app", (("DNS", "app.shop"), ("email", "a@shop"), ("URI", "urn:a")),
    "", "",
)  # fmt: skip
NAMES = ("CN=app,O=shop", "app", "app.shop", "a@shop", "urn:a")
START_OK = method(0, "connection.start-ok", ALL_CAPABILITIES, "EXTERNAL", b"", "en_US")


def login(loop: Loop, certificate: PeerCertificate | None) -> list[ServerMethod]:
    encryption = Encryption("TLSv1.3", "x", 256, certificate)
    client = loop.gateway.connect("192.0.2.1:1", False, 0.0, encryption)
    loop.gateway.data_received(client, codec.PROTOCOL_HEADER + START_OK, 0.0)
    return methods_in(client.take_output())


@pytest.mark.parametrize(("source", "name"), list(zip(SOURCES, NAMES, strict=True)))
def test_an_option_selects_the_name_that_counts(source: str, name: str) -> None:
    loop = Loop({name: "unused"}, cert_login_from=source)
    start, tune = login(loop, CERTIFICATE)
    assert start.args[3] == b"PLAIN AMQPLAIN EXTERNAL"
    assert tune.method == "connection.tune"


def test_a_name_that_is_no_user_is_refused() -> None:
    loop = Loop()
    _, closed = login(loop, CERTIFICATE)
    assert any("login of 'CN=app,O=shop' refused (EXTERNAL)" in line for line in loop.log)
    assert closed.args[:2] == (
        403, "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. For "
        "details see the broker logfile.",
    )  # fmt: skip


def test_a_certificate_without_that_name_is_refused() -> None:
    nameless = CERTIFICATE._replace(alternatives=())
    _, closed = login(Loop(cert_login_from="dns"), nameless)
    assert closed.args[0] == 403


def test_without_a_verified_certificate_there_is_no_external() -> None:
    start, closed = login(Loop({NAMES[0]: "unused"}), None)
    assert start.args[3] == b"PLAIN AMQPLAIN"
    assert closed.args[:2] == (
        503, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'"
    )  # fmt: skip


def test_loopback_users_need_the_loopback_even_with_a_certificate() -> None:
    loop = Loop({"guest": "unused"}, cert_login_from="common-name")
    _, closed = login(loop, CERTIFICATE._replace(common_name="guest"))
    assert closed.args[0] == 403
