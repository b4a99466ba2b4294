"""The management client of AMQPStorm makes all its calls to our API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika
import pytest

from tests.system.management.http import Api

pytest.importorskip("requests", reason="AMQPStorm's management client needs requests")
management = pytest.importorskip("amqpstorm.management")

if TYPE_CHECKING:
    from amqpstorm.management import ManagementApi

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def storm(api: Api) -> ManagementApi:
    return management.ManagementApi(f"http://{api.address}", "guest", "guest")


def test_the_cluster(storm: ManagementApi) -> None:
    assert storm.overview()["cluster_name"] == "api"
    assert storm.cluster_name() == {"name": "api"}
    assert storm.whoami()["name"] == "guest"
    (node,) = storm.nodes()
    assert storm.node(node["name"])["running"] is True
    assert len(storm.top()) == 1
    assert storm.aliveness_test() == {"status": "ok"}
    assert storm.healthchecks.get() == {"status": "ok"}
    assert storm.healthchecks.get(node["name"]) == {"status": "ok"}


def test_queues_exchanges_and_bindings(storm: ManagementApi) -> None:
    storm.queue.declare("storm", durable=True, arguments={"x-max-length": 9})
    assert storm.queue.declare("storm", passive=True)["arguments"] == {"x-max-length": 9}
    assert "storm" in [one["name"] for one in storm.queue.list()]
    assert [one["name"] for one in storm.queue.list(name="^stor", use_regex=True)] == ["storm"]
    assert "storm" in [one["name"] for one in storm.queue.list(show_all=True, page_size=1)]
    storm.exchange.declare("storm-x", exchange_type="topic", durable=True)
    assert storm.exchange.get("storm-x")["type"] == "topic"
    assert "storm-x" in [one["name"] for one in storm.exchange.list()]
    storm.queue.bind("storm", "storm-x", "a.b")
    storm.exchange.bind("amq.fanout", "storm-x", "c")
    assert len(storm.queue.bindings("storm")) == 2
    assert len(storm.exchange.bindings("storm-x")) == 2
    storm.queue.unbind("storm", "storm-x", "a.b")
    storm.exchange.unbind("amq.fanout", "storm-x", "c")
    assert storm.exchange.bindings("storm-x") == []
    storm.exchange.delete("storm-x")
    with pytest.raises(management.ApiError) as error:
        storm.exchange.get("storm-x")
    assert error.value.error_code == 404
    storm.queue.delete("storm")


def test_messages(storm: ManagementApi) -> None:
    storm.queue.declare("storm")
    sent = storm.basic.publish("hello", "storm", properties={"headers": {"n": 1}})
    assert sent == {"routed": True}
    (message,) = storm.basic.get("storm", requeue=True)
    assert message.body == "hello"
    assert message.properties["headers"] == {"n": 1}
    (again,) = storm.basic.get("storm", to_dict=True)
    assert again["redelivered"] is True
    storm.queue.purge("storm")
    assert storm.queue.get("storm")["messages"] == 0
    storm.queue.delete("storm")


def test_users_and_virtual_hosts(storm: ManagementApi) -> None:
    storm.virtual_host.create("storm")
    assert "storm" in [one["name"] for one in storm.virtual_host.list()]
    assert storm.virtual_host.get("storm")["name"] == "storm"
    storm.user.create("erin", "pw", tags="monitoring")
    storm.user.set_permission("erin", "storm")
    assert storm.user.get_permission("erin", "storm")["read"] == ".*"
    assert len(storm.user.get_permissions("erin")) == 1
    assert "erin" in [one["user"] for one in storm.virtual_host.get_permissions("storm")]
    assert "erin" in [one["name"] for one in storm.user.list()]
    storm.user.delete_permission("erin", "storm")
    storm.user.delete(["erin"])
    storm.virtual_host.delete("storm")


def test_connections(storm: ManagementApi, amqp: pika.BlockingConnection) -> None:
    (connection,) = storm.connection.list()
    assert storm.connection.get(connection["name"])["user"] == "guest"
    assert storm.channel.list() == []
    storm.connection.close(connection["name"], "enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        amqp.process_data_events(time_limit=10)
