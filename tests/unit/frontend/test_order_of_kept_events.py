"""A client's commands are ordered as it sent them, whatever they wait for: a model of arrivals.

Seeds choose the events: publishes and other methods on several channels, alarms, fences that may be
over in a moment, channels that the machine closes, new secrets, all ends of a connection, and a
server that is asked for every permission, or for each once, and allows, denies, or does not answer.
The oracle is what was sent: for each life of a channel the ordered commands are a prefix of the
commands sent, and all of them unless that life was cut short.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from broker.access.auth_server import ABOUT, LIMIT_S
from broker.access.login_delays import LONGEST_S
from broker.machine import commands as c
from tests.support.amqp_peer import method, opening, publish
from tests.support.auth_wire import AuthWire
from tests.support.gateway_loop import Loop, Peer

STEPS, CHANNELS = 120, (1, 2, 3)
EXCHANGES = ("", "amq.direct", "amq.topic")


class Life:
    """One life of a channel, from its opening to its end."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.failed_at: int | None = (
            None  # how many were sent before the one for which the machine closes it
        )
        self.is_cut = False  # by anything but the client's own orderly end: the rest may be lost


class Sender:
    """A client that records what it sends; it opens everything without waiting, as libraries
    may."""

    def __init__(self, world: World) -> None:
        self.world, self.peer = world, Peer(world.loop)
        self.open: dict[int, Life] = {}
        self.ending: dict[int, Life] = {}  # no further method is sent; their end is awaited
        self.lives: list[Life] = []
        self.is_over = False
        self.unsent = opening()  # sent with the first methods: all may come in one read

    def write(self, data: bytes) -> None:
        self.world.loop.gateway.data_received(self.peer.client, data, self.world.loop.now)

    def send(self, chance: random.Random) -> None:
        """A few methods in one read."""
        data, self.unsent = self.unsent, b""
        for _ in range(chance.randint(1, 5)):
            number = chance.choice(CHANNELS)
            if number in self.ending:
                continue
            if number not in self.open:
                life = self.open[number] = Life()
                self.lives.append(life)
                data += method(number, "channel.open")
            data += self._one(chance, number, self.open[number])
        self.write(data)

    def _one(self, chance: random.Random, number: int, life: Life) -> bytes:
        """A method that can be identified later, or now and then the end of the channel."""
        kind = chance.random()
        if kind < 0.08:
            self.ending[number] = self.open.pop(number)
            return method(number, "channel.close", 200, "", 0, 0)
        if kind < 0.12:
            life.is_cut = True
            life.failed_at = len(life.sent) if life.failed_at is None else life.failed_at
            return method(number, "basic.get", "no such queue", False)
        marker = self.world.next_marker(life)
        life.sent.append(marker)
        if kind < 0.6:
            return publish(number, chance.choice(EXCHANGES), "nowhere", str(marker).encode())
        return method(number, "basic.qos", 0, marker, False)

    def hear(self) -> None:
        """Read the server's answers, and react as a client does."""
        for one in self.peer.take():
            if one.method == "channel.close":
                for lives in (self.open, self.ending):
                    if one.channel in lives:
                        lives[one.channel].is_cut = True
                self.open.pop(one.channel, None)
                if one.channel not in self.ending:
                    self.write(method(one.channel, "channel.close-ok"))
            elif one.method == "channel.close-ok":
                del self.ending[one.channel]
            elif one.method == "connection.close":
                self.cut()

    def cut(self) -> None:
        """Nothing more is sent, and what is under way may be lost."""
        self.is_over = True
        for life in self.lives:
            life.is_cut = True


