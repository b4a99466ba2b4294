"""The rule of an active-passive cluster: the ring promotes a member, or an operator does.

Decision: docs/decisions/0067-the-ring-promotes-unless-told-otherwise.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from broker.options.modes.active_passive import ActivePassiveOptions
from broker.roles.active_passive import NO_PAIR, Followed, Standby, candidates
from broker.roles.role_table import Role

STEP_S = 0.25
"""How much longer each further candidate waits for the previous one to take the role."""


class ByRing:
    """The rule at one member (`active_passive.Rule`): the first candidate takes the role."""

    no_promotion = ""
    wants_role = True
    goes_on = steps_aside = False

    def __init__(
        self,
        options: ActivePassiveOptions,
        controller: Followed,
        drained: Callable[[], Collection[str]],
    ) -> None:
        self.automatic, self.public_url = options.automatic, options.public_url
        self._controller, self._drained = controller, drained

    def follow(self, _now: float) -> None:
        """Do nothing: this rule depends only on the view and the order."""

    def _candidates(self) -> list[str]:
        return candidates(self._controller, self._drained())

    def takes_role(self, vacant_s: float) -> bool:
        """Whether it is this member's turn among the candidates."""
        me, may = self._controller.me.name, self._candidates()
        return self.automatic and me in may and vacant_s >= may.index(me) * STEP_S

    def for_clients(self, role: Role, url: str) -> Standby:
        """Return a backup's answer to clients."""
        machine, primary = self._controller.replica.machine, self._controller.primary
        me = self._controller.me.name
        if not primary.active and not primary.left_out:
            # The lost member may be the active one: until the view is settled, and this was called
            # again, no client is sent to it.
            return Standby(f"member '{me}' is a backup, and the view is changing", briefly=True)
        if machine.active and machine.active != me:
            to = f"; connect to {where}" if (where := self.public_url or url) else ""
            return Standby(
                f"member '{me}' is a backup, '{machine.active}' is the active member{to}"
            )
        text = f"member '{me}' is a backup, and no member is active"
        if self.automatic:
            return Standby(text, briefly=role is Role.READY and bool(self._candidates()))
        return Standby(f"{text}: an operator is to promote one (qpid-ha promote)")

    def force_passive(self, _now: float) -> str:
        """Refuse."""
        return NO_PAIR

    def status(self) -> dict[str, object]:
        """Return nothing beyond the facts of every role."""
        return {}
