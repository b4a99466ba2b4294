"""The start of `qpidd`: SIGHUP waits from the first line on.

Reading the program takes a while, and a log rotation that comes meanwhile would end the process.
"""

from __future__ import annotations

from broker.service.hang_up import hold_hang_ups


def main() -> None:
    """Entry point of the installed command."""
    hold_hang_ups()
    from tools.commands import qpidd

    qpidd.main()


if __name__ == "__main__":
    main()
