"""The start of `qpidd`: SIGHUP waits from the first line on.

Reading the program takes a while, and a log rotation that comes meanwhile would end the process.
"""

from __future__ import annotations

from importlib import import_module

from broker.service.hang_up import hold_hang_ups

COMMAND = "tools.commands.qpidd"


def main() -> None:
    """Entry point of the installed command."""
    hold_hang_ups()
    import_module(COMMAND).main()


if __name__ == "__main__":
    main()
