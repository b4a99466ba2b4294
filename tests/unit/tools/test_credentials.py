"""The broker and the user of a command: URLs, users and passwords, and their sources."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import click
import pytest

from broker.exit_codes import Exit
from broker.options.addresses import Address
from tools.cli.failures import ToolError
from tools.client import failover
from tools.client.amqp_client import BrokerRefused, Login
from tools.client.broker_url import AMQP, HTTP, NEAR_ONLY, BrokerUrl, brokers, parse_url
from tools.client.credentials import Credentials, from_environment, with_credentials
from tools.client.failover import BrokerList, Reconnect
from tools.client.http_api import Api, ApiError
from tools.client.management import ManagementError, Target
from tools.client.options import route
from tools.client.tls import TlsFiles


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", BrokerUrl(Address("localhost", 5672))),
        ("h", BrokerUrl(Address("h", 5672))),
        ("amqps://", BrokerUrl(Address("localhost", 5671), True)),
        ("amqps://h", BrokerUrl(Address("h", 5671), True)),
        ("amqps://[::1]:99/", BrokerUrl(Address("::1", 99), True)),
        ("ann/s:c@h:1", BrokerUrl(Address("h", 1), user="ann", password="s:c")),
        ("ann:s/c@h:1", BrokerUrl(Address("h", 1), user="ann", password="s/c")),
        ("amqp://ann:s/c@h", BrokerUrl(Address("h", 5672), user="ann", password="s/c")),
        ("ann:p%40@h", BrokerUrl(Address("h", 5672), user="ann", password="p%40")),
        ("amqp://a%2Fb:p%40@h/%2F", BrokerUrl(Address("h", 5672), False, "a/b", "p@", "/")),
        ("amqps://ann@h/shop", BrokerUrl(Address("h", 5671), True, "ann", None, "shop")),
        ("amqp:ssl:10.0.0.1:99", BrokerUrl(Address("10.0.0.1", 99), True)),
        ("amqp:tcp:10.0.0.1:99", BrokerUrl(Address("10.0.0.1", 99))),
    ],
)
def test_the_parts_of_a_url(text: str, found: BrokerUrl) -> None:
    assert parse_url(text, AMQP) == found


def test_a_url_of_another_protocol_is_answered_by_the_supported_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^'http://' is not spoken here: write amqp:// or amqps://$"
    ):
        parse_url("http://ada:secret@h", AMQP)
    lists = "failover:(tcp://ada:secret@h,tcp://i)"
    with pytest.raises(
        ValueError, match=r"is a list of brokers; here one is named: write amqp://HOST"
    ) as caught:
        parse_url(lists, AMQP)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=r"write http://HOST:PORT$"):
        parse_url(lists, HTTP)
    with pytest.raises(ValueError, match=r"write http:// or https://$"):
        parse_url("amqps://h", HTTP)
    with pytest.raises(ValueError, match="not a port number") as caught:
        parse_url("amqps://ada:secret@h:x", AMQP)
    assert "secret" not in str(caught.value)


def test_a_list_of_brokers() -> None:
    assert [one.address for one in brokers("a,b:5673")] == [("a", 5672), ("b", 5673)]
    assert [one.tls for one in brokers("amqps://a, b")] == [True, True]
    for wrong in ("", "a:", "a:b:c", "amqp://a,amqps://b", "http://a"):
        with pytest.raises(ValueError, match=r"HOST:PORT|:PORT$|TLS|spoken"):
            brokers(wrong)


def test_a_password_with_a_comma_is_not_partly_shown() -> None:
    with pytest.raises(ValueError, match=r"write it %2C with amqp://") as caught:
        brokers("amqp://ada:se,cret@a,b")
    assert "se'" not in str(caught.value)


def test_one_login_for_all_brokers_of_a_list() -> None:
    addresses, login, _ = route("amqps://ada:pw@a/shop,b", Credentials("other", "other"), 60.0)
    assert addresses == (("a", 5671), ("b", 5671))
    assert (login.user, login.password, login.virtual_host) == ("ada", "pw", "shop")
    assert login.tls is not None
    with pytest.raises(ToolError, match="name no others"):
        route("ada:pw@a,bob:pw@b", Credentials(), 60.0)


def test_which_credentials_win(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the file\nand more\n")
    secret.chmod(0o600)
    environment = {"QPID_USER": "ada", "QPID_PASSWORD": "of the environment"}
    url = BrokerUrl(Address("h", 1))
    assert from_environment(environment={}).login(url) == ("guest", "guest")
    assert from_environment(environment=environment).login(url) == ("ada", "of the environment")
    given = from_environment("bob", None, secret, environment=environment)
    assert given.login(url) == ("bob", "of the file")
    assert from_environment(environment={"QPID_PASSWORD_FILE": str(secret)}).login(url) == (
        "guest", "of the file"
    )  # fmt: skip
    named = BrokerUrl(Address("h", 1), user="eve", password="")
    assert given.login(named) == ("eve", "")
    with pytest.raises(ToolError, match="not both"):
        from_environment(None, "pw", secret)


def test_a_byte_order_mark_is_no_part_of_a_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("pw\n", encoding="utf-8-sig")
    assert from_environment(None, None, file).password == "pw"


def test_unusable_password_files_are_refused(tmp_path: Path) -> None:
    missing, empty, public = (tmp_path / name for name in ("missing", "empty", "public"))
    empty.write_text("")
    public.write_text("pw\n")
    public.chmod(0o644)
    for path, said in (
        (missing, "no such file"), (empty, "is empty: its first line is the password"),
        (public, f"everybody can read or write it; run: chmod o= {public}"),
    ):  # fmt: skip
        with pytest.raises(ToolError, match=said) as caught:
            from_environment(None, None, path)
        assert caught.value.code == Exit.CONFIG


def test_tls_options_without_tls_are_refused() -> None:
    """Otherwise a user who names an authority would send the password in clear."""
    found = Credentials(tls=TlsFiles(ca=Path("ca.pem")))
    with pytest.raises(ToolError, match=r"h:1 would be asked in clear; write amqps://"):
        found.context(BrokerUrl(Address("h", 1)))


def test_the_options_of_a_command() -> None:
    @click.command()
    @with_credentials
    def command(credentials: Credentials) -> Credentials:
        return credentials

    words = ["--user", "u", "--password", "p", "--ssl-ca", "ca", "--ssl-verify", "ca"]
    assert command.main(words, standalone_mode=False) == Credentials(
        "u", "p", TlsFiles(Path("ca"), None, None, "ca")
    )


def _answering(answer: bytes) -> tuple[socket.socket, Address]:
    """A listener whose next connection gets this answer, at its first bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener, Address(*listener.getsockname())


