"""Simulated operators at one member: one sets, changes and deletes policies while clients work, one
has the member take the role of the active one and give it up.

The queues dead-letter what a limit drops to a queue without a consumer, so every confirmed message
is still somewhere, and the audit finds it. Queues that expire are left out: they take confirmed
messages along, and the audit knows of no such end.
"""

from __future__ import annotations

from itertools import count

from broker.machine.commands import (
    DEFINE,
    DEMOTE,
    PROMOTE,
    Command,
    Define,
    Demote,
    Promote,
    Table,
    Value,
)
from tests.sim.world.random_tape import Tape

GRAVE = "grave"
_PATTERNS = ("^(?!grave)", "^shared$", "^(own|loose)")


class SimOperator:
    """Decides by chance; most incarnations of a member have none."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._eager = 0.03 if tape.chance(0.4) else 0.0
        self._requests = count(1)

    def whim(self) -> list[Define]:
        """What it wants done now: mostly nothing."""
        tape = self._tape
        if not tape.chance(self._eager):
            return []
        operator = tape.chance(0.3)
        settings: Table = {}
        if tape.chance(0.5):
            settings["max-length"] = tape.number(0, 20)
        if tape.chance(0.3):
            settings["max-length-bytes"] = tape.number(0, 400)
        if tape.chance(0.3):
            settings["message-ttl"] = tape.number(0, 300)
        if tape.chance(0.3) or not settings:
            settings["delivery-limit"] = tape.number(0, 3)
        if not operator and tape.chance(0.3):
            settings["overflow"] = tape.pick(("drop-head", "reject-publish", "reject-publish-dlx"))
        body: dict[str, Value] = {
            "pattern": "^(?!grave)" if operator else tape.pick(_PATTERNS),
            "definition": settings,
            "priority": tape.number(0, 2),
        }
        what = "operator_policy" if operator else "policy"
        wanted = None if tape.chance(0.25) else body
        name = tape.pick(("one", "two"))
        return [Define(DEFINE, next(self._requests), "sim", what, "/", name, wanted)]


class SimRole:
    """Takes the role of the active member and gives it up, by chance; mostly it is left alone."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._eager = 0.1 if tape.chance(0.5) else 0.0
        self.gives_up = False
        """It counts as active no more from the moment it says so, as in the process."""

    def session_started(self) -> None:
        """What it said in the session before is void."""
        self.gives_up = False

    def whim(self, epoch: int, active: bool) -> list[Command]:
        """What it says now: mostly nothing."""
        if not self._tape.chance(self._eager):
            return []
        self.gives_up = active
        return [Demote(DEMOTE, epoch) if active else Promote(PROMOTE, epoch)]
