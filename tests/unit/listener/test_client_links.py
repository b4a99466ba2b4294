"""What a member writes to its clients, as it may reply, or not, and under an alarm."""

from __future__ import annotations

from unittest.mock import Mock

from broker.access.backends import Backends
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

    def open(self) -> ClientLink:
        """A client that has a queue and gets what comes to it."""
        self.socket = Mock()
        self.socket.is_closing.return_value = False
        link = self.connections.connect("127.0.0.1:5", self.socket)
        for data in (
            opening(), method(1, "channel.open"), method(1, "confirm.select", False),
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
        """The machine delivers a message, and its frames collect."""
        self.gateway.data_received(link.client, publish(1, "", "q"), self.now)
        for command in self.gateway.take_commands():
            self.apply(self.gateway.session, command)


def test_what_was_encoded_before_the_view_ended_waits_for_the_next_one() -> None:
    """G7: a process that was stopped in between goes on in another view."""
    member = Linked()
    link = member.open()
    member.apply_publish(link)
    member.may_reply = False
    member.write()
    assert member.written() == []
    member.may_reply = True
    member.write()
    assert member.written() == ["basic.deliver"]


def test_what_comes_of_a_view_that_ended_is_not_encoded() -> None:
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


def test_an_alarm_begins_and_ends_for_those_who_publish() -> None:
    """G21: also one that ended, or began, while the member might not reply."""
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
