"""Recent lateness is summed up, and forgotten after ten minutes."""

from broker.watchdogs.lateness import WINDOW_S, Lateness, Recent
from broker.watchdogs.process_pauses import MEMORY, PROCESSOR, WORK, ProcessPauses


def test_times_are_summed_by_cause() -> None:
    late = Lateness()
    late.add(100.0, 2.0, "one")
    late.add(130.0, 0.5, "other")
    late.add(160.0, 1.0, "one")
    found = late.recent(200.0)
    assert (found.times, found.sum_s, found.longest_s, found.since_s) == (3, 3.5, 2.0, 100.0)
    assert (found.of("one"), found.of("other"), found.of("third")) == (3.0, 0.5, 0.0)


def test_after_ten_minutes_it_is_forgotten() -> None:
    late = Lateness()
    late.add(100.0, 2.0)
    assert late.recent(100.0 + WINDOW_S).times == 1
    assert late.recent(100.1 + WINDOW_S) == Recent()


def test_a_pause_counts_under_its_cause_even_if_it_is_not_logged() -> None:
    watched = ProcessPauses(0.1, 0.2)
    watched.look(10.0, 1.0, 0)
    assert watched.look(10.6, 1.0, 0)
    assert watched.look(11.2, 1.5, 0) == ""
    assert watched.look(11.8, 1.5, 40)
    assert watched.look(11.9, 1.5, 40) == ""
    found = watched.late.recent(12.0)
    assert found.times == 3
    causes = (PROCESSOR, WORK, MEMORY)
    assert [round(found.of(cause), 3) for cause in causes] == [0.5, 0.5, 0.5]
