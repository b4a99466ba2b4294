"""The operations that operators may request of a member, behind `broker/frontend/management`."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from broker.admin.definitions import Definitions
from broker.admin.first_administrator import see_to_it
from broker.admin.maintenance import Clients, Maintenance
from broker.admin.operator_logins import OperatorLogins
from broker.admin.status import (
    ViewHistory,
    counters_of,
    groups_of,
    primary_fact,
    quorum_of,
    status_of,
    why_not_active,
)
from broker.exit_codes import Exit
from broker.frontend.gateway import Gateway
from broker.machine.commands import SHUTDOWN, UPGRADE, Shutdown, Table, Upgrade
from broker.options.broker import BrokerOptions
from broker.replication.controller import Controller
from broker.replication.voter_changes import ChangeRefused, VoterChanges
from broker.roles import choice
from broker.roles.choice import roles_of
from broker.shovels.replicas import COMPONENT as REPLICA
from broker.shovels.replicas import Row, Stopping
from vsync.admin.protocol import Json, QueryRefused
from vsync.io.traced_driver import Tracer, trace_op
from vsync.quorum.voter_set import parse
from vsync.totem.events import Direct
from vsync.types import Member

STOP_DATAGRAM = b"S"
"""Requests a member to leave. It may be lost, so it is sent a few times; the new view is the
reply."""
STOP_REPEATS = 3
STOP_INTERVAL_S = 0.1

log = logging.getLogger("qpidd")


class KnownClients(Clients, choice.Clients, Protocol):
    """The clients of this member, and who may log in."""

    @property
    def gateway(self) -> Gateway:
        """Return the gateway, which knows who may log in and how long failed logins are delayed."""


class Operations:
    """Carries out the requests of operators at one member."""

    def __init__(
        self,
        controller: Controller,
        options: BrokerOptions,
        tracer: Tracer,
        voter_changes: VoterChanges,
        *,
        clients: KnownClients,
        later: Callable[[float, Callable[[], None]], object],
        send_direct: Callable[[Member, bytes], None],
        stop: Callable[[Exit, str], None],
        counters: Callable[[], Mapping[str, Mapping[str, int]]],
        progress: Callable[[], str],
        watchdogs: Callable[[], Json],
        received: Callable[[str], float | None],
        may_reply: Callable[[], bool],
        hears: Callable[[str], bool],
    ) -> None:
        self._controller, self._cluster = controller, options.cluster_name
        self._tracer, self._voter_changes = tracer, voter_changes
        self._maintenance = Maintenance(controller, clients, send_direct, log.warning)
        self._later, self._send_direct, self._stop = later, send_direct, stop
        self._progress, self._watchdogs, self._received = progress, watchdogs, received
        self._views = ViewHistory(controller)
        self.goes = self._views.goes
        self.roles = roles_of(
            options, controller, clients, drained=lambda: self._maintenance.drained,
            hears=hears, may_reply=may_reply, stop=stop, clock=time.monotonic,
        )  # fmt: skip
        self._replicas: Callable[[], list[Row]] = list
        self._stopping = Stopping()
        self._defining: set[asyncio.Task[object]] = set()
        self.definitions = Definitions(controller)
        self.defined = self.definitions.done
        self.logins = OperatorLogins(clients.gateway)
        self.login = self.logins.at_once
        self.all_counters = lambda: counters_of(**counters())
        tracer.watch(lambda: primary_fact(controller))

    def begin(self, data_dir: Path, *, kept: bool) -> None:
        """Give a new cluster its administrator. `kept`: the data directory outlives the member."""
        work = see_to_it(self._controller, self.definitions, data_dir, kept=kept)
        self._first_administrator = asyncio.get_running_loop().create_task(work)

    def status(self) -> Json:
        """Return the reply to `status`."""
        reply = status_of(
            self._controller, self._cluster, self._progress(), self._watchdogs(), self._received,
            self._views.url_of,
        )  # fmt: skip
        views: list[Json] = self._views.reply()
        return reply | {
            "drained": sorted(self._maintenance.drained), "views": views, "ha": self.roles.status(),
        }  # fmt: skip

    def promote(self) -> Json:
        """Have this member become the active one of an active-passive cluster."""
        _refuse(self.roles.promote())
        return self.roles.status()

    def show_replicas(self, rows: Callable[[], list[Row]]) -> None:
        """Give `replicas` its source of rows."""
        self._replicas = rows

    def replicas(self) -> list[Row]:
        """Return the replicas of queues of outside brokers as list rows, including those stopped
        here until others may consume from them."""
        return self._stopping.rows(self._replicas(), self._controller.replica.machine.vhosts)

    def replicate(self, by: str, vhost: str, queue: str, value: Table | None) -> None:
        """Order that a queue replicates one of another broker, or (no value) no longer does;
        `replicas` shows when this is in force."""
        self._demand_active()
        name, machine = f"{REPLICA}/{queue}", self._controller.replica.machine
        if vhost not in machine.vhosts:
            raise QueryRefused("refused", f"there is no vhost '{vhost}'")
        if value is None and (vhost, name) not in machine.definitions["parameter"]:
            raise QueryRefused("refused", f"queue '{queue}' of vhost '{vhost}' is no replica")
        fault = value is not None and self.definitions.parameter_fault(vhost, name, value)
        if fault:
            raise QueryRefused("refused", fault.rpartition("\n\n")[2].strip())
        if value is None:
            self._stopping.begin((vhost, queue), self._replicas(), machine.vhosts)
        body: Table | None = None if value is None else {"value": value}
        work = self.definitions.define("parameter", vhost, name, body, by)
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._defining.add(task)
        task.add_done_callback(self._defining.discard)

    def force_passive(self) -> Json:
        """Have this member's peer in a pair take over its clients."""
        _refuse(self.roles.force_passive(asyncio.get_running_loop().time()))
        return self.roles.status()

    @property
    def drained(self) -> frozenset[str]:
        """Return the names of the drained members."""
        return self._maintenance.drained

    def stepped_aside(self) -> bool:
        """Called before this member stops: whether its peer in a pair may go on, if it is to."""
        return not self.roles.steps_aside or self._voter_changes.step_aside()

    def connections(self) -> list[Json]:
        """Return the clients of all members."""
        self._demand_active()
        return self._maintenance.connections()

    def disconnect(self, address: str, of: str, reason: str = "") -> list[str]:
        """Close a client's connection for this reason; return the members that had it."""
        self._demand_active()
        return self._maintenance.disconnect(address, of, reason)

    def drain(self, name: str, *, on: bool, force: bool) -> None:
        """Drain a member, or let it take clients again.

        A member can be undrained by a request to itself even without a primary view, because a
        member of a pair may go on alone only once it is undrained.
        """
        if on or name != self._controller.me.name:
            self._demand_active()
        self._maintenance.drain(name, on=on, force=force)

    def wake(self, now: float) -> None:
        """Do the work that is due; called a few times a second."""
        self._maintenance.wake(now)
        self._views.look()
        self.definitions.wake(now)

    def takes(self, direct: Direct) -> bool:
        """Handle a request that an operator made at another member; return whether it was one."""
        if direct.payload == STOP_DATAGRAM:
            self._stop(Exit.OK, f"stopped by an operator through {direct.sender.name}")
            return True
        return self._maintenance.takes(direct)

    def groups(self) -> Json:
        """Return the reply to `groups`."""
        return groups_of(self._controller, self._cluster)

    def quorum(self) -> Json:
        """Return the reply to `quorum`."""
        return quorum_of(self._controller, self._cluster)

    def trace(self, request: Json) -> Json:
        """Return the reply to `trace`; switch it when the request demands it."""
        return trace_op(self._tracer)(request)

    def stop_member(self, name: str) -> None:
        """Make a member leave."""
        self._demand_active()
        if name == self._controller.me.name:
            # The reply is sent first.
            self._later(STOP_INTERVAL_S, lambda: self._stop(Exit.OK, "stopped by an operator"))
            return
        for member in self._controller.primary.members:
            if member.name == name:
                for again in range(STOP_REPEATS):
                    self._later(
                        STOP_INTERVAL_S * again,
                        lambda to=member: self._send_direct(to, STOP_DATAGRAM),  # type: ignore[misc]
                    )
                return
        raise QueryRefused("no-such-member", f"no member of this view has the id {name}")

    def note(self, sentence: str) -> None:
        """Record an operator's order."""
        log.info("%s", sentence)

    def shutdown(self) -> str:
        """Order the clean stop of all."""
        self._demand_active()
        shutdown_id = uuid.uuid4().hex
        self._controller.submit([Shutdown(SHUTDOWN, shutdown_id)])
        return shutdown_id

    def stop_members_without_state(self, present: Sequence[Member]) -> None:
        """After the shutdown of all: stop members that were still joining, which no longer get a
        state, and arbitrators, which do not read ordered commands.

        `present` were there when this member began to stop. If it hung since, the others may have
        begun again: their new processes are not of this run.
        """
        controller = self._controller
        with_state = controller.primary.caught_up_names - controller.primary.mark.without_data
        for member in controller.primary.members:
            if member.name not in with_state and member in present:
                self._send_direct(member, STOP_DATAGRAM)

    def change_voters(self, action: str, name: str, by: str, votes: int) -> tuple[str, ...]:
        """Order a change of the voter set; return the terms that will be in force."""
        self._demand_active()
        voter_changes = self._voter_changes
        try:
            match action:
                case "add":
                    return voter_changes.add(name)
                case "remove":
                    return voter_changes.remove(name)
                case "replace":
                    return voter_changes.replace(name, by)
                case "votes":
                    return voter_changes.votes(name, votes)
                case "expected":
                    return voter_changes.expected(votes)
                case _:
                    raise QueryRefused(
                        "bad-request", f"no change of the voters is called '{action}'"
                    )
        except ChangeRefused as refused:
            raise QueryRefused("refused", str(refused)) from None

    def upgrade(self, *, force: bool) -> int:
        """Order an upgrade to the newest version that all present members execute; return it.

        Refused while a voter is absent, unless forced: the voter could not come back with an older
        release.
        """
        self._demand_active()
        controller = self._controller
        primary, wanted = controller.primary, controller.primary.common_version()
        here = {member.name for member in primary.members}
        away = sorted(set(parse(controller.promise.voters).names) - here)
        if wanted <= controller.replica.machine.version:
            return controller.replica.machine.version
        if away and not force:
            raise QueryRefused(
                "refused",
                f"{', '.join(away)} is not here, and could not come back with an older release; "
                "start it, or force the upgrade",
            )
        controller.submit([Upgrade(UPGRADE, primary.epoch, wanted)])
        return wanted

    def _demand_active(self) -> None:
        if not self._controller.serving:
            why = why_not_active(self._controller)
            raise QueryRefused("not-active", f"this member is not active: {why}")


def _refuse(why: str) -> None:
    if why:
        raise QueryRefused("refused", why)
