"""Commands over TLS against a small server: which certificates they trust, and their errors."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from broker.listener.tls import authorities
from broker.options.addresses import Address
from tests.support.certificates import Authority, Files
from tools.cli.failures import ToolError
from tools.client.amqp_client import (
    AmqpConnection,
    BrokerRefused,
    ConnectionLost,
    Login,
    TlsRefused,
)
from tools.client.failover import Reconnect, connect_any
from tools.client.http_api import Api, NoAnswer
from tools.client.management import ManagementError, Target, Unreachable
from tools.client.tls import TlsFiles, client_context, reason

HOST = "127.0.0.1"
GONE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
Talk = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.issue("server", HOST)


@contextmanager
def server(
    talk: Talk, files: Files | None = None, of_clients: Path | None = None
) -> Iterator[Address]:
    """Serves one connection after another; over TLS if it has files."""
    context = None
    if files is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.certificate, files.key)
        if of_clients is not None:
            context.load_verify_locations(of_clients)
            context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if context is not None:
                connection = context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            with connection, suppress(OSError):
                if isinstance(connection, ssl.SSLSocket):
                    try:
                        connection.do_handshake()
                    except ssl.SSLError:
                        # Closing a socket with unread data would discard the alert.
                        socket.socket.recv(connection, 4096)
                        raise
                talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address(HOST, listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def status(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b'{"ok": true, "status": "ACTIVE"}\n')


def said(files: Files | None, tls: TlsFiles, of_clients: Path | None = None) -> str:
    """The error of `ask` when it is to use TLS in this way."""
    with server(status, files, of_clients) as address:
        try:
            target = Target(address, timeout_seconds=5.0, tls=client_context(tls))
            return str(target.ask(op="status")["status"])
        except Exception as problem:
            return str(problem).replace(str(address), "ADDRESS")


def test_a_trusted_authority(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(files, TlsFiles(ca=files.ca)) == "ACTIVE"
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    assert said(files, TlsFiles()) == "ACTIVE"


def test_trust_does_not_depend_on_the_release_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.13 refuses authorities without the key usage extension, which clients accept."""
    strict = ssl.create_default_context()
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: strict)
    assert not client_context(TlsFiles()).verify_flags & ssl.VERIFY_X509_STRICT
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    assert not authorities(None, "--auth-http-ca").verify_flags & ssl.VERIFY_X509_STRICT


