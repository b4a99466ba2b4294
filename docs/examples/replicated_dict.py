"""A dictionary replicated to every member of a group.  Type `key value`; reads are local.  Start:
python -m docs.examples.replicated_dict a 127.0.0.1:5401 127.0.0.1:5402   # and b, the other way
"""

import asyncio
import json
import sys

from vsync import Cluster, Group, GroupMessage, GroupView


class ReplicatedDict:
    def __init__(self, group: Group) -> None:
        self.group, self.items = group, dict[str, str]()
        self.lacking = 0  # since this position the state is invalid: new, or was cut off
        self.late = list[tuple[int, str, str]]()  # changes received meanwhile

    async def write(self, key: str, value: str) -> None:
        await self.group.mcast(json.dumps([key, value]).encode())

    async def run(self) -> None:
        async for event in self.group:
            self.on_view(event) if isinstance(event, GroupView) else self.on_message(event)

    def on_view(self, view: GroupView) -> None:
        senior, me = view.members[:1], self.group.me
        if {me, *senior} & {member for member, _ in view.joined}:
            self.lacking = view.position
        if senior == (me,):  # the senior member's state counts
            self.catch_up()
            state = json.dumps({"at": view.position, "items": self.items}).encode()
            self.sending = asyncio.create_task(self.group.mcast(state))

    def on_message(self, message: GroupMessage) -> None:
        body = json.loads(message.payload)
        if isinstance(body, list):
            self.late.append((message.position, *body))
        elif self.lacking and body["at"] >= self.lacking:
            self.items, self.lacking = body["items"], 0
            self.late = [change for change in self.late if change[0] > body["at"]]
        if not self.lacking:
            self.catch_up()

    def catch_up(self) -> None:
        self.items.update((key, value) for _, key, value in self.late)
        self.late, self.lacking = [], 0


async def main(name: str, address: str, *peers: str) -> None:
    async with Cluster("dictionary", name, address, peers) as cluster:
        shared = ReplicatedDict(await cluster.join("items"))
        reader = asyncio.create_task(shared.run())
        while not reader.done() and (line := await asyncio.to_thread(sys.stdin.readline)):
            await shared.write(*line.strip().partition(" ")[::2])
            print(len(shared.group.members), "members hold", shared.items, flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])) if sys.argv[2:] else __doc__)
