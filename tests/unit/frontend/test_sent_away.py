"""Clients that are sent away: one by an operator, or all clients of a member that is drained or is
a backup in an active-passive cluster (G25).
"""

import pytest

from broker.frontend.entry.admission import WAIT_S
from tests.support.amqp_peer import method, opening, publish
from tests.support.gateway_loop import Loop, Peer

OPEN_CHANNEL = method(1, "channel.open")
BACKUP = "member 'a' is a backup, 'b' is the active member; connect to amqp:tcp:b:5672"
DECLARE = method(1, "queue.declare", "q", False, False, False, False, False, {})


def connected(loop: Loop) -> Peer:
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL, DECLARE)
    peer.take()
    return peer


def test_a_drained_member_closes_its_connections_and_admits_none() -> None:
    loop = Loop()
    old = connected(loop)
    loop.gateway.drain("member 'a' is drained for maintenance; try amqp:tcp:b:5672")
    loop.turn()
    code, text = old.take()[-1].args[:2]
    assert (code, text) == (
        320,
        "CONNECTION_FORCED - member 'a' is drained for maintenance; try amqp:tcp:b:5672",
    )
    assert not loop.machine.connections
    new = Peer(loop)
    assert new.send(opening(), OPEN_CHANNEL)[-1].args[0] == 320
    loop.gateway.drain("")
    assert connected(loop).client.conn
    assert len(loop.machine.connections) == 1


def test_a_client_that_waits_for_admission_is_sent_away_too() -> None:
    loop = Loop()
    loop.outbox.fence()
    loop.gateway.admission.admit_waiting(soon=True)
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    loop.gateway.drain("drained")
    loop.outbox.unfence()
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert peer.take()[-1].args[0] == 320
    assert not loop.machine.connections


def test_a_disconnected_client_returns_its_messages() -> None:
    loop = Loop()
    one, other = connected(loop), connected(loop)
    one.client.peer = "192.0.2.1:50001"
    one.send(publish(1, "", "q", b"m"), method(1, "basic.get", "q", False))
    loop.gateway.disconnect("192.0.2.1:50001", "the connection was closed by an operator")
    loop.turn()
    assert one.take()[-1].args[:2] == (
        320, "CONNECTION_FORCED - the connection was closed by an operator",
    )  # fmt: skip
    assert other.client.conn
    assert len(loop.machine.connections) == 1
    got = other.send(method(1, "basic.get", "q", True))
    assert got[0].method == "basic.get-ok"
    assert got[0].args[1] is True


def refusal(peer: Peer) -> tuple[object, ...]:
    return tuple(peer.take()[-1].args[:2])


def test_a_backup_sends_clients_away_and_admits_none() -> None:
    """G25."""
    loop = Loop()
    old = Peer(loop)
    old.send(opening(), OPEN_CHANNEL)
    old.take()
    loop.gateway.stand_by(BACKUP, briefly=False)
    loop.turn()
    assert refusal(old) == (320, f"CONNECTION_FORCED - {BACKUP}")
    assert not loop.machine.connections
    new = Peer(loop)
    assert new.send(opening(), OPEN_CHANNEL)[-1].args[0] == 320
    loop.gateway.stand_by("", briefly=False)
    last = Peer(loop)
    last.send(opening(), OPEN_CHANNEL)
    assert last.client.conn


@pytest.mark.parametrize(
    ("tags", "says", "is_in"),
    [
        (("administrator",), True, True),
        (("administrator",), 1, True),
        (("administrator",), False, False),
        (("administrator",), "no", False),
        (("monitoring",), True, False),
        ((), True, False),
    ],
)
def test_a_client_that_declares_itself_an_administrator_is_admitted(
    tags: tuple[str, ...], says: bool | int | str, is_in: bool
) -> None:
    """As Qpid's own tools do, by a client property."""
    loop = Loop({"ada": "guest"})
    loop.define("user", "", "ada", Loop.hashed("guest", *tags))
    loop.gateway.stand_by(BACKUP, briefly=False)
    peer = Peer(loop)
    peer.send(opening(user="ada", properties={"qpid.ha-admin": says}), OPEN_CHANNEL)
    assert bool(peer.client.conn) is is_in
    assert loop.gateway.counters["refused"] == (not is_in)