def test_an_unknown_authority(files: Files, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    text = said(files, TlsFiles(ca=other.path))
    assert text.startswith("cannot connect to ADDRESS: its certificate is not trusted (")
    assert text.endswith("): name its authority by --ssl-ca FILE, or by SSL_CERT_FILE")
    assert said(files, TlsFiles(verify="none")) == "ACTIVE"


def test_a_certificate_of_another_name_or_time(authority: Authority) -> None:
    other = authority.issue("other", "broker.shop")
    assert said(other, TlsFiles(ca=other.ca)) == (
        "cannot connect to ADDRESS: its certificate is for another name than '127.0.0.1': connect "
        "by a name in it, or check no name by --ssl-verify ca"
    )
    assert said(other, TlsFiles(ca=other.ca, verify="ca")) == "ACTIVE"
    old = authority.issue("old", HOST, not_after=GONE)
    assert "its certificate has expired" in said(old, TlsFiles(ca=old.ca, verify="ca"))


def test_a_certificate_of_the_client(authority: Authority, files: Files, tmp_path: Path) -> None:
    own = authority.issue("app", "app@shop")
    trusting = TlsFiles(files.ca, own.certificate, own.key)
    assert said(files, trusting, of_clients=files.ca) == "ACTIVE"
    assert "asks for a certificate of yours: --ssl-cert" in said(
        files, TlsFiles(files.ca), of_clients=files.ca
    )
    strange = Authority(tmp_path).issue("eve", "eve@else")
    assert "refuses the certificate of --ssl-cert" in said(
        files, TlsFiles(files.ca, strange.certificate, strange.key), of_clients=files.ca
    )


def test_tls_on_a_plain_port(files: Files) -> None:
    def amqp(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"AMQP\0\0\x09\x01")

    context = client_context(TlsFiles(files.ca))
    with server(amqp) as address:
        with pytest.raises(Unreachable, match="speaks no TLS at this port"):
            Target(address, timeout_seconds=5.0, tls=context).ask(op="status")
        with pytest.raises(TlsRefused, match="speaks no TLS at this port"):
            AmqpConnection(address, Login(tls=context))
        with pytest.raises(NoAnswer, match="speaks no TLS at this port"):
            Api(address, "u", "p", 5.0, context).get("overview")


@pytest.mark.parametrize("answer", [b"", b"\x15\3\1\0\2\2\x46"])
def test_a_plain_connection_to_a_tls_port(answer: bytes) -> None:
    """Some servers close the connection silently, others send an alert."""

    def talk(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with server(talk) as address:
        with pytest.raises(ManagementError, match=r"port for TLS.* write amqps:// before it"):
            Target(address, timeout_seconds=5.0).ask(op="status")
        refused = pytest.raises(
            (BrokerRefused, ConnectionLost), match=r"TLS.* write amqps:// before"
        )
        with refused:
            AmqpConnection(address)
        with pytest.raises(NoAnswer, match="speaks TLS at this port: write https:// before it"):
            Api(address, "u", "p", 5.0).get("overview")


def test_an_untrusted_broker_is_not_asked_again(files: Files) -> None:
    with (
        server(status, files) as address,
        pytest.raises(ConnectionLost, match="certificate is not trusted"),
    ):
        connect_any([address], Login(tls=client_context(TlsFiles())), Reconnect(3600.0))


def test_a_broker_that_wants_a_certificate_is_not_asked_again_without(files: Files) -> None:
    login = Login(tls=client_context(TlsFiles(files.ca)))
    with (
        server(status, files, of_clients=files.ca) as address,
        pytest.raises(ConnectionLost, match="asks for a certificate of yours"),
    ):
        connect_any([address], login, Reconnect(3600.0))


def test_over_https_the_management_port_is_another(files: Files) -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = Address(HOST, taken.getsockname()[1])
    with pytest.raises(NoAnswer, match="is this its --management-tls-port"):
        Api(address, "u", "p", 5.0, client_context(TlsFiles(files.ca))).get("overview")


def test_an_untrusted_broker_is_known_to_run(files: Files) -> None:
    """So the error ends with what to do about the certificate."""
    with (
        server(status, files) as address,
        pytest.raises(NoAnswer, match=r"certificate is not trusted .* or by SSL_CERT_FILE$"),
    ):
        Api(address, "u", "p", 5.0, client_context(TlsFiles())).get("overview")


def test_a_tls_connection_cut_in_the_middle_of_an_answer(files: Files) -> None:
    """Whoever cuts it cannot make the beginning of an answer look like the whole."""

    def half(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b'{"ok": true')
        connection.shutdown(socket.SHUT_RDWR)

    text = said_of(half, files)
    assert text == "connection aborted: closed the connection within TLS; is this the port for TLS?"


def said_of(talk: Talk, files: Files) -> str:
    with server(talk, files) as address, pytest.raises(ManagementError) as caught:
        Target(address, timeout_seconds=5.0, tls=client_context(TlsFiles(files.ca))).ask(
            op="status"
        )
    return str(caught.value)


def test_unusable_files_are_refused(files: Files, tmp_path: Path) -> None:
    nothing, text = tmp_path / "nothing", tmp_path / "text"
    text.write_text("see the wiki\n")
    for tls, said in (
        (TlsFiles(nothing), f"--ssl-ca {nothing}: no such file"),
        (TlsFiles(text), f"--ssl-ca {text}: the file does not hold authorities, in PEM"),
        (TlsFiles(None, nothing), f"--ssl-cert {nothing}: no such file"),
        (TlsFiles(None, text), f"--ssl-cert {text}: the file does not hold a certificate and"),
        (TlsFiles(None, files.certificate), "a certificate and, there or in --ssl-key"),
        (TlsFiles(None, None, text), "--ssl-key goes with --ssl-cert"),
    ):  # fmt: skip
        with pytest.raises(ToolError, match=said):
            client_context(tls)


def test_errors_outside_tls_are_described_too() -> None:
    assert reason(ConnectionRefusedError(111, "Connection refused"), Address("h", 1)) == (
        "connection refused"
    )
