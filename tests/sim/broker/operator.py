"""Simulated operators at one member: one sets, changes and deletes policies while clients work, one
drains members of an active-passive cluster and promotes them.

The queues dead-letter messages that a limit drops to a queue without a consumer, so every confirmed
message is still somewhere, and the audit finds it.  Queues that expire are left out: they take
confirmed messages along, an end that the audit does not know.
"""

from __future__ import annotations

import contextlib
from itertools import count
from typing import TYPE_CHECKING, Protocol

from broker.machine.commands import DEFINE, Define, Table, Value
from broker.options.modes.active_passive import ActivePassiveOptions
from broker.replication.durable_gate import Backups
from broker.roles.active_passive import ActivePassive
from broker.roles.by_ring import ByRing
from broker.roles.role_table import Role
from tests.sim.world.random_tape import Tape
from vsync.admin.protocol import QueryRefused

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

GRAVE = "grave"
_PATTERNS = ("^shared$", "^(own|loose)")


class SimOperator:
    """Acts by chance; most incarnations of a member have none."""

    def __init__(self, tape: Tape, spared: str = "grave|replica") -> None:
        """`spared`: prefixes of the queues from which nothing may be dropped."""
        self._tape = tape
        self._all = f"^(?!{spared})"
        self._eager = 0.03 if tape.chance(0.4) else 0.0
        self._requests = count(1)

    def whim(self) -> list[Define]:
        """The present action: mostly none."""
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
            "pattern": self._all if operator else tape.pick((self._all, *_PATTERNS)),
            "definition": settings,
            "priority": tape.number(0, 2),
        }
        what = "operator_policy" if operator else "policy"
        wanted = None if tape.chance(0.25) else body
        name = tape.pick(("one", "two"))
        return [Define(DEFINE, next(self._requests), "sim", what, "/", name, wanted)]


class MemberRole(Protocol):
    """The role of one member in a cluster with one active member; or of one in any other
    cluster."""

    def follow(self) -> None: ...
    def whim(self) -> None: ...
    @property
    def serves(self) -> bool: ...
    @property
    def settled(self) -> bool: ...


class SimRole:
    """The role of one member in an active-passive cluster, as in its process, and operators who
    drain and promote members by chance.

    Some clusters have the mode.  The clients of a simulated member know nothing of it: the replies
    due to them are checked, and their commands continue, at backups as well.
    """

    def __init__(self, upper: BrokerUpper) -> None:
        self._upper, self._stack = upper, upper.stack
        self._tape = upper.tape.fork("role")
        of_all = upper.world.tape.fork("roles")
        self.has_mode = of_all.chance(0.5)
        self.automatic = of_all.chance(0.7)
        waits = upper.world.tape.fork("backups")  # its own tape: other seeds stay as they were
        if self.has_mode and waits.chance(0.5):
            timeout_s = waits.pick((0.01, 0.2, 5.0))
            upper.controller.backups = Backups(
                timeout_s, lambda: upper.world.now, lambda text: upper.note("backups", text)
            )
        self._eager = 0.3 if self._tape.chance(0.7) else 0.0
        self._drained: frozenset[str] = frozenset()  # as known here
        self._lets_in = False
        controller, replicated = upper.controller, upper.replicated
        self._real = ActivePassive(
            ByRing(
                ActivePassiveOptions(automatic=self.automatic, public_url="", needless=()),
                controller, lambda: self._drained,
            ),
            controller, self, drained=lambda: self._drained, may_reply=lambda: replicated.may_reply,
            stop=upper.stop, note=lambda text: upper.note("role", text),
        )  # fmt: skip

    def stand_by(self, reason: str, *, briefly: bool, holds: bool = False) -> None:
        """Record what its clients are told (`active_passive.Clients`)."""
        self._lets_in = not reason

    def follow(self) -> None:
        """Called after each turn."""
        if not self.has_mode:
            return
        if self._upper.world.healed:
            self._stack.drained.clear()
            self._drained = frozenset()
        self._real.follow(self._upper.world.now)

    def whim(self) -> None:
        """The operators' present action here: mostly none."""
        if not self.has_mode:
            return
        tape, drained, me = self._tape, self._stack.drained, self._upper.name
        if me in self._drained:
            if tape.chance(0.3):
                drained.discard(me)
                self._drained -= {me}
        elif tape.chance(self._eager):
            if self._real.role is Role.ACTIVE:
                drained.add(me)
                self._drained |= {me}
            else:
                with contextlib.suppress(QueryRefused):
                    self._real.promote()
        if tape.chance(0.2):  # it hears of the others
            self._drained = frozenset(drained)

    @property
    def serves(self) -> bool:
        """Whether it admits clients and may reply to them, or reports itself as the active one."""
        if not self.has_mode:
            return False
        replies = self._lets_in and self._upper.replicated.may_reply
        return replies or self._real.status()["status"] == Role.ACTIVE.value

    @property
    def settled(self) -> bool:
        """Whether some member has the role, if the ring assigns it, and this member has
        followed."""
        machine = self._upper.controller.replica.machine
        if not self.has_mode or not self.automatic:
            return True
        is_it = machine.active == self._upper.name
        return bool(machine.active) and self._real.role is (Role.ACTIVE if is_it else Role.READY)
