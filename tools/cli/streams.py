"""Output and error stream of a command, either of which may be closed, full or no longer read.

Output that cannot be written ends the command with its own code. What is said on stderr is not the
command's work, so nothing ends because it cannot be said.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""How writing output fails in the middle of a command; other files are named where they fail."""


def replace_closed() -> None:
    """Stand in for what the shell closed (`2>&-`): else the next file or socket that is opened gets
    that number, and whoever prints writes into it. Writing to a closed stdout still fails."""
    for number, name, mode in ((1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            whole_life = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, whole_life)


def flush_output() -> OSError | None:
    """Write the rest of the output, and return why it cannot be written. Raises BrokenPipeError if
    nobody reads any more."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        _discard(sys.stdout)
        if isinstance(problem, BrokenPipeError):
            raise
        return problem
    return None


def complain(sentence: str, end: str = "\n") -> None:
    """Say it on stderr, if anything can be said there."""
    try:
        print(sentence, end=end, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send what waits in it, and what follows, nowhere: at its own end the interpreter would try
    again, and report the error with its own code and words."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
