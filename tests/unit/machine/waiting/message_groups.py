"""Helpers for message groups on three machines: fill a queue, and check who may hold what."""

from broker.amqp import codec
from broker.machine import commands as c
from tests.support.three_machines import Client

KEPT: c.Table = {"qpid.group_header_key": "g"}
"""Groups that stay with their consumers."""
GROUPS: c.Table = {**KEPT, "qpid.shared_msg_group": 1}


def fill(client: Client, *texts: str, queue: str = "q", persistent: bool = False) -> None:
    """Publishes messages of the groups that their first letters name; `-` means no group."""
    for text in texts:
        headers: c.Table = {"g": text[0]} if text[0] != "-" else {}
        properties = codec.encode_properties({"headers": headers})
        flags = c.PERSISTENT if persistent else 0
        client.publish(queue, text.encode(), properties=properties, flags=flags)


def seen(client: Client) -> list[str]:
    return [body.decode() for _, body, _ in client.deliveries()]


def consume(client: Client, chan: int, prefetch: int = 10, *, no_ack: bool = False) -> Client:
    one = client.channel(chan)
    assert one.consume("q", f"t{chan}", prefetch, no_ack=no_ack) == c.OK
    return one


class Judge:
    """Tracks which consumer holds messages of each group, from what clients saw. `keeps`: a group
    stays with its consumer, and a message without a group may go to any consumer."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.waiting: dict[str, list[int]] = {}
        self.held: dict[tuple[int, int], tuple[str, int, str]] = {}  # by channel and tag
        self.kept: dict[str, str] = {}

    def delivered(self, key: tuple[int, int], text: str, consumer: str) -> None:
        group, number = text[0], int(text[1:])
        holders = {by for one, _, by in self.held.values() if one == group}
        if not self.keeps or group != "-":
            assert holders <= {consumer}, f"{group} is held by {holders}"
        assert number == min(self.waiting[group]), "the first message of its group"
        self.waiting[group].remove(number)
        self.held[key] = group, number, consumer
        if self.keeps and group != "-":
            assert self.kept.setdefault(group, consumer) == consumer, f"{group} stays"

    def back(self, key: tuple[int, int]) -> None:
        group, number, _ = self.held.pop(key)
        self.waiting[group].append(number)

    def gone(self, consumer: str) -> None:
        self.kept = {group: by for group, by in self.kept.items() if by != consumer}
