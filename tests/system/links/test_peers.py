"""Shovels with slow, foreign or untrusted peers: one process waits, the member does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.system.links.federation_support import (
    exchange,
    federate,
    link,
    stop_federating,
    upstream,
    wait_for_link,
)
from tests.system.links.support import (
    api,
    define,
    end,
    processes,
    publish,
    shovel,
    take,
    wait_for_state,
)
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import HOST, LocalCluster, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("near"), 1, "near", management=True) as started:
        started.start(START_SECONDS)
        yield started
        # An unreferenced attempt was collected while its process was waited for.
        assert "Traceback" not in started[0].log_path.read_text(encoding="utf-8")


@contextmanager
def peer(answer: bytes) -> Iterator[int]:
    """Listen, send this to each connection, and then nothing; return the port."""
    held: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    one, _ = server.accept()
                except OSError:
                    return
                held.append(one)
                one.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in held:
                one.close()


def begin(near: LocalCluster, name: str, uri: str) -> None:
    publish(near[0], name, [7])
    define(near[0], name, src_uri="amqp://", src_queue=name, dest_uri=uri, dest_queue=name,
           reconnect_delay=1)  # fmt: skip


def test_a_silent_peer_delays_nothing_else(near: LocalCluster) -> None:
    with peer(b"") as port:
        begin(near, "mute", f"amqp://{HOST}:{port}?connection_timeout=10000")
        wait_until(lambda: bool(processes(near)), 20, "the process of the shovel")
        for _ in range(5):
            api(near[0]).get("overview")
        state = shovel(near[0], "mute")["state"]
        assert state == "starting", "the member must answer while its process waits"
        wait_for_state(near[0], "mute", "terminated", 60)
        assert "connection.start in time" in str(shovel(near[0], "mute")["reason"])
        end(near, "mute")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\xff\0\0\0\0\0\0\0\1\x7f", "has a ring at this port"),
        (b"AMQP\x00\x01\x00\x00", "another version of AMQP"),
        (b"\x01\x00\x00\xff\xff\xff\xff" + b"x" * 100, "nonsense"),
    ],
)
def test_a_peer_of_another_protocol_is_named(near: LocalCluster, answer: bytes, said: str) -> None:
    with peer(answer) as port:
        begin(near, "foreign", f"amqp://{HOST}:{port}")
        wait_until(lambda: said in str(shovel(near[0], "foreign").get("reason")), 30, said)
        end(near, "foreign")
    assert take(near[0], "foreign", 1) == [7], "a message was lost"


def test_a_certificate_is_checked_by_the_authority_of_the_uri(
    near: LocalCluster, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    files = authority.issue("broker", HOST)
    (port,) = free_ports(1)
    extra = {"tls-cert": str(files.certificate), "tls-key": str(files.key), "tls-port": str(port)}
    with LocalCluster(tmp_path / "far", 1, "far", management=True, extra=extra) as far:
        far.start(START_SECONDS)
        place = f"amqps://guest:guest@{HOST}:{port}/%2F"
        begin(near, "secret", f"{place}?cacertfile={stranger.path}")
        wait_for_state(near[0], "secret", "terminated")
        reason = str(shovel(near[0], "secret")["reason"])
        assert "not trusted" in reason
        assert "cacertfile" in reason
        define(near[0], "secret", src_uri="amqp://", src_queue="secret", dest_queue="secret",
               dest_uri=f"{place}?cacertfile={authority.path}")  # fmt: skip
        wait_for_state(near[0], "secret", "running")
        assert take(far[0], "secret", 1) == [7]
        end(near, "secret")


def test_a_certificate_of_another_name_is_refused_by_name(
    near: LocalCluster, tmp_path: Path
) -> None:
    """By a shovel and by a link of federation, although the authority is right."""
    authority = Authority(tmp_path, "ca")
    files = authority.issue("elsewhere", "elsewhere.example")
    (port,) = free_ports(1)
    extra = {"tls-cert": str(files.certificate), "tls-key": str(files.key), "tls-port": str(port)}
    with LocalCluster(tmp_path / "far", 1, "far", management=True, extra=extra) as far:
        far.start(START_SECONDS)
        place = f"amqps://guest:guest@{HOST}:{port}/%2F?cacertfile={authority.path}"
        begin(near, "named", place)
        exchange(near[0], "named")
        upstream(near[0], "named", far[0], uri=place)
        federate(near[0], "^named$", federation_upstream="named")
        wait_for_state(near[0], "named", "terminated")
        wait_for_link(near[0], "named", status="error")
        for said in (shovel(near[0], "named")["reason"], link(near[0], "named")["error"]):
            assert f"is for another name than '{HOST}'" in str(said)
        unchecked = f"{place}&verify=verify_none"
        upstream(near[0], "named", far[0], uri=unchecked)
        wait_for_link(near[0], "named")
        stop_federating(near[0], "^named$")
        end(near, "named")
