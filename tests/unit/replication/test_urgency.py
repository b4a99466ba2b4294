"""Which commands call the token at once, and which may wait for it."""

import pytest

from broker.machine import commands as c
from broker.machine.commands import Command
from broker.replication.weight import LOOKED_AT_MAX, is_urgent
from tests.support.three_machines import EMPTY, Client, Rig

ACK = c.Ack(c.ACK, 1, 1, 1, False)
DIGEST = c.DigestClaim(c.DIGEST, 1, 1, b"", 0)
PUBLISH = c.Publish(c.PUBLISH, 1, 1, 0, "", "q", 0, EMPTY, b"")


@pytest.fixture
def client() -> Client:
    client = Rig().client()
    client.queue("q")
    client.queue("other")
    return client


def urgent(client: Client, *commands: Command) -> bool:
    return is_urgent(client.rig.machine, client.session, commands)


def test_an_ack_that_frees_no_credit_may_wait(client: Client) -> None:
    client.consume("q", prefetch=2)
    client.publish("q")
    assert not urgent(client, ACK)
    assert not urgent(client, ACK, DIGEST)
    assert urgent(client, ACK, PUBLISH)
    assert urgent(client, *[ACK] * (LOOKED_AT_MAX + 1))


def test_an_ack_of_a_consumer_without_credit_is_urgent(client: Client) -> None:
    client.consume("q", prefetch=1)
    client.publish("q")
    assert urgent(client, ACK)


def test_an_ack_on_a_channel_without_credit_is_urgent(client: Client) -> None:
    client.qos(1)
    client.consume("q")
    client.publish("q")
    assert urgent(client, ACK)


def test_an_ack_is_urgent_while_messages_wait(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may wait for just this ack, whatever holds them up: its consumer has credit."""
    client.consume("q", prefetch=9)
    client.publish("q")
    monkeypatch.setattr("broker.replication.weight.ready_count", lambda _queue: 1)
    assert urgent(client, ACK)


def test_with_several_consumers_every_ack_is_urgent(client: Client) -> None:
    client.consume("q", "one", prefetch=9)
    client.consume("other", "two", prefetch=9)
    client.publish("q")
    assert urgent(client, ACK)


def test_a_command_with_a_reply_is_urgent(client: Client) -> None:
    for command in (PUBLISH, c.Nack(c.NACK, 1, 1, 1, False, True), c.Get(c.GET, 1, 1, "q", False)):
        assert urgent(client, command)
    assert urgent(client, c.Ack(c.ACK, 9, 9, 1, False)), "an ack of an unknown channel"
