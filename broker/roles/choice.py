"""Chooses the role object of a member by the mode in its options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from broker.exit_codes import Exit
from broker.options.broker import BrokerOptions
from broker.options.modes.pair import PairOptions
from broker.options.modes.shared_store import SharedStoreOptions
from broker.replication.durable_gate import Backups
from broker.roles import active_passive, by_pair
from broker.roles.active_passive import NO_PAIR, ActivePassive, Followed, Rule
from broker.roles.by_pair import ByPair
from broker.roles.by_ring import ByRing
from broker.roles.role_table import Role

NO_ROLE = "this broker is in no active-passive cluster: start all members with --ha-cluster yes"

log = logging.getLogger("qpidd")


class Clients(active_passive.Clients, by_pair.Clients, Protocol):
    """The clients of this member."""


class Standalone:
    """The role of a member where all take clients, and of the leader of a shared store."""

    steps_aside = False

    def follow(self, _now: float) -> None:
        """Do nothing."""

    def promote(self) -> str:
        """Refuse."""
        return NO_ROLE

    def force_passive(self, _now: float) -> str:
        """Refuse."""
        return NO_PAIR

    def status(self) -> dict[str, object]:
        """Return the reply to `ha`."""
        return {"status": Role.STANDALONE.value, "primary": False, "settled": True}


Roles: TypeAlias = ActivePassive | Standalone
"""The roles of all modes, which have the same methods."""


def roles_of(
    options: BrokerOptions,
    controller: Followed,
    clients: Clients,
    *,
    drained: Callable[[], Collection[str]],
    hears: Callable[[str], bool],
    may_reply: Callable[[], bool],
    stop: Callable[[Exit, str], None],
    clock: Callable[[], float],
) -> Roles:
    """Return the role of this member, on which `follow` was not called yet."""
    mode = options.mode
    if mode is None or isinstance(mode, SharedStoreOptions):
        return Standalone()
    if isinstance(mode, PairOptions):
        rule: Rule = ByPair(
            mode, controller, clients, drained=drained, hears=hears, stop=stop, note=log.info,
            warn=log.error,
        )  # fmt: skip
    else:
        rule = ByRing(mode, controller, drained)
        if mode.backup_timeout_s:
            controller.backups = Backups(mode.backup_timeout_s, clock, log.warning)
        for sentence in mode.needless:
            log.warning("%s", sentence)
    return ActivePassive(
        rule, controller, clients, drained=drained, may_reply=may_reply, stop=stop, note=log.info
    )
