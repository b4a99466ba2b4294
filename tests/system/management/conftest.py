"""One broker with a management API, shared by the tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pika
import pytest

from tests.system.management.http import Api
from tests.system.support.clusters import START_SECONDS, admitted, wait_until
from tools.demo.local_cluster import LocalCluster


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("api"), 1, "api", management=True) as started:
        started.start(START_SECONDS)
        address = started[0].management
        assert address is not None
        users = partial(Api(address).rows, "users")
        # A new cluster creates its administrator shortly after it starts to serve.
        wait_until(lambda: "admin" in users(), 10, "the first administrator")
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
