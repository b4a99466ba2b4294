"""`python -m tools.shovel`: one attempt of a shovel, started by the member that runs it.

It reads one line of JSON from standard input and moves messages until that is closed, or until it
cannot go on; what it does it says in lines of JSON (`broker.shovels.worker_process` has the other
side).  No credentials are in its arguments or its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys

from broker.shovels.definition import parse_shovel
from tools.shovel.mover import Mover, Task

MEMORY_BYTES_MAX = 2 << 30
"""More address space than this it does not get: what a peer announces has an end."""
NICENESS = 5
"""It leaves the processor to the member beside it."""


def main() -> int:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its member decides
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    given = json.loads(sys.stdin.buffer.readline())
    task = Task(
        parse_shovel(given["vhost"], given["name"], given["value"]), given["number"],
        given["doubtful"], given["cluster"], given["source"]["descriptor"],
        given["destination"]["descriptor"], given["takes_numbers"],
    )  # fmt: skip
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        try:
            ended = Mover(task, _tell, sys.stdin.fileno()).run()
        except MemoryError:
            ended = {"why": "its process has no more memory: is a message, or a peer, too large?"}
        _tell({"event": "ended", **ended})
    return 0


def _tell(event: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
