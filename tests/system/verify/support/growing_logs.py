"""A cluster and two clients whose logs grow step by step, written by the members' own code.

Each step closes a segment of each member; now and then a view changes, or a member is killed and
returns with its store.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.memberlog.client_history import ClientHistory, ClusterName
from broker.memberlog.recorder import Recorder
from broker.memberlog.writer import MemberLogWriter
from broker.replication.chain import History
from broker.replication.replica import Item, Replica
from vsync.primary.events import Activated, Activation
from vsync.types import Member, RingId

NAMES = ("a", "b", "c")
STEP_US = 1_000_000


class GrowingMember:
    """A member with the log of its present incarnation."""

    def __init__(self, cluster: GrowingCluster, name: str) -> None:
        self.cluster, self.name, self.incarnation = cluster, name, 0
        self.replica = Replica(name, Machine(name), History())
        self.start()

    def start(self) -> None:
        """Begin a log with the state in the store."""
        self.incarnation += 1
        self.writer = MemberLogWriter(
            self.cluster.directory / self.name, "prod", "c1", self.name, self.incarnation,
            lambda: self.cluster.now_us, segment_us=STEP_US,
        )  # fmt: skip
        self.book = Recorder(self.writer)
        self.book.start(self.replica.history, self.replica.machine)
        self.replica.log = self.book


class GrowingCluster:
    """Member a has the publisher, member b the consumer, of one queue."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.now_us = directory, 1_000_000
        self.members = {name: GrowingMember(self, name) for name in NAMES}
        self.ring, self.epoch, self.seq = RingId(0, "a", 1), 0, 0
        self.viewed: tuple[Member, ...] = ()
        self.waiting: deque[tuple[bytes, bool]] = deque()  # with whether it was returned
        self.published = self.tag = 0
        histories = [ClientHistory(directory, name, 1, lambda: self.now_us) for name in ("w", "r")]
        self.histories = histories
        self.writes, self.reads = (one.session("q", ClusterName("prod", "c1")) for one in histories)
        self.activate()
        self.connect("a")
        self.run(
            "a", c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, "q", False, True, False, False, False, {})
        )
        self.connect("b")

    def activate(self) -> None:
        """Form a new view of all, which is primary."""
        present = tuple(Member(one.name, one.incarnation, "") for one in self.members.values())
        stayed = tuple(one for one in present if one in self.viewed)
        for one in stayed:
            self.members[one.name].book.view(self.ring, stayed, regular=False)
            self.members[one.name].book.inactive("the view is changing")
        self.viewed = present
        self.epoch, self.seq = self.epoch + 1, 0
        self.ring = RingId(self.ring.seq + 1, "a", self.members["a"].incarnation)
        named = tuple((one.name, one.incarnation, False) for one in self.members.values())
        activation = Activation(self.epoch, named, self.epoch == 1, NAMES, "c1")
        for member in self.members.values():
            member.book.view(self.ring, present, regular=True)
            me = Member(member.name, member.incarnation, "")
            active = Activated(self.ring, self.seq, me, activation, True)
            member.book.activated(active, member.replica.history)
        self._apply("a", activation)

    def kill(self, name: str) -> None:
        """End its log as written, and let it return with its store, in a new view."""
        member = self.members[name]
        member.book.flush()
        member.writer._file.give_up()
        member.start()
        self.activate()

    def connect(self, name: str) -> None:
        """A client of this member opens its connection and channel."""
        opened = c.ConnectionOpen(c.CONNECTION_OPEN, 1, "/", "guest", "x:1")
        self.run(name, opened, c.ChannelOpen(c.CHANNEL_OPEN, 1, 1))

    def run(self, name: str, *commands: Command) -> int:
        """Order and apply commands of a client of this member; return the position."""
        session = self.members[name].replica.machine.sessions[name]
        number = session.last_blob_no + 1
        self._apply(name, pack_blob(session.session, number, self.now_us, list(commands)))
        return self.members[name].replica.history.position

    def publish(self) -> None:
        """Publish a message, which is confirmed."""
        self.published += 1
        body = b"message %d" % self.published
        self.writes.published(self.published, body)
        args = (1, 1, self.published, "", "q", c.PERSISTENT, b"", body)
        position = self.run("a", c.Publish(c.PUBLISH, *args))
        self.members["a"].book.confirmed(self.epoch, position, [position])
        self.writes.confirmed(self.published)
        self.waiting.append((body, False))

    def take(self, *, acks: bool = True) -> None:
        """Get the message that has waited longest."""
        body, came_back = self.waiting.popleft()
        self.run("b", c.Get(c.GET, 1, 1, "q", False))
        self.tag += 1
        self.reads.received(self.tag, body, redelivered=came_back)
        if acks:
            self.reads.acked(self.tag)
            self.run("b", c.Ack(c.ACK, 1, 1, self.tag, False))
        else:
            self.waiting.appendleft((body, True))

    def lose_consumer(self) -> None:
        """Kill member b while its client holds a message."""
        self.take(acks=False)
        self.reads.lost()
        self.kill("b")
        self.reads, self.tag = self.histories[1].session("q"), 0
        self.connect("b")

    def step(self) -> None:
        """Write everything and close the segments, as after an hour."""
        self.now_us += STEP_US
        for history in self.histories:
            history.flush()
        for member in self.members.values():
            member.book.flush()

    def _apply(self, sender: str, body: bytes | Activation) -> None:
        self.seq += 1
        for member in self.members.values():
            member.replica.apply(Item(self.epoch, self.ring, self.seq, sender, body))
            member.replica.cut()
            member.replica.effects.clear()
            member.book.durable(member.replica.history.position)
