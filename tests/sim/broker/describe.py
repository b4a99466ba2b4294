"""Describes for people what a simulated broker is waiting for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper


def why_not(upper: BrokerUpper) -> str:
    """Why it is not ready."""
    controller, primary = upper.controller, upper.controller.primary
    return (
        f"{upper.name}: {controller.replica.history} {primary.phase.value} ({primary.reason})"
        f" serving {controller.serving} caught up {primary.has_caught_up}"
        f" busy {controller.unapplied.busy} donor {controller.transfer_donor}"
        f" outstanding {controller.submissions.outstanding}"
        f" open {controller.submissions.open} halted {controller.halted!r}"
        f" unconfirmed {len(upper.clients.unconfirmed)} store {upper.store.meta.position}"
        f" mark {upper.outbox.durable_mark} marks {controller.primary.marks()}"
        f" active {controller.replica.machine.active!r}"
        f" ticks wanted {controller.replica.machine.wants_tick}"
    )
