"""What a simulated broker is waiting for, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper


def why_not(upper: BrokerUpper) -> str:
    """What keeps it from being ready."""
    core, primary = upper.core, upper.core.primary
    return (
        f"{upper.name}: {core.replica.history} {primary.phase.value} ({primary.reason})"
        f" speaking {core.serving} level {core.primary.has_caught_up} busy {core.busy}"
        f" donor {core.transfer_donor} outstanding {core.submissions.outstanding}"
        f" open {core.submissions.open} halted {core.halted!r}"
        f" unconfirmed {len(upper.clients.unconfirmed)} store {upper.store.meta.position}"
        f" mark {upper.outbox.durable_mark} marks {core.primary.marks()}"
        f" ticks wanted {core.replica.machine.wants_tick}"
    )
