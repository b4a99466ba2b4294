"""A broker as a service: renewed certificates, its log, SIGHUP, and messages to its manager."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from broker.exit_codes import Exit
from tests.support.amqp_peer import methods_in, opening
from tests.support.certificates import Authority, Files
from tests.system.support.clusters import admitted, wait_until
from tools.client.http_api import ApiError, parse_api
from tools.demo.local_cluster import HOST, ROOT, command, free_ports

pytestmark = pytest.mark.system
START_S = 20.0


class Service:
    """A single broker whose option file and log file are in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.config, self.log = folder / "qpidd.conf", folder / "qpidd.log"
        self.port, self.tls_port = free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, **options: object) -> None:
        """Write the option file; `tls_cert` is `tls-cert`."""
        given = {"port": self.port, "log-file": self.log} | {
            name.replace("_", "-"): value for name, value in options.items()
        }
        self.config.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))

    def start(self, until: str = "listening for clients") -> None:
        self.process = subprocess.Popen(
            [*command("qpidd"), "--config", str(self.config)],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **self.environment},
        )  # fmt: skip
        self.until(until)

    def hang_up(self, expected: str) -> None:
        """Send SIGHUP and return the line that it leads to."""
        assert self.process is not None
        before = len(self.text())
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: expected in self.text()[before:], START_S, expected)

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, words: str) -> None:
        wait_until(lambda: words in self.text(), START_S, words)


