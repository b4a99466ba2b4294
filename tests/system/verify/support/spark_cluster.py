"""A Spark cluster of several machines, each a network namespace with its own address.

The master and the submitter run on the first, a worker on each further one.  They share the file
system, as machines with shared storage do, and nothing else: no loopback, no environment.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pyspark

from tests.system.support.network_namespaces import Network, host
from tools.verify.spark_session import find_java

PORT = 7077
PATIENCE_S = 120.0
MASTER = f"spark://{host(0)}:{PORT}"
_CLASS = "org.apache.spark.deploy.{0}.{1}"


class SparkCluster:
    """Master, and this many workers with a core each.  Removed at the end of the block."""

    def __init__(self, workers: int, scratch: Path) -> None:
        self._count, self._scratch = workers, scratch
        self._network = Network(1 + workers)
        self._running: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()
        self._home: Path | None = None
        self._conf = scratch / "conf"

    def __enter__(self) -> SparkCluster:
        self._home = find_java(self._scratch)
        # Nothing runs before each worker has its executor: a quick one would do everything.
        self._conf.mkdir()
        (self._conf / "spark-defaults.conf").write_text(
            f"spark.cores.max {self._count}\n"
            "spark.scheduler.minRegisteredResourcesRatio 1.0\n"
            f"spark.scheduler.maxRegisteredResourcesWaitingTime {PATIENCE_S:.0f}s\n"
        )
        self._stack.enter_context(self._network)
        try:
            self._start(0, "master", "Master", "--host", host(0), "--port", str(PORT))
            self._wait("master", "I have been elected leader", 1)
            for place in range(1, 1 + self._count):
                self._start(
                    place, f"worker{place}", "Worker", "--host", host(place), "--cores", "1",
                    "--memory", "1g", "--work-dir", str(self.work(place)), MASTER,
                )  # fmt: skip
            self._wait("master", "Registering worker", self._count)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def work(self, place: int) -> Path:
        """Return the directory where the worker at this place keeps the logs of its executors."""
        return self._scratch / f"work{place}"

    def tasks(self, place: int) -> int:
        """Return the number of tasks that this worker's executors finished."""
        return sum(
            said.read_text(errors="replace").count("Finished task")
            for said in self.work(place).glob("app-*/*/stderr")
        )

    def run(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the first machine, with only this environment and Spark's."""
        return subprocess.run(
            ["ip", "netns", "exec", self._network.spaces[0], *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._scratch,
            env={**self._environment(0), **environment},
        )

    def _environment(self, place: int) -> dict[str, str]:
        found = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        home = self._home or os.environ.get("JAVA_HOME")
        if home is not None:
            found["JAVA_HOME"] = str(home)
        return {**found, "SPARK_LOCAL_IP": host(place), "SPARK_CONF_DIR": str(self._conf)}

    def _start(self, place: int, name: str, role: str, *options: str) -> None:
        spark = Path(pyspark.__file__).parent
        what = _CLASS.format(role.lower(), role)
        command = [str(spark / "bin" / "spark-class"), what, *options, "--webui-port", "0"]
        with (self._scratch / f"{name}.log").open("wb") as said:
            self._running.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self._network.spaces[place], *command],
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    cwd=self._scratch,
                    env={**self._environment(place), "SPARK_HOME": str(spark)},
                )
            )

    def _wait(self, name: str, words: str, times: int) -> None:
        """Wait until a log has these words this often."""
        log = self._scratch / f"{name}.log"
        deadline = time.monotonic() + PATIENCE_S
        while (said := log.read_text(errors="replace")).count(words) < times:
            ended = any(one.poll() is not None for one in self._running)
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"{name} did not say {words!r} {times} times:\n{said[-4000:]}")
            time.sleep(0.1)

    def _stop(self) -> None:
        for one in reversed(self._running):
            one.terminate()
        for one in self._running:
            try:
                one.wait(30.0)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._stack.close()
