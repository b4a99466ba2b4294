"""The shovels of one member, wired to its state, its clients and the other members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from broker.frontend.connections import Connections
from broker.machine.commands import Value
from broker.replication.ports import MemberState
from broker.shovels.definition import COMPONENT, Shovel
from broker.shovels.federation import Federation
from broker.shovels.handover import Attempt
from broker.shovels.supervisor import Event, Job, Shovels
from broker.shovels.worker_process import WorkerProcess
from vsync.types import Member

Define = Callable[[str, str, str, Mapping[str, Value] | None, str], Awaitable[object]]
"""Orders a definition, or its deletion (broker/admin/definitions.py)."""
BY = "shovel"
"""The author of deletions of finished shovels, in the logs."""
THREADS = 4
"""They start processes; one that hangs in that holds up nothing else."""


def shovels_of(
    command: Sequence[str],
    controller: MemberState,
    clients: Connections,
    define: Define,
    cluster: str,
    send_direct: Callable[[Member, bytes], None],
    loop: asyncio.AbstractEventLoop,
) -> Shovels:
    """Return the shovels of a member that is about to start."""
    tasks: set[asyncio.Task[None]] = set()
    threads = ThreadPoolExecutor(THREADS, "shovel")

    def keep(task: asyncio.Task[None]) -> None:
        """Keep a task until it is done: the loop alone does not, and nobody else refers to an
        attempt that was stopped, or has reported its end, while its process is still to be waited
        for."""
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def begin(job: Job, on_event: Callable[[Event], None]) -> Attempt:
        attempt = WorkerProcess(command, cluster, clients, job, on_event, loop, threads)
        keep(attempt.task)
        return attempt

    async def delete_done(shovel: Shovel) -> None:
        """Delete it, unless it was redefined meanwhile."""
        name = f"{COMPONENT}/{shovel.name}"
        body = controller.replica.machine.definitions["parameter"].get((shovel.vhost, name))
        if body is not None and cast("Value", shovel.value) == body["value"]:
            await define("parameter", shovel.vhost, name, None, BY)

    def delete(shovel: Shovel) -> None:
        keep(loop.create_task(delete_done(shovel)))

    def tell(datagram: bytes) -> None:
        for member in controller.primary.members:
            if member != controller.me:
                send_direct(member, datagram)

    return Shovels(
        controller.me.name, lambda: controller.replica.machine, lambda: controller.serving,
        begin, delete, tell, lambda: time.time_ns() // 1_000_000,
        Federation(lambda: _name(clients), lambda: controller.replica.machine),
        lambda: controller.primary.caught_up_names - controller.primary.mark.without_data,
    )  # fmt: skip


def _name(clients: Connections) -> str:
    """The name by which other brokers know this cluster."""
    identity = clients.gateway.identity
    return identity.cluster or identity.cluster_id
