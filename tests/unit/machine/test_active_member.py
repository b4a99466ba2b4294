"""The active member: a role that is ordered, part of the state, and lost with its session (G14,
G25).
"""

from __future__ import annotations

from broker.machine import commands as c
from broker.machine.machine import Machine
from tests.support.three_machines import Rig


def promote(rig: Rig, member: str) -> int:
    return rig.apply(rig.machine.sessions[member].session, c.Promote(c.PROMOTE, rig.machine.epoch))


def demote(rig: Rig, member: str) -> int:
    return rig.apply(rig.machine.sessions[member].session, c.Demote(c.DEMOTE, rig.machine.epoch))


def test_of_two_members_the_first_in_the_order_becomes_active() -> None:
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


def test_the_role_stays_with_its_session() -> None:
    """G25."""
    rig = Rig()
    promote(rig, "b")
    rig.activate(members=("b", "c"))
    assert rig.machine.active == "b"
    rig.activate("b")
    assert rig.machine.active == "", "another incarnation, or a member that fetched the state"
    promote(rig, "b")
    rig.activate(members=("a", "c"))
    assert rig.machine.active == ""
    promote(rig, "a")
    rig.activate(cold=True)
    assert rig.machine.active == ""


def test_a_promotion_asked_for_in_an_earlier_epoch_is_ignored() -> None:
    rig = Rig()
    session, epoch = rig.machine.sessions["b"].session, rig.machine.epoch
    rig.activate()
    assert rig.apply(session, c.Promote(c.PROMOTE, epoch)) == c.IGNORED
    assert promote(rig, "b") == c.OK
    assert rig.apply(session, c.Demote(c.DEMOTE, epoch)) == c.IGNORED
    assert rig.machine.active == "b"


def test_a_member_without_a_session_gets_no_role() -> None:
    rig = Rig()
    old = rig.machine.sessions["b"].session
    rig.activate("b")
    assert rig.apply(old, c.Promote(c.PROMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.apply(12345, c.Promote(c.PROMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.apply(old, c.Demote(c.DEMOTE, rig.machine.epoch)) == c.IGNORED
    assert rig.machine.active == ""


def test_the_role_is_in_snapshots() -> None:
    """G14."""
    rig = Rig()
    promote(rig, "c")
    copy = Machine.restore("c", rig.machine.snapshot())
    assert (copy.active, copy.root()) == ("c", rig.machine.root())
    assert copy.recompute_root() == copy.root()
