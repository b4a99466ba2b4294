"""The lease on a shared store: each contender concludes who leads from what it reads. Pure.

Each term of leadership has a *token*, one higher than the one before, which two contenders never
both get (`claimed`). The holder keeps rewriting its record, with a rising count. A contender that
has seen the newest record unchanged for the time that the record states, plus a share of `SLACK`,
claims the next token. The holder acts only for `lease_ms` after the *beginning* of a renewal behind
which it has seen no later token. No clock is compared with another one, and no time on a disk is
read: each member uses its own clock, which also counts time in which the machine slept.

Reading and claiming are two steps, and a contender may be stopped between them for any time, in
which the holder may renew its lease. Therefore it reads the former record again *after* it has
claimed. A renewal that it does not see there ends after the claim, so its holder sees the later
token and does not act on it. A renewal that it does see may be valid: then the contender waits
until that lease is over, too, before it leads.

Invariant: at most one contender `holds` at any time, if no two clocks differ by more than `SLACK`
in rate. Decision: docs/decisions/0072-a-shared-store-is-led-by-token.md.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import asdict, replace
from enum import Enum
from typing import NamedTuple

from vsync.types import record

SLACK = 0.2
"""The share by which others wait longer than the lease, for the rates of clocks and late timers."""
LEASE_MS_MAX = 60_000
HANG_S = 10.0
"""A holder whose event loop has hung for this long lets its lease run out."""
_MAGIC = b"qpidd-lease 1 "
_NUMBERS = ("token", "lease_ms", "generation", "count")
_TEXTS = ("cluster", "holder", "who", "since", "held")
RECORD_BYTES = 2048
WHO_CHARACTERS_MAX = 200


class Held(Enum):
    """What its holder says of a lease."""

    HELD = "held"
    RELEASED = "released"  # its holder has stopped: the next may lead at once
    SHUT_DOWN = "shut down"  # ended by an operator, for all: waiting brokers stop, too


class ForeignLease(Exception):
    """A file in place of a lease is not a lease that this release can read."""


@record
class LeaseRecord:
    """One term of leadership, as its holder writes it."""

    token: int
    cluster: str
    holder: str
    """A random number of each process: two on one machine differ."""
    who: str
    """The same for people: machine, process, and where clients reach it."""
    since: str
    """For people, too: the holder's wall clock when it claimed the token."""
    lease_ms: int
    generation: int
    """A complete data directory (`generations`): this token's once its holder serves, before that a
    former one's. A newer one may be complete, too; 0: none is known."""
    count: int = 0
    held: Held = Held.HELD

    def encode(self) -> bytes:
        """The form in the file: a line of text of a fixed length, with a checksum."""
        fields = asdict(self) | {"held": self.held.value}
        text = json.dumps(fields, ensure_ascii=False, sort_keys=True).encode()
        line = _MAGIC + b"%08x " % zlib.crc32(text) + text
        assert len(line) < RECORD_BYTES, "names are limited by whoever makes a record"
        return line.ljust(RECORD_BYTES - 1) + b"\n"


def decode(raw: bytes) -> LeaseRecord | None:
    """Read a record; None: it is torn. Raises ForeignLease."""
    line = raw.rstrip(b" \n\0")
    if line and not line.startswith(_MAGIC[: len(line)]):
        raise ForeignLease
    checksum, _, text = line.removeprefix(_MAGIC).partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        fields = json.loads(text)
        if not all(type(fields[name]) is int for name in _NUMBERS):
            return None
        if not all(isinstance(fields[name], str) for name in _TEXTS):
            return None
        return LeaseRecord(**fields | {"held": Held(fields["held"])})
    except (ValueError, TypeError, KeyError):
        return None


class Found(NamedTuple):
    """The newest lease, as it was read; `lease` None: the record is torn."""

    token: int
    raw: bytes
    lease: LeaseRecord | None

    @property
    def given_up(self) -> bool:
        """Whether its holder has said that it no longer acts on it."""
        return self.lease is not None and self.lease.held is not Held.HELD

    @property
    def shut_down(self) -> bool:
        """Whether an operator has ended it for all."""
        return self.lease is not None and self.lease.held is Held.SHUT_DOWN


class Phase(Enum):
    """The phase of a contender."""

    WATCHES = "watches"
    SETTLES = "settles"  # has the newest token; a former lease may not be over
    HOLDS = "holds"
    LOST = "lost"  # another contender has a later token
    ENDED = "ended"  # it was told to end, or all waiting ones were


