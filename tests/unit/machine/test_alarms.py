"""Alarms of members: ordered, part of the state, ended with their session (G14, G21)."""

from __future__ import annotations

from broker.machine import commands as c
from broker.machine.handlers.alarms import DETAIL_MAX, DISK, MEMORY
from broker.machine.machine import Machine
from tests.support.three_machines import Rig


def alarm(rig: Rig, member: str, subject: str, on: bool, detail: str = "1 MB free") -> int:
    session = rig.machine.sessions[member].session
    return rig.apply(session, c.Alarm(c.ALARM, subject, on, detail))


def test_an_alarm_lasts_until_every_member_that_raised_it_has_ended_it() -> None:
    """G21."""
    rig = Rig()
    assert rig.machine.alarm == ""
    root = rig.machine.root()
    assert alarm(rig, "a", DISK, True) == c.OK
    assert rig.machine.alarm == "low on disk: 1 MB free at a"
    assert alarm(rig, "b", MEMORY, True, "9 GB used") == c.OK
    assert rig.machine.alarm == "low on disk: 1 MB free at a, and 1 more"
    assert alarm(rig, "a", DISK, False) == c.OK
    assert rig.machine.alarm == "low on memory: 9 GB used at b"
    assert alarm(rig, "b", MEMORY, False, "") == c.OK
    assert rig.machine.alarm == ""
    assert rig.machine.root() == root


def test_a_repeated_or_invalid_alarm_changes_nothing() -> None:
    rig = Rig()
    alarm(rig, "a", DISK, True)
    root = rig.machine.root()
    assert alarm(rig, "a", DISK, True) == c.IGNORED
    assert alarm(rig, "b", DISK, False) == c.IGNORED
    assert alarm(rig, "b", "weather", True) == c.IGNORED
    assert alarm(rig, "b", DISK, True, "x" * (DETAIL_MAX + 1)) == c.IGNORED
    assert rig.apply(12345, c.Alarm(c.ALARM, DISK, True, "")) == c.IGNORED
    assert rig.machine.root() == root
    assert alarm(rig, "a", DISK, True, "0 MB free") == c.OK
    assert rig.machine.alarm == "low on disk: 0 MB free at a"
    rig.machine.invariants()


def test_the_alarm_of_a_dead_member_ends_with_its_session() -> None:
    rig = Rig()
    alarm(rig, "a", DISK, True)
    alarm(rig, "b", DISK, True)
    rig.activate(members=("b", "c"))
    assert rig.machine.alarm == "low on disk: 1 MB free at b"
    rig.activate(cold=True)
    assert rig.machine.alarm == ""
    rig.machine.invariants()


def test_alarms_are_in_snapshots() -> None:
    """G14."""
    rig = Rig()
    alarm(rig, "a", DISK, True)
    alarm(rig, "b", MEMORY, True)
    copy = Machine.restore("c", rig.machine.snapshot())
    assert list(copy.alarms.items()) == list(rig.machine.alarms.items())
    assert copy.root() == rig.machine.root()
