"""Clients that connect while the member is fenced, perhaps only for a moment, wait."""

from broker.frontend.entry.admission import BEGIN_S, WAIT_S
from broker.machine import commands as c
from tests.support.amqp_peer import method, opening
from tests.support.gateway_loop import Loop, Peer

OPEN_CHANNEL = method(1, "channel.open")
DECLARE = method(1, "queue.declare", "q", False, False, False, False, False, {})


def fenced_for_a_moment() -> Loop:
    """A member whose lease is over, in a view that may still be in force."""
    loop = Loop()
    loop.outbox.fence()
    loop.gateway.admission.admit_waiting(soon=True)
    return loop


def methods(peer: Peer) -> list[str]:
    return [one.method for one in peer.take()]


def test_a_client_that_connects_to_a_fenced_member_waits_and_is_admitted() -> None:
    """With everything that it sent meanwhile; no library takes a 320 here for "try again"."""
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    assert "connection.open-ok" not in [one.method for one in peer.send(opening(), OPEN_CHANNEL)]
    peer.send(DECLARE)
    assert not peer.client.may_be_read
    assert peer.client.conn == 0
    loop.gateway.admission.admit_waiting(soon=True)
    loop.turn()
    assert methods(peer) == []
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=True)
    loop.turn()
    assert methods(peer) == ["connection.open-ok", "channel.open-ok", "queue.declare-ok"]
    assert peer.client.may_be_read


def test_methods_sent_along_with_the_open_are_kept() -> None:
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    peer.send(opening() + OPEN_CHANNEL + DECLARE)
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert methods(peer) == ["connection.open-ok", "channel.open-ok", "queue.declare-ok"]


def test_waiting_clients_are_refused_if_the_member_stays_fenced() -> None:
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    assert loop.gateway.clients == {}
    assert loop.gateway.commands == []


def test_waiting_is_bounded() -> None:
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    peer.send(opening())
    loop.gateway.refuse_overdue(WAIT_S)
    loop.turn()
    assert methods(peer) == []
    loop.gateway.refuse_overdue(WAIT_S + 0.1)
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    late = Peer(loop)
    assert late.send(opening())[-1].method == "connection.tune", "the next client still waits"


def test_a_client_that_disconnects_while_it_waits_is_forgotten() -> None:
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    peer.send(opening())
    peer.loop.gateway.connection_lost(peer.client)
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert loop.gateway.clients == {}
    assert c.CONNECTION_OPEN not in [command[0] for command, _ in loop.applied]


def test_waiting_clients_are_closed_when_the_member_stops() -> None:
    loop = fenced_for_a_moment()
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    loop.gateway.drop_all("the broker is stopping")
    loop.gateway.refuse_overdue(WAIT_S + 1)
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    (closed,) = [one for one in peer.take() if one.method == "connection.close"]
    assert closed.args[:2] == (320, "CONNECTION_FORCED - the broker is stopping")
    assert loop.gateway.clients == {}


def that_begins() -> Loop:
    """A member whose process has just started: its port is open, and it has no session."""
    loop = Loop()
    loop.gateway.session = 0
    loop.outbox.fence()
    loop.gateway.admission.begin(0.0)
    return loop


def serves(loop: Loop, now: float) -> None:
    """Let it begin its first session."""
    loop.activate(fresh=True)
    loop.outbox.unfence()
    loop.gateway.refuse_overdue(now)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()


def test_who_connects_to_a_member_that_begins_waits_for_its_first_session() -> None:
    """Programs wait for the port, and do not expect to be refused then."""
    loop = that_begins()
    peer = Peer(loop)
    assert [one.method for one in peer.send(opening())] == ["connection.start"]
    peer.send(OPEN_CHANNEL, DECLARE)
    loop.gateway.refuse_overdue(WAIT_S + 1)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert methods(peer) == []
    serves(loop, WAIT_S + 1.1)
    assert methods(peer) == [
        "connection.tune", "connection.open-ok", "channel.open-ok", "queue.declare-ok"
    ]  # fmt: skip


def test_an_unknown_user_is_refused_once_users_are_known() -> None:
    loop = that_begins()
    peer = Peer(loop)
    peer.send(opening(user="nobody"))
    serves(loop, 1.0)
    assert peer.take()[-1].args[0] == 403


def test_a_member_that_gets_no_session_refuses_who_waited() -> None:
    """From then on at once: another member may serve."""
    loop = that_begins()
    peer = Peer(loop)
    peer.send(opening())
    loop.gateway.refuse_overdue(BEGIN_S)
    loop.turn()
    assert methods(peer) == []
    loop.gateway.refuse_overdue(BEGIN_S + 0.1)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    assert Peer(loop).send(opening())[-1].args[0] == 320


def test_a_member_begins_once() -> None:
    loop = that_begins()
    serves(loop, 1.0)
    loop.gateway.session = 0
    loop.outbox.fence()
    assert Peer(loop).send(opening())[-1].args[0] == 320


def test_who_leaves_before_the_first_session_is_forgotten() -> None:
    loop = that_begins()
    peer = Peer(loop)
    peer.send(opening())
    loop.gateway.connection_lost(peer.client)
    serves(loop, 1.0)
    assert loop.gateway.clients == {}
    assert methods(peer) == []
