"""The check on a Spark cluster of several processes, which have of our code only what is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.system.logmaker import good_story
from tests.system.spoils import change_an_outcome
from tools.local_cluster import ROOT
from tools.verify.session import pack_code

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

MASTER = "local-cluster[2,1,1024]"
RUN = "import sys; sys.path.insert(0, {root!r}); from tools.qpid_cluster_verify import main; main()"


def test_two_workers_check_what_was_sent_to_them(tmp_path: Path) -> None:
    maker = good_story()
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


def test_the_code_is_packed_whole(tmp_path: Path) -> None:
    with ZipFile(pack_code(tmp_path / "code.zip")) as packed:
        names = set(packed.namelist())
    assert {"tools/verify/parse.py", "broker/memberlog/reader.py", "vsync/quorum.py"} <= names
