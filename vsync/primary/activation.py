"""When the donor of a plan may declare its view primary: pure, from what the members answered."""

from __future__ import annotations

from collections.abc import Mapping

from vsync.primary.events import Activation
from vsync.primary.state_exchange import Plan, StateReport
from vsync.quorum.voter_set import parse
from vsync.types import Member


def activate(
    plan: Plan,
    members: tuple[Member, ...],
    states: Mapping[Member, StateReport],
    answers: Mapping[Member, bool],
    fresh: Mapping[Member, bool],
) -> Activation | None:
    """Return the activation, or None while promises or answers are missing.

    `answers`: promised (True) or behind (False).  An arbitrator that has no record, or whose record
    does not let it vote in this view, promises like the others and does not count.
    """
    promised = {
        m.name
        for m, yes in answers.items()
        if yes and (m.name in plan.counted or not states[m].arbitrator)
    }
    if not parse(plan.voters).quorate(promised):
        return None
    # Whoever may be level without a transfer is waited for, so that a slow disk does not cost
    # a member its clients; it answers within one fsync or leaves the view.
    awaited = [m for m, s in states.items() if s.ran or m in plan.level]
    if any(m not in answers and m not in plan.foreign for m in awaited):
        return None
    carried = any(states[m].live and not fresh[m] for m, yes in answers.items() if yes)
    listed = tuple((m.name, m.incarnation, fresh.get(m, True)) for m in members)
    return Activation(
        plan.epoch, listed, not carried, plan.voters, plan.cluster_id, plan.unstable > 0
    )