class Contender:
    """One process that leads the store, or waits for that.

    All times are of its own clock, in seconds.
    """

    def __init__(self, own: LeaseRecord) -> None:
        """`own`: the content of its record; its token, generation and count are ignored."""
        self.phase = Phase.WATCHES
        self.own = own
        self.ended_for_all = False
        self._lease_s = own.lease_ms / 1000
        self._seen: Found | None = None
        self._since = math.inf
        self._waits_s: dict[int, float] = {}  # by token, as last read
        self._until = self._settled_at = -math.inf
        self.serves = False  # the record that names its own generation was written
        self._beat = math.inf

    # -- who waits -------------------------------------------------------------------------------

    def look(self, found: Found | None, began: float, now: float) -> LeaseRecord | None:
        """Take the newest lease, read between these times; return the record to claim, if any."""
        assert self.phase is Phase.WATCHES
        waited = self._seen is not None
        if found is not None and not self._free(found, began, now):
            return None
        if waited and found is not None and found.shut_down:
            self.phase, self.ended_for_all = Phase.ENDED, True
            return None
        former = found.lease if found is not None else None
        if found is None:
            generation, lease_ms = 0, self.own.lease_ms
        elif former is None:
            generation, lease_ms = 0, LEASE_MS_MAX
        else:
            generation, lease_ms = former.generation, max(former.lease_ms, self.own.lease_ms)
        return replace(
            self.own, token=1 + (found.token if found is not None else 0), generation=generation,
            # Waiting for this lease includes waiting for the former ones.
            lease_ms=lease_ms, count=0, held=Held.HELD,
        )  # fmt: skip

    def _free(self, found: Found, began: float, now: float) -> bool:
        if found.lease is not None:
            self._waits_s = {found.token: _wait_s(found.lease.lease_ms)}
        if found != self._seen or self._since == math.inf:
            self._seen, self._since = found, now
        if found.given_up:
            return True
        # From the beginning of this reading: a pause after it proves nothing.
        return began - self._since >= self._wait_for(found)

    def blind(self) -> None:
        """Nothing can be read. Whether the holder renews is unknown, and it may not be able to
        either. The wait for the observed lease starts anew, so that a short outage causes no
        takeover."""
        self._since = math.inf

    def _wait_for(self, found: Found) -> float:
        return self._waits_s.get(found.token, _wait_s(LEASE_MS_MAX))

    def claimed(
        self, claim: LeaseRecord, former: Found | None, newest: int, began: float, now: float
    ) -> None:
        """The token of `claim` was obtained, by a step that began then.

        `former`: the record of the token before, read after that; `newest`: the newest token, too.
        """
        assert self.phase is Phase.WATCHES
        self.own, self._until = claim, began + self._lease_s
        if former is None or former == self._seen or former.given_up:
            self._settled_at = now
        else:
            if former.lease is not None:
                self._waits_s = {former.token: _wait_s(former.lease.lease_ms)}
            self._settled_at = now + self._wait_for(former)
        if former is not None and former.lease is not None:
            generation = max(claim.generation, former.lease.generation)
            self.own = replace(self.own, generation=generation)
        self.phase = Phase.SETTLES if newest == claim.token else Phase.LOST
        self._settle(now)

    # -- who holds the newest token --------------------------------------------------------------

    def renewal(self, now: float) -> LeaseRecord | None:
        """Return the record to write now; None: the loop hangs, so that others may lead."""
        assert self.phase in (Phase.SETTLES, Phase.HOLDS)
        if now - self._beat > HANG_S:
            return None
        self.own = replace(self.own, count=self.own.count + 1)
        return self.own

    def renewed(self, written: LeaseRecord, newest: int, began: float, now: float) -> None:
        """This record is durable, by a step that began then; `newest` was read after that."""
        if newest != written.token:
            self.phase = Phase.LOST
            return
        self._until = max(self._until, began + self._lease_s)
        self._settle(now)
        if written.generation == written.token:
            self.serves = True

    def _settle(self, now: float) -> None:
        if self.phase is Phase.SETTLES and self._settled_at <= now < self._until:
            self.phase = Phase.HOLDS

    def serve(self) -> None:
        """The generation of this token is complete: it counts from the next renewal on."""
        assert self.phase is Phase.HOLDS
        self.own = replace(
            self.own, generation=self.own.token, lease_ms=round(1000 * self._lease_s)
        )

    def beat(self, now: float) -> None:
        """The event loop turns; from the first call on it is expected to."""
        self._beat = now

    def holds(self, now: float) -> bool:
        """Whether this process may reply to clients: what it makes durable will be found."""
        return self.serves and self.phase is Phase.HOLDS and now < self._until

    @property
    def until(self) -> float:
        """Until when it may reply, unless it renews again."""
        return self._until

    def ends(self, held: Held) -> LeaseRecord | None:
        """Act no more; return the record that tells the others so, if this contender may write it.

        A contender that has not led yet writes nothing: a former lease may not be over.
        """
        former = self.phase
        if former is not Phase.LOST:
            self.phase = Phase.ENDED
        if former is not Phase.HOLDS:
            return None
        return replace(self.own, count=self.own.count + 1, held=held)


def _wait_s(lease_ms: int) -> float:
    return min(max(lease_ms, 0), LEASE_MS_MAX) * (1 + SLACK) / 1000
