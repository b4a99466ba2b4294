"""The check on Spark clusters of several processes, and of several machines, which have none of our
code but what is sent to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.system.support.network_namespaces import why_not
from tests.system.verify.corruption.corrupt_logs import change_an_outcome
from tests.system.verify.support.make_logs import good_history
from tools.demo.local_cluster import ROOT
from tools.verify.spark_session import pack_code

pytest.importorskip("pyspark")
from tests.system.verify.support.spark_cluster import MASTER as STANDALONE
from tests.system.verify.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

MASTER = "local-cluster[2,1,1024]"
RUN = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from tools.commands.qpid_cluster_verify import main; main()"
)


@pytest.mark.skipif(not why_not(), reason="three machines, below, are more than three processes")
def test_two_workers_run_the_code_sent_to_them(tmp_path: Path) -> None:
    maker = good_history()
    promise, member, position = change_an_outcome(maker)
    maker.write(tmp_path / "logs", 1500)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(root=str(ROOT)), "--json", "--master", MASTER, "logs"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)["findings"]
    assert (promise, member, position) in [
        (one["property"], one["member"], one["position"]) for one in found
    ]


@pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces here: {why_not()}")
def test_a_standalone_cluster_of_three_machines(tmp_path: Path) -> None:
    """Master and driver on one, workers on two others, logs on storage that all of them see."""
    maker = good_history()
    promise, member, position = change_an_outcome(maker)
    maker.write(tmp_path / "logs", 1500)
    with SparkCluster(2, tmp_path) as cluster:
        done = cluster.run(
            [
                *(sys.executable, "-c", RUN.format(root=str(ROOT))),
                *("--json", "--master", STANDALONE, str(tmp_path / "logs")),
            ],
            {},
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert all(cluster.tasks(place) for place in (1, 2)), "each worker had its part"
    found = json.loads(done.stdout)["findings"]
    assert (promise, member, position) in [
        (one["property"], one["member"], one["position"]) for one in found
    ]


def test_the_code_is_packed_whole(tmp_path: Path) -> None:
    with ZipFile(pack_code(tmp_path / "code.zip")) as packed:
        names = set(packed.namelist())
    assert {
        "tools/__init__.py",
        "tools/verify/input/parse.py",
        "tools/verify/format/reader.py",
    } <= names
