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

from tests.system.support.network_namespaces import Network, enter, host, run
from tools.cli.failures import ToolError

SOURCE = Path(__file__).with_name("delay.c")
OWN = Path("/proc/thread-self/ns/net")


class DistantHosts(Network):
    """Hosts between which a frame takes `far_ms` milliseconds.  Removed at the end of the block."""

    def __init__(self, folder: Path, far_ms: float, size: int = 3) -> None:
        super().__init__(size)
        self._far_ms, self._program = far_ms, folder / "delay"
        self._switch_process: subprocess.Popen[str] | None = None

    def __enter__(self) -> DistantHosts:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ToolError("--far needs a C compiler: apt-get install gcc")
        words = [compiler, "-O2", "-o", str(self._program), str(SOURCE)]
        subprocess.run(words, check=True)
        try:
            self._plug_all_in()
        except (OSError, subprocess.CalledProcessError) as refused:
            self.close()
            said = getattr(refused, "stderr", "") or str(refused)
            raise ToolError(f"--far creates network namespaces, as root: {said.strip()}") from None
        except BaseException:
            self.close()
            raise
        return self

    def _plug_all_in(self) -> None:
        cables = [f"{space.split('-')[1]}-{place}" for place, space in enumerate(self.spaces)]
        self._switch_process = subprocess.Popen(
            [str(self._program), str(round(1000 * self._far_ms)), *cables],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._switch_process.stdout is not None
        if not self._switch_process.stdout.readline():
            raise OSError("no TAP device can be created")
        for place, (space, cable) in enumerate(zip(self.spaces, cables, strict=True)):
            run("netns", "add", space)
            run("link", "set", cable, "address", f"02:00:00:00:00:{place + 1:02x}", "netns", space)
            run("-n", space, "address", "add", f"{host(place)}/24", "dev", cable)
            for interface in ("lo", cable):
                run("-n", space, "link", "set", interface, "up")

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