def test_an_administrator_stays_when_its_member_becomes_a_backup() -> None:
    loop = Loop()
    operator, client = Peer(loop), Peer(loop)
    operator.send(opening(properties={"qpid.ha-admin": True}), OPEN_CHANNEL)
    client.send(opening(), OPEN_CHANNEL)
    loop.gateway.stand_by(BACKUP, briefly=False)
    loop.turn()
    assert operator.client.conn
    assert not client.client.conn


def test_connections_of_the_process_itself_are_admitted() -> None:
    """A shovel, and AMQP operations of the management API: they have a purpose and no socket."""
    loop = Loop()
    loop.gateway.stand_by(BACKUP, briefly=False)
    peer = Peer(loop)
    peer.client.purpose = "shovel 'one'"
    peer.send(opening(), OPEN_CHANNEL)
    assert peer.client.conn


def test_a_client_waits_while_the_active_member_is_unknown() -> None:
    for reason, conn in (("", True), (BACKUP, False)):
        loop = Loop()
        loop.gateway.stand_by("member 'a' is a backup, and no member is active", briefly=True)
        peer = Peer(loop)
        peer.send(opening(), OPEN_CHANNEL)
        loop.gateway.admission.admit_waiting(soon=False)
        assert not peer.client.conn
        assert not peer.client.wants_close
        loop.gateway.stand_by(reason, briefly=False)
        loop.gateway.admission.admit_waiting(soon=False)
        loop.turn()
        assert bool(peer.client.conn) is conn


def test_a_client_that_has_waited_too_long_is_told_why() -> None:
    loop = Loop()
    loop.gateway.stand_by(BACKUP, briefly=True)
    peer = Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    loop.gateway.refuse_overdue(peer.client.connected_at + WAIT_S + 0.1)
    loop.turn()
    assert refusal(peer) == (320, f"CONNECTION_FORCED - {BACKUP}")


def test_a_pending_backup_holds_clients_even_without_a_primary() -> None:
    """O5: until it is resolved, or for as long as a login may take; operators are admitted."""
    loop = Loop()
    loop.gateway.stand_by("member 'a' is pending", briefly=False, holds=True)
    peer, operator = Peer(loop), Peer(loop)
    peer.send(opening(), OPEN_CHANNEL)
    operator.send(opening(properties={"qpid.ha-admin": True}), OPEN_CHANNEL)
    assert operator.client.conn
    loop.gateway.refuse_overdue(peer.client.connected_at + WAIT_S + 0.1)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert not peer.client.conn
    assert not peer.client.wants_close
    loop.gateway.stand_by("", briefly=False)
    loop.gateway.admission.admit_waiting(soon=False)
    loop.turn()
    assert peer.client.conn
    loop.gateway.stand_by("member 'a' is pending", briefly=False, holds=True)
    late = Peer(loop)
    late.send(opening(), OPEN_CHANNEL)
    loop.gateway.refuse_overdue(late.client.connected_at + loop.gateway.limits.handshake_s + 0.1)
    loop.turn()
    assert refusal(late) == (320, "CONNECTION_FORCED - member 'a' is pending")


def test_watching_notices_attempts_of_clients_but_not_of_operators() -> None:
    """O9: a client that tries to connect is noticed; one that waits is checked like a connected
    one, as it may have been cut off meanwhile."""
    loop = Loop()
    gateway = loop.gateway
    gateway.stand_by(BACKUP, briefly=False)
    Peer(loop).send(opening(), OPEN_CHANNEL)
    gateway.admission.watch(on=True)
    assert not gateway.admission.heard
    Peer(loop).send(opening(properties={"qpid.ha-admin": True}), OPEN_CHANNEL)
    Peer(loop).send(opening(user="nobody"), OPEN_CHANNEL)
    assert not gateway.admission.heard
    Peer(loop).send(opening(), OPEN_CHANNEL)
    assert gateway.admission.heard
    gateway.admission.watch(on=False)
    assert not gateway.admission.heard
    gateway.stand_by(BACKUP, briefly=False, holds=True)
    waits = Peer(loop)
    waits.send(opening(), OPEN_CHANNEL)
    gateway.admission.watch(on=True)
    assert not gateway.admission.heard
    assert gateway.ordinary == [waits.client]
