"""TLS files: what is accepted, and the errors for wrong ones."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from broker.listener.client_socket import ClientSocket
from broker.listener.tls import TlsFileError, server_tls
from broker.listener.tls_transport import TlsTransport
from broker.options.client_ports import TlsOptions
from broker.process.management_port import follow
from tests.support.certificates import Authority, Files


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.issue("server", "localhost", "127.0.0.1", common_name="broker.shop")


def options(files: Files, verify: str = "none", ca: Path | None = None) -> TlsOptions:
    return TlsOptions(0, files.certificate, files.key, ca, verify)


def problem(options: TlsOptions) -> str:
    with pytest.raises(TlsFileError) as caught:
        server_tls(options)
    return str(caught.value)


def test_good_files(files: Files) -> None:
    found = server_tls(options(files))
    assert "CN=broker.shop" in found.subject
    assert found.not_after.endswith("GMT")
    assert found.warning == ""
    assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert found.context.verify_mode is ssl.CERT_NONE
    for context in (found.context, follow(lambda: found.context)):
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_ciphers_have_forward_secrecy_and_authenticate(files: Files) -> None:
    for cipher in server_tls(options(files)).context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["name"].startswith(("TLS_", "ECDHE-")), cipher["name"]


@pytest.mark.parametrize(
    ("verify", "mode"), [("peer", ssl.CERT_OPTIONAL), ("require", ssl.CERT_REQUIRED)]
)
def test_which_clients_are_verified(files: Files, verify: str, mode: ssl.VerifyMode) -> None:
    assert server_tls(options(files, verify, files.ca)).context.verify_mode is mode


def test_one_file_for_certificate_and_key(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    both.chmod(0o600)
    assert server_tls(TlsOptions(0, both, both, None, "none")).subject


def test_a_missing_file(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "nothing.pem"
    assert problem(options(files._replace(certificate=missing))) == (
        f"--tls-cert {missing}: no such file or directory"
    )
    assert problem(options(files._replace(key=missing))).startswith(f"--tls-key {missing}:")
    assert problem(options(files, "peer", missing)).startswith(f"--tls-ca {missing}:")
    assert "is a directory" in problem(options(files._replace(certificate=tmp_path)))


def test_a_file_without_the_expected_content(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("certificates: see the wiki\n")
    assert "not a certificate in it" in problem(options(files._replace(certificate=other)))
    assert "not a private key in it" in problem(options(files._replace(key=other)))
    assert "not a certificate in it" in problem(options(files, "peer", other))


def test_a_torn_file(files: Files) -> None:
    """As left by a copy that is under way."""
    text = files.certificate.read_text()
    files.certificate.write_text(text[: len(text) // 2])
    assert problem(options(files)).startswith(f"--tls-cert {files.certificate}: it cannot be used")


def test_a_torn_key(files: Files) -> None:
    text = files.key.read_text()
    files.key.write_text(text[: len(text) // 2])
    assert problem(options(files)).startswith(f"--tls-key {files.key}: it cannot be used")


def test_the_key_of_another_certificate(authority: Authority, files: Files) -> None:
    other = authority.issue("other", "localhost")
    said = problem(options(files._replace(key=other.key)))
    assert said == (
        f"--tls-key {other.key}: the key does not belong to the certificate in {files.certificate}"
    )


def test_an_encrypted_key_is_refused_without_a_prompt(files: Files, tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, and a service has none."""
    key = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", files.key, "-out", key, "-passout", "pass:secret"],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    assert "it is encrypted" in problem(options(files._replace(key=key)))


def test_a_key_readable_by_everybody(files: Files) -> None:
    files.key.chmod(0o644)
    assert f"chmod o= {files.key}" in problem(options(files))


def test_an_expired_certificate_is_served_with_a_warning(authority: Authority) -> None:
    """The clients decide; some accept it."""
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    found = server_tls(options(authority.issue("old", "localhost", not_after=past)))
    assert "expired" in found.warning
    assert found.ends_at == int(past.timestamp())


class Secured:
    """A client's socket with TLS, and its client in memory."""

    def __init__(self, files: Files) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(files.certificate, files.key)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=files.ca)
        self.client = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")
        self.raw, self.listener = Mock(), Mock()
        self.raw.is_closing.return_value = False
        self.raw.write.side_effect = self._in.write
        self.listener.tls_transport = lambda raw: TlsTransport(raw, server)
        self.link = self.listener.member.clients.connect.return_value
        self.socket = ClientSocket(self.listener, tls=True)
        self.socket.connection_made(self.raw)
        for _ in range(2):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.arrive()

    def arrive(self) -> None:
        """What the client has sent arrives."""
        self.socket.data_received(self._out.read())

    @property
    def received(self) -> bytes:
        return b"".join(one.args[0] for one in self.link.data_received.call_args_list)


@pytest.mark.parametrize("who", ["nobody", "the broker", "the client"])
def test_nothing_counts_once_one_side_has_ended(files: Files, who: str) -> None:
    """And it is no broken connection, of which the log would tell."""
    one = Secured(files)
    one.client.write(b"12345678")
    one.arrive()
    transport = one.socket.transport
    assert isinstance(transport, TlsTransport)
    if who == "the broker":
        transport.write_eof()
        one.raw.write_eof.assert_called_once()
    elif who == "the client":
        with contextlib.suppress(ssl.SSLWantReadError):
            one.client.unwrap()
        one.arrive()
        one.raw.close.assert_called_once()
    with contextlib.suppress(ssl.SSLError):  # it has been told, or has ended
        one.client.write(b"more")
    one.socket.data_received(one._out.read() or b"more")
    assert one.received == b"12345678" + b"more" * (who == "nobody")
    one.listener.not_secured.assert_not_called()
    assert one.listener.secured.call_count == 1


def test_a_broken_connection_is_told_of_once_and_closed(files: Files) -> None:
    one = Secured(files)
    one.socket.data_received(b"no record of TLS")
    one.listener.not_secured.assert_called_once()
    one.raw.close.assert_called_once()
    assert one.received == b""


def test_a_client_that_speaks_tls_at_the_plain_port_is_logged_with_a_hint() -> None:
    listener = Mock()
    one = ClientSocket(listener, tls=False)
    one.connection_made(Mock())
    one.data_received(b"\x16\x03\x01\x02\x00\x01\x00\x01")
    (said,) = listener.log.call_args_list
    assert said.args[0] == "refused"
    assert "see --tls-port" in said.args[1]


def test_what_is_said_after_the_end_is_dropped(files: Files) -> None:
    """A confirm may be on its way when its connection is closed; TLS would raise an error."""
    one = Secured(files)
    transport = one.socket.transport
    assert isinstance(transport, TlsTransport)
    transport.close()
    one.raw.is_closing.return_value = True
    transport.write(b"late")
    with contextlib.suppress(ssl.SSLZeroReturnError):
        assert one.client.read() == b""