@pytest.mark.parametrize(("user", "told"), [("guest", True), ("ada", False)])
def test_a_refused_guest_is_told_who_it_is(
    monkeypatch: pytest.MonkeyPatch, user: str, told: bool
) -> None:
    """Who names no user is guest, and from another machine that is refused."""
    text = json.dumps({"ok": False, "error": f"the login of user '{user}' was refused"})
    listener, address = _answering(f"{text}\n".encode())
    with listener, pytest.raises(ManagementError) as refused:
        Target(address, user, timeout_seconds=5.0).ask(op="status")
    assert (NEAR_ONLY in str(refused.value)) is told

    content = b'{"error": "not_authorised", "reason": "Login failed"}'
    head = f"HTTP/1.1 401 no\r\nContent-Length: {len(content)}\r\n\r\n"
    listener, address = _answering(head.encode() + content)
    with listener, pytest.raises(ApiError) as denied:
        Api(address, user, "x", 5.0).get("overview")
    assert (NEAR_ONLY in str(denied.value)) is told

    def refuse(*_: object, **__: object) -> None:
        raise BrokerRefused(403, "a: ACCESS_REFUSED - Login was refused using PLAIN.")

    monkeypatch.setattr(failover, "AmqpConnection", refuse)
    with pytest.raises(BrokerRefused) as closed:
        BrokerList([address], Login(user), Reconnect(1.0), print).connect()
    assert (NEAR_ONLY in str(closed.value)) is told
