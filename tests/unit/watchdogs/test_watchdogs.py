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

LAG_S = 30.0


class Rig:
    """The watchdogs of a member that waits for a page which never comes, in a primary view in which
    nobody makes anything durable."""

    def __init__(self, held_back: list[str]) -> None:
        self.now = 100.0
        self.stopped: list[tuple[Exit, str]] = []
        unapplied = SimpleNamespace(
            waits_for_disk=True, held_back=held_back, execution=SimpleNamespace(pauses=1),
            work=SimpleNamespace(bytes=7),
        )  # fmt: skip
        controller: Any = SimpleNamespace(
            unapplied=unapplied, ran=True, replica=Mock(),
            primary=SimpleNamespace(active=True, durable_elsewhere=lambda: 9),
        )  # fmt: skip
        controller.replica.machine.alarms = {}
        self.watchdogs = Watchdogs(
            Mock(config=Mock(lease_ms=1000)), Bounds(5, LAG_S, 8 << 20, 0, 0, 0),
            Mock(time=lambda: self.now), Mock(), send_direct=Mock(), wall_us=lambda: 0,
            controller=lambda: controller, persister=Mock(), disk_lag=lambda: NO_LAG,
            full=lambda: "", stop=lambda *why: self.stopped.append(why), hang_s=0,
        )  # fmt: skip
        self.watchdogs.memory = Mock()
        self.watchdogs.resources = Mock()
        self.watchdogs.resources.wants_checkpoint.return_value = False
        self.watchdogs.resources.must_leave.return_value = ""

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
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
