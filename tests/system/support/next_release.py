"""A broker of the next release: `python -m tests.system.support.next_release OPTIONS OF QPIDD`.

It executes one more version of the machine than this release, in which every purge is refused.
Until that version is in force it behaves as this release.  It also reads one more version of the
ring's frames.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import cast

from broker.machine import version
from broker.machine.commands import QUEUE_PURGE, Command, QueuePurge
from broker.machine.state import Channel, State
from vsync.totem.config import RingConfig
from vsync.wire.codec import WIRE_VERSION

NEXT_VERSION = version.MACHINE_VERSION + 1
NEXT_WIRE_VERSION = WIRE_VERSION + 1


def main() -> None:
    """Run the broker."""
    version.MACHINE_VERSION = NEXT_VERSION  # before any other module reads it
    connections = importlib.import_module("broker.machine.handlers.connections")
    machines = importlib.import_module("broker.machine.machine")
    refusals = importlib.import_module("broker.machine.requests.refusals")
    as_before = machines._ON_CHANNEL[QUEUE_PURGE]

    def on_queue_purge(state: State, channel: Channel, command: Command) -> int:
        if state.version < NEXT_VERSION:
            return int(as_before(state, channel, command))
        name = QueuePurge(*cast("QueuePurge", command)).queue
        refusal = refusals.locked(name, channel.connection.vhost.name)
        return int(connections.refuse(state, channel, QUEUE_PURGE, refusal))

    machines._ON_CHANNEL[QUEUE_PURGE] = on_queue_purge
    ring_setup = importlib.import_module("broker.process.ring_setup")
    vars(ring_setup)["RingConfig"] = partial(RingConfig, wire_version=NEXT_WIRE_VERSION)
    importlib.import_module("tools.commands.qpidd").main()


if __name__ == "__main__":
    main()
