"""The verbs of broker stories: replicated members over scripted views, with stores in memory.

All of `broker.replication` is real; the story controls disks, transfers, leases and clients. Each
member has one client, with one connection and one channel in confirm mode.
"""

from __future__ import annotations

from broker.machine.commands import (
    ACK,
    CONSUME,
    QUEUE_DECLARE,
    SHUTDOWN,
    Ack,
    Command,
    Consume,
    QueueDeclare,
    Shutdown,
)
from broker.replication.chain import History
from tests.scenarios.broker_member import StoryMember
from tests.scenarios.names import expand, runs
from tests.scenarios.view_stage import ViewStage
from tests.support.stores.memory import MemoryDisk
from vsync.totem.events import Output
from vsync.types import Member


class BrokerStage(ViewStage):
    """Replicated members of a broker on scripted views, with stores in memory and a client each."""

    subject = "broker"

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, StoryMember] = {}
        self.disks: dict[str, MemoryDisk] = {}
        self.size = 0
        self._states: list[tuple[int, bytes]] = []
        self._clients: dict[str, list[tuple[str, list[str]]]] = {}

    def client_saw(self, name: str, what: str, word: str) -> None:
        """Record what a member's client saw; repeated events make one line."""
        lines = self._clients.setdefault(name, [])
        if not lines or lines[-1][0] != what:
            lines.append((what, []))
        lines[-1][1].append(word)

    def saw(self, name: str, line: str) -> None:
        for what, words in self._clients.pop(name, ()):
            super().saw(name, f"client {what} {runs(words)}".rstrip())
        if line:
            super().saw(name, line)

    def print(self, *lines: str) -> None:
        for name in list(self._clients):
            self.saw(name, "")
        super().print(*lines)

    def do_members(self, *names: str) -> None:
        """NAME...: start members with empty stores; they are the voters of the first start."""
        self.size = len(names)
        for name in names:
            self.do_start(name)

    def do_start(self, name: str) -> None:
        """NAME: start a member, or its next incarnation, from its store."""
        last = self.members.get(name)
        me = Member(name, last.me.incarnation + 1 if last else 1, f"{name}:1")
        self.members[name] = StoryMember(self, me, self.disks.setdefault(name, MemoryDisk()))

    def do_formed(self, *names: str) -> None:
        """NAME...: as `members`, with epoch 1 formed; prints nothing."""
        self.do_members(*names)
        self.do_view(*names)
        self.do_run()
        self.output()

    def do_crash(self, *names: str) -> None:
        """NAME...: kill members; what their disks have not written is lost."""
        for name in names:
            self.rings.pop(name, None)
            self.members[name].stopped = True
            self.disks[name].crash()

    def do_wipe(self, name: str) -> None:
        """NAME: lose the store of a member that was killed."""
        self.disks[name] = MemoryDisk()

    def do_declare(self, name: str, queue: str) -> None:
        """NAME QUEUE: the member's client declares a durable queue."""
        args = (False, True, False, False, False)
        self._command(name, QueueDeclare(QUEUE_DECLARE, 1, 1, queue, *args, {}))

    def do_publish(self, name: str, queue: str, *bodies: str) -> None:
        """NAME QUEUE BODY...: the member's client publishes persistent messages."""
        for body in expand(list(bodies)):
            self.members[name].client.publish(queue, body)
            self._command(name)

    def do_consume(self, name: str, queue: str) -> None:
        """NAME QUEUE: the member's client consumes, and acknowledges."""
        args = (False, False, False, False)
        self._command(name, Consume(CONSUME, 1, 1, queue, f"by {name}", *args, {}, 0))

    def do_ack(self, name: str, *bodies: str) -> None:
        """NAME BODY...: the member's client acknowledges what it got."""
        for body in expand(list(bodies)):
            tag = self.members[name].client.unacked.pop(body)
            self._command(name, Ack(ACK, 1, 1, tag, False))

    def do_shutdown(self, name: str) -> None:
        """NAME: order the shutdown of the whole cluster at this member."""
        self._command(name, Shutdown(SHUTDOWN, f"by {name}"))

    def do_diverge(self, name: str) -> None:
        """NAME: the member computes something else than the others from here on."""
        replica = self.members[name].controller.replica
        now = replica.history
        replica.history = History(now.epoch, now.position, b"another chain...", now.order)

    def do_states(self) -> None:
        """Print of each member whether it serves, and its state: equal letters are equal states."""
        self.print()
        for name, member in self.members.items():
            controller = member.controller
            replica, primary = controller.replica, controller.primary
            if member.stopped:
                word = "stopped"
            elif replica.machine.shutdown_id:
                word = "shut down"
            else:
                word = "serves" if controller.serving else primary.phase.value
            state = replica.history.position, replica.history.chain
            if state not in self._states:
                self._states.append(state)
            letter = chr(ord("A") + self._states.index(state))
            queues = "".join(
                f"; {row.name}: {row.ready} ready, {row.unacked} unacked"
                for row in replica.machine.queue_rows()
            )
            self.saw(name, f"{word}, epoch {replica.history.epoch}, state {letter}{queues}")
        self.print()

    def do_counters(self) -> None:
        """Print what the primary layer of each member dropped."""
        self.print()
        for name, member in self.members.items():
            counters = member.controller.primary.counters
            self.saw(name, ", ".join(f"{c} {counters[c]}" for c in sorted(counters)) or "none")
        self.print()

    # -- members, for the views --------------------------------------------------------------

    def member(self, name: str) -> Member:
        return self.members[name].me

    def give(self, name: str, output: Output) -> None:
        member = self.members[name]
        if not member.stopped:
            member.member.on_output(output)
            member.settle()

    def outgoing(self, name: str) -> list[bytes]:
        out, self.members[name].out = self.members[name].out, []
        return out

    def settle(self, name: str) -> None:
        self.members[name].settle()

    def mark(self, name: str) -> int:
        return self.members[name].mark

    def _command(self, name: str, *commands: Command) -> None:
        member = self.members[name]
        member.client.commands += commands
        member.schedule()
        member.settle()
        self.order(name)
