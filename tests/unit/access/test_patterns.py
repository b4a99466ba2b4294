"""Regular expressions of operators."""

from __future__ import annotations

import pytest

from broker.access import patterns


def test_a_pattern_is_searched_for_as_in_rabbitmq() -> None:
    assert patterns.matches(".*", "any")
    assert patterns.matches("^amq\\.", "amq.topic")
    assert patterns.matches("b", "abc")
    assert not patterns.matches("^b", "abc")


def test_an_empty_pattern_grants_nothing() -> None:
    assert not patterns.matches("", "q")
    assert patterns.matches("", "")


def test_errors_are_in_the_words_of_re2() -> None:
    assert patterns.fault_of("(") == "missing ): ("
    assert patterns.fault_of("a(?=b)") == "invalid perl operator: (?="
    assert patterns.fault_of("\ud800")
    assert patterns.fault_of("^(a|b)$") == ""


def test_no_pattern_takes_more_than_linear_time() -> None:
    """A backtracking matcher would not end within the test's time limit."""
    assert not patterns.matches("^(a+)+$", "a" * 5000 + "b")


def test_the_pattern_of_a_policy_is_small() -> None:
    """It is matched for 100,000 queues, on all members: it must fit the automaton's memory."""
    large = "|".join(f"a{{{count}}}b" for count in range(100, 120))
    assert patterns.fault_of(large) == ""
    assert patterns.fault_of_policy(large).startswith("more than 1000")
    assert patterns.fault_of_policy(f"^(?!{large})q").startswith("more than 1000")
    names = "|".join(f"queue-{number:08}" for number in range(200))
    for pattern in (f"^({names})$", "^(?!amq\\.).*", ".{0,50}x", ""):
        assert patterns.fault_of_policy(pattern) == ""
    assert patterns.fault_of_policy("(") == "missing ): ("


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("^\\pL+$", "'\\p'"),
        ("^\\PN", "'\\P'"),
        ("a\\Cb", "'\\C'"),
        ("(?<name>a)", "'(?<n'"),
        ("(?i)ä", "upper and lower case beyond ASCII"),
        ("(?i:[\\x{e4}])", "upper and lower case beyond ASCII"),
    ],
)
def test_the_pattern_of_a_policy_means_the_same_in_all_releases(pattern: str, word: str) -> None:
    """All members match it, each with its own RE2; a permission is matched only on the asked
    member."""
    fault = patterns.fault_of_policy(pattern)
    assert fault.startswith(word), fault
    assert patterns.fault_of(pattern) in ("", fault) or pattern.startswith("(?<")


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?!amq\\.)(?:a|b)",
        "(?i)^Orders\\d",
        "(?P<n>x)",
        "äöü",
        "[[:alpha:]]\\.\\w+",
        "\\Qa.b\\E",
        "a\\\\p",
    ],
)
def test_common_patterns_of_policies_are_accepted(pattern: str) -> None:
    assert patterns.fault_of_policy(pattern) == ""