class World:
    """A member, its clients, and what may happen to them."""

    def __init__(self, seed: int, kept_s: float | None) -> None:
        """`kept_s`: how long the server's answers are cached; None: there is no server."""
        self.chance = random.Random(seed)
        self.wire = AuthWire(kept_s or 0.0)
        self.loop = Loop(backends=None if kept_s is None else self.wire.backends())
        self.senders: list[Sender] = []
        self.owners: dict[int, Life] = {}

    def next_marker(self, life: Life) -> int:
        marker = len(self.owners) + 1
        self.owners[marker] = life
        return marker

    def run(self) -> None:
        """All steps, and then quiet: no alarm, no fence, no denial."""
        happenings: list[tuple[int, Callable[[], None]]] = [
            (40, self.send), (25, self.turn), (8, self.alarm), (8, self.fence), (5, self.connect),
            (2, self.close), (1, self.lose), (1, self.force),
            (40, self.answer), (1, self.say_nothing), (4, self.renew),
        ]  # fmt: skip
        weights = [weight for weight, _ in happenings]
        for _ in range(STEPS):
            (what,) = self.chance.choices([one for _, one in happenings], weights)
            what()
        self.loop.outbox.unfence()
        self.loop.gateway.block("")
        for _ in range(4):  # answers are sent, and throttled clients are reconsidered
            self.loop.now += LONGEST_S
            self.loop.gateway.refuse_overdue(self.loop.now)
            self.wire.answer("allow")
            self.turn()
        for sender in self.senders:
            if sender.is_over and not sender.peer.client.conn_was:
                sender.cut()  # it was not admitted, and had sent its close before it learned that

    def answer(self) -> None:
        """The server answers some of the questions, in any order, some of them with a denial."""
        for number in self.chance.sample(sorted(self.wire.sent), len(self.wire.sent) // 2):
            del self.wire.sent[number]
            self.wire.server.answered(number, 200, self._said().encode())
        if self.chance.random() < 0.5:
            self.wire.answer(lambda _: self._said())
        self._note_refused()

    def _said(self) -> str:
        if self.chance.random() > 0.04:
            return "allow"
        self._give_up_closing()
        return "deny"

    def _give_up_closing(self) -> None:
        """A client that has sent its close is no longer told that an earlier method was refused."""
        for sender in self.senders:
            if sender.is_over and sender.peer.client.kept.holds_all:
                sender.cut()

    def say_nothing(self) -> None:
        """The server lets its time limit pass."""
        self._give_up_closing()
        self.loop.now += LIMIT_S
        self.wire.go_on()
        self._note_refused()

    def _note_refused(self) -> None:
        """These channels will be closed; a client that ends its connection first is not told."""
        for sender in self.senders:
            for number, channel in sender.peer.client.channels.items():
                if channel.pending_close is not None:
                    for lives in (sender.open, sender.ending):
                        if number in lives:
                            lives[number].is_cut = True

    def _some(self) -> list[Sender]:
        there = [one for one in self.senders if not one.is_over]
        return [self.chance.choice(there)] if there else []

    def connect(self) -> None:
        self.senders.append(Sender(self))

    def send(self) -> None:
        for sender in self._some() or [Sender(self)]:
            if sender not in self.senders:
                self.senders.append(sender)
            sender.send(self.chance)

    def turn(self) -> None:
        self.loop.gateway.admission.admit_waiting(soon=self.loop.gateway.fenced)
        self.loop.turn()
        for sender in self.senders:
            sender.hear()

    def alarm(self) -> None:
        self.loop.gateway.block("" if self.loop.gateway.alarm else "low on disk")

    def fence(self) -> None:
        if self.loop.gateway.fenced:
            self.loop.outbox.unfence()
        else:
            self.loop.outbox.fence()
            self.loop.gateway.admission.admit_waiting(soon=True)

    def close(self) -> None:
        for sender in self._some():
            sender.is_over = True
            sender.write(method(0, "connection.close", 200, "", 0, 0))

    def renew(self) -> None:
        for sender in self._some():
            if not sender.unsent:
                sender.write(method(0, "connection.update-secret", b"guest", "rotation"))

    def lose(self) -> None:
        for sender in self._some():
            sender.cut()
            self.loop.gateway.connection_lost(sender.peer.client)

    def force(self) -> None:
        for sender in self._some():
            sender.cut()
            sender.peer.client.force_close("by an operator")

    def ordered(self) -> dict[int, list[int]]:
        """The markers that the machine carried out, in order, by the identity of their life."""
        found: dict[int, list[int]] = {id(life): [] for life in self.owners.values()}
        for command, outcome in self.loop.applied:
            marker = 0
            if outcome == c.IGNORED:
                continue
            if command[0] == c.PUBLISH:
                marker = int(c.Publish._make(command).body)
            elif command[0] == c.QOS:
                marker = c.Qos._make(command).prefetch_count
            if marker:
                found[id(self.owners[marker])].append(marker)
        return found


@pytest.mark.parametrize("kept_s", [None, 0.0, 8.0])
@pytest.mark.parametrize("seed", range(20))
def test_commands_of_a_channel_are_ordered_as_sent(seed: int, kept_s: float | None) -> None:
    world = World(seed, kept_s)
    world.run()
    ordered = world.ordered()
    for life in {id(one): one for one in world.owners.values()}.values():
        got = ordered[id(life)]
        assert got == life.sent[: len(got)], "in the order sent, with no gap"
        assert life.failed_at is None or len(got) <= life.failed_at, "not in the next life"
        assert life.is_cut or got == life.sent, "all of it arrived"
    for sender in world.senders:
        assert not sender.peer.client.kept.bytes or sender.is_over, "nothing waits any longer"


def test_the_model_reaches_the_cases_it_is_about() -> None:
    """Alarms and admissions that held something back, questions and answers of all kinds, and lives
    that were not cut short."""
    whole = cut = kept = 0
    asked: Counter[str] = Counter()
    for seed in range(6):
        world = World(seed, 0.0 if seed % 2 else 8.0)
        world.run()
        asked.update(one.about for one in world.wire.all)
        asked.update(world.wire.server.counters)
        kept += "is blocked" in "".join(world.loop.log)
        lives = {id(one): one for one in world.owners.values()}.values()
        cut += sum(life.is_cut for life in lives)
        whole += sum(not life.is_cut and len(life.sent) > 2 for life in lives)
    assert kept == 6
    assert min(asked[one] for one in (*ABOUT, "allowed", "denied")) > 3
    assert cut > 10
    assert whole > 10
