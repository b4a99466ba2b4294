"""AMQPStorm's own functional tests, which its package contains, pass at a cluster of three.

Left out are those that depend on how fast an answer comes, and those of `THEIRS`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.support.clusters import START_SECONDS
from tools.demo.local_cluster import LocalCluster

pytest.importorskip("requests", reason="AMQPStorm's management client needs requests")

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

SUITE = "amqpstorm.tests.functional"
PARTS = ("management", "test_basic", "test_exchange", "test_queue", "test_tx", "test_web_based")
THEIRS = (
    "test_api_cluster_name",  # expects the name of the author's cluster
    "test_api_virtual_host_permissions",  # expects guest to be the only user
    "test_api_with_inaccessible",  # connects to 192.168.1.50
)


@pytest.mark.skipif(
    importlib.util.find_spec("amqpstorm") is None or importlib.util.find_spec(SUITE) is None,
    reason="this release of AMQPStorm has no tests in its package",
)
def test_amqpstorm_passes_its_own_functional_tests(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "members", 3, "storm", management=True) as cluster:
        cluster.start(START_SECONDS)
        member = cluster[1]
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "patient_amqpstorm",
                "-p", "no:cacheprovider", "-k", " and ".join(f"not {one}" for one in THEIRS),
                "--pyargs", *(f"{SUITE}.{part}" for part in PARTS),
            ],
            cwd=tmp_path,
            env={
                **os.environ, "PYTHONPATH": str(Path(__file__).parent),
                "AMQP_HOST": member.address.host, "AMQP_PORT": str(member.address.port),
                "AMQP_HTTP_URL": f"http://{member.management}",
                "AMQP_USERNAME": "guest", "AMQP_PASSWORD": "guest",
            },
            check=False, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 70
