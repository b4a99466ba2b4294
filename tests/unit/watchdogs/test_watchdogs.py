"""What the watchdogs of one member do together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.exit_codes import Exit
from broker.options.bounds import Bounds
from broker.watchdogs.disk_lag import NO_LAG
from broker.watchdogs.watchdogs import BEAT_S, Watchdogs
from store.commit_queue import CommitLag

LAG_S = 30.0


class Rig:
    """The watchdogs of a member that waits for a page which never comes, in a primary view in which
    nobody makes anything durable."""

    def __init__(self, held_back: list[str]) -> None:
        self.now, self.full, self.commits = 100.0, "", NO_LAG
        self.mark, self.others_go_on = 9, False
        self.stopped: list[tuple[Exit, str]] = []
        unapplied = SimpleNamespace(
            waits_for_disk=True, held_back=held_back, execution=SimpleNamespace(pauses=1),
            work=SimpleNamespace(bytes=7),
        )  # fmt: skip
        controller: Any = SimpleNamespace(
            unapplied=unapplied, ran=True, replica=Mock(),
            primary=SimpleNamespace(active=True, durable_elsewhere=lambda: self.mark),
        )  # fmt: skip
        controller.replica.machine.alarms = {}
        self.unapplied, self.node = unapplied, Mock(config=Mock(lease_ms=1000))
        self.watchdogs = Watchdogs(
            self.node, Bounds(5, LAG_S, 8 << 20, 0, 0, 0),
            Mock(time=lambda: self.now), Mock(), send_direct=Mock(), wall_us=lambda: 0,
            controller=lambda: controller, persister=Mock(), disk_lag=lambda: self.commits,
            full=lambda: self.full, stop=lambda *why: self.stopped.append(why), hang_s=0,
        )  # fmt: skip
        self.watchdogs.memory = Mock()
        self.watchdogs.resources = Mock()
        self.watchdogs.resources.wants_checkpoint.return_value = False
        self.watchdogs.resources.must_leave.return_value = ""

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            self.mark += self.others_go_on
            self.watchdogs.wake()


@pytest.mark.parametrize("held_back", [[], ["view"]])
def test_who_holds_up_a_view_is_late_also_where_nobody_goes_on(held_back: list[str]) -> None:
    """The others wait for its report: docs/decisions/0060-applying-waits-for-the-disk.md."""
    rig = Rig(held_back)
    rig.wait(LAG_S - 1)
    assert not rig.stopped
    assert "has not given back" in rig.watchdogs.alarms["disk"]
    rig.wait(2)
    assert bool(rig.stopped) == bool(held_back)
    for code, why in rig.stopped:
        assert code is Exit.LATE_DISK
        assert "--disk-lag-max" in why


def test_a_write_that_waits_for_space_slows_nobody_down() -> None:
    """G21.  The queues are drained meanwhile, by all members. The ring was kept as slow as it was
    when the disk became full, for as long as it was full."""
    rig = Rig([])
    rig.unapplied.waits_for_disk, rig.others_go_on = False, True
    rig.commits = CommitLag(1, 100, rig.now)
    rig.wait(LAG_S / 2)
    assert rig.node.set_throttle.call_args.args[0] > 0
    rig.full = "no space"
    rig.wait(2 * LAG_S)
    assert rig.node.set_throttle.call_args.args[0] == 0
    assert "disk" not in rig.watchdogs.alarms
    rig.full = ""
    rig.wait(LAG_S - 1)
    assert not rig.stopped, "what waited behind it may take as long as anything"
    rig.wait(2)
    assert rig.stopped[0][0] is Exit.LATE_DISK


def test_who_holds_up_a_view_is_late_with_a_full_disk_too() -> None:
    rig = Rig(["view"])
    rig.full = "no space"
    rig.wait(LAG_S + 1)
    assert rig.stopped[0][0] is Exit.LATE_DISK
