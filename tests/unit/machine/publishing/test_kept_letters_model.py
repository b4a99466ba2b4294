"""G31: in any sequence of events each dead letter is kept or arrives, once and in order."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.limits import LETTERS_RETRY_US
from broker.machine.machine import Machine
from broker.machine.state import BODY, Queue
from tests.support.three_machines import Client, Rig
from tests.unit.machine.publishing.test_kept_letters import STRATEGY

SMALL: c.Table = {"x-max-length": 2, "x-overflow": "reject-publish"}
VERBS = [
    *("die", "die", "die", "expire", "exchange", "bind", "bind", "unbind", "no exchange"),
    *("read", "read", "time", "time", "lost", "restore", "cold"),
]


class World:
    """A queue with its dead-letter exchange and two queues for dead letters, one of them small."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.died: list[bytes] = []
        self.read: list[bytes] = []  # from the small queue
        self.turn = 0
        client = self.client()
        client.queue("q", STRATEGY)
        client.queue("small", SMALL)
        client.queue("large")

    def client(self) -> Client:
        return self.rig.client("ac"[self.turn % 2])

    def queue(self, name: str) -> Queue:
        return self.rig.machine.vhosts["/"].queues[name]

    def waiting(self, queue: Queue | None) -> list[bytes]:
        if queue is None:
            return []
        return [message[BODY] for message in (*queue.returned.values(), *queue.ready)]

    def step(self, verb: str) -> None:
        self.turn += 1
        client, body = self.client(), b"%d" % self.turn
        if verb == "die":
            client.publish("q", body)
            client.get("q")
            client.nack(0, multiple=True, requeue=False)
            self.died.append(body)
        elif verb == "expire":
            client.publish("q", body, properties=b"\x01\x00\x010")  # expires at once
            self.died.append(body)
        elif verb == "exchange":
            client.exchange("dead", "fanout")
        elif verb in ("bind", "unbind") and self.rig.has_exchange("dead"):
            for name in ("small", "large"):
                client.bind(name, "dead") if verb == "bind" else client.unbind(name, "dead")
        elif verb == "no exchange":
            client.delete_exchange("dead")
        elif verb == "read":
            client.get("small")
            got = client.got()
            if isinstance(got, GetOk):
                client.ack(got.delivery_tag)
                self.read.append(bytes(got.body))
        elif verb == "time":
            self.rig.pass_time(LETTERS_RETRY_US // 2)
        elif verb == "restore":
            self.rig.machines["b"] = Machine.restore("b", self.rig.machine.snapshot())
        elif verb == "lost":
            self.rig.activate("b")
        elif verb == "cold":
            self.rig.activate(*"abc", cold=True)

    def look(self) -> None:
        kept = self.waiting(self.queue("q").letters)
        arrived = self.read + self.waiting(self.queue("small"))
        assert arrived + kept == self.died
        assert self.waiting(self.queue("large")) == arrived, "to all of them or to none"
        assert len(self.waiting(self.queue("small"))) <= 2
        assert not kept or self.rig.machine.wants_tick


@given(st.lists(st.sampled_from(VERBS), min_size=5, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_dead_letter_is_kept_or_arrives(verbs: list[str]) -> None:
    world = World()
    for verb in verbs:
        world.step(verb)
        world.look()
    for verb in ("exchange", "bind"):
        world.step(verb)
    for _ in range(len(world.died) + 1):
        world.step("read")
        world.rig.pass_time(LETTERS_RETRY_US + 300_000)
        world.look()
    assert not world.waiting(world.queue("q").letters), "every letter got a route"
