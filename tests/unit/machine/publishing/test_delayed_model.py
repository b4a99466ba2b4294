"""G17, G20: an exchange that delays holds each message until it is due, compared with a simple
model.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.machine import Machine
from tests.support.three_machines import Client, Rig

MS = 1_000
DECLARED: c.Table = {"x-delayed-type": "fanout"}

steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(-1, 900), st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 500), st.none()),
    st.tuples(st.just("delete"), st.none(), st.none()),
    st.tuples(st.just("restore"), st.sampled_from("bc"), st.none()),
    st.tuples(st.just("cold"), st.none(), st.none()),
    st.tuples(st.just("get"), st.none(), st.none()),
)


class Delayed(NamedTuple):
    """A delayed message; the smallest is due first."""

    due_ms: int
    number: int
    persistent: bool


class Model:
    """The queue, and the messages that are not yet due."""

    def __init__(self) -> None:
        self.waits: list[Delayed] = []
        self.queue: list[tuple[int, bool]] = []  # number, persistent

    def publish(self, number: int, delay_ms: int, horizon_us: int, *, persistent: bool) -> None:
        if delay_ms > 0:
            due_ms = -(-horizon_us // MS) + delay_ms
            self.waits.append(Delayed(due_ms, number, persistent))
        else:
            self.queue.append((number, persistent))

    def time_is(self, now_us: int) -> None:
        due = sorted(one for one in self.waits if one.due_ms * MS <= now_us)
        self.queue += [(one.number, one.persistent) for one in due]
        self.waits = [one for one in self.waits if one.due_ms * MS > now_us]

    def cold(self) -> None:
        self.waits = [one for one in self.waits if one.persistent]
        self.queue = [one for one in self.queue if one[1]]


class Play:
    """The machines, compared with the model."""

    def __init__(self) -> None:
        self.rig, self.model, self.numbers = Rig(), Model(), count()
        self.client = self._connect()

    def _connect(self) -> Client:
        client = self.rig.client()
        client.exchange("late", "x-delayed-message", DECLARED)
        client.queue("q")
        client.bind("q", "late")
        return client

    def step(self, what: str, amount: int | str | None, persistent: bool | None) -> None:
        rig, model = self.rig, self.model
        match what, amount:
            case "publish", int(delay_ms):
                number = next(self.numbers)
                model.publish(number, delay_ms, rig.machine.horizon_us, persistent=bool(persistent))
                properties = codec.encode_properties({"headers": {"x-delay": delay_ms}})
                flags = c.PERSISTENT if persistent else 0
                self.client.publish("", b"%d" % number, "late", flags=flags, properties=properties)
            case "time", int(time_ms):
                rig.pass_time(time_ms * MS)
            case "delete", _:
                self.client.delete_exchange("late")
                model.waits.clear()
                self.client.exchange("late", "x-delayed-message", DECLARED)
                self.client.bind("q", "late")
            case "restore", str(name):
                rig.machines[name] = Machine.restore(name, rig.machine.snapshot())
            case "cold", _:
                rig.activate(cold=True)
                model.cold()
                self.client = self._connect()
            case _:
                self.client.get("q", no_ack=True)
                got = self.client.got()
                bodies = [got.body] if isinstance(got, GetOk) else []
                if isinstance(got, GetOk):
                    self.client.sent(got.delivery_tag)
                assert bodies == [b"%d" % number for number, _ in model.queue[:1]]
                del model.queue[:1]
        model.time_is(rig.machine.now_us)
        (delayed,) = rig.machine.vhosts["/"].delays.values()
        assert [message[-1] for message in delayed.returned.values()] == [
            b"%d" % one.number for one in sorted(model.waits)
        ]
        assert rig.depth("q") == len(model.queue)


@settings(max_examples=40)
@given(st.lists(steps, max_size=40))
def test_delayed_and_delivered_messages_are_those_of_the_model(
    found: list[tuple[str, None, None]],
) -> None:
    play = Play()
    for one in found:
        play.step(*one)
    play.step("time", 2_000, None)
    assert not play.model.waits
    while play.model.queue:
        play.step("get", None, None)
