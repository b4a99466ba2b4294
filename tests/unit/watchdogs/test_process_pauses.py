"""Late turns of the loop: counted, logged at most once a second, with the reason."""

import pytest

from broker.watchdogs.process_pauses import QUIET_S, ProcessPauses


def watch() -> ProcessPauses:
    watched = ProcessPauses(0.1, 0.2)
    assert watched.look(10.0, 1.0, 1) == ""
    return watched


@pytest.mark.parametrize(
    ("worked", "faults", "reason"),
    [
        (0.01, 0, "no processor was given"),
        (0.01, 24, "no processor was given"),
        (0.01, 26, "memory was paged out"),
        (0.41, 0, "a long piece of work"),
        (0.41, 26, "a long piece of work"),
    ],
)
def test_the_reason_is_where_most_of_the_time_went(worked: float, faults: int, reason: str) -> None:
    said = watch().look(10.6, 1.0 + worked, 1 + faults)
    assert said.startswith(f"{reason}: this process came 500 ms late")
    assert f"worked for {round(1000 * worked)} ms" in said
    assert f"waited for {faults} pages of its memory" in said


def test_a_punctual_loop_logs_nothing() -> None:
    watched = watch()
    for turn in range(1, 50):
        assert watched.look(10.0 + turn * 0.25, 1.0, 1 + turn) == ""
    assert watched.counters == {"pauses": 0, "longest_ms": 0}


def test_every_pause_is_counted_without_filling_the_log() -> None:
    watched = watch()
    assert watched.look(10.5, 1.0, 1)
    assert watched.look(11.1, 1.0, 1) == ""
    assert watched.look(11.5 + QUIET_S, 1.0, 1)
    assert watched.counters["pauses"] == 3
    assert watched.counters["longest_ms"] == 1300
