"""A dictionary that every member of a group holds: the ring used as a library.

    python -m docs.examples.replicated_dict a 127.0.0.1:5401 127.0.0.1:5402   # and b, the other way

Type `key value`.  All members apply all changes in the same order; a late one only the later ones.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from vsync.config import RingConfig
from vsync.driver import Driver
from vsync.events import Deliver, Output, View
from vsync.node import Node
from vsync.transport import ZmqTransport
from vsync.types import Member


class ReplicatedDict:
    """Reads are local; a write takes effect when it is delivered, here as everywhere."""

    def __init__(self, name: str, address: str, peers: list[str]) -> None:
        self.items: dict[str, str] = {}
        self.members: tuple[str, ...] = ()
        transport = ZmqTransport(address, max_frame_bytes=70_000)
        me = Member(name, time.time_ns(), transport.address)  # a new life with each start
        node = Node(me, "dictionary", RingConfig(), random.Random())
        self.driver = Driver(node, transport, self.on_event)
        self.driver.start(peers)

    def write(self, key: str, value: str) -> bool:
        """False: the ring is busy, try again later."""
        return self.driver.submit(f"{key} {value}".encode())

    def on_event(self, event: Output) -> None:
        if isinstance(event, View):
            self.members = tuple(member.name for member in event.members)
        elif isinstance(event, Deliver):
            for payload in event.payloads:
                key, _, value = payload.decode().partition(" ")
                self.items[key] = value


async def main(name: str, address: str, *peers: str) -> None:
    shared = ReplicatedDict(name, address, list(peers))
    while line := await asyncio.to_thread(sys.stdin.readline):
        shared.write(*line.strip().partition(" ")[::2])
        await asyncio.sleep(0.1)
        print(shared.members, shared.items)
    shared.driver.leave()
    shared.driver.stop(linger_ms=100)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
