"""Quorum options: the voter set they form, and combinations refused at load (G7)."""

from __future__ import annotations

import pytest

from broker.options.broker import broker_options
from broker.options.values import OptionError


def options(size: int = 3, **given: str) -> dict[str, str]:
    named = {f"cluster-{name.replace('_', '-')}": text for name, text in given.items()}
    return {"cluster-name": "shop", "cluster-size": str(size), "no-data-dir": "yes", **named}


def test_by_default_a_cluster_requests_a_plain_majority() -> None:
    assert broker_options(options()).requested == ()
    assert not broker_options(options()).arbitrator


def test_everything_that_can_be_requested() -> None:
    found = broker_options(
        options(
            3, votes="10.0.0.1:25672=2, 10.0.0.2:25672=1", expected_votes="4", wait_for_all="yes",
            auto_tie_breaker="highest", last_man_standing="yes",
            last_man_standing_window="5000",
        )
    )  # fmt: skip
    assert found.requested == (
        "10.0.0.1:25672=2", "10.0.0.2:25672", "@expected_votes=4", "@wait_for_all",
        "@auto_tie_breaker=highest", "@last_man_standing=5000",
    )  # fmt: skip


def test_the_arbitrator_is_the_process_at_its_address() -> None:
    given = options(2, arbitrator="127.0.0.1:7003", two_node="yes")
    assert broker_options({**given, "cluster-bind": "127.0.0.1:7003"}).arbitrator
    member = broker_options({**given, "cluster-bind": "127.0.0.1:7001"})
    assert not member.arbitrator
    assert member.requested == ("@arbitrator=127.0.0.1:7003", "@two_node")


@pytest.mark.parametrize(
    ("size", "given", "option", "text"),
    [
        (2, {"two_node": "yes"}, "two-node", r"\{member 1\} and \{member 2\}"),
        (2, {"two_node": "yes", "wait_for_all": "yes"}, "two-node", "could act apart"),
        (4, {"expected_votes": "3"}, "expected-votes", r"\{member 1 \+ member 2\} and"),
        (3, {"expected_votes": "9"}, "expected-votes", "even all voters together"),
        (3, {"two_node": "yes"}, "two-node", "two members with data, here are 3"),
        (3, {"last_man_standing": "yes", "arbitrator": "h:1"}, "last-man-standing", "exclude"),
        (2, {"votes": "a=1,b=2,c=1"}, "votes", "3 members are named"),
        (2, {"votes": "a"}, "votes", "NAME=VOTES"),
        (2, {"votes": "a=0"}, "votes", "from 1 to 255"),
        (2, {"votes": "a=1,a=2"}, "votes", "listed twice"),
        (2, {"votes": "a b=2"}, "votes", "cannot be a member's name"),
        (2, {"wait_for_all": "maybe"}, "wait-for-all", "neither yes nor no"),
        (2, {"expected_votes": "many"}, "expected-votes", "whole number"),
        (2, {"last_man_standing_window": "0"}, "last-man-standing-window", "whole number"),
        (2, {"arbitrator": "nowhere"}, "arbitrator", "HOST:PORT"),
    ],
)  # fmt: skip
def test_an_unsafe_combination_is_refused_with_the_reason(
    size: int, given: dict[str, str], option: str, text: str
) -> None:
    """G7: at load, with a counter-example, before anything is changed."""
    with pytest.raises(OptionError, match=text) as refused:
        broker_options(options(size, **given))
    assert refused.value.option == f"cluster-{option}"


def test_a_stand_alone_broker_has_no_voters() -> None:
    with pytest.raises(OptionError, match="needs --cluster-name"):
        broker_options({"cluster-votes": "a=1"})
