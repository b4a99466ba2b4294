"""Confirms that wait for the disks of all backups, up to a time limit (G37)."""

from __future__ import annotations

import random

import pytest

from broker.replication.durable_gate import Backups
from tests.support.scripted_views import formed, hello
from vsync.totem.events import Marks

T = 1.0
LAGS = {"a": 0.0, "b": 0.8, "c": 3.0}
"""By how many times of it a member is behind at most."""


class Waiting:
    """Backups with the test's own clock."""

    def __init__(self) -> None:
        self.now, self.lines = 100.0, list[str]()
        self.backups = Backups(T, lambda: self.now, self.lines.append)

    def at(self, seconds: float, quorum: int, **marks: int) -> int:
        self.now += seconds
        return self.backups.reached(quorum, marks)


def test_what_all_have_is_released_at_once() -> None:
    waiting = Waiting()
    assert waiting.at(0, 7, a=9, b=7, c=8) == 7
    assert not waiting.backups.waits


def test_a_position_one_member_lacks_waits_for_it() -> None:
    waiting = Waiting()
    assert waiting.at(0, 7, a=9, b=7, c=3) == 3
    assert waiting.backups.waits
    assert waiting.at(0.9, 7, a=9, b=7, c=6) == 6
    assert waiting.at(0.05, 7, a=9, b=7, c=7) == 7
    assert not waiting.backups.waits
    assert waiting.lines == []


def test_members_late_at_the_same_time_are_named_in_one_order() -> None:
    """Seed 36799763021 of the simulated brokers gave two traces under two hash seeds."""
    waiting = Waiting()
    waiting.at(0, 7, d=3, a=9, c=3, b=3)
    waiting.at(T, 20, d=3, a=20, c=3, b=3)
    assert [line.split()[8].strip(",") for line in waiting.lines] == ["b", "c", "d"]


def test_a_member_that_lags_too_long_is_skipped_until_it_is_near_again() -> None:
    waiting = Waiting()
    assert waiting.at(0, 7, a=9, b=7, c=3) == 3
    assert waiting.at(T, 20, a=20, b=20, c=3) == 20
    assert waiting.backups.late == {"c"}
    assert waiting.lines[-1] == (
        "confirms no longer wait for the disk of c, which has been behind for 1 s "
        "(--ha-backup-timeout)"
    )
    assert waiting.at(3 * T, 40, a=40, b=40, c=20) == 40, "reaching 20 took too long"
    assert waiting.backups.late == {"c"}
    assert waiting.at(0.5, 60, a=60, b=60, c=45) == 45, "reaching 40 did not"
    assert waiting.backups.late == frozenset()
    assert waiting.lines[-1] == "confirms wait for the disk of c again"


def test_an_absent_member_is_not_waited_for() -> None:
    waiting = Waiting()
    assert waiting.at(0, 7, a=9, b=7, c=3) == 3
    assert waiting.at(0.1, 7, a=9, b=7) == 7
    assert not waiting.backups.waits


def test_a_view_change_makes_nobody_late() -> None:
    waiting = Waiting()
    assert waiting.at(0, 7, a=9, b=7, c=3) == 3
    assert waiting.at(5 * T, 0) == 0
    assert waiting.at(5 * T, 8, a=9, b=8, c=3) == 3
    assert waiting.backups.late == frozenset()


@pytest.mark.turns(7)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_waits_past_the_limit_and_who_keeps_up_is_never_late(seed: int) -> None:
    """At random: `b` lags by less than the limit, `c` by any time; each position is checked."""
    chance, waiting = random.Random(seed), Waiting()
    ordered: list[float] = []  # when each position was ordered; the quorum has it at once
    released = 0
    for _ in range(400):
        waiting.now += chance.choice((0.001, 0.01, 0.05))
        ordered += [waiting.now] * chance.choice((0, 1, 1, 30))
        quorum = len(ordered)
        behind = {name: waiting.now - T * chance.random() * most for name, most in LAGS.items()}
        marks = {name: sum(at <= then for at in ordered) for name, then in behind.items()}
        before, late = released, waiting.backups.late
        released = max(released, waiting.backups.reached(quorum, marks))
        held = [at for at in ordered[released:] if waiting.now - at > T]
        assert not held, f"{len(held)} wait for longer than {T} s"
        assert "b" not in waiting.backups.late
        waited = marks.keys() - waiting.backups.late
        assert released == before or all(marks[name] >= released for name in waited), late
        assert len(waiting.backups._since) <= Backups.STEPS + 2


def test_a_member_releases_what_all_marks_on_the_ring_cover() -> None:
    """`a` has the option and waits for `c`; `b` does not and goes by the majority."""
    bus, waiting = formed(), Waiting()
    core, shell = bus.cores["a"], bus.shells["a"]
    core.backups = waiting.backups
    before = shell.released
    core.submit(hello())
    bus.run("a b c", disks=False)
    now = core.replica.history.position
    assert now > before

    def marks(c: int) -> None:
        for name in ("a", "b"):
            bus.give(name, Marks({"a": now, "b": now, "c": c}))

    marks(c=before)
    assert bus.shells["b"].released == now
    assert (shell.released, core.release_late()) == (before, True)
    waiting.now += T / 2
    marks(c=now)
    assert not core.release_late()
    assert shell.released == now
    assert core.primary.durable() == now
