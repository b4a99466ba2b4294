"""Notifications to a service manager, over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.service.notify import IDLE_S, ServiceManager


class Later:
    """Timers that run when a test says so."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], object]]] = []

    def __call__(self, delay_s: float, call: Callable[[], object]) -> None:
        self.due.append((delay_s, call))

    def run(self) -> float:
        """Run the due timer; return how long it would have waited."""
        ((delay_s, call),), self.due = self.due, []
        call()
        return delay_s


@pytest.mark.parametrize("abstract", [False, True])
def test_the_notifications_of_a_whole_life(tmp_path: Path, abstract: bool) -> None:
    name = f"@qpidd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(30)
        later, state = Later(), ["INIT"]
        service = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"}, later, 7)
        service.ready(lambda: state[0])
        assert manager.recv(999) == b"READY=1"
        assert manager.recv(999) == b"WATCHDOG=1\nSTATUS=INIT"
        assert later.run() == 1.0
        assert manager.recv(999) == b"WATCHDOG=1"
        state[0] = "READY\nMAINPID=1"
        later.run()
        assert manager.recv(999) == b"WATCHDOG=1\nSTATUS=READY", "no other variable gets in"
        service.stopping()
        assert manager.recv(999) == b"STOPPING=1\nSTATUS=READY"
        later.run()
        assert not later.due


def test_without_a_manager_nothing_happens() -> None:
    later = Later()
    service = ServiceManager({}, later, 7)
    service.ready(lambda: "READY")
    service.stopping()
    assert not later.due


def test_a_watchdog_meant_for_another_process() -> None:
    found = ServiceManager({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, Later(), 7)
    assert found.watchdog_s == 0


def test_a_manager_that_is_gone(tmp_path: Path) -> None:
    """Nothing waits, and nothing is raised."""
    later = Later()
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, later, 7)
    service.ready(lambda: "READY")
    assert later.run() == IDLE_S
    service.stopping()


def test_a_manager_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        later = Later()
        service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, later, 7)
        service.ready(lambda: "READY")
        for _ in range(5000):  # more than the system keeps for it
            later.run()
        service.stopping()


def test_processes_the_broker_starts_are_not_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@nowhere")
    ServiceManager({"NOTIFY_SOCKET": "@nowhere"}, Later(), 7).stopping()
    assert "NOTIFY_SOCKET" not in os.environ


def test_a_waiting_broker_is_ready_once_and_later_says_that_it_serves(tmp_path: Path) -> None:
    """A broker that waits for a shared store is up; otherwise its manager would give it up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        later = Later()
        service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}, later, 7)
        service.ready(lambda: "waits")
        assert manager.recv(999) == b"READY=1"
        assert manager.recv(999) == b"WATCHDOG=1\nSTATUS=waits"
        service.ready(lambda: "READY")
        later.run()
        assert manager.recv(999) == b"WATCHDOG=1\nSTATUS=READY"
        service.stopping()
