"""Transactions, sessions of members, the sequence of blobs, and cold starts."""

import pytest

from broker.machine import commands as c
from broker.machine.effects import GetOk, SessionStarted
from broker.machine.handlers import cold_start
from broker.machine.machine import Machine
from broker.machine.state import Queue, State, Survivors
from tests.support.three_machines import EMPTY, MEMBERS, Client, Rig


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    client.queue("q")
    return client


def message(key: str, body: bytes, flags: int = c.PERSISTENT) -> c.TxPublish:
    return c.TxPublish("", key, flags, EMPTY, body)


def test_a_commit_takes_effect_at_one_position(client: Client) -> None:
    client.publish("q", b"0")
    client.publish("q", b"00")
    client.get("q")
    client.get("q")
    outcome = client.commit(
        [message("q", b"1"), message("none", b"2", c.MANDATORY)],
        [c.TxSettle(1, False, c.TX_ACK), c.TxSettle(2, False, c.TX_REQUEUE)],
    )
    assert outcome == c.OK
    assert len(client.returns()) == 1
    assert client.replies() == [("tx.commit-ok", (), True)]
    client.get("q")
    got = client.got()
    assert isinstance(got, GetOk)
    assert (got.body, got.redelivered, got.message_count) == (b"00", True, 1)


def test_a_commit_that_fails_does_nothing(client: Client) -> None:
    client.publish("q", b"0")
    client.get("q")
    lost = c.TxPublish("nowhere", "q", 0, EMPTY, b"1")
    assert client.commit([message("q", b"1"), lost], [c.TxSettle(1, False, c.TX_ACK)]) == 404
    assert client.rig.depth("q") == 1
    again = client.channel(1)
    assert again.commit([message("q", b"1")], [c.TxSettle(9, False, c.TX_ACK)]) == 406
    assert client.rig.depth("q") == 1
    again = client.channel(1)
    again.get("q")
    twice = [c.TxSettle(1, False, c.TX_ACK), c.TxSettle(1, False, c.TX_ACK)]
    assert again.commit([], twice) == 406
    assert client.rig.depth("q") == 1


def test_settling_all_in_a_commit_means_all_before_it(client: Client) -> None:
    """The commit's own message, delivered at once, is not settled by the commit's own ack."""
    client.consume("q")
    client.publish("q", b"before")
    settle = c.TxSettle(0, True, c.TX_DISCARD)
    assert client.commit([message("q", b"own")], [settle, settle]) == c.OK
    client.close_channel()
    assert client.rig.depth("q") == 1


def test_messages_returned_by_a_commit_go_before_those_it_publishes(client: Client) -> None:
    """In the order of G12, to a consumer with credit for both."""
    client.publish("q", b"old")
    client.consume("q", prefetch=2)
    client.deliveries()
    assert client.commit([message("q", b"new")], [c.TxSettle(1, False, c.TX_REQUEUE)]) == c.OK
    assert client.deliveries() == [(2, b"old", True), (3, b"new", False)]


def test_each_member_gets_its_own_session(rig: Rig) -> None:
    sessions = [record.session for record in rig.machine.sessions.values()]
    assert sessions == [256, 257, 258]
    machine = Machine("b")
    members = tuple(c.ActiveMember(name, 1, False) for name in MEMBERS)
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, MEMBERS, "id"))
    assert machine.take_effects() == [SessionStarted(257)]
    assert (machine.epoch, machine.voters, machine.cluster_id) == (1, MEMBERS, "id")


def test_an_activation_of_an_old_epoch_is_ignored(rig: Rig) -> None:
    root = rig.machine.root()
    assert rig.apply(0, c.Activate(c.ACTIVATE, 1, (), True, (), "")) == c.IGNORED
    assert rig.machine.root() == root


def test_a_version_takes_effect_only_in_the_epoch_whose_members_were_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.machine.handlers.sessions.MACHINE_VERSION", 9)
    machine = Machine("a")
    assert machine.version == 0, "before the first activation"
    members = tuple(c.ActiveMember(name, 1, False) for name in MEMBERS)
    for epoch, version in ((1, 7), (2, 9)):
        activate = c.Activate(c.ACTIVATE, epoch, members, False, MEMBERS, "id", version)
        assert machine.apply(epoch, 0, 0, activate) == c.OK
        assert machine.version == 7, "an activation sets a version only in a state without one"
    root = machine.root()
    for epoch, version in ((1, 8), (2, 7), (2, 6)):
        assert machine.apply(3, 0, 0, c.Upgrade(c.UPGRADE, epoch, version)) == c.IGNORED
    assert machine.root() == root
    assert machine.apply(4, 0, 0, c.Upgrade(c.UPGRADE, 2, 9)) == c.OK
    assert (machine.version, machine.root() == root) == (9, False)
    machine.invariants()
    assert Machine.restore("b", machine.snapshot()).version == 9


