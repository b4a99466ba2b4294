"""One broker with a management API for the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from tests.system.management.http import Api
from tests.system.support.clusters import START_SECONDS, admitted
from tools.demo.local_cluster import LocalCluster


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("api"), 1, "api", management=True) as started:
        started.start(START_SECONDS)
        yield started


@pytest.fixture
def api(broker: LocalCluster) -> Api:
    address = broker[0].management
    assert address is not None
    return Api(address)


@pytest.fixture
def amqp(broker: LocalCluster) -> Iterator[pika.BlockingConnection]:
    """An AMQP client beside the API."""
    host, port = broker[0].address
    connection = admitted(lambda: pika.BlockingConnection(pika.ConnectionParameters(host, port)))
    yield connection
    if connection.is_open:
        connection.close()
