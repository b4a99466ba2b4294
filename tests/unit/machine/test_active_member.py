"""The role of the active member: ordered, part of the state, gone with its session (G14, G25)."""

from __future__ import annotations

from broker.machine import commands as c
from broker.machine.machine import Machine
from tests.support.three_machines import Rig


def promote(rig: Rig, member: str) -> int:
    return rig.apply(rig.machine.sessions[member].session, c.Promote(c.PROMOTE, rig.machine.epoch))


def demote(rig: Rig, member: str) -> int:
    return rig.apply(rig.machine.sessions[member].session, c.Demote(c.DEMOTE, rig.machine.epoch))


def test_of_two_who_take_it_the_first_in_the_order_has_it() -> None:
    """G25."""
    rig = Rig()
    root = rig.machine.root()
    assert promote(rig, "b") == c.OK
    assert promote(rig, "a") == c.IGNORED
    assert promote(rig, "b") == c.IGNORED
    assert rig.machine.active == "b"
    assert rig.machine.root() != root
    assert demote(rig, "a") == c.IGNORED
    assert demote(rig, "b") == c.OK
    assert demote(rig, "b") == c.IGNORED
    assert (rig.machine.active, rig.machine.root()) == ("", root)
    assert promote(rig, "a") == c.OK


def test_who_keeps_its_session_keeps_it_and_who_loses_it_does_not() -> None:
    """G25."""
    rig = Rig()
    promote(rig, "b")
    rig.activate(members=("b", "c"))
    assert rig.machine.active == "b"
    rig.activate("b")
    assert rig.machine.active == "", "another incarnation, or one that fetched its state"
    promote(rig, "b")
    rig.activate(members=("a", "c"))
    assert rig.machine.active == ""
    promote(rig, "a")
    rig.activate(cold=True)
    assert rig.machine.active == ""


def test_what_was_wanted_in_an_earlier_epoch_is_not_done() -> None:
    rig = Rig()
    session, epoch = rig.machine.sessions["b"].session, rig.machine.epoch
    rig.activate()
    assert rig.apply(session, c.Promote(c.PROMOTE, epoch)) == c.IGNORED
    assert promote(rig, "b") == c.OK
    assert rig.apply(session, c.Demote(c.DEMOTE, epoch)) == c.IGNORED
    assert rig.machine.active == "b"


def test_no_session_no_role() -> None:
    rig = Rig()
    old = rig.machine.sessions["b"].session
    rig.activate("b")
    assert rig.apply(old, c.Promote(c.PROMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.apply(12345, c.Promote(c.PROMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.apply(old, c.Demote(c.DEMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.machine.active == ""


def test_it_is_in_a_snapshot() -> None:
    """G14."""
    rig = Rig()
    promote(rig, "c")
    copy = Machine.restore("c", rig.machine.snapshot())
    assert (copy.active, copy.root()) == ("c", rig.machine.root())
    assert copy.recompute_root() == copy.root()
