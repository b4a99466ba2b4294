"""The memory that a queue takes on the asked member."""

from __future__ import annotations

import pytest

from broker.machine import commands as c
from broker.machine.machine import Machine
from broker.machine.state import Queue
from broker.management.resources.queues import QUEUE_BYTES, in_memory
from broker.waiting.backlog import BLOCK_MESSAGES
from broker.waiting.pager import ROW_BYTES
from tests.properties.models.memory_shelf import pager
from tests.support.three_machines import EMPTY, Rig

BODY = b"b" * 100


def shown(queue: Queue) -> dict[str, int]:
    return {name: int(str(value)) for name, value in in_memory(queue).items()}


@pytest.mark.parametrize(("limit", "in_pages"), [(None, 0), (0, 7 * BLOCK_MESSAGES)])
def test_messages_in_memory_and_in_pages_are_all_messages(limit: int | None, in_pages: int) -> None:
    """The two ends of a queue are in memory."""
    rig = Rig()
    rig.machines = {"a": Machine("a", None if limit is None else pager(limit_bytes=limit))}
    rig.activate()
    client = rig.client()
    client.queue("q")
    session = rig.machine.sessions["a"].session
    for _ in range(8 * BLOCK_MESSAGES):
        position = rig.position = rig.position + 1
        publish = c.Publish(c.PUBLISH, client.conn, 1, 0, "", "q", 0, EMPTY, BODY)
        assert rig.machine.apply(position, session, rig.time_us, publish) == c.OK
    client.get("q")
    found = shown(rig.queue())
    assert found["messages_paged_out"] == in_pages
    assert found["messages_ram"] + in_pages == 8 * BLOCK_MESSAGES
    assert found["messages_ready_ram"] == found["messages_ram"] - 1
    assert found["messages_unacknowledged_ram"] == 1
    for where in ("ram", "paged_out"):
        assert found[f"message_bytes_{where}"] == len(BODY) * found[f"messages_{where}"]
    assert found["memory"] == QUEUE_BYTES + (ROW_BYTES + len(BODY)) * found["messages_ram"]


def test_an_empty_queue_takes_little() -> None:
    rig = Rig()
    rig.client().queue("q")
    assert shown(rig.queue()) == {
        "memory": QUEUE_BYTES, "messages_ram": 0, "messages_ready_ram": 0,
        "messages_unacknowledged_ram": 0, "message_bytes_ram": 0, "messages_paged_out": 0,
        "message_bytes_paged_out": 0,
    }  # fmt: skip


def test_stream_messages_held_by_readers_count_once() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q", {"x-queue-type": "stream"})
    for _ in range(9):
        client.publish("q", BODY)
    client.consume("q", prefetch=5, arguments={"x-stream-offset": "first"})
    assert rig.queue().unacked == 5
    assert shown(rig.queue())["messages_ram"] == 9
