"""A broker with a deliberate fault: `python -m tests.system.support.faulty_broker OPTIONS OF
QPIDD`.

SABOTAGE in the environment chooses the fault, for publishes whose body contains a word:

    raise    POISON: the handler raises, its change half done
    rot      ROT: a bit of the message flips in this member's memory after it was published
    odd      ODD: this member records another outcome for the publish

Votes come every 64 positions, and the scrubber hardly pauses, so that a test need not wait.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import cast

import broker.replication.controller
import broker.selfcheck.scrubber
from broker.machine import commands as c
from broker.machine import machine as machines
from broker.machine.commands import Command, Publish
from broker.machine.state import BODY, Channel, State
from tools.commands.qpidd import main

DIGEST_INTERVAL = 64
PAUSE_S = 0.1


def install(how: str) -> None:
    """Replace the correct handler by the faulty one."""
    right = machines._ON_CHANNEL[c.PUBLISH]
    assert right is not None

    def wrong(state: State, channel: Channel, command: Command) -> int:
        publish = Publish(*cast("Publish", command))  # it arrives as a plain tuple
        body, key = publish.body, publish.key
        if how == "raise" and b"POISON" in body:
            state.next_message += 1
            raise RuntimeError("sabotage")
        outcome = right(state, channel, command)
        # The store is re-executed on another thread, and disks do not have the memory's fault.
        live = threading.current_thread() is threading.main_thread()
        if how == "rot" and live and b"ROT" in body:
            ready = state.vhosts["/"].queues[key].ready
            message = ready.pop()
            body = bytes([bytes(message[BODY])[0] ^ 1]) + bytes(message[BODY])[1:]
            ready.append((*message[:BODY], body))
        return 404 if how == "odd" and b"ODD" in body else outcome

    machines._ON_CHANNEL[c.PUBLISH] = wrong


if __name__ == "__main__":
    defaults = broker.replication.controller.Controller.__init__.__kwdefaults__
    assert defaults is not None
    defaults["digest_interval"] = DIGEST_INTERVAL
    broker.selfcheck.scrubber.PAUSE_S = PAUSE_S
    install(os.environ.get("SABOTAGE", ""))
    sys.argv[0] = "qpidd"
    main()
