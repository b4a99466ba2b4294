"""An operator shuts the whole cluster down (`qpid-cluster -k`), and starts it again.

Members end by themselves, each when it knows enough; all other faults may hit them meanwhile. The
operator starts them again after a while, often before the last one has ended. In the end the
operator kills the processes of before that are still there, as the command says: those that hung,
were cut off or never heard of it. With these the order is gone, too: none that may still be on its
way could end a member in the calm at the end of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tests.sim.world.random_tape import Tape

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember
    from tests.sim.world.world import World


@runtime_checkable
class Ordering(Protocol):
    """A member at which an operator can order the shutdown of all."""

    shutdown_wait_s: float

    def order_shutdown(self) -> bool: ...
    @property
    def goes_on(self) -> bool: ...


class ShutdownOfAll:
    """At most one at a time."""

    def __init__(self, world: World, tape: Tape) -> None:
        self.world, self.tape = world, tape
        self.under_way = self._due = False
        self._again_at = 0.0
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Order it at any member that serves; if none does, when one begins to."""
        self._order()

    def serves(self) -> None:
        """Called when a member begins to serve."""
        if self._due:
            self._due = False
            token_s = self.world.plan.token_timeout_ms / 1000.0
            self.world.during(self.tape.gap(token_s * 0.2), self._order)

    def _order(self) -> None:
        self._due = False
        if self.under_way:
            return
        members = list(self.world.members.values())
        self.tape.random.shuffle(members)
        for member in members:
            upper = member.upper
            if member.running and isinstance(upper, Ordering) and upper.order_shutdown():
                self._ordered(member, upper.shutdown_wait_s)
                return
        self._due = True

    def _ordered(self, member: SimMember, wait_s: float) -> None:
        world, tape = self.world, self.tape
        world.fault("shutdown", member.name, member)
        self.under_way = True
        self._before = {name: one.incarnation for name, one in world.members.items()}
        again_s = wait_s * tape.between(0.1, 2.0)
        self._again_at = world.now + again_s
        world.after(again_s + wait_s * tape.between(0.5, 3.0), self._end)

    def down_s(self) -> float:
        """How long a member that ends now stays down."""
        return max(0.0, self._again_at - self.world.now) + 0.01 * self.tape.random.random()

    def _end(self) -> None:
        """Kill what is left, and all that may have it from there."""
        world, members = self.world, self.world.members.values()
        if not all(one.incarnation > self._before[one.name] and _goes_on(one) for one in members):
            for member in members:
                if member.up:
                    world.fault("shutdown_kill", member.name, member)
                    member.crash()
                    world.after(self.tape.gap(0.1), world.revive, member.name)
        self.under_way = False


def _goes_on(member: SimMember) -> bool:
    return member.up and (not isinstance(member.upper, Ordering) or member.upper.goes_on)
