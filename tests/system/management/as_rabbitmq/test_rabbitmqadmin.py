"""rabbitmqadmin, the script of RabbitMQ 3.x, runs all its commands against our API.

We do not ship it: it comes from Debian's package, or from the path in RABBITMQADMIN.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from tests.system.management.http import Api

pytestmark = [pytest.mark.system, pytest.mark.slow]

Admin = Callable[..., str]
PACKAGE = "rabbitmq-server"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("RABBITMQADMIN")
    if given:
        return Path(given)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no apt-get and dpkg-deb to take rabbitmqadmin from Debian's package")
    folder = tmp_path_factory.mktemp("package")
    fetched = subprocess.run(
        ["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, text=True, check=False
    )
    packages = list(folder.glob("*.deb"))
    if fetched.returncode or not packages:
        pytest.skip(f"apt-get download {PACKAGE}: {fetched.stderr.strip()[:200]}")
    subprocess.run(["dpkg-deb", "-x", str(packages[0]), "content"], cwd=folder, check=True)
    found = [path for path in folder.rglob("rabbitmqadmin") if path.parent.name == "cli"]
    assert found, "the package has no rabbitmqadmin"
    return found[0]


@pytest.fixture
def admin(script: Path, api: Api) -> Admin:
    def run(*arguments: str, user: str = "guest", password: str = "guest", code: int = 0) -> str:
        host, port = api.address
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", str(script), f"--host={host}", f"--port={port}",
             f"--username={user}", f"--password={password}", *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout if code == 0 else ended.stdout + ended.stderr

    return run


def rows(admin: Admin, *arguments: str) -> list[dict[str, object]]:
    found = json.loads(admin("--format=raw_json", *arguments))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    "what",
    ["connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts",
     "permissions", "nodes", "parameters", "policies", "operator_policies", "vhost_limits"],
)  # fmt: skip
def test_lists(admin: Admin, what: str) -> None:
    admin("list", what)
    assert isinstance(rows(admin, "list", what), list)


def test_overview(admin: Admin) -> None:
    assert "3.10" in admin("show", "overview")


def test_declarations_and_deletions(admin: Admin) -> None:
    admin("declare", "vhost", "name=admin")
    everything = ("configure=.*", "write=.*", "read=.*")
    admin("declare", "permission", "vhost=admin", "user=guest", *everything)
    for what, made, gone in (
        ("queue", ["name=q", "durable=true", 'arguments={"x-max-length": 5}'], ["name=q"]),
        ("exchange", ["name=x", "type=topic", "auto_delete=false"], ["name=x"]),
        ("policy", ["name=p", "pattern=^q", 'definition={"max-length": 3}', "priority=1",
                    "apply-to=queues"], ["name=p"]),
        ("operator_policy", ["name=p", "pattern=^q", 'definition={"max-length": 3}'], ["name=p"]),
        ("parameter", ["component=c", "name=n", 'value={"a": 1}'], ["component=c", "name=n"]),
    ):  # fmt: skip
        listed = {"policy": "policies", "operator_policy": "operator_policies"}.get(
            what, what + "s"
        )
        admin("--vhost=admin", "declare", what, *made)
        names = [row["name"] for row in rows(admin, "list", listed) if row.get("vhost") == "admin"]
        assert made[0].partition("=")[2] in names or "n" in names, (what, names)
        admin("--vhost=admin", "delete", what, *gone)
    admin("declare", "vhost_limit", "vhost=admin", "name=max-queues", "value=7")
    assert {"vhost": "admin", "value": {"max-queues": 7}} in rows(admin, "list", "vhost_limits")
    admin("delete", "vhost_limit", "vhost=admin", "name=max-queues")
    admin("declare", "user", "name=dave", "password=pw", "tags=monitoring")
    assert "dave" in admin("list", "users")
    admin("list", "queues", user="dave", password="pw")
    admin("delete", "user", "name=dave")
    admin("delete", "permission", "vhost=admin", "user=guest")
    admin("delete", "vhost", "name=admin")


def test_bindings_and_messages(admin: Admin) -> None:
    admin("declare", "queue", "name=bound-by-admin")
    ends = ("source=amq.topic", "destination=bound-by-admin")
    admin("declare", "binding", *ends, "destination_type=queue", "routing_key=a.#")
    (row,) = [row for row in rows(admin, "list", "bindings") if row["source"] == "amq.topic"
              and row["destination"] == "bound-by-admin"]  # fmt: skip
    assert row["routing_key"] == "a.#"
    sent = admin("publish", "exchange=amq.topic", "routing_key=a.b", "payload=hello")
    assert "Message published\n" in sent
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=hello")
    (message,) = rows(admin, "get", "queue=bound-by-admin", "ackmode=ack_requeue_false")
    assert (message["payload"], message["routing_key"]) == ("hello", "a.b")
    admin("delete", "binding", *ends, "destination_type=queue",
          f"properties_key={row['properties_key']}")  # fmt: skip
    admin("purge", "queue", "name=bound-by-admin")
    admin("delete", "queue", "name=bound-by-admin")


def test_export_and_import(admin: Admin, tmp_path: Path) -> None:
    admin("declare", "queue", "name=exported", 'arguments={"x-max-priority": 3}')
    file = tmp_path / "definitions.json"
    admin("export", str(file))
    admin("delete", "queue", "name=exported")
    admin("import", str(file))
    (row,) = [row for row in rows(admin, "list", "queues") if row["name"] == "exported"]
    assert row["arguments"] == {"x-max-priority": 3}
    admin("delete", "queue", "name=exported")


def test_error_messages(admin: Admin) -> None:
    assert "Access refused" in admin("list", "queues", password="wrong", code=1)
    assert "not found" in admin("delete", "queue", "name=none", code=1).lower()
    admin("declare", "queue", "name=kept-by-admin", "durable=true")
    said = admin("declare", "queue", "name=kept-by-admin", "durable=false", code=1)
    assert "inequivalent arg 'durable'" in said
    admin("delete", "queue", "name=kept-by-admin")


def test_closing_a_connection(admin: Admin, amqp: pika.BlockingConnection) -> None:
    (name,) = [row["name"] for row in rows(admin, "list", "connections")]
    admin("close", "connection", f"name={name}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        amqp.process_data_events(time_limit=10)
