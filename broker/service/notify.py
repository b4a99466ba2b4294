"""Notices to the service manager: ready, stopping, alive, and the state (sd_notify).

The protocol is one datagram of `NAME=value` lines to the socket named by `NOTIFY_SOCKET`; without
it nothing is sent. Nothing here waits, not even for a manager that does not read.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping

IDLE_S = 5.0
"""How often the state is checked if no watchdog requires more."""


class ServiceManager:
    """The manager that started this process, if it wants notices."""

    def __init__(
        self,
        environment: Mapping[str, str],
        later: Callable[[float, Callable[[], object]], object],
        pid: int,
    ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._later = later
        self._socket: socket.socket | None = None
        self._status: Callable[[], str] = str
        self._said = ""
        self._ready = False
        self.watchdog_s = 0.0
        """The manager's watchdog time; 0: none."""
        if environment.get("WATCHDOG_PID", str(pid)) == str(pid):
            text = environment.get("WATCHDOG_USEC", "")
            self.watchdog_s = int(text) / 1_000_000 if text.isascii() and text.isdigit() else 0.0
        if self._address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        # Processes started by this one are not the service.
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)

    def ready(self, status: Callable[[], str]) -> None:
        """The service is up, or waits to lead. `status` is called from here on."""
        self._status = status
        if self._socket is not None and not self._ready:
            self._ready = True
            self._send("READY=1")
            self._beat()

    def stopping(self) -> None:
        """The service ends in order."""
        self._send("STOPPING=1", f"STATUS={_line(self._status())}")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _beat(self) -> None:
        """Called by the loop: a hanging loop sends nothing, which is the point."""
        if self._socket is None:
            return
        said = _line(self._status())
        self._send("WATCHDOG=1", *([f"STATUS={said}"] if said != self._said else []))
        self._said = said
        self._later(min(self.watchdog_s / 3 or IDLE_S, IDLE_S), self._beat)

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            address = self._address
            # "@" stands for the zero byte of an abstract address.
            where = "\0" + address[1:] if address.startswith("@") else address
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), where)


def _line(text: str) -> str:
    """Its first line: further lines would be read as other names."""
    return text.splitlines()[0][:200] if text else ""
