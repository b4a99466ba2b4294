"""Three hosts on one machine, each a network namespace, with a set distance between them.

A frame from one to another takes this long in addition; a small program (`delay.c`) is the switch.
Loopback of a host stays as it is, so the clients that run within it are near its broker.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.system.support.network_namespaces import Network, enter, run
from tools.cli.failures import ToolError

SOURCE = Path(__file__).with_name("delay.c")
OWN = Path("/proc/thread-self/ns/net")


class DistantHosts(Network):
    """Hosts between which a frame takes `far_ms` milliseconds.  Removed at the end of the block."""

    def __init__(self, folder: Path, far_ms: float, size: int = 3) -> None:
        super().__init__(size)
        self._far_ms, self._program = far_ms, folder / "delay"
        self._switch_process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ToolError("--far needs a C compiler: apt-get install gcc")
        words = [compiler, "-O2", "-o", str(self._program), str(SOURCE)]
        subprocess.run(words, check=True)
        try:
            return super().__enter__()
        except (OSError, subprocess.CalledProcessError) as refused:
            said = getattr(refused, "stderr", "") or str(refused)
            raise ToolError(f"--far creates network namespaces, as root: {said.strip()}") from None

    def _add_switch(self) -> None:
        cables = [self._cable_of(place) for place in range(self.size)]
        self._switch_process = subprocess.Popen(
            [str(self._program), str(round(1000 * self._far_ms)), *cables],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._switch_process.stdout is not None
        if not self._switch_process.stdout.readline():
            raise OSError("no TAP device can be created")

    def _lay_cable(self, place: int, net: int) -> str:
        space, cable = self.spaces[place], self._cable_of(place)
        run("link", "set", cable, "address", f"02:00:00:00:00:{place + 1:02x}", "netns", space)
        return cable

    def _cable_of(self, place: int) -> str:
        return f"{self.spaces[place].split('-')[1]}-{place}"

    def close(self) -> None:
        """Remove everything.  Safe if parts of it were never made."""
        if self._switch_process is not None:
            with self._switch_process as process:
                process.kill()
        super().close()

    @contextmanager
    def inside(self, place: int = 0) -> Iterator[None]:
        """What this thread does in the block, it does on this host."""
        with OWN.open() as own:
            enter(Path("/run/netns") / self.spaces[place])
            try:
                yield
            finally:
                enter(Path(f"/proc/self/fd/{own.fileno()}"))
