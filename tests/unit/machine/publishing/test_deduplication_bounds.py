"""The common bound of all deduplication windows, and what empties a window."""

import pytest

from broker.machine import commands as c
from broker.machine.image.invariants import check
from broker.machine.limits import WINDOW_KEYS_DEFAULT
from broker.machine.machine import Machine
from broker.machine.requests import arguments as of_queues
from tests.support.three_machines import Rig
from tests.unit.machine.publishing.test_deduplication import ONCE, depth, send, tally


def test_a_purge_empties_the_window_too() -> None:
    client = Rig().client()
    client.queue("q", ONCE | {"x-cache-ttl": 1_000})
    send(client, "one")
    send(client, "two", flags=0)
    client.purge("q")
    check(client.rig.machine)
    assert not client.rig.machine.wants_tick
    for _ in range(2):
        send(client, "one")
    assert (depth(client), tally(client)) == (1, 1)


def test_the_sum_of_all_windows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_queues, "WINDOW_KEYS_TOTAL_MAX", WINDOW_KEYS_DEFAULT + 100)
    rig = Rig()
    client = rig.client()
    assert client.queue("usual", ONCE) == c.OK, "a window counts as many keys as it may hold"
    assert client.queue("more", ONCE | {"x-cache-size": 100}) == c.OK
    assert client.queue("plain", {"x-cache-size": 100}) == c.OK, "this queue has no window"
    assert client.queue("over", ONCE | {"x-cache-size": 1}) == 406
    assert "it would remember 1 keys" in client.error()
    assert "give it a smaller x-cache-size, or delete a queue" in client.error()
    client = rig.client()
    assert client.queue("usual", ONCE) == c.OK, "the queue exists"
    copy = Machine.restore("b", rig.machine.snapshot())
    check(copy)
    assert copy.window_keys == rig.machine.window_keys
    client.delete("more")
    assert client.queue("over", ONCE | {"x-cache-size": 100}) == c.OK
    check(rig.machine)


def test_windows_dropped_by_a_cold_start_release_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_queues, "WINDOW_KEYS_TOTAL_MAX", WINDOW_KEYS_DEFAULT)
    rig = Rig()
    assert rig.client().queue("passing", ONCE, durable=False) == c.OK
    rig.activate(*"abc", cold=True)
    assert rig.client().queue("q", ONCE) == c.OK
