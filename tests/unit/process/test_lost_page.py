"""A page that cannot be read at a start: a sentence that says what to do, and a code of its own."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from broker.durability import startup
from broker.exit_codes import Exit
from broker.process import server
from broker.waiting.pager import _lost
from store.api import Meta
from store.memory import MemoryDisk, MemoryStore


def test_a_start_that_cannot_read_its_pages_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object) -> None:
        raise _lost(OSError("Input/output error"))

    store = MemoryStore(MemoryDisk(), Meta("prod", "a", "1"))
    quarantine: Any = Mock()
    monkeypatch.setattr(startup, "recover", lost)
    monkeypatch.setattr(server, "BrokerMember", lambda *_: startup.resume(store, quarantine))
    nothing: Any = Mock()
    with pytest.raises(server._Refused) as refused:
        server._member(nothing, nothing, nothing, nothing, "", nothing)
    assert refused.value.code is Exit.DISK
    assert "Input/output error" in refused.value.reason
    assert "--page-memory 0" in refused.value.reason
