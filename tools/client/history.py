"""`--history DIR`: the record that a client command keeps of itself for qpid-cluster-verify."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.exit_codes import Exit
from broker.memberlog.client_history import ClientHistory
from broker.memberlog.writer import LogWriteFailed
from tools.cli.failures import ToolError

HELP = "Write down there what was sent, confirmed or received, as hashes, for qpid-cluster-verify."


@contextmanager
def client_history(directory: str | None, tool: str) -> Iterator[ClientHistory | None]:
    """The history of this process, closed at the end; None if no directory was named.

    The client is named after the command, its process and its machine, so that many can share a
    directory; its incarnation is the time at which it began.
    """
    if directory is None:
        yield None
        return
    name = f"{tool}-{os.getpid()}@{socket.gethostname()}"
    try:
        history = ClientHistory(Path(directory), name, wall_us(), wall_us)
        try:
            yield history
        finally:
            history.close()
    except LogWriteFailed as failed:
        raise ToolError(f"history: {failed}", Exit.CANNOT_CREATE) from None


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
