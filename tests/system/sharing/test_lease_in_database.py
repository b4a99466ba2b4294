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
    """Two brokers of one store whose lease is a row."""

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
    """G7, G8: kill -9, then SIGSTOP and SIGCONT under load; no confirmed message is lost, and the
    stopped one replies to nobody and ends with the code on which it is restarted."""
    publisher = Publisher(sharing)
    publisher.start()
    publisher.wait_for_more(50)
    first, token = sharing.leader(), sharing.token()
    first.kill()
    publisher.wait_for_more(50)
    assert sharing.token() == token + 1
    first.start()
    wait_until(partial(said, first, " leads "), TAKEOVER_S, "the first to lead")
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


def test_an_unreachable_database_stops_all_and_loses_nothing(sharing: InDatabase) -> None:
    """A short restart is tolerated.  During a long absence no client gets a reply and the leader
    ends, so that its clients look for another; when the database is back, one leads."""
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
        partial(said, waiter, "cannot be read or written"),
        TAKEOVER_S,
        "the database to be reported",
    )
    confirmed = len(publisher.confirmed)
    leader.start()  # as its service manager does
    assert len(publisher.confirmed) == confirmed
    sharing.server.start()
    publisher.wait_for_more(50)
    assert sharing.token() > token
    publisher.stop()
    check(sharing, publisher, set(), 2)


def test_brokers_stop_cleanly_beside_a_stalled_database(sharing: InDatabase) -> None:
    """SIGTERM to a waiting broker, and to the leader: no thread keeps the process alive."""
    leader = sharing.leader()
    (waiter,) = [one for one in sharing.brokers if one is not leader]
    sharing.server.hold()
    try:
        wait_until(
            partial(said, waiter, "no answer within"), TAKEOVER_S, "the database to be reported"
        )
        for one in (waiter, leader):
            one.signal(signal.SIGTERM)
        assert waiter.wait(TAKEOVER_S) == Exit.OK
        assert leader.wait(TAKEOVER_S) in (Exit.OK, Exit.FENCED)
    finally:
        sharing.server.let_go()
