"""Brokers with their lease in a real PostgreSQL, as processes: killed, stopped, and cut off."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.options.modes.shared_store import DatabaseLock
from broker.sharing.lease_database import lease_in
from tests.system.sharing.test_shared_store import (
    TAKEOVER_S,
    Publisher,
    Sharing,
    check,
    connect,
    said,
)
from tests.system.support.clusters import wait_until
from tests.system.support.load_clients import TROUBLE
from tests.system.support.postgresql import PostgresServer, programs, running

BIN = programs()
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(BIN is None, reason="PostgreSQL (initdb, postgres) is not installed"),
]


class InDatabase(Sharing):
    """Two brokers of one store, whose lease is a row."""

    def __init__(self, root: Path, server: PostgresServer) -> None:
        self.server = server
        super().__init__(
            root, 2, "--shared-store-lease", "1500", "--shared-store-lock", server.url()
        )

    def token(self) -> int:
        lock = DatabaseLock(self.server.url(), "")
        leases = lease_in(self.store, "shop", lock, 1500)
        try:
            return leases.newest_token()
        finally:
            leases.close()


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[InDatabase]:
    assert BIN is not None
    with ExitStack() as stack:
        made = InDatabase(tmp_path, stack.enter_context(running(BIN)))
        stack.callback(made.close)
        made.start()
        yield made


def test_leaders_are_killed_and_stopped(sharing: InDatabase) -> None:
    """G7, G8: kill -9, then SIGSTOP and SIGCONT under load; nothing confirmed is lost, and who was
    stopped replies to nobody and ends with the code by which it is started again."""
    publisher = Publisher(sharing)
    publisher.start()
    publisher.wait_for_more(50)
    first, token = sharing.leader(), sharing.token()
    first.kill()
    publisher.wait_for_more(50)
    assert sharing.token() == token + 1
    first.start()
    wait_until(partial(said, first, " leads "), TAKEOVER_S, "its first word")
    second = sharing.leader()
    channel = connect(second).channel()
    channel.confirm_delivery()
    second.signal(signal.SIGSTOP)
    publisher.gives_up()
    publisher.wait_for_more(50)
    second.signal(signal.SIGCONT)
    with pytest.raises(TROUBLE):
        channel.basic_publish("", "shared", b"-1")
    assert second.wait(TAKEOVER_S) == Exit.FENCED
    publisher.stop()
    check(sharing, publisher, set(), 3)
    assert not any("geheim" in one.log_path.read_text() for one in sharing.brokers)


def test_a_database_that_is_away_stops_all_and_loses_nothing(sharing: InDatabase) -> None:
    """A short restart is gone through.  While it is away for long nobody is replied to, the leader
    ends, so that its clients look for another one; when it is back, one leads."""
    publisher = Publisher(sharing)
    publisher.start()
    publisher.wait_for_more(50)
    leader, token = sharing.leader(), sharing.token()
    (waiter,) = [one for one in sharing.brokers if one is not leader]
    sharing.server.stop()
    sharing.server.start()
    publisher.wait_for_more(50)
    sharing.server.stop()
    assert leader.wait(TAKEOVER_S) == Exit.FENCED
    assert "could not renew its lease for 10 s" in leader.log_tail(200)
    wait_until(
        partial(said, waiter, "cannot be read or written"), TAKEOVER_S, "word of the database"
    )
    confirmed = len(publisher.confirmed)
    leader.start()  # as its service manager does
    assert len(publisher.confirmed) == confirmed
    sharing.server.start()
    publisher.wait_for_more(50)
    assert sharing.token() > token
    publisher.stop()
    check(sharing, publisher, set(), 2)


def test_brokers_end_in_order_beside_a_database_that_stands_still(sharing: InDatabase) -> None:
    """SIGTERM to one that waits, and to the leader: no thread keeps a process."""
    leader = sharing.leader()
    (waiter,) = [one for one in sharing.brokers if one is not leader]
    sharing.server.hold()
    try:
        wait_until(partial(said, waiter, "no answer within"), TAKEOVER_S, "word of the database")
        for one in (waiter, leader):
            one.signal(signal.SIGTERM)
        assert waiter.wait(TAKEOVER_S) == Exit.OK
        assert leader.wait(TAKEOVER_S) in (Exit.OK, Exit.FENCED)
    finally:
        sharing.server.let_go()
