"""Waits to lead a shared store, and then keeps the lease on it.

A broker that does not lead has taken its ports without listening: clients are refused and go to the
next address of their list. When it leads, it starts on its own data directory within the shared one
(`broker/sharing/generations.py`), as any other broker does on its own. A broker that has lost the
lease ends with a separate exit code; started again, it waits.
Decision: docs/decisions/0072-a-shared-store-is-led-by-token.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from broker.durability.data_directory import LOG_DIR
from broker.exit_codes import Exit
from broker.file_thread import FileThread
from broker.memberlog.records import LEASE_GIVEN_UP, LEASE_LOST, LEASE_TAKEN, Lease
from broker.options.modes.shared_store import SharedStoreOptions
from broker.service.hang_up import on_hang_up
from broker.sharing.generations import make_generation, remove_former, source_for
from broker.sharing.lease import (
    WHO_CHARACTERS_MAX,
    Contender,
    Found,
    Held,
    LeaseRecord,
    Phase,
)
from broker.sharing.lease_database import lease_in
from broker.sharing.lease_directory import LeaseDirectory
from broker.sharing.lease_thread import LeaseThread
from broker.sharing.leases import StoreLeases
from broker.watchdogs.reply_lease import boot_clock, boot_clock_name
from store.errors import StoreError
from vsync.admin.protocol import Json

log = logging.getLogger("qpidd")

BEAT_S = 0.25
"""How often the loop shows that it turns."""
PATIENCE_S = 5.0
"""How long writing the last record may take."""
AWAY_S = 10.0
"""How long its clients wait for a leader that cannot renew its lease. If it alone has that trouble
another one leads by then, and the clients should look for it."""


class Ordered(Protocol):
    """The state of ordered commands."""

    shutdown_position: int
    """Where an operator shut the broker down; 0: nowhere."""


class Leader(Protocol):
    """The member that serves while this broker leads."""

    @property
    def controller(self) -> Ordered:
        """The part that applies ordered commands."""

    def stop(self, code: Exit, reason: str) -> None:
        """Stop it."""

    def terminate(self) -> None:
        """Stop it in order."""


class Ended(Exception):
    """This broker must not wait any longer."""


class ThreadEnded(Exception):
    """Nobody renews the lease, by a bug of this program."""


class SharedStore:
    """One broker's share in a store: it waits, leads (`data_directory.StoreLease`), and ends."""

    def __init__(
        self, options: SharedStoreOptions, cluster: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Nothing is read or written yet."""
        self._cluster, self._loop = cluster, loop
        self._options, self.directory = options, options.directory
        self.log_dir: Path | None = self.directory / LOG_DIR
        self._leases = _leases(options, cluster)
        self._thread: LeaseThread | None = None
        self._led: asyncio.Future[None] = loop.create_future()
        self._other: Found | None = None  # the leader, as last read
        self._member: Leader | None = None
        self._lost = ""
        self._hands_over = False  # it alone was asked to end
        self._source = 0
        self._given_up: Ended | ThreadEnded | StoreError | None = None
        self._over = asyncio.Event()  # the lease is lost, or the wait for it was given up
        self._beating: asyncio.TimerHandle | None = None
        self._without_s = 0.0  # how long the loop has turned since the lease was over
        self._record: Callable[[Lease], None] | None = None  # in the member log; None: it is over

    # -- waiting ---------------------------------------------------------------------------------

    async def lead(self, url: str) -> Path:
        """Wait until this broker leads; return the data directory to work in.

        Raises StoreError, ThreadEnded, and `Ended` when it was asked to stop, or all were.
        """
        await asyncio.to_thread(self._leases.open)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._asked_to_end)
        on_hang_up(
            self._loop,
            partial(log.info, "SIGHUP: nothing is read again while this broker waits"),
        )
        while self._given_up is None:
            self._led, self._lost = self._loop.create_future(), ""
            self._over.clear()
            self._thread = LeaseThread(
                self._leases, Contender(self._own_record(url)), boot_clock, self,
                self._loop.call_soon_threadsafe, _wall,
            )  # fmt: skip
            self._thread.start()
            await self._led
            if self._lost:
                log.info("%s", self._lost)
                continue
            path = await self._generation()
            if path is not None and not self._lost and self._given_up is None:
                self._thread.serve()
                return path
        raise self._given_up

    def _own_record(self, url: str) -> LeaseRecord:
        """The content of this broker's record."""
        who = f"{socket.gethostname()} process {os.getpid()}, {url}"[:WHO_CHARACTERS_MAX]
        return LeaseRecord(
            0, self._cluster, uuid.uuid4().hex, who, "", self._options.lease_ms, 0
        )  # fmt: skip

    async def _generation(self) -> Path | None:
        """Create a generation; None: others led meanwhile, and may have removed its source.

        Raises StoreError.
        """
        path, failure = None, None
        try:
            path = await self._made()
        except StoreError as error:
            failure = error
        if self._given_up is not None:
            return None
        if await asyncio.to_thread(self._overtaken):
            await self._over.wait()  # its thread sees the same
            return None
        if failure is not None:
            raise failure
        return path

    async def _made(self) -> Path | None:
        """Make the copy on a thread that ends with the process; None: this broker was asked to end
        meanwhile. A large copy takes long, and the disk may not answer; the next leader removes
        what is left of it.
        """
        made: asyncio.Future[Path] = self._loop.create_future()
        made.add_done_callback(asyncio.Future.exception)  # nobody may wait for it any more
        copier = FileThread(self._loop, made.set_exception)
        copier.do(lambda: partial(made.set_result, self._make_generation()))
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait((made, over), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        return None if self._given_up is not None else await made

    def _overtaken(self) -> bool:
        """On a thread: whether there is a later token."""
        assert self._thread is not None
        with contextlib.suppress(OSError):
            return self._leases.newest_token() > self._thread.contender.own.token
        return False

    def _make_generation(self) -> Path:
        """On a thread: copy the generation that the lease names."""
        assert self._thread is not None
        own = self._thread.contender.own
        began = self._loop.time()
        known = max(own.generation, self._leases.complete)
        self._source = source = source_for(self.directory, known)
        if source < own.token:
            # Interrupted copies may fill the disk.
            self._remove_former(own.token, served=own.generation)
        path = make_generation(self.directory, own.token, source)
        if source:
            log.info(
                "copied generation %d of the shared store in %d ms", source,
                round(1000 * (self._loop.time() - began)),
            )  # fmt: skip
        return path

    def _asked_to_end(self) -> None:
        if self._member is not None:
            self.terminate()
        else:
            self._give_up(Ended("asked to terminate"))

    def _give_up(self, why: Ended | ThreadEnded | StoreError) -> None:
        """Stop waiting, and do not lead after a copy in progress."""
        self._given_up = why
        self._over.set()
        if not self._led.done():
            self._led.set_exception(why)

    @property
    def waiting_for(self) -> str:
        """Who leads, and since when: the answer to anybody who asks a waiting broker."""
        if self._thread is not None and self._thread.trouble:
            return f"waits: {self._thread.trouble}"
        if self._other is None:
            return f"waits for the lease on {self.directory}"
        lease = self._other.lease
        if lease is None:
            return f"waits: the lease {self._other.token} on {self.directory} cannot be read"
        return (
            f"waits: {lease.who} leads {self.directory} since {lease.since} (token {lease.token})"
        )

    # -- told by the thread of the lease (`lease_thread.Told`) -----------------------------------

    def waits(self, found: Found) -> None:
        """Another broker holds the lease."""
        self._other = found
        log.info("%s", self.waiting_for)

    def shut_down(self) -> None:
        """All brokers were ended."""
        self._give_up(Ended("the leader was shut down by an operator, and all others"))

    def elected(self) -> None:
        """This broker holds the lease."""
        assert self._thread is not None
        self._other = None
        log.info("leads %s with token %d", self.directory, self._thread.contender.own.token)
        if not self._led.done():
            self._led.set_result(None)

    def serves(self) -> None:
        """The new generation counts: generations before its source can go."""
        self._loop.run_in_executor(None, self._tidy)

    def _tidy(self) -> None:
        assert self._thread is not None
        own = self._thread.contender.own.token
        try:
            self._leases.tidy(own)
        except OSError as error:
            log.warning("former leases in %s cannot be removed: %s", self.directory, error)
        self._remove_former(own)

    def _remove_former(self, own: int, served: int = 0) -> None:
        """On a thread."""
        try:
            remove_former(self.directory, self._source, own, served)
        except OSError as error:
            log.warning("former generations in %s cannot be removed: %s", self.directory, error)

    def lost(self, found: Found | None) -> None:
        """Another broker has a later token."""
        who = "another broker"
        if found is not None and found.lease is not None:
            who = f"{found.lease.who} (token {found.token})"
        self._lost = f"{who} leads {self.directory} by now, as this one did not renew its lease"
        self._over.set()
        self._recorded(LEASE_LOST)
        if self._member is not None:
            self._stop_member()
        elif not self._led.done():
            self._led.set_result(None)

    def failed(self, error: StoreError) -> None:
        """The directory holds something foreign, or too little."""
        if self._member is not None:
            self._member.stop(Exit.DATA, str(error))
        else:
            self._give_up(error)

    def broke(self, error: Exception) -> None:
        """Nobody renews the lease."""
        reason = f"the thread of the shared store's lease has ended: {error!r}; the log says where"
        if self._member is not None:
            self._member.stop(Exit.INTERNAL, reason)
        else:
            self._give_up(ThreadEnded(reason))

    # -- leading ---------------------------------------------------------------------------------

    def follow(self, member: Leader) -> None:
        """Have this member stop when the lease is lost; the loop is watched from here on."""
        self._member = member
        self._show_life()
        if self._lost:
            self._stop_member()

    def _show_life(self) -> None:
        assert self._thread is not None
        self._thread.contender.beat(boot_clock())
        # Time in which the process stood still does not count as time without a lease.
        self._without_s = 0.0 if self.holds() else self._without_s + BEAT_S
        if self._without_s >= AWAY_S and not self._lost:
            trouble = self._thread.trouble or f"{self._leases.medium} does not answer"
            self._lost = f"this broker could not renew its lease for {AWAY_S:g} s ({trouble})"
            self._stop_member()
        self._beating = self._loop.call_later(BEAT_S, self._show_life)

    def _stop_member(self) -> None:
        assert self._member is not None
        self._member.stop(
            Exit.FENCED, f"{self._lost}; nothing was confirmed since; start it again to wait"
        )

    def terminate(self) -> None:
        """The process was asked to end: another broker is to lead, unless all were shut down."""
        assert self._member is not None
        self._hands_over = self._hands_over or not self._member.controller.shutdown_position
        self._member.terminate()

    def holds(self) -> bool:
        """Whether clients may be replied to."""
        return self._thread is not None and self._thread.contender.holds(boot_clock())

    def status(self) -> Json:
        """Return its part of the reply to `status`."""
        assert self._thread is not None
        own = self._thread.contender.own
        return {
            "shared_store": {
                "directory": str(self.directory), "token": own.token, "since": own.since,
                "leader": own.who, "lease_ms": own.lease_ms, "lock": _shown(self._options),
                "trouble": self._thread.trouble,
            }
        }  # fmt: skip

    def recorded_by(self, record: Callable[[Lease], None]) -> None:
        """Make the member log record that the lease was taken, and when it is lost."""
        self._record = record
        self._recorded(LEASE_TAKEN)

    def given_up(self) -> None:
        """The log ends: clients get no more replies, whoever has the lease."""
        assert self._thread is not None
        overtaken = self._thread.contender.phase is Phase.LOST
        self._recorded(LEASE_LOST if overtaken else LEASE_GIVEN_UP)

    def _recorded(self, what: str) -> None:
        if self._record is None or self._thread is None:
            return
        contender, now = self._thread.contender, boot_clock()
        until = min(contender.until, now) if what == LEASE_GIVEN_UP else contender.until
        own = contender.own
        self._record(
            Lease(what, own.token, own.holder, self._source, boot_clock_name(), _us(now),
                  _us(until))
        )  # fmt: skip
        if what != LEASE_TAKEN:
            self._record = None

    async def end(self) -> None:
        """Give the lease up, for all brokers if an operator has shut the member down."""
        if self._beating is not None:
            self._beating.cancel()
        if self._thread is not None:
            for_all = (
                self._member is not None
                and bool(self._member.controller.shutdown_position)
                and not self._hands_over
            )
            held = Held.SHUT_DOWN if for_all else Held.RELEASED
            if await asyncio.to_thread(self._thread.end, held, PATIENCE_S):
                await asyncio.to_thread(self._leases.close)


def _us(seconds: float) -> int:
    return round(1_000_000 * seconds)


def _wall() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _leases(options: SharedStoreOptions, cluster: str) -> StoreLeases:
    if options.lock is None:
        return LeaseDirectory(options.directory, cluster)
    return lease_in(options.directory, cluster, options.lock, options.lease_ms)


def _shown(options: SharedStoreOptions) -> str:
    """The place of the lease, for people."""
    return options.lock.shown if options.lock is not None else "files of the directory"