def test_a_lost_member_returns_the_messages_it_held(rig: Rig, client: Client) -> None:
    client.queue("mine", exclusive=True)
    client.consume("q")
    survivor = rig.client("b")
    survivor.publish("q", b"1")
    survivor.publish("q", b"2")
    rig.activate(members=("b", "c"))
    assert "a" not in rig.machine.sessions
    assert not rig.has_queue("mine")
    assert rig.depth("q") == 2
    survivor.get("q")
    got = survivor.got()
    assert isinstance(got, GetOk)
    assert (got.body, got.redelivered) == (b"1", True)
    assert client.publish("q") == c.IGNORED
    assert client.do(c.ConnectionOpen(c.CONNECTION_OPEN, 9, "/", "", "")) == c.IGNORED


def test_connections_that_end_together_deliver_nothing_to_each_other(
    rig: Rig, client: Client
) -> None:
    second = rig.client("a")
    client.consume("q", prefetch=1)
    second.consume("q", prefetch=1)
    client.publish("q", b"1")
    client.publish("q", b"2")
    before = second.session
    rig.activate("a")
    assert rig.machine.sessions["a"].session != before
    queue = rig.machine.vhosts["/"].queues["q"]
    assert list(queue.returned) == [0, 1]
    assert not rig.machine.connections


def test_a_member_that_continues_keeps_its_session(rig: Rig, client: Client) -> None:
    session = rig.machine.sessions["a"].session
    rig.activate("b")
    assert rig.machine.sessions["a"].session == session
    assert client.publish("q") == c.OK


def test_a_new_incarnation_gets_a_new_session(rig: Rig, client: Client) -> None:
    reborn = (c.ActiveMember("a", 2, False),)
    rig.apply(0, c.Activate(c.ACTIVATE, 5, reborn, False, MEMBERS, "cluster"))
    assert rig.machine.sessions["a"].incarnation == 2
    assert client.publish("q") == c.IGNORED


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}])
def test_a_cold_start_uses_an_earlier_search_for_survivors(
    rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch, arguments: c.Table
) -> None:
    """Held messages return to the front, which shifts all other numbers; what no longer matches is
    searched again."""
    client.delete("q")
    client.queue("q", arguments)
    for number in range(6):
        client.publish("q", b"%d" % number, flags=0 if number in (2, 5) else c.PERSISTENT)
    for _ in range(3):
        client.get("q")
    client.nack(1)
    machine = rig.machine
    looks: list[int] = []

    def look(state: State, queue: Queue, found: Survivors) -> int:
        looks.append(count := original(state, queue, found))
        return count

    original = cold_start._look
    monkeypatch.setattr(cold_start, "_look", look)
    list(cold_start.find_survivors(machine))
    assert (sum(looks), looks[-1]) == (6, 0)
    copies = [Machine.restore("a", machine.snapshot()) for _ in range(2)]
    cold = c.Activate(c.ACTIVATE, machine.epoch + 1, (), True, MEMBERS, "cluster")
    looks.clear()
    assert copies[0].apply(rig.position + 1, 0, 0, cold) == c.OK
    assert (sum(looks), looks[-1]) == (6, 0)
    copies[1].survivors = machine.survivors
    looks.clear()
    assert copies[1].apply(rig.position + 1, 0, 0, cold) == c.OK
    assert looks == [0]
    assert not copies[1].survivors
    assert copies[0].root() == copies[1].root()
    for copy in copies:
        copy.invariants()
    list(cold_start.find_survivors(machine))
    client.publish("q", b"late", flags=0)
    rig.apply(0, cold)  # a search of an older state
    assert rig.depth("q") == 4


