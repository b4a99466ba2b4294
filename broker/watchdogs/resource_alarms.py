"""Free disk and memory of one member against their limits, and the alarms it has ordered.

A resource below its limit is reported once per session (`Alarm`), because a new session begins
without alarms; it is reported as over when there is a tenth more than the limit. The consequences
are decided where the alarm is applied, at all members alike. Pure: readings and time are handed in.
Decision: docs/decisions/0022-alarms-are-ordered.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.machine.commands import ALARM, Alarm, Command
from broker.machine.handlers.alarms import DETAIL_MAX, DISK, FULL, MEMORY, WORDS
from broker.replication.controller import Controller
from vsync.quorum.reconfiguration import go_on

ROOM_BYTES = 256_000_000
ROOM_SHARE = 0.1
"""The space that must be free by default: this much, or this share of a smaller file system, plus
room for one more checkpoint."""
CLEAR_SHARE = 0.1
"""How far above the limit an alarm ends, so that it does not flap."""
LEAVE_AFTER_S = 5.0
"""How long a member with a full disk watches whether the others' disks become full as well."""

SUBJECTS = {DISK: "free disk space", MEMORY: "memory", FULL: "disk"}

RELIEF_S = 5.0
"""How often a member low on disk checks whether a checkpoint would make room."""
RELIEF_BYTES = 1 << 20

Limit = int | float | None
"""Bytes, or a share; 0: no alarm; None: the default, which depends on the disk and the state."""


class Reading(NamedTuple):
    """Measured amounts, in bytes."""

    room: int
    """Free on the data directory's file system, or reusable in the store."""
    disk: int
    """Size of that file system."""
    used: int
    """Memory that this process holds."""
    memory: int
    """The limit of that memory: the machine's, or its control group's."""
    owed: int = 0
    """Space that the reserve lacks; publishers must not use it up, so no limit is below it."""


class ResourceAlarms:
    """The alarms of one member."""

    def __init__(
        self, disk_free: Limit, memory: Limit, checkpoint_bytes: Callable[[], int]
    ) -> None:
        self.own: dict[str, str] = {}  # by subject, the detail
        self.counters = {"raised": 0, "room_mb": 0, "memory_mb": 0}
        self._disk_free, self._memory, self._checkpoint_bytes = disk_free, memory, checkpoint_bytes
        self._session = 0
        self._said: dict[str, bool] = {}
        self._full_since: float | None = None
        self._relief_due = 0.0

    def set_limits(self, disk_free: Limit, memory: Limit) -> None:
        """Use other limits; present alarms are judged anew."""
        self._disk_free, self._memory = disk_free, memory
        for subject in (DISK, MEMORY):
            self.own.pop(subject, None)

    def look(self, reading: Reading | None, full: str) -> None:
        """Take a reading, None if there is none yet; and the reason why writes wait, or nothing."""
        if reading is not None:
            self.counters["room_mb"] = reading.room // 1_000_000
            self.counters["memory_mb"] = reading.used // 1_000_000
            floor = self._floor(reading)
            more = floor * CLEAR_SHARE if DISK in self.own else 0
            why = "--disk-free-limit" if floor > reading.owed else "the reserve was given up"
            text = f"{_size(reading.room)} free of {_size(floor)} wanted ({why})"
            self._set(DISK, reading.room < floor + more, text)
            bound = _amount(self._memory, reading.memory)
            less = bound * CLEAR_SHARE if MEMORY in self.own else 0
            text = f"{_size(reading.used)} used of {_size(bound)} allowed (--memory-limit)"
            self._set(MEMORY, bool(bound) and reading.used > bound - less, text)
        self._set(FULL, bool(full), full)

    def bounds(self, reading: Reading) -> tuple[int, int]:
        """Return the room and the memory at which an alarm begins; 0: never."""
        return self._floor(reading), _amount(self._memory, reading.memory)

    def _floor(self, reading: Reading) -> int:
        if self._disk_free is None:
            share = int(reading.disk * ROOM_SHARE)
            floor = min(ROOM_BYTES, share) + self._checkpoint_bytes()
        else:
            floor = _amount(self._disk_free, reading.disk)
        return max(floor, reading.owed)

    def _set(self, subject: str, on: bool, detail: str) -> None:
        if on and subject not in self.own:
            self.counters["raised"] += 1
            self.own[subject] = detail[:DETAIL_MAX]
        elif not on:
            self.own.pop(subject, None)

    def order(self, controller: Controller) -> None:
        """Submit the changes to the order."""
        if not controller.serving:
            return
        session = controller.submissions.session
        if session != self._session:
            self._session, self._said = session, {}
        commands: list[Command] = []
        for subject in WORDS:
            on = subject in self.own
            if on is not self._said.get(subject, False):
                self._said[subject] = on
                commands.append(Alarm(ALARM, subject, on, self.own.get(subject, "")))
        if commands:
            controller.submit(commands)

    def wants_checkpoint(self, controller: Controller, now: float) -> bool:
        """Whether a checkpoint now would make room: the log behind the present one is long, and the
        state has become small."""
        if DISK not in self.own or now < self._relief_due:
            return False
        self._relief_due = now + RELIEF_S
        rows = controller.replica.machine.queue_rows()
        empty = not any(row.ready or row.unacked for row in rows)
        return empty and self._checkpoint_bytes() > RELIEF_BYTES

    def must_leave(self, controller: Controller, now: float) -> str:
        """Why this member leaves; empty: it stays.

        Its disk is full, and the members whose disks are not can continue: a quorum, or the other
        member of a pair. If they cannot, all wait for space.
        """
        me = controller.me.name
        alarms = controller.replica.machine.alarms
        full = {name for name, subject in alarms if subject == FULL}
        if FULL not in self.own or me not in full:
            self._full_since = None
            return ""
        others = controller.primary.caught_up_names - full
        if self._full_since is None:
            self._full_since = now
        late = now - self._full_since > LEAVE_AFTER_S
        if not late or not go_on(controller.promise.voters, others):
            return ""
        return (
            f"the disk of this member is full, and the others continue: {self.own[FULL]}; free "
            "space there, then start it again"
        )


def of_all(controller: Controller) -> dict[str, str]:
    """Return the alarms in force, of all members, by name."""
    return {
        f"{SUBJECTS[subject]} of {name}": f"{WORDS[subject]}: {detail} at {name}; publishers "
        "are blocked"
        for (name, subject), detail in controller.replica.machine.alarms.items()
    }


def _amount(limit: Limit, whole: int) -> int:
    return int(limit * whole) if isinstance(limit, float) else limit or 0


def _size(count: int) -> str:
    """A size in the unit that an operator types."""
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
