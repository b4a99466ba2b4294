"""`python -m tools.shovel`: one attempt of a shovel, started by the member that runs it.

It reads one line of JSON from standard input and moves messages until that is closed, or until it
cannot continue; it reports in lines of JSON (`broker.shovels.worker_process` has the other side).
Neither its arguments nor its environment contain credentials.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import traceback
from base64 import b64decode
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from broker.amqp.fields import decode_table
from broker.shovels.definition import Link, parse_shovel
from tools.shovel.copier import Copier
from tools.shovel.mover import Mover
from tools.shovel.task import Task

MEMORY_BYTES_MAX = 2 << 30
"""Its limit of address space, which also limits the size of what a peer announces."""
NICENESS = 5
"""It leaves the processor to the member on the same machine."""
OOM_SCORE, OOM_SCORE_ADDED = Path("/proc/self/oom_score_adj"), 500
"""If the machine has no memory left, the kernel ends it before a member."""


def main() -> int:
    """Entry point."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_on_signal, os.getppid()))
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with contextlib.suppress(OSError):
        OOM_SCORE.write_text(str(OOM_SCORE_ADDED), encoding="ascii")
    with contextlib.suppress(BrokenPipeError):  # the listener is gone
        try:
            ended = _attempt().run()
        except MemoryError:
            ended = {"why": "its process has no more memory: is a message, or a peer, too large?"}
        except Exception as error:
            ended = {"why": _fault(error)}
        _tell({"event": "ended", **ended})
    return 0


def _on_signal(member: int, _number: int, _frame: FrameType | None) -> None:
    """A service manager, or a terminal, signals all processes of a broker: as long as the member
    lives, it decides how this one ends. If it is gone, nobody should have to wait."""
    if os.getppid() != member:
        sys.exit()


def _attempt() -> Copier | Mover:
    line, unread = _first_line()
    given = json.loads(line)
    shovel = parse_shovel(given["vhost"], given["name"], given["value"])
    shovel = replace(shovel, is_replica=given["replica"])
    link = given["link"]
    if link is not None:
        raw = b64decode(link["arguments"])
        arguments = decode_table(raw, 0, len(raw))[0]
        shovel = replace(shovel, link=Link(**{**link, "arguments": arguments}))
    task = Task(
        shovel, given["number"], given["doubtful"], given["cluster"],
        given["source"]["descriptor"], given["destination"]["descriptor"],
        given["cluster_id"], given["here"],
    )  # fmt: skip
    if shovel.is_replica:
        return Copier(task, _tell, sys.stdin.fileno())
    return Mover(task, _tell, sys.stdin.fileno(), unread)


def _first_line() -> tuple[bytes, bytes]:
    """The first line, and the bytes behind it."""
    data = bytearray()
    while b"\n" not in data and (more := os.read(sys.stdin.fileno(), 1 << 16)):
        data += more
    line, _, rest = bytes(data).partition(b"\n")
    return line, rest


def _fault(error: Exception) -> str:
    """Where it was raised, without its text, which may quote a peer or a password."""
    (*_, last) = traceback.extract_tb(error.__traceback__)
    where = f"{type(error).__name__} in {os.path.basename(last.filename)} line {last.lineno}"
    return f"this is a fault of the broker's shovels: {where}"


def _tell(event: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
