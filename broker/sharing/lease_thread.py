"""The thread of a contender: reads, claims and renews, whatever the event loop does.

A busy loop does not stop it from renewing; a hanging loop does (`Contender.renewal`), because no
other broker could serve then. The loop gets all events in the order in which they happened.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from broker.rationed_log import RationedLog
from broker.sharing.lease import Contender, Found, Held, LeaseRecord, Phase
from broker.sharing.leases import LeaseGone
from store.errors import StoreError

log = logging.getLogger("qpidd")

RENEWALS = 4
"""How often a lease is renewed within its time."""
LOOKS = 8
"""How often a waiting contender looks within that time."""
REMINDER_S = 60.0
"""How often the log repeats a trouble that stays the same."""
LINES = 5
"""Per minute, for trouble that comes and goes."""


class Leases(Protocol):
    """The place of lease records: files of a directory, a database, or a simulated one."""

    medium: str
    """What an operator should check if they cannot be read or written."""

    def newest_token(self) -> int:
        """Return the newest token; 0: there is none."""

    def newest(self) -> Found | None:
        """Read the newest lease."""

    def read(self, token: int) -> Found:
        """Read the lease of one token."""

    def claim(self, lease: LeaseRecord) -> bool:
        """Take the token of this record; False: another process has it."""

    def renew(self, lease: LeaseRecord) -> None:
        """Write this record durably. Raises LeaseGone."""


class Told(Protocol):
    """The recipient of events, called on the loop's thread."""

    def waits(self, found: Found) -> None:
        """Another broker holds the lease now."""

    def elected(self) -> None:
        """This broker holds the lease."""

    def serves(self) -> None:
        """The record names the generation of this token, durably."""

    def lost(self, found: Found | None) -> None:
        """Another broker has a later token."""

    def shut_down(self) -> None:
        """An operator ended its holder, for all that waited."""

    def failed(self, error: StoreError) -> None:
        """The directory holds something foreign, or too little."""

    def broke(self, error: Exception) -> None:
        """The thread ended by a bug of this program: nobody renews the lease."""


class LeaseThread:
    """Carries one contender on until it is ended, has lost, or failed."""

    def __init__(
        self,
        leases: Leases,
        contender: Contender,
        clock: Callable[[], float],
        told: Told,
        call: Callable[[Callable[[], None]], object],
        wall: Callable[[], str],
    ) -> None:
        """`call` makes the loop call something; `wall` is the time of day, for people."""
        self.contender = contender
        self.trouble = ""
        """Why the lease cannot be read or renewed now."""
        self._leases, self._clock, self._told = leases, clock, told
        self._call, self._wall = call, wall
        self._lease_s = contender.own.lease_ms / 1000
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._seen = 0
        self._refused = False
        """A claim could not be written; looking succeeds and so says nothing about that."""
        self._said_at = 0.0
        self._log = RationedLog(_write, clock, LINES, REMINDER_S)
        self._told_elected = self._told_serves = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    # -- called by the loop ----------------------------------------------------------------------

    def serve(self) -> None:
        """The generation is complete: have the record name it."""
        self._orders.put(self.contender.serve)

    def end(self, held: Held, patience_s: float) -> bool:
        """Tell the others, and stop; blocks while the disk does, for at most this long.

        Nothing is replied from here on. Returns whether it has stopped.
        """
        self._orders.put(lambda: self._end(held))
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    # -- on the thread ---------------------------------------------------------------------------

    def _end(self, held: Held) -> None:
        last = self.contender.ends(held)
        if last is not None:
            with contextlib.suppress(LeaseGone):  # nobody is waiting for it
                self._leases.renew(last)

    def _run(self) -> None:
        try:
            self._carry_on()
        except Exception as error:
            log.exception("the thread that renews the lease of the shared store has ended")
            self._tell(lambda broken=error: self._told.broke(broken))  # type: ignore[misc]

    def _carry_on(self) -> None:
        while (wait_s := self.step()) is not None:
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=wait_s)
                try:
                    order()
                except OSError as error:
                    self._cannot(error)

    def step(self) -> float | None:
        """Do what is due; return the seconds until the next step, None: never."""
        contender, began = self.contender, self._clock()
        if contender.phase is Phase.ENDED:
            return None
        try:
            self._look_or_renew(began)
        except OSError as error:
            if contender.phase is Phase.WATCHES:
                contender.blind()
            self._cannot(error)
        except StoreError as error:
            self._tell(lambda failure=error: self._told.failed(failure))  # type: ignore[misc]
            return None
        else:
            if self.trouble and not self._refused:
                self._log(_OVER, "the lease of the shared store can be read and written again")
            if not self._refused:
                self.trouble = ""
            self._log.wake()
        if contender.phase is Phase.LOST:
            found = None
            with contextlib.suppress(OSError, StoreError):
                found = self._leases.newest()
            self._tell(lambda: self._told.lost(found))
            return None
        share = LOOKS if contender.phase is Phase.WATCHES else RENEWALS
        return max(0.0, began + self._lease_s / share - self._clock())

    def _look_or_renew(self, began: float) -> None:
        contender, leases = self.contender, self._leases
        if contender.phase is Phase.WATCHES:
            found = leases.newest()
            claim = contender.look(found, began, self._clock())
            if contender.ended_for_all:
                self._tell(self._told.shut_down)
            elif claim is None and found is not None and found.token != self._seen:
                self._seen, self._refused = found.token, False
                self._tell(lambda: self._told.waits(found))
            if claim is not None:
                self._refused = True
                self._claim(claim)
                self._refused = False
            return
        written = contender.renewal(began)
        if written is None:
            return
        try:
            leases.renew(written)
        except LeaseGone:  # somebody removed it: it belongs to nobody any more
            leases.newest_token()  # raises if the whole directory is away, or replaced
            newest = 0
        else:
            newest = leases.newest_token()
        contender.renewed(written, newest, began, self._clock())
        self._tell_progress()
        if contender.serves and not self._told_serves:
            self._told_serves = True
            self._tell(self._told.serves)

    def _claim(self, claim: LeaseRecord) -> None:
        leases, began = self._leases, self._clock()
        claim = replace(claim, since=self._wall())
        if not leases.claim(claim):
            return
        former = leases.read(claim.token - 1) if claim.token > 1 else None
        self.contender.claimed(claim, former, leases.newest_token(), began, self._clock())
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self.contender.phase is Phase.HOLDS and not self._told_elected:
            self._told_elected = True
            self._tell(self._told.elected)

    def _cannot(self, error: OSError) -> None:
        text = f"the lease of the shared store cannot be read or written: {error}"
        now = self._clock()
        if text != self.trouble or now - self._said_at >= REMINDER_S:
            self._said_at = now
            self._log(
                _TROUBLE, f"{text}; until it can, this broker replies to nobody, and another one "
                f"may take over; see to {self._leases.medium}",
            )  # fmt: skip
        self.trouble = text

    def _tell(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._call(what)


_TROUBLE, _OVER = "trouble", "its end"


def _write(kind: str, text: str) -> None:
    log.log(logging.ERROR if kind == _TROUBLE else logging.WARNING, "%s", text)
