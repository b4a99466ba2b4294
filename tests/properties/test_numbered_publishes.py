"""G23: the machine takes each number of a producer once, as a simple model says."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.machine import Machine
from broker.machine.state import BODY
from tests.properties.models.producer_model import ProducerModel, Sent
from tests.support.three_machines import Client, Rig

NUMBERS, PRODUCERS = 4, 2
KEYS = ("durable", "loose")
SENT = st.builds(
    Sent,
    st.sampled_from(["p", "p", "q", "r"]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.one_of(st.integers(0, 9), st.sampled_from([100, 102, 2**63 - 1])),
    st.sampled_from([*KEYS, "durable", "nowhere"]),
    st.booleans(),
    st.sampled_from([b"x", b"x", b"x", b"y"]),
)
STEPS = st.lists(st.one_of(SENT, SENT, SENT, SENT, st.sampled_from(["cold", "restore", "lost"])),
                 min_size=5, max_size=50)  # fmt: skip


@contextmanager
def small_windows() -> Iterator[None]:
    with ExitStack() as stack:
        for where in ("numbers", "producers"):
            patched = patch(f"broker.machine.publishing.{where}.NUMBERS_MAX", NUMBERS)
            stack.enter_context(patched)
        patched = patch("broker.machine.publishing.producers.PRODUCERS_MAX", PRODUCERS)
        stack.enter_context(patched)
        yield


class World:
    def __init__(self) -> None:
        self.rig = Rig()
        self.model = ProducerModel(KEYS, PRODUCERS, NUMBERS)
        self.clients: dict[str, Client] = {}
        self.turn = 0

    def client(self) -> Client:
        """A client of another member each time: a producer is known to all members."""
        self.turn += 1
        member = "abc"[self.turn % 3]
        if member not in self.clients:
            self.clients[member] = client = self.rig.client(member)
            for key in KEYS:
                client.queue(key, durable=key == "durable")
        return self.clients[member]

    def step(self, step: Sent | str) -> None:
        if isinstance(step, Sent):
            self.publish(step)
        elif step == "restore":
            name = "abc"[self.turn % 3]
            self.rig.machines[name] = Machine.restore(name, self.rig.machines["c"].snapshot())
            copies = [list(machine.snapshot()) for machine in self.rig.machines.values()]
            assert copies[0] == copies[1] == copies[2]
        elif step == "lost":
            self.rig.activate("b")
            self.clients.pop("b", None)
        else:
            self.rig.activate(*"abc", cold=True)
            self.clients.clear()
            self.model.cold("durable")
            self.model.taken = {"loose": [], "durable": self.waiting("durable")}

    def publish(self, sent: Sent) -> None:
        headers: c.Table = {"x-producer-id": sent.producer, "x-sequence": sent.number}
        if sent.epoch:
            headers["x-producer-epoch"] = sent.epoch
        properties = codec.encode_properties({"headers": headers})
        flags = c.PERSISTENT if sent.persistent else 0
        client = self.client()
        expected = self.model.publish(sent)
        found = client.publish(sent.key, sent.body, no=5, flags=flags, properties=properties)
        assert found == expected
        if expected != 406:
            assert [(one.publish_no, one.ack) for one in client.confirms()] == [(5, True)]
        else:
            client.close()
            self.clients = {name: one for name, one in self.clients.items() if one is not client}
        for key in KEYS:
            assert self.waiting(key) == self.model.taken[key]

    def waiting(self, queue: str) -> list[bytes]:
        found = self.rig.machine.vhosts["/"].queues.get(queue)
        if found is None:
            return []
        return [message[BODY] for message in (*found.returned.values(), *found.ready)]


FIRST = Sent("p", 0, 1, "durable", True, b"x")


@given(STEPS)
@example([FIRST, FIRST._replace(number=2**63 - 1), FIRST, FIRST._replace(epoch=1), FIRST])
@example([FIRST._replace(persistent=False), "cold", FIRST, "restore", FIRST])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_number_is_taken_once(steps: list[Sent | str]) -> None:
    with small_windows():
        world = World()
        for step in steps:
            world.step(step)
