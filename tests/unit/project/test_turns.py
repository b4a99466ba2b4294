"""Tests that take turns: a number of cases each day, and all of them in the end."""

from __future__ import annotations

from tests.commits import commit, day, drawn, waiting

NAMES = [f"case {number}" for number in range(40)]


def test_a_day_draws_the_same_cases_in_every_process() -> None:
    assert drawn(NAMES, 5, "one") == drawn(NAMES[::-1], 5, "one") != drawn(NAMES, 5, "another")
    assert len(commit()) in (0, 12)
    assert len(day()) == 8
    assert day().startswith("20")


def test_every_case_gets_its_turn() -> None:
    assert set().union(*(drawn(NAMES, 5, f"day {number}") for number in range(100))) == {*NAMES}


def test_the_mark_of_a_test_says_how_many_cases_run() -> None:
    few = {f"test.py::few[{number}]": 2 for number in range(9)}
    more = {f"test.py::more[{number}]": 5 for number in range(9)}
    alone = {"test.py::alone": 1}
    left_out = waiting(few | more | alone, "day")
    assert (len(few.keys() & left_out), len(more.keys() & left_out)) == (7, 4)
    assert not alone.keys() & left_out
