"""Policies taking effect: which queues a change affects, and dropping messages over new limits.

Working out a change of policies for 100,000 queues takes longer than one position may. So a change
marks the queues of its virtual host as stale. They are looked at in the order of their declaration,
as many as one position may cost, beginning at the position of the change. A queue declared
meanwhile has the new policies at once, and so has every exchange. Messages over a lowered limit are
dropped in the same way.
"""

from itertools import islice

from broker.machine.limits import POLICIES_WORK_MAX, POLICY_WORK, TRIMMED_MAX
from broker.machine.policies.choice import NOTHING, policy_of, ranked
from broker.machine.queueing.queue_limits import apply_policies, trim
from broker.machine.state import Policy, Ranked, State, Vhost

POLICIES = ("policy", "operator_policy")
"""The kinds under which policies are defined (handlers/definitions.py)."""


def policies_defined(state: State, only: str = "") -> dict[str, Ranked]:
    """All policies by virtual host, or those of one."""
    found: dict[str, tuple[list[Policy], list[Policy]]] = {}
    for operator, what in enumerate(POLICIES):
        for (vhost, name), body in state.definitions[what].items():
            if not only or vhost == only:
                of_vhost = found.setdefault(vhost, ([], []))
                of_vhost[operator].append(policy_of(vhost, name, body, bool(operator)))
    return {
        vhost: (ranked(own), ranked(of_operator)) for vhost, (own, of_operator) in found.items()
    }


def follow_policies(state: State, vhost: Vhost) -> None:
    """The definitions of policies in this virtual host may have changed."""
    policies = policies_defined(state, vhost.name).get(vhost.name, NOTHING)
    if policies == vhost.policies:
        return
    vhost.policies = policies
    vhost.routes.clear()  # an exchange's alternate exchange may be a different one now
    fresh = [queue for queue in vhost.queues.values() if not queue.stale]
    for queue in fresh:
        queue.stale = True
    state.stale.extend(fresh)


def go_on_with_policies(state: State) -> None:
    """Look at further stale queues, as many as one position may cost."""
    work = 0
    # Deleted queues cost nothing and never stay last: a snapshot has none of them.
    while state.stale and (work < POLICIES_WORK_MAX or state.stale[0].deleted):
        queue = state.stale.popleft()
        queue.stale = False
        if not queue.deleted:
            policies, operators = queue.vhost.policies
            work += 4 + POLICY_WORK * (len(policies) + len(operators))
            if apply_policies(state, queue):
                work += 16
    dropped = 0
    for queue in list(islice(state.trimming.values(), TRIMMED_MAX)):
        dropped += max(1, trim(state, queue, TRIMMED_MAX - dropped))
        if dropped >= TRIMMED_MAX:
            return
