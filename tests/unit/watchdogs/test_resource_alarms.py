"""One member's alarms: when they start and end, what is logged, and who leaves a full
disk (G21)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine.commands import Alarm, Command
from broker.machine.handlers.alarms import DISK, FULL, MEMORY
from broker.options.broker import broker_options
from broker.options.values import OptionError
from broker.replication.controller import Controller
from broker.watchdogs.resource_alarms import (
    LEAVE_AFTER_S,
    RELIEF_S,
    Limit,
    Reading,
    ResourceAlarms,
)
from broker.watchdogs.resource_gauge import memory_allowed, own_bytes

MB = 10**6


class Bench:
    """One member of three, and what it ordered."""

    def __init__(self, disk_free: Limit = 100 * MB, memory: Limit = 0.5) -> None:
        self.alarms = ResourceAlarms(disk_free, memory, lambda: 30 * MB)
        self.ordered: list[Command] = []
        self.in_force: dict[tuple[str, str], str] = {}
        self.stub = SimpleNamespace(
            serving=True, submissions=SimpleNamespace(session=1), submit=self.ordered.extend,
            me=SimpleNamespace(name="a"), promise=SimpleNamespace(voters=("a", "b", "c")),
            primary=SimpleNamespace(caught_up_names=frozenset("abc")),
            replica=SimpleNamespace(machine=SimpleNamespace(alarms=self.in_force)),
        )  # fmt: skip
        self.controller = cast("Controller", self.stub)

    def look(
        self, room_mb: int = 1000, used_mb: int = 1, full: str = "", owed_mb: int = 0
    ) -> list[tuple[str, bool]]:
        """What is ordered for this reading."""
        reading = Reading(room_mb * MB, 10_000 * MB, used_mb * MB, 1000 * MB, owed_mb * MB)
        self.alarms.look(reading, full)
        del self.ordered[:]
        self.alarms.order(self.controller)
        return [(one.subject, one.on) for one in self.ordered if isinstance(one, Alarm)]


def test_an_alarm_is_raised_once_and_ends_with_a_tenth_more() -> None:
    """G21."""
    bench = Bench()
    assert bench.look(100) == []
    assert bench.look(99) == [(DISK, True)]
    assert "99.0 MB free of 100.0 MB wanted (--disk-free-limit)" in bench.alarms.own[DISK]
    assert bench.look(99) == []
    assert bench.look(109) == []
    assert bench.look(111) == [(DISK, False)]
    assert bench.look(101) == []


def test_publishers_do_not_use_a_given_up_reserve_whatever_the_limit() -> None:
    """G21: otherwise nothing would be left to drain the queues with."""
    bench = Bench(disk_free=0)
    assert bench.look(1) == []
    assert bench.look(31, owed_mb=32) == [(DISK, True)]
    said = "31.0 MB free of 32.0 MB wanted (the reserve was given up)"  # no limit was given
    assert bench.alarms.own[DISK] == said
    assert bench.look(34, owed_mb=32) == []
    assert bench.look(34) == [(DISK, False)]


def test_changed_limits_apply_from_the_next_reading() -> None:
    bench = Bench()
    assert bench.look(99, 501) == [(DISK, True), (MEMORY, True)]
    bench.alarms.set_limits(98 * MB, 502 * MB)
    assert bench.look(99, 501) == [(DISK, False), (MEMORY, False)]
    bench.alarms.set_limits(99.5e6 / 1e10, 502 * MB)
    assert bench.look(99, 501) == [(DISK, True)]
    bench.alarms.set_limits(99.4e6 / 1e10, 502 * MB)
    assert bench.look(99, 501) == []
    assert DISK in bench.alarms.own
    assert "99.4 MB" in bench.alarms.own[DISK]


def test_memory_counts_upwards() -> None:
    bench = Bench()
    assert bench.look(used_mb=501) == [(MEMORY, True)]
    assert bench.look(used_mb=460) == []
    assert bench.look(used_mb=449) == [(MEMORY, False)]


def test_the_default_is_the_space_of_another_checkpoint() -> None:
    bench = Bench(None)
    assert bench.look(287) == []
    assert bench.look(285) == [(DISK, True)]


def test_zero_limits_nothing() -> None:
    bench = Bench(0, 0)
    assert bench.look(0, 10_000) == []


def test_a_new_session_learns_of_standing_alarms() -> None:
    bench = Bench()
    bench.stub.serving = False
    assert bench.look(1) == []
    bench.stub.serving = True
    assert bench.look(1) == [(DISK, True)]
    bench.stub.submissions.session = 2
    assert bench.look(1) == [(DISK, True)]


def test_a_full_disk_is_left_only_if_the_others_are_a_quorum() -> None:
    """G21. Not at once: identical disks fill up at about the same time."""
    bench = Bench()
    assert bench.look(full="no space") == [(FULL, True)]
    assert not bench.alarms.must_leave(bench.controller, 0.0)
    bench.in_force["a", FULL] = "no space"
    assert not bench.alarms.must_leave(bench.controller, 10.0)
    bench.in_force["b", FULL] = "no space"
    assert not bench.alarms.must_leave(bench.controller, 11.0 + LEAVE_AFTER_S)
    del bench.in_force["b", FULL]
    assert "the others continue: no space" in bench.alarms.must_leave(bench.controller, 20.0)


def test_a_disk_that_is_full_again_is_watched_again() -> None:
    """G21. The time in which it had room is no time in which it was full."""
    bench = Bench()
    bench.in_force["a", FULL] = "no space"
    bench.look(full="no space")
    assert not bench.alarms.must_leave(bench.controller, 0.0)
    bench.look(full="")
    assert not bench.alarms.must_leave(bench.controller, 1.0)
    bench.look(full="no space")
    assert not bench.alarms.must_leave(bench.controller, 100.0)
    assert bench.alarms.must_leave(bench.controller, 101.0 + LEAVE_AFTER_S)


def test_a_pairs_member_leaves_a_full_disk_if_its_peer_may_take_the_vote() -> None:
    """G21, G28."""
    bench = Bench()
    bench.in_force["a", FULL] = "no space"
    bench.look(full="no space")
    for voters, level, leaves in (
        (("a", "b", "@pair=b"), "ab", True),
        (("a", "b", "@pair=b"), "a", False),  # without the whole state
        (("a", "b", "@pair=b", "@away=b"), "ab", False),  # and it does not count yet
        (("a", "b"), "ab", False),
    ):
        bench.stub.promise.voters = voters
        bench.stub.primary.caught_up_names = frozenset(level)
        bench.alarms.must_leave(bench.controller, 0.0)
        assert bool(bench.alarms.must_leave(bench.controller, 1.0 + LEAVE_AFTER_S)) is leaves


def test_after_draining_a_checkpoint_makes_room_now_and_then() -> None:
    bench = Bench()
    rows = [SimpleNamespace(ready=0, unacked=0)]
    bench.stub.replica.machine.queue_rows = lambda: rows
    bench.look(1000)
    assert not bench.alarms.wants_checkpoint(bench.controller, 10.0)  # there is room
    bench.look(1)
    assert bench.alarms.wants_checkpoint(bench.controller, 10.0)
    assert not bench.alarms.wants_checkpoint(bench.controller, 10.0 + RELIEF_S - 1)
    rows.append(SimpleNamespace(ready=0, unacked=1))
    assert not bench.alarms.wants_checkpoint(bench.controller, 10.0 + RELIEF_S)  # not drained
    rows.pop()
    assert bench.alarms.wants_checkpoint(bench.controller, 10.0 + 2 * RELIEF_S)


def test_memory_is_read_and_bounded_by_the_control_group(tmp_path: Path) -> None:
    assert own_bytes() > MB
    whole = memory_allowed(tmp_path, tmp_path / "none")
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/memory.max").write_text("123000000\n")
    (tmp_path / "outer/inner/memory.max").write_text("max\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    assert memory_allowed(tmp_path, own) == 123_000_000 < whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2GB", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("0", 0),
        ("0.1", 0.1),
        ("10%", 0.1),
        ("auto", None),
    ],
)
def test_limits_are_amounts_or_shares(text: str, value: Limit) -> None:
    assert broker_options({"disk-free-limit": text}).bounds.disk_free == value


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5", "100%", "2 XB", "auto"])
def test_an_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"amount|share"):
        broker_options({"memory-limit": text})


@pytest.mark.parametrize("option", ["memory-limit", "max-message-size"])
def test_a_suffix_of_1000_or_1024_is_refused_with_both_readings(option: str) -> None:
    """RabbitMQ read 70M as one of them and, since 3.13, as the other."""
    with pytest.raises(OptionError) as refused:
        broker_options({option: "70m"})
    assert refused.value.reason == "'70m' may be 70MB (thousands) or 70MiB (1024): write which"
