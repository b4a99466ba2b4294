"""The fixture that several tests of links share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.links.support import near_and_far
from tools.demo.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, ...]]:
    """Three members, and one in another cluster."""
    with near_and_far(tmp_path_factory.mktemp("links")) as both:
        yield both
