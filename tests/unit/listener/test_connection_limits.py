"""How many connections are accepted, from which addresses, and for how long without a login."""

import resource

import pytest

from broker.access.login_delays import source_of
from broker.listener.client_listener import raise_open_files
from broker.listener.connection_limits import (
    FILES_KEPT,
    Admission,
    ConnectionLimits,
    NotLetIn,
)
from broker.options.client_ports import ClientLimits


def let_in(limits: ConnectionLimits, host: str = "10.0.0.1", now: float = 0.0) -> Admission:
    found = limits.accept(host, now)
    assert isinstance(found, Admission), found
    return found


def refused(limits: ConnectionLimits, host: str = "10.0.0.1") -> str:
    found = limits.accept(host, 0.0)
    assert isinstance(found, NotLetIn)
    return found.reason


def test_the_limit_of_all_connections() -> None:
    limits = ConnectionLimits(ClientLimits(connections=2), 1000)
    one = let_in(limits)
    let_in(limits)
    assert refused(limits).endswith("2 connections already")
    limits.closed(one)
    let_in(limits)
    assert limits.counters["refused_full"] == 1


def test_the_default_follows_the_limit_of_open_files() -> None:
    """The store, the ring and transfers must be able to open files when clients come in crowds."""
    limits = ConnectionLimits(ClientLimits(negotiating=10_000), FILES_KEPT + 20)
    for number in range(20):
        let_in(limits, f"10.0.0.{number}")
    assert "20 connections already, as this process may open 220 files" in refused(limits)


def test_the_limit_of_one_address() -> None:
    limits = ConnectionLimits(ClientLimits(per_address=2), 1000)
    for _ in range(2):
        limits.opened(let_in(limits))
    assert "2 connections of 10.0.0.1" in refused(limits)
    let_in(limits, "10.0.0.2")
    assert limits.counters["refused_of_address"] == 1


def test_one_address_may_have_half_of_the_negotiating_connections() -> None:
    """A client that connects and sends nothing keeps out itself, not others."""
    limits = ConnectionLimits(ClientLimits(negotiating=4), 1000)
    held = [let_in(limits), let_in(limits)]
    assert "of 10.0.0.1 are not open yet, half" in refused(limits)
    let_in(limits, "10.0.0.2")
    let_in(limits, "10.0.0.3")
    assert "4 connections are not open yet" in refused(limits, "10.0.0.4")
    limits.opened(held[0])
    let_in(limits, "10.0.0.4")
    assert limits.negotiating == 4
    assert limits.connections == 5


def test_a_logged_in_client_is_not_overdue() -> None:
    limits = ConnectionLimits(ClientLimits(negotiate_s=10), 1000)
    slow, quick = let_in(limits), let_in(limits, now=1.0)
    limits.opened(quick)
    limits.opened(quick)
    assert list(limits.overdue(10.0)) == []
    assert list(limits.overdue(30.0)) == [slow]
    limits.closed(slow)
    limits.closed(quick)
    assert (limits.connections, limits.negotiating) == (0, 0)


def test_nothing_is_kept_of_addresses_that_are_gone() -> None:
    limits = ConnectionLimits(ClientLimits(), 1000)
    for number in range(256):
        limits.closed(let_in(limits, f"10.0.1.{number}"))
    assert not limits._of_source
    assert not limits._negotiating_of


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(host: str, source: str) -> None:
    """An IPv6 host can choose from all addresses of its network."""
    assert source_of(host) == source


def test_a_process_with_few_open_files_still_serves_some_clients() -> None:
    assert ConnectionLimits(ClientLimits(connections=None), open_files=100).connections_max == 16


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), 4096), ((1024, 1 << 20), 65_536), ((1024, resource.RLIM_INFINITY), 65_536),
        ((1 << 20, 1 << 20), 1 << 20), ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 65_536),
    ],
)  # fmt: skip
def test_a_process_opens_as_many_files_as_it_is_let(
    before: tuple[int, int], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [before]

    def change(_: int, asked: tuple[int, int]) -> None:
        if asked[0] > asked[1] != resource.RLIM_INFINITY:
            raise ValueError
        limits.append(asked)

    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", change)
    assert raise_open_files() == after
    assert limits[1:] == [(after, before[1])] * (before[0] == 1024)
