"""G26: a queue that deduplicates takes each key once in its window, compared with a simple
model.
"""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import GetOk
from broker.machine.machine import Machine
from broker.machine.state import BODY
from tests.properties.models.window_model import Sent, WindowModel
from tests.support.three_machines import Client, Rig

QUEUES: dict[str, tuple[bool, c.Table, tuple[int, int, int]]] = {
    "few": (True, {"x-cache-size": 2}, (2, 0, -1)),
    "short": (True, {"x-cache-ttl": 500}, (10_000, 500_000, -1)),
    "full": (True, {"x-max-length": 2, "x-overflow": "reject-publish"}, (10_000, 0, 2)),
    "loose": (False, {"x-cache-size": 3, "x-cache-ttl": 900}, (3, 900_000, -1)),
}
SENT = st.builds(
    Sent,
    st.sampled_from(["", "", "amq.fanout"]),
    st.sampled_from(list(QUEUES)),
    st.sampled_from(["", "a", "a", "b", "c", "d"]),
    st.booleans(),
)
OTHERS = ["cold", "restore", "lost", "purge", "read", "time", "time", "delete", "commit"]
STEPS = st.lists(
    st.one_of(SENT, SENT, SENT, SENT, st.tuples(st.sampled_from(OTHERS), SENT)),
    min_size=5,
    max_size=50,
)


class World:
    def __init__(self) -> None:
        self.rig = Rig()
        self.clients: dict[str, Client] = {}
        self.models: dict[str, WindowModel] = {}
        self.turn = 0
        for queue in QUEUES:
            self.declare(queue)

    def client(self) -> Client:
        """Clients of different members take turns: the window belongs to the queue, not to a
        publisher."""
        self.turn += 1
        member = "abc"[self.turn % 3]
        if member not in self.clients:
            self.clients[member] = self.rig.client(member)
        return self.clients[member]

    def declare(self, queue: str) -> None:
        durable, arguments, figures = QUEUES[queue]
        client = self.client()
        once: c.Table = {"x-message-deduplication": True, **arguments}
        assert client.queue(queue, once, durable=durable) == c.OK
        assert client.bind(queue, "amq.fanout") == c.OK
        self.models[queue] = WindowModel(durable, *figures)

    def step(self, step: Sent | tuple[str, Sent]) -> None:
        if isinstance(step, Sent):
            self.publish(step)
        else:
            self.other(*step)
        for queue, model in self.models.items():
            found = self.rig.machine.vhosts["/"].queues[queue]
            waiting = [message[BODY] for message in (*found.returned.values(), *found.ready)]
            assert waiting == [body for body, _ in model.waiting]
            assert found.tally.drop_duplicate == model.repeats

    def other(self, verb: str, sent: Sent) -> None:
        queue = sent.queue
        if verb == "restore":
            name = "bc"[self.turn % 2]  # the first one's counts are compared
            self.rig.machines[name] = Machine.restore(name, self.rig.machine.snapshot())
            copies = [list(machine.snapshot()) for machine in self.rig.machines.values()]
            assert copies[0] == copies[1] == copies[2]
        elif verb == "lost":
            self.rig.activate("b")
            self.clients.pop("b", None)
        elif verb == "cold":
            self.rig.activate(*"abc", cold=True)
            self.clients.clear()
            for name, model in list(self.models.items()):
                model.cold()
                if not model.durable:
                    self.declare(name)
        elif verb == "purge":
            self.client().purge(queue)
            self.models[queue].purge()
        elif verb == "read":
            client = self.client()
            client.get(queue)
            got = client.got()
            if isinstance(got, GetOk):
                client.ack(got.delivery_tag)
            del self.models[queue].waiting[:1]
        elif verb == "time":
            self.rig.pass_time(400_000)
        elif verb == "delete":
            self.client().delete(queue)
            self.declare(queue)
        else:
            self.commit(sent)

    def publish(self, sent: Sent) -> None:
        body, flags = b"%d" % self.turn, c.PERSISTENT if sent.persistent else 0
        client = self.client()
        expected = self.expected(sent, body)
        outcome = client.publish(
            sent.queue, body, sent.exchange, no=5, flags=flags, properties=known_as(sent.key)
        )
        assert outcome == c.OK
        assert [one.ack for one in client.confirms()] == [expected]

    def commit(self, sent: Sent) -> None:
        """Publishes the same key twice in one transaction."""
        body, flags = b"%d" % self.turn, c.PERSISTENT if sent.persistent else 0
        publish = c.TxPublish(sent.exchange, sent.queue, flags, known_as(sent.key), body)
        for _ in range(2):
            self.expected(sent, body)
        assert self.client().commit([publish] * 2) == c.OK

    def expected(self, sent: Sent, body: bytes) -> bool:
        machine = self.rig.machine
        named = list(self.models) if sent.exchange else [sent.queue]
        taken = [
            self.models[one].publish(sent, body, machine.horizon_us, machine.now_us)
            for one in named
        ]
        return all(taken)


def known_as(key: str) -> bytes:
    return codec.encode_properties({"message_id": key}) if key else b"\x00\x00"


FIRST = Sent("", "few", "a", True)


@given(STEPS)
@example([FIRST._replace(persistent=False), FIRST, ("cold", FIRST), FIRST, ("restore", FIRST)])
@example([FIRST, FIRST._replace(key="b"), FIRST._replace(key="c"), FIRST, FIRST])
@example([FIRST._replace(queue="short"), ("time", FIRST), ("time", FIRST), ("time", FIRST),
          FIRST._replace(queue="short")])  # fmt: skip
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_key_is_taken_once_in_its_window(steps: list[Sent | tuple[str, Sent]]) -> None:
    world = World()
    for step in steps:
        world.step(step)
