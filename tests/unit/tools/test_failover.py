"""Lists of brokers in ActiveMQ's form: order, number of attempts, and time limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools.cli.failures import ToolError
from tools.client import failover
from tools.client.amqp_client import ConnectionLost, Login
from tools.client.broker_url import Address
from tools.client.credentials import Credentials
from tools.client.failover import (
    NEXT_S,
    BrokerList,
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


def test_the_number_of_rounds_and_their_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_each_broker_is_named_once_for_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(broker: Address, *_: object, **__: object) -> None:
        raise ConnectionLost(f"{broker}: down")

    monkeypatch.setattr(failover, "AmqpConnection", refuse)
    monkeypatch.setattr("tools.client.failover.time.sleep", lambda _: None)
    told: list[str] = []
    two = (Address("a", 1), Address("b", 1))
    with pytest.raises(ConnectionLost):
        connect_any(two, Login(), Reconnect(3600.0, 0.25, 0.8, 3), on_failure=told.append)
    assert told == ["a:1: down", "b:1: down", "trying again for 3600 s (--patience)"]


def test_after_a_loss_the_next_broker_of_the_list_is_tried_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def connect(broker: Address, *_: object, **__: object) -> SimpleNamespace:
        tried.append(broker.host)
        return SimpleNamespace(drop=lambda: None)

    monkeypatch.setattr(failover, "AmqpConnection", connect)
    three = tuple(Address(name, 1) for name in "abc")
    brokers = BrokerList(three, Login(), Reconnect(60.0), lambda _: None)
    for _ in range(4):
        brokers.lost(brokers.connect(), "it is gone")
    assert (tried, brokers.failovers) == (["a", "b", "c", "a"], 3)


class Brokers:
    """A list of three brokers, some of which refuse connections or answer nothing; one command asks
    them."""

    def __init__(self) -> None:
        self.refuse, self.silent = set[object](), set[object]()
        self.greeted: list[object] = []
        self.chosen = Chosen()

    def ask(self, *places: Address, timeout_s: float | None = 60.0) -> tuple[object, float | None]:
        """Which broker is asked, and its time limit."""

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


def test_a_silent_broker_is_skipped_and_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers()
    brokers.silent = {A}
    assert [brokers.ask() for _ in range(3)] == [(B, NEXT_S)] * 3
    assert brokers.greeted == [A, B, B, B]
    assert capsys.readouterr().err == "a:1 says nothing for 5 s: b:1 is asked\n"


def test_a_broker_that_falls_silent_after_an_answer_is_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For a change, too: it was asked only for a greeting, so nothing is done twice."""
    brokers = Brokers()
    assert brokers.ask() == (A, NEXT_S)
    brokers.silent = {A}
    assert [brokers.ask() for _ in range(2)] == [(B, NEXT_S)] * 2
    assert capsys.readouterr().err == "a:1 says nothing for 5 s: b:1 is asked\n"


def test_if_the_broker_that_answered_dies_the_next_one_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    brokers = Brokers()
    brokers.refuse = {A}
    assert brokers.ask() == (B, NEXT_S)
    brokers.refuse = {A, B}
    assert brokers.ask() == (C, NEXT_S)
    brokers.refuse = {B, C}
    assert brokers.ask()[0] == A
    assert capsys.readouterr().err == "", "a refused connection is known at once"


def test_the_last_or_only_broker_gets_the_whole_time_and_no_greeting() -> None:
    brokers = Brokers()
    assert brokers.ask(A, timeout_s=None) == (A, None)
    brokers = Brokers()
    brokers.refuse, brokers.silent = {A, B}, {C}
    assert brokers.ask() == (C, 60.0)
    assert brokers.greeted == [A, B]
    assert Brokers().ask(timeout_s=2.0) == (A, 2.0), "not longer than asked for"


def test_if_no_broker_can_be_reached_each_is_named() -> None:
    brokers = Brokers()
    brokers.refuse = {A, B, C}
    with pytest.raises(NoneReached) as found:
        brokers.ask()
    assert [place for place, _ in found.value.failures] == [A, B, C]
