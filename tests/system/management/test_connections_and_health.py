"""Connections, channels and consumers, listed and closed; members and their health."""

from __future__ import annotations

import pika
import pytest

from tests.system.management.http import Api, seg
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system


def name_of(amqp: pika.BlockingConnection) -> str:
    socket = amqp._impl._transport._sock
    (host, port), (peer_host, peer_port) = socket.getpeername(), socket.getsockname()
    return f"{peer_host}:{peer_port} -> {host}:{port}"


def test_a_connection_its_channel_and_its_consumer(api: Api, amqp: pika.BlockingConnection) -> None:
    name = name_of(amqp)
    row = api.row(f"connections/{seg(name)}")
    assert (row["name"], row["user"], row["vhost"], row["channels"]) == (name, "guest", "/", 0)
    assert (row["protocol"], row["state"]) == ("AMQP 0-9-1", "running")
    assert row["client_properties"]["product"] == "Pika Python Client Library"  # type: ignore[index]
    channel = amqp.channel()
    channel.basic_qos(prefetch_count=7)
    channel.queue_declare("watched")
    tag = channel.basic_consume("watched", lambda *_: None)
    channel_name = f"{name} (1)"
    assert channel_name in api.rows("channels")
    assert api.get(f"connections/{seg(name)}/channels") == [api.rows("channels")[channel_name]]
    shown = api.row(f"channels/{seg(channel_name)}")
    consumers = shown["consumer_details"]
    assert isinstance(consumers, list)
    (consumer,) = consumers
    assert consumer["consumer_tag"] == tag
    assert consumer["prefetch_count"] == 7
    assert consumer["queue"] == {"name": "watched", "vhost": "/"}
    assert consumer["channel_details"]["connection_name"] == name
    listed = api.get("consumers/%2F")
    assert isinstance(listed, list)
    assert consumer in listed
    assert api.row("queues/%2F/watched")["consumers"] == 1
    totals = api.row("overview")["object_totals"]
    assert isinstance(totals, dict)
    assert totals["consumers"] >= 1
    assert totals["channels"] >= 1


def test_a_connection_is_closed(api: Api, amqp: pika.BlockingConnection) -> None:
    name = name_of(amqp)
    reason = {"X-Reason": "stuck: обновление".encode().decode("latin-1")}
    assert api.ask("DELETE", f"connections/{seg(name)}", headers=reason).status == 204
    told = "320.*closed by an operator: stuck: обновление"
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=told):
        amqp.process_data_events(time_limit=10)
    wait_until(lambda: name not in api.rows("connections"), 10, "the end of the connection")
    assert api.ask("DELETE", f"connections/{seg(name)}").status == 404


def test_the_members_are_the_nodes(api: Api, broker: LocalCluster) -> None:
    (node,) = api.rows("nodes").values()
    assert node["running"] is True
    assert (node["mem_alarm"], node["disk_free_alarm"]) == (False, False)
    again = api.row(f"nodes/{seg(str(node['name']))}?columns=name,running,mem_limit,os_pid")
    assert again == {key: node[key] for key in ("name", "running", "mem_limit", "os_pid")}
    assert api.ask("GET", "nodes/nobody").status == 404
    overview = api.row("overview")
    assert overview["node"] == node["name"]
    assert overview["cluster_name"] == "api"
    assert {"protocol": "amqp", "port": broker[0].address.port}.items() <= (
        overview["listeners"][0].items()  # type: ignore[index]
    )


@pytest.mark.parametrize(
    "check",
    ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical",
     "node-is-mirror-sync-critical", "protocol-listener/amqp091", "ready-to-serve-clients",
     "is-in-service", "reached-target-cluster-size", "certificate-expiration/1/months"],
)  # fmt: skip
def test_health_checks_of_a_healthy_member(api: Api, check: str) -> None:
    body = api.row(f"health/checks/{check}")
    assert body["status"] == "ok"


def test_a_missing_listener(api: Api, broker: LocalCluster) -> None:
    port = broker[0].address.port
    assert api.get(f"health/checks/port-listener/{port}") == {"status": "ok", "port": port}
    answered = api.ask("GET", "health/checks/port-listener/1")
    assert answered.status == 503
    assert isinstance(answered.body, dict)
    assert (answered.body["status"], answered.body["missing"]) == ("failed", 1)
    assert api.ask("GET", "health/checks/port-listener/x").status == 400
    assert api.ask("GET", "health/checks/protocol-listener/mqtt").status == 503


def test_an_orchestrator_needs_no_login(api: Api) -> None:
    stranger = {"Authorization": ""}
    for check, status in (("ready-to-serve-clients", 200), ("is-in-service", 200), ("alarms", 401)):
        assert api.ask("GET", f"health/checks/{check}", headers=stranger).status == status


def test_a_drained_member_is_not_ready(api: Api) -> None:
    (name,) = api.rows("nodes")
    path = f"qpid/members/{seg(name)}/drain"
    assert api.ask("PUT", f"{path}?force=true").status == 204
    answered = api.ask("GET", "health/checks/ready-to-serve-clients")
    assert answered.status == 503
    assert api.ask("DELETE", path).status == 204
    assert api.ask("GET", "health/checks/ready-to-serve-clients").status == 200


def attempts(api: Api, node: str) -> dict[str, tuple[int, int]]:
    """Successful and refused logins, by protocol."""
    rows = api.get(f"auth/attempts/{seg(node)}")
    assert isinstance(rows, list)
    for row in rows:
        good, refused = row["auth_attempts_succeeded"], row["auth_attempts_failed"]
        assert row["auth_attempts"] == good + refused
    return {
        row["protocol"]: (row["auth_attempts_succeeded"], row["auth_attempts_failed"])
        for row in rows
    }


def test_logins_are_counted(api: Api, broker: LocalCluster) -> None:
    (node,) = api.rows("nodes")
    before = attempts(api, node)
    address = broker[0].address
    good = pika.ConnectionParameters(address.host, address.port)
    pika.BlockingConnection(good).close()
    bad = pika.ConnectionParameters(
        address.host, address.port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(bad)
    assert Api(api.address, password="wrong").ask("GET", "overview").status == 401
    after = attempts(api, node)
    assert after["amqp091"] == (before["amqp091"][0] + 1, before["amqp091"][1] + 1)
    assert after["http"][1] == before["http"][1] + 1
    assert api.get(f"auth/attempts/{seg(node)}/source") == []
    assert api.ask("GET", "auth/attempts/nobody").status == 404


def test_a_finding_is_in_the_api_and_the_metrics(api: Api, amqp: pika.BlockingConnection) -> None:
    """Through the API and the metrics: a queue with messages that nobody consumes."""
    channel = amqp.channel()
    channel.queue_declare("untaken", exclusive=True)
    channel.basic_publish("", "untaken", b"1")

    def found() -> list[str]:
        document = api.get("qpid/findings")
        assert isinstance(document, dict)
        assert (document["status"], document["unknown"]) == ("ACTIVE", [])
        return [
            one["what"] for one in document["findings"]
            if one["name"] == "queue-untaken" and "/ untaken" in one["objects"]
        ]  # fmt: skip

    wait_until(lambda: bool(found()), 10, "the finding")
    assert "/ untaken (1" in found()[0]
    metrics = api.ask("GET", "/metrics").body
    assert 'qpidd_finding{name="queue-untaken",severity="notice"} ' in str(metrics)
    assert 'qpidd_finding{name="no-quorum",severity="critical"} 0' in str(metrics)
