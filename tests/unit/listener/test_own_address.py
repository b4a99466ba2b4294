"""The address that a broker that listens everywhere announces to others."""

from __future__ import annotations

import socket

import pytest

from broker.listener.client_listener import reachable


class Route:
    """A socket that finds a route, or none."""

    way: str = ""
    way_6: str = "fd00::7"

    def __init__(self, family: int, _kind: int) -> None:
        self._family = family

    def __enter__(self) -> Route:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def connect(self, _address: tuple[str, int]) -> None:
        if not self.getsockname()[0]:
            raise OSError("Network is unreachable")

    def getsockname(self) -> tuple[str, int]:
        return (self.way_6 if self._family == socket.AF_INET6 else self.way), 1


def test_a_wildcard_address_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Route)
    monkeypatch.setattr(Route, "way", "10.0.0.7")
    assert (
        reachable("amqp:tcp:0.0.0.0:5672,ssl:0.0.0.0:0") == "amqp:tcp:10.0.0.7:5672,ssl:10.0.0.7:0"
    )
    assert reachable("amqp:tcp:[::]:5672") == "amqp:tcp:[fd00::7]:5672"
    for other in ("amqp:tcp:10.0.0.0:5672", "amqp:tcp:[::1]:5672,tcp:b.example:5672"):
        assert reachable(other) == other


def test_without_a_route_over_ipv6_all_addresses_are_announced_as_that_of_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", Route)
    monkeypatch.setattr(Route, "way", "10.0.0.7")
    monkeypatch.setattr(Route, "way_6", "")
    assert reachable("amqp:tcp:[::]:5672") == "amqp:tcp:10.0.0.7:5672"


def test_a_machine_without_a_route_gives_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Route)
    monkeypatch.setattr(socket, "gethostname", lambda: "north")
    assert reachable("amqp:tcp:0.0.0.0:5672") == "amqp:tcp:north:5672"


def test_an_address_of_this_machine_is_found() -> None:
    assert "0.0.0.0" not in reachable("amqp:tcp:0.0.0.0:5672")
