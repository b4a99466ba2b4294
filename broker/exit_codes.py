"""Exit codes: how a stopped broker or tool reports its end to the script that started it.

The numbers are those of BSD's `sysexits.h` where one fits, so an operator's habits hold.  This file
is the only list; docs/operations/failures.md explains each number and a test compares them.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a process ended.  Each refusal at start has a number of its own."""

    OK = 0
    """An orderly stop: asked for by an operator or by a signal."""
    FAILURE = 1
    """The tool did its work and the answer is no; see its message."""
    USAGE = 64
    """An option is unknown, malformed, or contradicts another one."""
    DATA = 65
    """The store under --data-dir is of another cluster, of another format, or damaged."""
    NO_INPUT = 66
    """An input file cannot be read."""
    UNAVAILABLE = 69
    """An address is taken or not ours to bind; for clients: no broker could be reached."""
    INTERNAL = 70
    """We broke our own rules: the member stopped itself."""
    CLOCK = 71
    """This machine's clock is further from the cluster's time than --clock-bound allows."""
    FULL = 72
    """There is no space on the disk: the member left, or could not start."""
    CANNOT_CREATE = 73
    """The data directory, or an output file, cannot be created or written."""
    IO_ERROR = 74
    """The disk takes nothing any more: it became read-only, is gone, or answers with errors."""
    BUSY = 75
    """The data directory belongs to another broker that runs now."""
    PROTOCOL = 76
    """The other members run another version, or refused this one."""
    NOT_ALLOWED = 77
    """The other members do not let this one in: keys, password or mechanism differ."""
    CONFIG = 78
    """The option file or a key file cannot be read, or something in it is wrong."""
    QUORUM = 79
    """With --cluster-cman: the quorum was lost, so the member stopped at once."""
    FENCED = 80
    """With --shared-store: another broker leads by now, or may; started again, this one waits."""
    LATE_DISK = 81
    """The disk did not keep up, or gave nothing back: the member left, so that the others go on."""
