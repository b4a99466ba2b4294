"""Commands that killed a majority are refused by all members, at the same position (G16)."""

from __future__ import annotations

from broker.machine import commands as c
from broker.machine.effects import ConnectionError_, Defined
from broker.machine.handlers.poison import KEPT_MAX, content_of
from broker.machine.machine import Machine
from tests.support.three_machines import EMPTY, Rig


def publish(conn: int, number: int, body: bytes = b"poison") -> c.Publish:
    return c.Publish(c.PUBLISH, conn, 1, number, "", "q", 4, EMPTY, body)


def report(rig: Rig, member: str, command: c.Command) -> int:
    content = content_of(command)
    assert content is not None
    session = rig.machine.sessions[member].session
    return rig.apply(session, c.Poisoned(c.POISONED, command[0], content))


def test_a_command_is_refused_once_a_majority_reports_it() -> None:
    """G16."""
    rig = Rig()
    client = rig.client("a")
    assert report(rig, "a", publish(9, 9)) == c.OK
    assert report(rig, "a", publish(7, 1)) == c.IGNORED
    assert rig.apply(client.session, publish(client.conn, 1)) == c.UNROUTABLE
    assert report(rig, "c", publish(9, 9)) == c.OK
    assert rig.apply(client.session, publish(client.conn, 2, b"wholesome")) == c.UNROUTABLE
    assert rig.apply(client.session, publish(client.conn, 3)) == 541
    error = rig.effects[0]
    assert isinstance(error, ConnectionError_)
    assert error.code == 541
    assert error.text.startswith("INTERNAL_ERROR")
    assert rig.apply(client.session, publish(client.conn, 4)) == c.IGNORED


def test_which_commands_count_as_the_same() -> None:
    """A command that a client sends again after it reconnected counts as the same; no others do."""
    assert content_of(publish(1, 1)) == content_of(publish(2, 5))
    assert content_of(publish(1, 1)) != content_of(publish(1, 1, b"other"))
    assert content_of(c.Ack(c.ACK, 1, 1, 1, False)) is None
    assert content_of(c.Tick(c.TICK, 1, 0, 0)) is None
    one = c.Consume(c.CONSUME, 1, 1, "q", "tag-1", False, False, False, False, {}, 5)
    assert content_of(one) == content_of(one._replace(conn=2, tag="tag-2"))
    assert content_of(one) != content_of(one._replace(queue="r"))
    declare = c.QueueDeclare(
        c.QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {"a": 1, "b": 2}
    )
    assert content_of(declare) == content_of(declare._replace(arguments={"b": 2, "a": 1}))


def test_a_definition_that_killed_a_majority_is_refused() -> None:
    """G16: even with a password that is salted anew each time."""
    rig = Rig()

    def define(salt: str, name: str = "u") -> c.Define:
        body: c.Table = {"password_hash": salt, "hashing_algorithm": "sha", "tags": ()}
        return c.Define(c.DEFINE, 7, "guest", "user", "", name, body)

    for member in "ab":
        assert report(rig, member, define(member)) == c.OK
    session = rig.machine.sessions["c"].session
    assert rig.apply(session, define("c")) == 500
    (told,) = rig.effects
    assert isinstance(told, Defined)
    assert told.text.startswith("INTERNAL_ERROR - a command like this one stopped a majority")
    assert ("", "u") not in rig.machine.definitions["user"]
    assert rig.apply(session, define("c", "another")) == c.OK
    assert rig.define("user", "", "u", None)[0] == 404, "a deletion is another command"


def test_the_list_survives_a_snapshot_and_a_cold_start_clears_it() -> None:
    """A restart of the whole cluster is how a release that can execute the command is tried
    (G14)."""
    rig = Rig()
    for member in "ab":
        report(rig, member, publish(1, 1))
    copy = Machine.restore("b", rig.machine.snapshot())
    assert copy.poison == rig.machine.poison
    assert copy.root() == rig.machine.root()
    rig.activate(cold=True)
    assert not rig.machine.poison
    client = rig.client("a")
    assert rig.apply(client.session, publish(client.conn, 1)) == c.UNROUTABLE


def test_unknown_sessions_and_invalid_reports_are_ignored_and_the_list_is_bounded() -> None:
    rig = Rig()
    content = content_of(publish(1, 1))
    assert content is not None
    assert rig.apply(12345, c.Poisoned(c.POISONED, c.PUBLISH, content)) == c.IGNORED
    session = rig.machine.sessions["a"].session
    assert rig.apply(session, c.Poisoned(c.POISONED, c.ACK, content)) == c.IGNORED
    assert rig.apply(session, c.Poisoned(c.POISONED, c.PUBLISH, b"short")) == c.IGNORED
    for number in range(KEPT_MAX + 5):
        report(rig, "a", publish(1, 1, b"%d" % number))
    assert len(rig.machine.poison) == KEPT_MAX
