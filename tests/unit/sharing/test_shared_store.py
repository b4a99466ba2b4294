"""One broker's share in a store, as far as no member is needed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker.options.active_passive import SharedStoreOptions
from broker.sharing import shared_store
from broker.sharing.generations import make_generation
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.shared_store import Ended, SharedStore


def test_who_is_ended_while_it_copies_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the middle of a long copy: it was lost, and the broker served."""

    def make_and_end(directory: Path, number: int, source: int) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loops[0]).result(30)
        return make_generation(directory, number, source)

    loops: list[asyncio.AbstractEventLoop] = []
    monkeypatch.setattr(shared_store, "make_generation", make_and_end)

    async def live() -> None:
        loops.append(asyncio.get_running_loop())
        shared = SharedStore(SharedStoreOptions(tmp_path, 60_000), "shop", loops[0])
        try:
            with pytest.raises(Ended):
                await shared.lead("amqp:tcp:here:1")
            assert not shared.holds()
        finally:
            await shared.end()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loops[0].remove_signal_handler(number)

    asyncio.run(live())
    newest = LeaseDirectory(tmp_path, "shop").newest()
    assert newest is not None
    assert newest.given_up, "the next one need not wait for the lease"
