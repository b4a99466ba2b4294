"""Fixtures that the system tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.harness import running_cluster
from tools.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three members with stores, one cluster for all tests of a module that do not break it."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
