"""The right to reply, with clocks set by the test; and what a member keeps when it wakes
late (G7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from broker.frontend.connections import ClientLink, ClientPorts, Connections, Options
from broker.machine.machine import Machine
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits
from broker.watchdogs.reply_lease import ReplyLease
from vsync.totem.ordering.lease import SLACK, Lease
from vsync.types import Member, RingId

A, B = Member("a", 1, "a:1"), Member("b", 1, "b:1")
R1, R2 = RingId(1, "a", 1), RingId(2, "a", 1)


class Clocks:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0
        self.lease = Lease(2000)
        self.reply_lease = ReplyLease(self.lease, lambda: self.now, lambda: self.now + self.slept)

    def tokens(self, ring: RingId = R1, members: tuple[Member, ...] = (A, B)) -> None:
        for _ in range(2):
            self.now += 0.1
            self.lease.token(ring, members, self.now, 1000)


def test_a_stopped_member_may_not_reply_when_it_wakes() -> None:
    """G7."""
    clocks = Clocks()
    clocks.tokens()
    assert clocks.reply_lease.holds(R1)
    clocks.now += 1.0
    assert not clocks.reply_lease.holds(R1)
    clocks.tokens()
    assert clocks.reply_lease.holds(R1)


def test_a_suspended_machine_may_not_reply_though_its_clock_stood_still() -> None:
    """G7: the ring's clock does not count a machine's suspended time."""
    clocks = Clocks()
    clocks.tokens()
    clocks.slept += 60.0
    assert not clocks.reply_lease.holds(R1)
    assert not clocks.reply_lease.holds(R1)
    clocks.tokens()
    clocks.tokens()
    assert clocks.reply_lease.holds(R1)


def test_a_broker_without_the_lease_on_its_shared_store_may_not_reply() -> None:
    """G38: another broker may lead the store, whatever the ring says."""
    clocks, leads = Clocks(), [True]
    may = ReplyLease(clocks.lease, lambda: clocks.now, lambda: clocks.now, lambda: leads[0])
    clocks.tokens()
    assert may.holds(R1)
    leads[0] = False
    assert not may.holds(R1)


def test_a_promise_waits_until_missing_members_are_silent() -> None:
    clocks = Clocks()
    clocks.tokens()
    clocks.tokens(R2, (A,))
    assert clocks.reply_lease.silent_in((A, B)) == 0.0
    waits = clocks.reply_lease.silent_in((A,))
    assert waits == pytest.approx(1 + SLACK - 0.2)
    clocks.now += waits
    assert clocks.reply_lease.silent_in((A,)) == pytest.approx(0.0, abs=1e-9)


class Wire:
    """A transport that records."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> None:
        """It has no socket."""

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


def one_client() -> tuple[Connections, ClientLink, Wire]:
    """A member that may reply, and a client that has just connected."""
    machine = Machine("a")
    options = cast(
        "Options", SimpleNamespace(cluster_name="c", access=AccessOptions(), clients=ClientLimits())
    )
    ports = SimpleNamespace(log=lambda *_: None, negotiate_s=10.0, counters={}, backends=None)
    clients = Connections(
        "a", options, lambda: None, lambda *_: None, cast("ClientPorts", ports),
        lambda _defined: None, lambda: machine,
    )  # fmt: skip
    wire = Wire()
    link = clients.connect("127.0.0.1:1", cast("asyncio.Transport", wire))
    clients.flush(may_reply=True)
    return clients, link, wire


def test_a_new_connection_is_greeted_even_after_the_lease() -> None:
    """Its first bytes may wake a member that gets no token, so its turn is the one that finds the
    lease over; and the member of a pair may be waiting for the attempt."""
    clients, link, wire = one_client()
    link.client.connection.out += b"<start>"
    clients.gateway.mark_writable(link.client)
    clients.flush(may_reply=False)
    assert wire.written == b"<start>"


def test_a_reply_formatted_before_a_pause_is_sent_only_with_the_lease() -> None:
    """G7: the process was stopped between formatting and writing."""
    clients, link, wire = one_client()
    link.client.conn_was = 1

    def put(data: bytes) -> None:
        link.client.connection.out += data
        clients.gateway.mark_writable(link.client)

    put(b"<one>")
    clients.flush(may_reply=True)
    put(b"<delivery>")
    clients.flush(may_reply=False)
    put(b"<heartbeat>")
    clients.flush(may_reply=False)
    assert wire.written == b"<one><heartbeat>"
    put(b"<two>")
    clients.flush(may_reply=True)
    assert wire.written == b"<one><heartbeat><delivery><two>"