def test_a_cold_start_keeps_durable_messages(rig: Rig, client: Client) -> None:
    client.queue("volatile", durable=False)
    client.exchange("gone", durable=False)
    client.exchange("stays")
    client.bind("q", "gone")
    client.bind("q", "stays")
    for number, flags in enumerate((c.PERSISTENT, 0, c.PERSISTENT, c.PERSISTENT)):
        client.publish("q", b"%d" % number, flags=flags)
    client.publish("volatile", b"x")
    client.get("q")
    rig.activate(cold=True)
    assert not rig.machine.connections
    assert not rig.has_queue("volatile")
    assert not rig.has_exchange("gone")
    assert rig.has_exchange("amq.topic")
    assert rig.depth("q") == 3
    again = rig.client()
    again.publish("q", b"new")
    for body, redelivered in ((b"0", True), (b"2", True), (b"3", True), (b"new", False)):
        again.get("q")
        got = again.got()
        assert isinstance(got, GetOk)
        assert (got.body, got.redelivered) == (body, redelivered)


def test_only_the_next_blob_of_a_live_session_is_accepted(rig: Rig) -> None:
    machine = rig.machine
    session = machine.sessions["b"].session
    assert machine.accept_blob("b", session, 1)
    assert not machine.accept_blob("b", session, 1)
    assert not machine.accept_blob("b", session, 3)
    assert machine.accept_blob("b", session, 2)
    assert not machine.accept_blob("b", session + 1, 3)
    assert not machine.accept_blob("nobody", session, 3)
    machine.invariants()


def test_a_shutdown_is_part_of_the_state_and_a_digest_is_not(rig: Rig) -> None:
    root = rig.machine.root()
    assert rig.apply(0, c.DigestClaim(c.DIGEST, 1, 1, b"", 0)) == c.OK
    assert rig.machine.root() == root
    assert rig.apply(0, c.Shutdown(c.SHUTDOWN, "stop-1")) == c.OK
    assert rig.machine.shutdown_id == "stop-1"
    assert rig.machine.root() != root


@pytest.mark.parametrize(
    ("members", "cold", "stands"),
    [
        ([("a", 1, False), ("b", 1, False)], False, True),
        ([("a", 1, False), ("d", 7, True)], False, True),  # one that was not there when it stopped
        ([("a", 1, False), ("b", 2, False)], False, False),
        ([("d", 7, True)], True, False),
    ],
)
def test_a_shutdown_stands_until_a_member_of_its_run_begins_again(
    rig: Rig, members: list[tuple[str, int, bool]], *, cold: bool, stands: bool
) -> None:
    rig.apply(0, c.Shutdown(c.SHUTDOWN, "stop-1"))
    listed = tuple(c.ActiveMember(*member) for member in members)
    command = c.Activate(c.ACTIVATE, rig.machine.epoch + 1, listed, cold, MEMBERS, "id")
    assert rig.apply(0, command) == c.OK
    assert rig.machine.shutdown_id == "stop-1" * stands
    rig.machine.invariants()


def test_voters_change_only_from_the_current_set(rig: Rig) -> None:
    """G7: of two changes requested at the same time only one takes effect."""
    assert tuple(rig.machine.voters) == MEMBERS
    root = rig.machine.root()
    joint = (*MEMBERS, "->", "a", "b")
    assert rig.apply(0, c.Voters(c.VOTERS, MEMBERS, joint)) == c.OK
    assert rig.apply(0, c.Voters(c.VOTERS, MEMBERS, ("a",))) == c.IGNORED
    assert rig.apply(0, c.Voters(c.VOTERS, joint, ())) == c.IGNORED
    assert rig.machine.voters == joint
    assert rig.machine.root() != root
    assert rig.apply(0, c.Voters(c.VOTERS, joint, ("a", "b"))) == c.OK
    rig.machine.invariants()


def test_a_connection_number_is_used_once(rig: Rig, client: Client) -> None:
    again = c.ConnectionOpen(c.CONNECTION_OPEN, client.conn, "/", "", "")
    assert client.do(again) == c.IGNORED
    assert client.close() == c.OK
    assert client.replies() == [("connection.close-ok", (), False)]


def test_a_cold_start_finds_anew_what_came_back_over_a_limit(rig: Rig) -> None:
    """G14: one member looks through its queues before, and does not know what will be dropped as
    clients' messages come back."""
    client = rig.client()
    client.queue("q", {"x-max-length": 1})
    client.publish("q", b"held")
    client.get("q")
    client.publish("q", b"waits")
    rig.activate(cold=True)
    assert rig.depth("q") == 1
