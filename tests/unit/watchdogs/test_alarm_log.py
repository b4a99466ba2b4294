"""Log lines about alarms: the start and end of each, but not a line a second for a flapping one."""

from __future__ import annotations

from broker.watchdogs.watchdogs import ALARM_LINES, ALARM_WINDOW_S, AlarmLog


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.log = AlarmLog(self.lines.append, lambda: self.now)

    def report(self, **alarms: str) -> list[str]:
        """The lines written for these alarms."""
        del self.lines[:]
        self.log.report(alarms)
        return list(self.lines)


def test_an_alarm_is_logged_at_its_start_and_its_end() -> None:
    bench = Bench()
    assert bench.report(disk="low on disk") == ["low on disk"]
    assert bench.report(disk="lower still", memory="low on memory") == ["low on memory"]
    assert bench.report(memory="low on memory") == ["the alarm about the disk is over"]
    assert bench.report() == ["the alarm about the memory is over"]


def test_a_flapping_alarm_is_counted_instead() -> None:
    bench = Bench()
    written = []
    for second in range(40):
        bench.now = float(second)
        written += bench.report(**({"disk": "low on disk"} if second % 2 else {}))
    assert len(written) == ALARM_LINES
    assert bench.report(memory="low on memory")[-1] == "low on memory"  # rate-limited by subject
    bench.now = ALARM_WINDOW_S + 2
    line, now = bench.report(memory="low on memory")
    assert "more lines like the last 6 (disk) were left out" in line
    assert now == "the alarm about the disk is over"


def test_the_last_line_gives_the_present_state() -> None:
    """An alarm whose start was not logged would look cleared to a reader of the log."""
    bench = Bench()
    for _ in range(ALARM_LINES // 2):
        bench.report(memory="low on memory")
        assert bench.report() == ["the alarm about the memory is over"]
    assert bench.report(memory="low on memory") == []
    bench.now = ALARM_WINDOW_S + 1
    counted, now = bench.report(memory="low on memory")
    assert "1 more lines" in counted
    assert now == "low on memory"
    assert bench.report(memory="low on memory") == []
    assert bench.report() == ["the alarm about the memory is over"]
