"""Waiting messages in a file: one thread writes them, another reads ahead."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from broker.durability import pages as page_file
from broker.durability.pages import Pages
from broker.machine.machine import Machine
from tests.properties.models.memory_shelf import pager
from tests.support.three_machines import Rig

PATIENCE_S = 60.0


def until(pages: Pages, name: str, value: int) -> None:
    """Wait until a counter reaches a value."""
    end = time.monotonic() + PATIENCE_S
    while pages.counters[name] < value and time.monotonic() < end:
        time.sleep(0.001)
    assert pages.counters[name] >= value


def test_a_long_queue_goes_to_disk_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)
    monkeypatch.setattr(page_file, "KEPT_FREE_SHARE", 0.0)
    monkeypatch.setattr(page_file, "TIDY_S", 0.01)
    pages = Pages(tmp_path, 1)
    rig = Rig()
    its = rig.machines["b"].pager = pages.pager()
    assert its is not None
    client = rig.client()
    client.queue("q")
    for number in range(40):
        client.publish("q", bytes([number]))
    until(pages, "written", 9)
    its.settle()
    ready = rig.machines["b"].vhosts["/"].queues["q"].ready
    assert all(block.on_disk for block in ready.blocks)
    before = pages.counters["ahead"]
    ready.blocks[0].ask()
    until(pages, "ahead", before + 1)
    waited = pages.counters["at_once"], pages.counters["waited"]
    assert [bytes(message[-1])[0] for message in ready.blocks[0]] == [4, 5, 6, 7]
    assert waited == (pages.counters["at_once"], pages.counters["waited"])
    for _ in range(6):
        client.get("q")
    chunks = list(rig.machines["b"].snapshot())
    assert chunks == list(rig.machines["a"].snapshot())
    assert Machine.restore("b", chunks, pages.pager()).root() == rig.machine.root()
    assert pages.counters["held_bytes"] > 0
    client.delete("q")
    rig.machines["b"].free(100)
    del ready
    gc.collect()  # the restored machine
    end = time.monotonic() + PATIENCE_S
    while pages.counters["file_bytes"] and time.monotonic() < end:
        time.sleep(0.001)
    assert pages.counters["file_bytes"] == 0


def test_messages_a_restart_paged_out_are_released_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a page was or is written by this process: a former one wrote them."""
    monkeypatch.setattr("broker.waiting.backlog.BLOCK_MESSAGES", 4)
    monkeypatch.setattr(page_file, "KEPT_FREE_SHARE", 0.0)
    monkeypatch.setattr(page_file, "TIDY_S", 0.01)
    rig = Rig()
    rig.machines["b"].pager = pager()
    client = rig.client()
    client.queue("q")
    for number in range(40):
        client.publish("q", bytes([number]))
    pages = Pages(tmp_path, 1)
    chunks = rig.machines["b"].snapshot(pages=True)
    rig.machines["b"] = Machine.restore("b", chunks, pages.pager(), own=True)
    held = pages.counters["held_bytes"]
    assert held > 0
    steps = list(rig.machines["b"].snapshot_in_steps(pages=True))
    assert b"".join(filter(None, steps)) == b"".join(rig.machines["b"].snapshot(pages=True))
    client.delete("q")
    rig.machines["b"].free(100)
    end = time.monotonic() + PATIENCE_S
    while pages.counters["held_bytes"] and time.monotonic() < end:
        time.sleep(0.001)
    assert pages.counters["file_bytes"] == 0


def test_without_paging_everything_stays_in_memory(tmp_path: Path) -> None:
    pages = Pages(tmp_path, 0)
    assert pages.pager() is None
    assert not any(pages.counters.values())
