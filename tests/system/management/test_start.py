"""The API at the start of a member: its port, and definitions that are loaded."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker.exit_codes import Exit
from tests.system.management.http import Api
from tests.system.support.clusters import START_SECONDS, wait_until
from tools.demo.local_cluster import LocalCluster, command, free_ports

pytestmark = [pytest.mark.system, pytest.mark.slow]
ALL = ("configure", "write", "read")


def refused(*options: str) -> tuple[int, str]:
    (port,) = free_ports(1)
    ended = subprocess.run(
        [*command("qpidd"), "--port", str(port), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_a_given_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = refused("--management-port", port)
    assert code == Exit.UNAVAILABLE
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "give another --management-port" in said


def test_an_unreadable_file_of_definitions(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for content, why in ((None, "No such file"), ("{", "no JSON"), ("[]", "no JSON object")):
        if content is not None:
            bad.write_text(content, encoding="utf-8")
        code, said = refused("--load-definitions", str(bad), "--management-port", "off")
        assert code == Exit.CONFIG
        assert why in said
        assert str(bad) in said


def test_definitions_are_loaded_at_start(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    content = {
        "vhosts": [{"name": "loaded"}],
        "queues": [{"name": "from-file", "vhost": "loaded", "arguments": {"x-max-length": 3}}],
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    extra = {"load-definitions": str(file)}
    with LocalCluster(tmp_path, 3, "loading", management=True, extra=extra) as cluster:
        cluster.start(START_SECONDS)
        for member in cluster.members:
            assert member.management is not None
            api = Api(member.management)
            path = "queues/loaded/from-file"

            def is_there(asked: Api = api, place: str = path) -> bool:
                return asked.ask("GET", place).status == 200

            wait_until(is_there, 20, path)
            assert api.row(path)["arguments"] == {"x-max-length": 3}
            # The other members have it too.
            nodes = api.rows("nodes")
            assert {row["running"] for row in nodes.values()} == {True}
            assert len(nodes) == 3
            row = api.row(path)
            assert len(row["slave_nodes"]) == 2  # type: ignore[arg-type]


def test_definitions_are_loaded_without_an_api(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    content = {"queues": [{"name": "from-file", "vhost": "/", "durable": True, "arguments": {}}]}
    file.write_text(json.dumps(content), encoding="utf-8")
    extra = {"load-definitions": str(file)}
    with LocalCluster(tmp_path, 1, "loading", extra=extra) as cluster:
        cluster.start(START_SECONDS)
        (member,) = cluster.members
        assert member.management is None
        wait_until(lambda: f"{file} is loaded" in member.log_tail(200), 20, "the definitions")


def test_partly_loaded_definitions_are_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    bad = {"name": "bad", "arguments": {"x-max-length": "x"}}
    content = {"queues": [{"name": "good"}, bad, {"name": "after"}]}
    file.write_text(json.dumps(content), encoding="utf-8")
    extra = {"load-definitions": str(file)}
    with LocalCluster(tmp_path, 1, "loading", management=True, extra=extra) as cluster:
        cluster.start(START_SECONDS)
        assert cluster[0].management is not None
        api = Api(cluster[0].management)

        def unloaded() -> list[str]:
            found = api.row("qpid/findings")["findings"]
            assert isinstance(found, list)
            return [str(one["what"]) for one in found if one["name"] == "definitions-unloaded"]

        wait_until(lambda: bool(unloaded()), 20, "the finding")
        (what,) = unloaded()
        assert f"--load-definitions {file}: queues[1]: queue 'bad' of vhost '/'" in what
        for name in ("good", "after"):
            assert api.ask("GET", f"queues/%2F/{name}").status == 200


def test_a_client_before_its_definitions_is_told_to_retry(tmp_path: Path) -> None:
    """Its user is in the file: until that is loaded it is told to retry, as many clients give up on
    403."""
    file = tmp_path / "definitions.json"
    content = {
        "vhosts": [{"name": "shop"}],
        "users": [{"name": "ada", "password": "secret", "tags": ""}],
        "permissions": [{"user": "ada", "vhost": "shop", **dict.fromkeys(ALL, ".*")}],
        "queues": [
            {"name": f"q{number}", "vhost": "shop", "arguments": {}} for number in range(500)
        ],
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    with LocalCluster(tmp_path, 1, "first", extra={"load-definitions": str(file)}) as cluster:
        cluster.launch()
        port, told = cluster[0].address.port, list[str]()

        def is_let_in() -> bool:
            credentials = pika.PlainCredentials("ada", "secret")
            parameters = pika.ConnectionParameters("127.0.0.1", port, "shop", credentials)
            try:
                pika.BlockingConnection(parameters).close()
            except pika.exceptions.AMQPError as refused:
                told.append(repr(refused))
                return False
            return True

        wait_until(is_let_in, START_SECONDS, "the user to be admitted")
        assert [one for one in told if "(403)" in one or "(530)" in one] == []
