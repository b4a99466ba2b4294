"""Helpers of the tests of the machine's time."""

from broker.machine.state import CREATED_US
from tests.support.three_machines import Client, Rig

SECOND = 1_000_000
EXPIRES_IN_A_SECOND = b"\x01\x00\x041000"
WILD_US = 10**14
"""A time that no clock may claim."""


def created_us(rig: Rig, queue: str) -> int:
    """When the last message of a queue was created."""
    *_, last = rig.machine.vhosts["/"].queues[queue].ready
    return last[CREATED_US]


def expiring(rig: Rig, queue: str = "q", member: str = "a") -> Client:
    """A client that has published one message with a second to live."""
    client = rig.client(member)
    client.queue(queue)
    client.publish(queue, b"m", properties=EXPIRES_IN_A_SECOND)
    return client


def long_lived(rig: Rig) -> None:
    """A message with an hour to live, so that ticks are needed."""
    client = rig.client()
    client.queue("long", {"x-message-ttl": 3_600_000})
    client.publish("long", b"m")


def all_sent_something(rig: Rig) -> None:
    """Every member has sent a blob, so its clock is waited for."""
    for name, record in rig.machine.sessions.items():
        for machine in rig.machines.values():
            assert machine.accept_blob(name, record.session, 1)


def tick_all(rig: Rig, **reached_us: int) -> None:
    for name, reached in reached_us.items():
        rig.tick(name, reached)
