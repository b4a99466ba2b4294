"""Brokers whose file operations fail as the test orders, by thread, kind and path.

`python -m tests.crash.failing_disk` runs under `fail_calls.c`: it imports the program once, and
forks a broker for each line of its input. So a broker is there in half a second, and a fault at
each of a hundred operations takes a minute.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OPEN, READ, WRITE, SYNC, SIZE, NAME, LOOK, LIST = (1 << bit for bit in range(8))
ALL = (1 << 8) - 1
CHANGES = OPEN | WRITE | SYNC | SIZE | NAME
SHORT = -2
FOR_EVER = 1 << 40
_ORDER = struct.Struct("<iIqqqq256s256s16s")
_HOW, _STRUCK_AT = struct.Struct("<i"), 32
_SET_NAME = 15  # of prctl(2)


class Fault(NamedTuple):
    """Which operations fail, and how."""

    how: int  # an error number, or SHORT: half is written
    kinds: int = ALL
    path: str = ""  # a part of it
    thread: str = ""  # a part of its name; "loop" is the first one
    first: int = 1
    last: int = FOR_EVER


class FailingDisk:
    """The order that a running process reads with each operation below `directory`."""

    def __init__(self, place: Path) -> None:
        self.file = place / "order"
        self.file.write_bytes(bytes(_ORDER.size))
        with self.file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _ORDER.size)
        self._directory = b""

    def watch(self, directory: Path) -> None:
        """Watch another directory, whose operations do not fail yet."""
        self._directory = os.fsencode(directory)
        self.mend()

    def order(self, fault: Fault) -> None:
        """Let operations fail, from the `first` after this one on."""
        self.mend()
        self._map[_HOW.size :] = _ORDER.pack(
            0, fault.kinds, fault.first, fault.last, 0, 0, self._directory, fault.path.encode(),
            fault.thread.encode(),
        )[_HOW.size :]  # fmt: skip
        self._map[: _HOW.size] = _HOW.pack(fault.how)

    def mend(self) -> None:
        """Let nothing fail; what hangs goes on."""
        self._map[: _HOW.size] = _HOW.pack(0)
        packed = _ORDER.pack(0, 0, 0, 0, 0, 0, self._directory, b"", b"")
        self._map[_HOW.size :] = packed[_HOW.size :]

    @property
    def struck(self) -> int:
        """How many operations have failed since the order."""
        (count,) = struct.unpack_from("<q", self._map, _STRUCK_AT)
        return int(count)


class ForkedBroker:
    """One broker; a child of the process that forked it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self._log = pid, log

    def text(self) -> str:
        """Return what it has said."""
        return self._log.read_text() if self._log.exists() else ""

    def exit_code(self) -> int | None:
        """Return its exit code; None: it runs."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None

    def ended(self, seconds: float) -> int | None:
        """Return its exit code, once it has ended."""
        until = time.monotonic() + seconds
        while (code := self.exit_code()) is None and time.monotonic() < until:
            time.sleep(0.02)
        return code

    def says(self, what: str, seconds: float) -> bool:
        """Wait until it says this; False: it ended first, or did not in time."""
        until = time.monotonic() + seconds
        while what not in self.text():
            if self.exit_code() is not None or time.monotonic() > until:
                return what in self.text()
            time.sleep(0.02)
        return True

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.exit_code() is None:
            os.kill(self.pid, number)


class Brokers:
    """Forks brokers over one failing disk."""

    def __init__(self, library: Path, place: Path) -> None:
        place.mkdir()
        self.disk = FailingDisk(place)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library),
                "FAIL_CALLS": str(self.disk.file),
            },
        )  # fmt: skip

    def start(self, arguments: list[str], log: Path) -> ForkedBroker:
        """Start one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(log), *arguments]) + "\n")
        self._process.stdin.flush()
        return ForkedBroker(int(self._process.stdout.readline()), log)

    def close(self) -> None:
        """End the process that forks; it kills what still runs."""
        self._process.communicate(timeout=30)


# -- under the library -----------------------------------------------------------------------------


def _name_threads() -> None:
    """Give each thread its name in the system as well."""
    libc, begin = ctypes.CDLL(None), threading.Thread.run

    def run(self: threading.Thread) -> None:
        libc.prctl(_SET_NAME, self.name.encode()[:15], 0, 0, 0)
        begin(self)

    threading.Thread.run = run  # type: ignore[method-assign]


def _run(log: str, arguments: list[str]) -> int:
    from tools.commands.qpidd import main as qpidd

    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(said, number)
    sys.argv = ["qpidd", *arguments]
    try:
        qpidd()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Fork a broker for each line."""
    import tools.commands.qpidd  # noqa: F401
    from broker.durability import backup_pruning
    from broker.options import retention

    # A member log with segments of 0 MB has a new one with each write.
    retention._NUMBERS["memberlog-segment-size"] = 0, 512
    backup_pruning.LEVEL_S = 3.0  # old stores are looked through once a minute otherwise
    _name_threads()
    running = []
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.stdin = open(os.devnull)  # noqa: SIM115
            code = _run(log, arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        running.append(pid)
        print(pid, flush=True)
    for pid in running:
        os.kill(pid, 9)


if __name__ == "__main__":
    main()
