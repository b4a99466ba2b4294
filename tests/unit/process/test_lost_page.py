"""A page that is unreadable at a start, or not as published: a message with the remedy, and its own
exit code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from broker.durability import startup
from broker.exit_codes import Exit
from broker.process import server
from broker.waiting.pager import PageDamaged, _lost
from store.api import Meta
from tests.support.stores.memory import MemoryDisk, MemoryStore


def test_a_start_that_cannot_read_its_pages_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise _lost(OSError("Input/output error"))

    store = MemoryStore(MemoryDisk(), Meta("prod", "a", "1"))
    quarantine: Any = Mock()
    monkeypatch.setattr(startup, "recover", lost)
    monkeypatch.setattr(server, "BrokerMember", lambda *_: startup.resume(store, quarantine))
    nothing: Any = Mock()
    with pytest.raises(server._Refused) as refused:
        server._member(nothing, nothing, nothing, nothing, "", nothing)
    assert refused.value.code is Exit.LATE_DISK
    assert "Input/output error" in refused.value.reason
    assert "--page-memory 0" in refused.value.reason


def test_a_store_with_damaged_pages_has_no_vote(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G10: another member gives its state; if there is none, nothing is changed."""

    def damaged(*_: object, **__: object) -> None:
        raise _lost(PageDamaged("message 7 has another hash"))

    store = MemoryStore(MemoryDisk(), Meta("prod", "a", "1", cluster_id="c", voters=("a", "b")))
    quarantine: Any = Mock()
    monkeypatch.setattr(startup, "recover", damaged)
    replica, filled = startup.resume(store, quarantine)
    assert replica.broken
    assert not filled
    assert "message 7 has another hash" in caplog.text
    store.put_meta(replace(store.meta, voters=("a",)))
    with pytest.raises(startup.Unusable, match="message 7 has another hash; no other member"):
        startup.resume(store, quarantine)