@contextmanager
def service(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    one = Service(folder, environment or {})
    try:
        yield one
    finally:
        if one.process is not None:
            one.process.kill()
            one.process.wait()


def tls_options(one: Service, files: Files) -> dict[str, object]:
    return {"tls_port": one.tls_port, "tls_cert": files.certificate, "tls_key": files.key}


def parameters(one: Service, files: Files, own: Files | None = None) -> pika.ConnectionParameters:
    context = ssl.create_default_context(cafile=str(files.ca))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return pika.ConnectionParameters(
        HOST, one.tls_port, ssl_options=pika.SSLOptions(context, HOST), heartbeat=0
    )


def serial(one: Service, files: Files) -> str:
    """The serial number of the certificate that the broker shows now."""
    context = ssl.create_default_context(cafile=str(files.ca))
    with (
        socket.create_connection((HOST, one.tls_port), 10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        found = secured.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


def test_pika_over_tls_while_the_certificate_is_renewed(tmp_path: Path) -> None:
    """Without a plain port; connected clients stay; a wrong file changes nothing."""
    authority = Authority(tmp_path / "pki")
    files = authority.issue("server", HOST)
    own = authority.issue("app", "app@shop", common_name="app")
    with service(tmp_path) as one:
        one.configure(**tls_options(one, files), tls_ca=files.ca, port="none")
        one.start()
        first = admitted(lambda: pika.BlockingConnection(parameters(one, files, own)))
        channel = first.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        body = os.urandom(300_000)
        channel.basic_publish("", "q", body)
        before = serial(one, files)

        files.certificate.write_text("-----BEGIN CERTIFICATE-----\ntorn\n")
        one.hang_up("what was in force stays")
        assert str(files.certificate) in one.text()
        assert serial(one, files) == before

        authority.issue("server", HOST)
        one.hang_up("TLS of new connections")
        assert serial(one, files) != before
        second = pika.BlockingConnection(parameters(one, files))
        assert second.channel().basic_get("q", auto_ack=True)[2] == body
        channel.basic_publish("", "q", b"the first connection is still there")
        second.close()
        first.close()
        one.until("disconnected: it closed the connection")
        assert "CN=app" in one.text()
        assert "TLSv1.3" in one.text()


def test_management_shows_each_port_and_clients_over_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", HOST)
    with service(tmp_path) as one:
        management, metrics = free_ports(2)
        one.configure(
            **tls_options(one, files), management_port=management, prometheus_port=metrics
        )
        one.start()
        one.until("management API on")
        client = admitted(lambda: pika.BlockingConnection(parameters(one, files)))
        api = parse_api(f"{HOST}:{management}", START_S)
        listeners = api.fields("overview")["listeners"]
        assert isinstance(listeners, list)
        assert [(row["protocol"], row["port"]) for row in listeners if isinstance(row, dict)] == [
            ("amqp", one.port), ("amqp/ssl", one.tls_port),
            ("http", management), ("http/prometheus", metrics),
        ]  # fmt: skip
        (connection,) = api.rows("connections")
        assert connection["ssl"] is True
        assert connection["ssl_protocol"] == "tlsv1.3"
        client.close()


def test_management_over_tls_alone_while_the_certificate_is_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    files = authority.issue("server", HOST)
    with service(tmp_path) as one:
        (management,) = free_ports(1)
        one.configure(
            **tls_options(one, files), tls_ca=files.ca, tls_verify="require",
            management_port="off", management_tls_port=management,
        )  # fmt: skip
        one.start()
        one.until(f"management API on https://{HOST}:{management}/")
        one.until(" serving in position ")

        def shown() -> str:
            context = ssl.create_default_context(cafile=files.ca)
            with (
                socket.create_connection((HOST, management), START_S) as plain,
                context.wrap_socket(plain, server_hostname=HOST) as encrypted,
            ):
                found = encrypted.getpeercert()
                assert found is not None
                return str(found["serialNumber"])

        before = shown()
        authority.issue("server", HOST)
        one.hang_up("TLS of new connections")
        assert shown() != before
        asked = [
            sys.executable, "-m", "tools.operate.qpidctl", "--broker", f"https://{HOST}:{management}",
            "--json", "list_vhosts",
        ]  # fmt: skip
        told = {**os.environ, "SSL_CERT_FILE": str(files.ca)}
        trusting = subprocess.run(asked, env=told, capture_output=True, text=True, check=False)
        assert trusting.returncode == 0, trusting.stderr
        assert json.loads(trusting.stdout) == [{"name": "/"}]
        wary = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert wary.returncode != 0
        assert "certificate" in wary.stderr
        clear = parse_api(f"{HOST}:{management}", START_S)
        with pytest.raises(ApiError):
            clear.get("overview")


def test_a_finding_lasts_until_the_operator_has_repaired_it(tmp_path: Path) -> None:
    """A certificate that SIGHUP could not load, and clients for whom there was no room."""
    authority = Authority(tmp_path / "pki")
    files = authority.issue("server", HOST)
    with service(tmp_path) as one:
        (management,) = free_ports(1)
        options = {**tls_options(one, files), "management_port": management}
        one.configure(**options, max_connections=1)
        one.start()
        one.until(" serving in position ")
        api = parse_api(f"{HOST}:{management}", START_S)

        def found() -> dict[str, str]:
            rows = api.fields("qpid", "findings")["findings"]
            assert isinstance(rows, list)
            return {str(row["name"]): str(row["what"]) for row in rows if isinstance(row, dict)}

        assert found().keys() == set()
        files.certificate.write_text("-----BEGIN CERTIFICATE-----\ntorn\n")
        one.hang_up("what was in force stays")
        assert str(files.certificate) in found()["settings-refused"]
        authority.issue("server", HOST)
        one.hang_up("TLS of new connections")
        assert found().keys() == set()

        plain = pika.ConnectionParameters(HOST, one.port, heartbeat=0)
        client = admitted(lambda: pika.BlockingConnection(plain))
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(plain)
        wait_until(lambda: "clients-refused" in found(), START_S, "clients-refused")
        assert "refused 1 connection in ten minutes" in found()["clients-refused"]
        client.close()


def test_sighup_changes_some_options_and_names_the_others(tmp_path: Path) -> None:
    """The log names both kinds, is reopened after it was moved, and can be JSON."""
    with service(tmp_path) as one:
        one.configure()
        one.start()
        moved = one.log.rename(tmp_path / "qpidd.log.1")
        one.configure(log_level="debug", log_format="json", max_connections=7, interface="0.0.0.0")
        one.hang_up("SIGHUP: read again; changed:")
        assert "listening for clients" in moved.read_text()
        lines = [json.loads(line) for line in one.text().splitlines()]
        said = "\n".join(str(line["message"]) for line in lines)
        assert "log-level info -> debug" in said
        assert "max-connections auto -> 7" in said
        assert "only a restart changes: interface 127.0.0.1 -> 0.0.0.0" in said
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)

        one.config.write_text("colour = red\n")
        one.hang_up("everything stays as it is")
        assert "there is no option 'colour'" in one.text()


def test_connections_and_their_ends_are_logged(tmp_path: Path) -> None:
    with service(tmp_path) as one:
        one.configure()
        one.start()

        def connect() -> pika.BlockingConnection:
            return pika.BlockingConnection(
                pika.ConnectionParameters(
                    HOST, one.port, client_properties={"connection_name": "billing"}
                )
            )

        admitted(connect).close()
        one.until("disconnected: it closed the connection")
        line = next(line for line in one.text().splitlines() if line.endswith(" connected"))
        assert f"client {HOST}:" in line
        assert "user 'guest', vhost '/'" in line
        assert "'billing'" in line
        with socket.create_connection((HOST, one.port), START_S) as rude:
            rude.sendall(opening())
            received = b""
            while "connection.open-ok" not in [one.method for one in methods_in(received)]:
                received += rude.recv(65536)
        one.until("without closing the connection")


def test_a_request_over_http_is_logged_as_such(tmp_path: Path) -> None:
    """It is a client without a socket: nobody should look for one that was not closed."""
    with service(tmp_path) as one:
        (management,) = free_ports(1)
        one.configure(management_port=management)
        one.start("READY, was")
        parse_api(f"{HOST}:{management}", START_S).put("queues", "/", "work")
        one.until("disconnected: its request is done")
        assert f"management API, request from {HOST}:" in one.text()
        assert f"client {HOST}:" not in one.text()


@pytest.mark.slow
def test_an_arbitrators_log_is_reopened(tmp_path: Path) -> None:
    """It serves no clients: only options of its log change without a restart."""
    with service(tmp_path) as one:
        (ring,) = free_ports(1)
        mine = f"{HOST}:{ring}"
        cluster = {
            "cluster_name": "shop", "cluster_bind": mine, "cluster_arbitrator": mine,
            "cluster_nodes": mine, "cluster_size": 3, "data_dir": tmp_path / "data",
        }  # fmt: skip
        one.configure(**cluster)
        one.start("arbitrator: no data, no clients")
        moved = one.log.rename(tmp_path / "qpidd.log.1")
        one.configure(**cluster, log_level="debug", max_connections=7)
        one.hang_up("SIGHUP: read again; changed: log-level info -> debug")
        assert "max-connections" not in one.text()
        assert "arbitrator: no data" in moved.read_text()


def test_the_service_manager_is_notified(tmp_path: Path) -> None:
    """Type=notify: READY when clients can connect, WATCHDOG while the loop turns, STOPPING."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(START_S)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "600000"}
        with service(tmp_path, environment) as one:
            one.configure()
            one.start()
            assert manager.recv(4096) == b"READY=1"
            heard = [manager.recv(4096).decode().splitlines() for _ in range(4)]
            assert all(lines[0] == "WATCHDOG=1" for lines in heard)
            while not any(line == "STATUS=READY" for lines in heard for line in lines):
                heard.append(manager.recv(4096).decode().splitlines())
            assert one.process is not None
            one.process.terminate()
            said = ""
            while "STOPPING=1" not in said:
                said = manager.recv(4096).decode()
            assert one.process.wait(START_S) == 0


@pytest.mark.parametrize("named", ["tls-cert", "tls-key"])
def test_a_missing_file_at_start(tmp_path: Path, named: str) -> None:
    files = Authority(tmp_path / "pki").issue("server", HOST)
    wrong = tmp_path / "wrong.pem"
    given = {"tls-cert": files.certificate, "tls-key": files.key} | {named: wrong}
    ended = subprocess.run(
        [
            *command("qpidd"), "--port", "0", "--tls-port", "0",
            *(word for name, path in given.items() for word in (f"--{name}", str(path))),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == Exit.CONFIG
    last = ended.stderr.splitlines()[-1]
    assert last == f"qpidd: --{named} {wrong}: no such file or directory"
