"""A PostgreSQL server for one test: in its own directory, at a Unix socket there, and also at a
port of this machine if a relay must come between."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.demo.local_cluster import HOST

USERS = ("postgres", "nobody")
"""It refuses to run as root: then it runs as one of these users."""
START_S = 60.0
PORT = 5432
"""The port that names its socket if it has no other."""
USER, PASSWORD = "qpidd", "geheim"


def programs() -> Path | None:
    """Return the directory of PostgreSQL's programs, or None if it is not installed."""
    found = shutil.which("initdb")
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [*([Path(found).resolve().parent] if found else []), *versions]
    return next((one for one in places if (one / "postgres").exists()), None)


class PostgresServer:
    """One server, which a test starts, stops in any way, and asks for its URL."""

    def __init__(self, home: Path, bin_dir: Path, port: int = 0) -> None:
        """`port`: 0 for none."""
        self.home, self._bin, self._port = home, bin_dir, port
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: str | None = None
        if os.geteuid() == 0:
            names = {one.pw_name for one in pwd.getpwall()}
            self._as_user = next(one for one in USERS if one in names)
            shutil.chown(home, self._as_user)

    def url(self, password: str = PASSWORD) -> str:
        """Return its URL."""
        return f"postgresql://{USER}:{password}@/postgres?host={self.home}"

    @staticmethod
    def url_at(place: str) -> str:
        """Return its URL at this "host:port"."""
        return f"postgresql://{USER}:{PASSWORD}@{place}/postgres"

    def create(self) -> None:
        """Create its files."""
        words = self.home / "words"
        words.write_text(PASSWORD + "\n")  # standard input may be another user's
        self._run(
            "initdb", "-D", str(self.home / "data"), "-U", USER, "--auth=scram-sha-256",
            "--no-sync", "--locale=C", f"--pwfile={words}",
        )  # fmt: skip

    def start(self) -> None:
        """Start it; returns when it answers."""
        listens = ["-c", "listen_addresses="]
        if self._port:
            listens = ["-c", f"listen_addresses={HOST}", "-p", str(self._port)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.home / "data", "-k", self.home, *listens,
                 "-c", "fsync=off"],
                stdout=log, stderr=log, cwd=self.home, user=self._as_user,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while self._ready() != 0:
            assert time.monotonic() < deadline, (self.home / "log").read_text()
            time.sleep(0.05)

    def _ready(self) -> int:
        return subprocess.run(
            [self._bin / "pg_isready", "-q", "-h", self.home, "-p", str(self._port or PORT)],
            check=False,
            cwd=self.home,
        ).returncode

    def stop(self) -> None:
        """Stop it at once, as if the machine were switched off."""
        if self._process is not None:
            self.let_go()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_S)
            self._process = None

    def hold(self) -> None:
        """Stop all its processes: connections stay, and nothing answers."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def let_go(self) -> None:
        """Let them continue."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        """The server's own process first, so that it starts no other meanwhile."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, *arguments], check=True,
            capture_output=True, cwd=self.home, user=self._as_user,
        )  # fmt: skip


@contextlib.contextmanager
def running(bin_dir: Path, port: int = 0) -> Iterator[PostgresServer]:
    """Run a server until the block ends, then remove it."""
    with tempfile.TemporaryDirectory(prefix="pg-") as home:
        server = PostgresServer(Path(home), bin_dir, port)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
