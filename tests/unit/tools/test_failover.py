"""Lists of brokers in ActiveMQ's form, and how often and how long they are tried."""

from __future__ import annotations

import pytest

from tools.cli.failures import ToolError
from tools.client import failover
from tools.client.amqp_client import ConnectionLost, Login
from tools.client.broker_url import Address
from tools.client.credentials import Credentials
from tools.client.failover import (
    NEXT_S,
    Chosen,
    NoneReached,
    Reconnect,
    connect_any,
    split_failover,
)
from tools.client.options import route

ALL = (
    "?randomize=false&initialReconnectDelay=250&maxReconnectDelay=4000&maxReconnectAttempts=7"
    "&timeout=9000"
)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a,b:5673", "a,b:5673"),
        ("failover:(tcp://a:5672,tcp://b:5673)", "amqp://a:5672,amqp://b:5673"),
        ("failover://(ssl://a, amqps://b)", "amqps://a,amqps://b"),
        ("failover:(amqp://ada:pw%2C@a/shop,b)", "amqp://ada:pw%2C@a/shop,b"),
        ("failover:tcp://a,tcp://b", "amqp://a,amqp://b"),
    ],
)
def test_the_brokers_of_a_list(text: str, plain: str) -> None:
    assert split_failover(text, 60.0)[0] == plain


def test_the_parameters() -> None:
    assert split_failover(f"failover:(tcp://a){ALL}", 60.0)[1] == Reconnect(9.0, 0.25, 4.0, 7)
    assert split_failover(f"failover:tcp://a{ALL}", 60.0)[1] == Reconnect(9.0, 0.25, 4.0, 7)
    assert split_failover("a", 60.0)[1] == Reconnect(60.0)
    assert split_failover("failover:(tcp://a)", 60.0)[1] == Reconnect(60.0, shuffled=True)
    assert split_failover("failover:(a)?timeout=-1&maxReconnectAttempts=-1", 5.0)[1] == Reconnect(
        5.0, shuffled=True
    )
    assert split_failover("failover:(a)?initialReconnectDelay=5000", 5.0)[1].max_s == 5.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("failover:(tcp://a", "is not of the form failover:"),
        ("failover:(tcp://a)x", "is not of the form failover:"),
        ("failover:(tcp://a?timeout=3,tcp://b)", "parameters go after the bracket"),
        ("failover:(a)?randomise=false", "no parameter 'randomise' here; is randomize meant"),
        ("failover:(a)?jms.prefetch=1", "'jms.prefetch' here: it takes randomize"),
        ("failover:(a)?randomize=no", "randomize is neither true nor false: 'no'"),
        ("failover:(a)?timeout=1s", "timeout is no whole number from -1 on: '1s'"),
        ("failover:(a)?timeout=1&timeout=2", "timeout is there twice"),
        ("failover:(a)?initialReconnectDelay=0", "is no whole number from 1 on"),
        ("failover:(a)?initialReconnectDelay=9&maxReconnectDelay=8", "is less than"),
        ("failover:(http://a)", "'http://' is not spoken here"),
        ("failover:()", "give at least one"),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ToolError, match=sentence):
        route(text, Credentials(), 60.0)


def test_the_order_is_kept_or_drawn() -> None:
    names = ",".join(f"tcp://h{number}" for number in range(20))
    ordered = route(f"failover:({names})?randomize=false", Credentials(), 60.0).addresses
    drawn = route(f"failover:({names})", Credentials(), 60.0).addresses
    assert [one.host for one in ordered] == [f"h{number}" for number in range(20)]
    assert drawn != ordered
    assert sorted(drawn) == sorted(ordered)


def test_so_many_rounds_and_such_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Address] = []
    pauses: list[float] = []

    def refused(address: Address, _: Login, greeting_s: float) -> None:
        assert greeting_s == NEXT_S
        tried.append(address)
        raise ConnectionLost("refused")

    monkeypatch.setattr(failover, "AmqpConnection", refused)
    monkeypatch.setattr("tools.client.failover.time.sleep", pauses.append)
    monkeypatch.setattr("tools.client.failover.random.uniform", lambda *_: 1.0)
    two = [Address("a", 1), Address("b", 2)]
    with pytest.raises(ConnectionLost, match="no broker can be reached"):
        connect_any(two, Login(), Reconnect(3600.0, 0.25, 0.8, 3))
    assert tried == two * 4
    assert pauses == [0.25, 0.5, 0.8]


A, B, C = (Address(name, 1) for name in "abc")


class Brokers:
    """A list of three, of which some refuse connections or say nothing, asked by one command."""

    def __init__(self) -> None:
        self.refuse, self.silent = set[object](), set[object]()
        self.greeted: list[object] = []
        self.chosen = Chosen()

    def ask(self, *places: Address, timeout_s: float | None = 60.0) -> tuple[object, float | None]:
        """Who is asked, and how long its connection may take."""

        def connect(place: object, patience_s: float | None) -> float | None:
            if place in self.refuse:
                raise ConnectionRefusedError
            return patience_s

        def greet(place: object, patience_s: float) -> None:
            self.greeted.append(place)
            connect(place, patience_s)
            if place in self.silent:
                raise TimeoutError

        return self.chosen.reach(places or (A, B, C), connect, greet, timeout_s)


def test_who_says_nothing_is_passed_over_and_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers()
    brokers.silent = {A}
    assert [brokers.ask() for _ in range(3)] == [(B, NEXT_S)] * 3
    assert brokers.greeted == [A, B, B, B]
    assert capsys.readouterr().err == "a:1 says nothing for 5 s: b:1 is asked\n"


def test_one_that_answered_and_then_says_nothing_is_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also for a change: nothing but a greeting was asked of it, so nothing is done twice."""
    brokers = Brokers()
    assert brokers.ask() == (A, NEXT_S)
    brokers.silent = {A}
    assert [brokers.ask() for _ in range(2)] == [(B, NEXT_S)] * 2
    assert capsys.readouterr().err == "a:1 says nothing for 5 s: b:1 is asked\n"


def test_where_the_one_that_answered_dies_the_next_one_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    brokers = Brokers()
    brokers.refuse = {A}
    assert brokers.ask() == (B, NEXT_S)
    brokers.refuse = {A, B}
    assert brokers.ask() == (C, NEXT_S)
    brokers.refuse = {B, C}
    assert brokers.ask()[0] == A
    assert capsys.readouterr().err == "", "who refuses connections is known at once"


def test_the_last_of_a_list_and_the_only_one_have_all_the_time_and_no_greeting() -> None:
    brokers = Brokers()
    assert brokers.ask(A, timeout_s=None) == (A, None)
    brokers = Brokers()
    brokers.refuse, brokers.silent = {A, B}, {C}
    assert brokers.ask() == (C, 60.0)
    assert brokers.greeted == [A, B]
    assert Brokers().ask(timeout_s=2.0) == (A, 2.0), "not longer than is asked for"


def test_where_nobody_can_be_reached_each_is_named() -> None:
    brokers = Brokers()
    brokers.refuse = {A, B, C}
    with pytest.raises(NoneReached) as found:
        brokers.ask()
    assert [place for place, _ in found.value.failures] == [A, B, C]
