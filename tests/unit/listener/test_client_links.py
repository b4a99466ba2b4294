"""What a member writes to its clients, while it may reply, while it may not, and under an alarm."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from broker.access.backends import Backends
from broker.amqp import codec
from broker.frontend import connections
from broker.frontend.client import Client
from broker.frontend.connections import ClientLink, Connections
from broker.frontend.gateway import Gateway
from broker.frontend.outbox import Outbox
from broker.options.access import AccessOptions
from broker.options.client_ports import ClientLimits
from tests.support.amqp_peer import method, methods_in, opening, publish
from tests.support.gateway_loop import Loop

ALARM = "low on disk"


class Linked(Loop):
    """One member whose client has a socket."""

    def make_parts(self, cert_login_from: str) -> tuple[Gateway, Outbox]:
        options = Mock(access=AccessOptions(), clients=ClientLimits(), cluster_name="test")
        ports = Mock(backends=Backends(), negotiate_s=10.0)
        self.connections = Connections(
            "a", options, Mock(), Mock(), ports, Mock(), lambda: self.machine
        )
        self.may_reply = True
        return self.connections.gateway, self.connections.outbox

    def open(self, heartbeat: int = 0) -> ClientLink:
        """A client that has a queue and gets what comes to it."""
        self.socket = Mock()
        self.socket.is_closing.return_value = False
        link = self.connections.connect("127.0.0.1:5", self.socket)
        for data in (
            opening(heartbeat=heartbeat), method(1, "channel.open"),
            method(1, "confirm.select", False),
            method(1, "queue.declare", "q", False, False, False, False, False, {}),
            method(1, "basic.consume", "q", "", False, True, False, False, {}),
        ):  # fmt: skip
            self.sends(link.client, data)
        self.written()
        return link

    def sends(self, client: Client, data: bytes) -> None:
        self.gateway.data_received(client, data, self.now)
        self.turn()

    def write(self) -> None:
        self.connections.flush(may_reply=self.may_reply)

    def written(self) -> list[str]:
        """What was handed to the socket since the last call."""
        data = b"".join(bytes(call.args[0]) for call in self.socket.write.call_args_list)
        self.socket.write.reset_mock()
        return [one.method for one in methods_in(data)]

    def apply_publish(self, link: ClientLink) -> None:
        """The machine delivers a message, whose frames are encoded but not yet written."""
        self.apply_sent(link, publish(1, "", "q"))

    def apply_sent(self, link: ClientLink, data: bytes) -> None:
        """The machine carries out what the client sends; the replies are not yet written."""
        self.gateway.data_received(link.client, data, self.now)
        for command in self.gateway.take_commands():
            self.apply(self.gateway.session, command)


def test_output_encoded_before_the_view_ended_waits_for_the_next_view() -> None:
    """G7: a process that was stopped in between continues in another view."""
    member = Linked()
    link = member.open()
    member.apply_publish(link)
    member.may_reply = False
    member.write()
    assert member.written() == []
    member.may_reply = True
    member.write()
    assert member.written() == ["basic.deliver"]


def test_effects_of_a_view_that_ended_are_not_encoded() -> None:
    """G7."""
    member = Linked()
    link = member.open()
    member.may_reply = False
    member.write()
    member.apply_publish(link)
    member.write()
    assert member.written() == []
    member.may_reply = True
    member.write()
    assert member.written() == ["basic.deliver"]


def test_a_client_that_closes_as_the_view_ends_gets_its_close_ok() -> None:
    """Without it a library reports a lost connection (RabbitMQ's client for Erlang does)."""
    member = Linked()
    link = member.open()
    member.apply_sent(link, publish(1, "", "q") + method(0, "connection.close", 200, "", 0, 0))
    member.may_reply = False
    member.write()
    assert member.written() == ["connection.close-ok"]


def test_a_client_that_is_refused_as_the_view_ends_is_told_why() -> None:
    member = Linked()
    link = member.open()
    member.apply_publish(link)
    member.gateway.data_received(link.client, method(1, "channel.open"), member.now)
    member.may_reply = False
    member.write()
    assert member.written() == ["connection.close"]
    member.sends(link.client, method(0, "connection.close", 200, "", 0, 0))
    assert member.written() == ["connection.close-ok"]
    member.may_reply = True
    member.write()
    assert member.written() == []


def test_publishers_are_told_of_the_start_and_end_of_an_alarm() -> None:
    """G21: even if it started or ended while the member might not reply."""
    member = Linked()
    link = member.open()
    member.sends(link.client, publish(1, "", "q"))
    member.written()

    def alarm(text: str, *, may_reply: bool) -> list[str]:
        member.may_reply = may_reply
        member.write()
        member.connections.throttle(full=False, large_full=False, alarm=text)
        member.write()
        return member.written()

    assert alarm(ALARM, may_reply=True) == ["connection.blocked"]
    assert alarm(f"{ALARM}, and more", may_reply=True) == []
    assert alarm("", may_reply=True) == ["connection.unblocked"]
    assert alarm(ALARM, may_reply=False) == []
    assert alarm(ALARM, may_reply=True) == ["connection.blocked"]
    assert alarm("", may_reply=False) == []
    assert alarm("", may_reply=True) == ["connection.unblocked"]


def test_a_client_that_logs_in_is_answered_whatever_the_member_may_reply() -> None:
    """Nothing of the machine's is told to it; it is to learn that it should go elsewhere."""
    member = Linked()
    member.open()
    link = member.connections.connect("127.0.0.1:6", member.socket)
    member.gateway.data_received(link.client, codec.PROTOCOL_HEADER, member.now)
    member.may_reply = False
    member.write()
    sent = b"".join(bytes(call.args[0]) for call in member.socket.write.call_args_list)
    assert [one.method for one in methods_in(sent)] == ["connection.start"]


def test_no_more_is_handed_over_than_the_client_reads() -> None:
    member = Linked()
    link = member.open()
    member.socket.write.side_effect = lambda _: link.pause_writing()
    link.client.connection.out += codec.HEARTBEAT_FRAME * 400_000  # some three mebibytes
    sizes = []
    for _ in range(6):
        member.gateway.mark_writable(link.client)
        member.write()
        sizes.append(sum(len(call.args[0]) for call in member.socket.write.call_args_list))
        member.socket.write.reset_mock()
        link.resume_writing()
    assert sizes == [1 << 20, 1 << 20, 1 << 20, 3_200_000 - (3 << 20), 0, 0]


def test_a_client_that_does_not_read_why_it_is_closed_is_cut_off() -> None:
    member = Linked()
    link = member.open()
    link.client.send_away("it is time")
    member.connections.wake(100.0)  # it has not confirmed it either
    member.write()
    later = [call.args for call in member.connections.later.call_args_list]  # type: ignore[attr-defined]
    assert later == [
        (connections.LINGER_S, member.socket.close), (connections.DRAIN_S, member.socket.abort),
    ]  # fmt: skip


class Unread:
    """A client with a heartbeat of 10 s that stops reading at once, watched from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.member = Linked()
        self.link = self.member.open(heartbeat=10)
        self.heard, self.now = False, 0.0
        monkeypatch.setattr(connections, "heard_within", self._heard_within)
        self.link.pause_writing()
        for _ in range(2):
            self.member.sends(self.link.client, publish(1, "", "q", bytes(700_000)))
        assert not self.link.reading
        self.member.gateway.clients[self.link.conn].is_publisher = False

    def _heard_within(self, transport: object, seconds: float, *, by_data: bool) -> bool:
        assert (transport, seconds, by_data) == (self.member.socket, 20, True)
        return self.heard

    def ends_after(self, seconds: int) -> int | None:
        """When its connection is given up, of so many seconds that pass now."""
        for passed in range(seconds):
            self.now += 1.0
            self.member.connections.wake(self.now)
            if self.link.client.wants_close:
                return passed
        return None


def test_a_client_that_neither_reads_nor_sends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its silence cannot be heard, as it is not read while its output waits; its messages are not
    to wait until its connection breaks."""
    client = Unread(monkeypatch)
    assert client.ends_after(100) in range(20, 31)
    client.member.turn()
    assert client.member.gateway.clients == {}


def test_a_client_that_does_not_read_but_sends_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Unread(monkeypatch)
    client.heard = True
    assert client.ends_after(100) is None


def test_a_client_that_waits_for_its_member_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be blocked by what is not read; only the time since counts."""
    client = Unread(monkeypatch)
    client.link.client.is_publisher = client.member.gateway.paused = True
    assert client.ends_after(100) is None
    client.member.gateway.paused = False
    assert client.ends_after(15) is None
    assert client.ends_after(40) in range(5, 16)
