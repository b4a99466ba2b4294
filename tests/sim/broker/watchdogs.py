"""Time and disks of simulated brokers: members tick, messages expire, lagging disks make them
leave.

Each member publishes messages with a time to live to its own queue, which nobody reads.  They must
not expire early (G17), whichever member was cut off, crashed or slow meanwhile and whatever dates
the wall clocks show, and at the end they must all be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.machine.commands import (
    CHANNEL_OPEN,
    CONNECTION_OPEN,
    PERSISTENT,
    PUBLISH,
    QUEUE_DECLARE,
    TICK,
    ChannelOpen,
    ConnectionOpen,
    Publish,
    QueueDeclare,
)
from broker.machine.move_log import EXPIRED, FLAG, MOVE
from broker.machine.state import BODY, CONTENT_HASH, NUMBER, Message
from broker.replication.replica import Applied
from broker.replication.submissions import FEW_COMMANDS_BYTES_MAX, ON_THE_RING_BYTES_MAX
from broker.replication.voter_changes import ChangeRefused, VoterChanges
from broker.timers.ticker import Ticker
from broker.timers.timers import OrderedShutdown
from broker.watchdogs.disk_lag import DiskLag, PageLag
from tests.sim.clients.messages import MESSAGE
from vsync.quorum.voter_set import Terms
from vsync.totem.node import Node

if TYPE_CHECKING:
    from tests.sim.broker.shell import BrokerUpper

BEAT_S = 0.1
EARLY_S = 0.001
BACKLOG_BYTES_MAX = 200_000
BEAT_BYTES_MAX = 2_000_000
"""The most that one member can apply between two looks at its disk, beside what its ring keeps for
it or all members may have under way: when a view ends, everything ordered and not yet safe is
applied at once."""


class SimWatchdogs:
    """A member's timers and watchdogs, in the place of `broker.timers` and `broker.watchdogs`."""

    def __init__(self, upper: BrokerUpper) -> None:
        self.upper, self.world = upper, upper.world
        tape = self.tape = upper.tape.fork("health")
        self._ticker = Ticker(upper.controller, self.world.now)
        upper.controller.before_commands = self._tick_first
        self._changes = VoterChanges(upper.controller)
        self._shutdown = OrderedShutdown(
            upper.controller, lambda _, reason: upper.shut_down(reason), upper.shutdown_wait_s
        )
        self._operator = upper.tape.fork("operator")
        self._operates = self.world.plan.has("voter_changes") * self._operator.pick((0.1, 0.5))
        self._page_lag = PageLag(lambda: upper.controller.unapplied, lambda: self.world.now)
        self._disk = DiskLag(tape.pick((1.0, 5.0, 30.0)), BACKLOG_BYTES_MAX, self._throttle)
        plan = self.world.plan
        kept = plan.store_frames_max * plan.frame_bytes_max
        under_way = len(plan.names) * (ON_THE_RING_BYTES_MAX + FEW_COMMANDS_BYTES_MAX)
        self._bytes_max = BACKLOG_BYTES_MAX + BEAT_BYTES_MAX + max(kept, under_way)
        # The same in all incarnations: the queue outlives them.
        fixed = self.world.tape.fork(f"mortal {upper.name}")
        self._ttl_us = fixed.pick((50_000, 400_000, 2_000_000))
        self._load = tape.pick((0.0, 0.05, 0.5))
        self._session = self._conn = self._number = 0
        self._look_at = 0.0
        self._machine: object = None
        self._waiting: dict[int, Message] = {}  # by number
        upper.later(BEAT_S, self._beat)

    @property
    def asked(self) -> Terms:
        """The voters from which this member last ordered a change."""
        return self._changes._asked[1]

    @property
    def disk_keeps_up(self) -> bool:
        """Whether more may be applied than what is ordered."""
        return self._disk.keeps_up(self.upper.replicated.persister.writer.lag())

    def _beat(self) -> None:
        upper = self.upper
        self.upper.later(BEAT_S * self.tape.between(0.5, 1.5), self._beat)
        self._ticker.turn(self.world.now, busy=False)
        self._changes.wake(self.world.now)
        if not upper.controller.replica.half_way:
            self._shutdown.wake(self.world.now)
        if upper.controller.serving and not self.world.healed:
            self._operate()
        if upper.controller.serving and not self.world.healed and self.tape.chance(self._load):
            self._publish()
        lag = upper.replicated.persister.writer.lag()
        # Once all is healed no member leaves for its disk, and a fake ring keeps no token.
        bounded = not self.world.healed or isinstance(upper.tap.core, Node)
        if bounded and lag.bytes > self._bytes_max:
            upper.judge.broken("4.11", f"{upper.name}: {lag.bytes} bytes wait for the disk")
        lag = lag.beside(self._page_lag.look())
        if self._disk.look(lag, self.world.now) and not self.world.healed:
            self.world.after(0.0, self._leave)

    def turn(self) -> None:
        """Called before and after a turn of work, and when something is due."""
        if self.upper.stopping:
            return
        busy = self.upper.controller.serving and not self.world.healed and self.tape.chance(0.5)
        delay_s = self._ticker.turn(self.world.now, busy=busy)
        if delay_s is not None and delay_s < BEAT_S and self.world.now >= self._look_at:
            self._look_at = self.world.now + delay_s
            self.upper.later(delay_s, self.turn)

    def _tick_first(self) -> None:
        self._ticker.turn(self.world.now, busy=True)

    def _operate(self) -> None:
        """An operator changes who votes, or with how many votes."""
        tape, data = self._operator, sorted(self.upper.stack.uppers)
        if not tape.chance(self._operates):
            return
        name, votes = tape.pick(data), tape.number(1, 3)
        changes = self._changes
        asked: tuple[tuple[str, Callable[[], object]], ...] = (
            ("votes", lambda: changes.votes(name, votes)),
            ("expected", lambda: changes.expected(votes + 1)),
            ("expected", lambda: changes.expected(0)),
            ("remove", lambda: changes.remove(name)),
            ("add", lambda: changes.add(name)),
        )
        word, ask = tape.pick(asked)
        try:
            ask()
        except ChangeRefused:
            self.upper.judge.counters["changes_refused"] += 1
        else:
            self.world.fault(f"voters_{word}", f"{self.upper.name}: {name} {votes}")

    def _leave(self) -> None:
        if not self.upper.dead and self.upper.member.up:
            self.world.fault("left_for_disk", self.upper.name)
            self.upper.member.leave(self.tape.between(0.5, 3.0))

    def _throttle(self, hold_s: float) -> None:
        core = self.upper.tap.core
        if isinstance(core, Node):  # a fake ring has no token to keep
            core.set_throttle(hold_s)

    def _publish(self) -> None:
        upper = self.upper
        queue = f"mortal-{upper.name}"
        session = upper.controller.submissions.session
        if session != self._session:
            self._session, self._conn, self._number = session, next(upper.stack.numbers), 0
            upper.controller.submit(
                [
                    ConnectionOpen(CONNECTION_OPEN, self._conn, "/", "guest", "p:3"),
                    ChannelOpen(CHANNEL_OPEN, self._conn, 1),
                    QueueDeclare(
                        QUEUE_DECLARE, self._conn, 1, queue, False, True, False, False, True,
                        {"x-message-ttl": self._ttl_us // 1000},
                    ),
                ]
            )  # fmt: skip
        self._number += 1
        body = MESSAGE.pack(self._conn, self._number) + b"%d" % int(self.world.now * 1e6)
        upper.controller.submit(
            [Publish(PUBLISH, self._conn, 1, 0, "", queue, PERSISTENT, b"", body)]
        )

    def applied(self, applied: Applied) -> None:
        """An item was applied here: no message may have expired early."""
        machine = self.upper.controller.replica.machine
        vhost = machine.vhosts.get("/")
        queue = vhost.queues.get(f"mortal-{self.upper.name}") if vhost is not None else None
        present: dict[int, Message] = {}
        if queue is not None:
            present = {m[NUMBER]: m for m in (*queue.ready, *queue.returned.values())}
        if TICK in applied.kinds and machine is self._machine and queue is not None:
            # An item with a tick may have publishes, too, and these put others over a limit.
            expired = {
                content
                for what, _, number, _, _, content in MOVE.iter_unpack(applied.moves)
                if what & ~FLAG == EXPIRED and number == queue.number
            }
            for number, message in self._waiting.items():
                if number not in present and message[CONTENT_HASH] in expired:
                    self._gone(queue.ttl_us, int(bytes(message[BODY])[MESSAGE.size :]))
        self._machine, self._waiting = machine, present

    def _gone(self, ttl_us: int, published_us: int) -> None:
        upper = self.upper
        upper.judge.counters["expired"] += 1
        age_s = self.world.now - published_us / 1e6
        if age_s + EARLY_S < ttl_us / 1e6:
            text = f"a message to live {ttl_us} us went after {age_s:.4f} s at {upper.name}"
            upper.judge.broken("G17", text)
