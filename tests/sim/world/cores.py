"""The real ring core, configured by a plan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from tests.sim.run.plan import Plan
from tests.sim.world.random_tape import Tape
from tests.sim.world.tap import Core
from vsync.totem.config import RingConfig
from vsync.totem.events import Output
from vsync.totem.node import Node
from vsync.totem.ordering.tempo import LEASE_ROTATIONS, Tempo
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member, RingId
from vsync.wire.codec import WIRE_VERSION, Versions
from vsync.wire.messages import Pace, Token

CLUSTER = "simulated"
DRIFT_MAX = 0.02  # a hundred times that of a bad crystal
RATES_MAX = 0.09  # 1.09 / 0.91 is a little less than the lease tolerates (G7)
CLOCK_STEP_S = 1e-6  # a timer is checked after its time: large clocks have coarse floats


def ring_config(plan: Plan) -> RingConfig:
    """The real configuration with the plan's timing and sizes; all else has its default."""
    token = plan.token_timeout_ms
    hold_ms = max(5, token // 20)
    return RingConfig(
        token_timeout_ms=token,
        token_timeout_per_member_ms=token // 5,
        join_timeout_ms=max(10, token // 20),
        lonely_wait_ms=max(20, token // 5),
        merge_interval_ms=max(20, token // 5),
        hold_ms=hold_ms,
        lease_ms=_lease_ms(plan, hold_ms),
        token_timeout_max_ms=2 * token,
        window_frames=plan.window_frames,
        personal_frames=plan.personal_frames,
        accelerated_frames=plan.accelerated_frames,
        lead_frames=plan.personal_frames % 3,  # with 0 every frame may be overtaken by its token
        store_frames_max=plan.store_frames_max,
        frame_bytes_max=plan.frame_bytes_max,
        message_bytes_max=1 << 20,
        queue_bytes_max=plan.queue_bytes_max,
        queue_messages_max=plan.queue_messages_max,
    )


def _lease_ms(plan: Plan, hold_ms: int) -> int:
    """The default, or nearly the token timeout: then a lease can outlast its ring.

    A token with a long rotation in good weather needs the long one, or no member could ever reply.
    """
    token = plan.token_timeout_ms
    hop_s = plan.weather.delay_s * (1 + plan.weather.jitter) + 2 * plan.turn_s
    rotation_ms = 1000 * hop_s * len(plan.names) + hold_ms
    short, long = token // 3, token * 19 // 20
    return Tape(plan.seed, "lease").pick((short, long)) if 3 * rotation_ms < short else long


NEXT_VERSION = WIRE_VERSION + 1
ADJACENT = (
    (Versions(WIRE_VERSION, WIRE_VERSION), Versions(WIRE_VERSION, NEXT_VERSION)),
    (Versions(WIRE_VERSION, NEXT_VERSION), Versions(NEXT_VERSION, NEXT_VERSION)),
)
"""The frame versions that two releases read; the later release reads the earlier one's."""


def release_of(me: Member, plan: Plan) -> Versions:
    """The versions of the frames that an incarnation reads: restarts upgrade and downgrade."""
    both = Tape(plan.seed, "releases").pick(ADJACENT)
    return Tape(plan.seed, f"release {me.name} {me.incarnation}").pick(both)


def make_node(me: Member, plan: Plan, chance: random.Random) -> Core:
    config = ring_config(plan)
    if plan.has("mixed_releases"):
        oldest, newest = release_of(me, plan)
        config = replace(config, wire_version_min=oldest, wire_version=newest)
    tempo = None
    if Tape(plan.seed, "tempo").chance(0.5):
        tempo = ErraticTempo(config, Tape(plan.seed, f"tempo {me.name} {me.incarnation}"))
    node = Node(me, CLUSTER, config, chance, tempo)
    most = RATES_MAX if plan.has("clock_rates") else DRIFT_MAX * plan.has("clock_drift")
    if not most:
        return node
    tape = Tape(plan.seed, f"clock {me.name}")
    rate = 1.0 + tape.between(-most, most)
    return OwnClock(node, rate, Tape(plan.seed, f"boot {me.name} {me.incarnation}").between(0, 1e6))


class ErraticTempo(Tempo):
    """As representative it asks for another lease at each rotation, but for none so short that the
    token does not return in time in good weather (broker seed 700151)."""

    def __init__(self, config: RingConfig, tape: Tape) -> None:
        super().__init__(config)
        self._tape = tape
        self._bounds = config.busy_lease_ms, config.lease_max_ms

    def pace(self, token: Token, *, first: bool, idle: int = 0) -> Pace:
        if self._tape.chance(0.3):
            low, high = self._bounds
            low = min(max(low, int(1000 * LEASE_ROTATIONS * self.smoothed_s)), high)
            self.lease_ms = self.busy_lease_ms = int(self._tape.between(low, high))
        return super().pace(token, first=first, idle=idle)


class OwnClock:
    """A core whose monotonic clock has its own rate and began when its machine did."""

    def __init__(self, core: Core, rate: float, began: float) -> None:
        self.core, self.rate, self.began = core, rate, began

    def local(self, now: float) -> float:
        return self.began + now * self.rate

    @property
    def mark(self) -> int:
        return self.core.mark

    @property
    def phase(self) -> Phase:
        return self.core.phase

    @property
    def ring(self) -> RingId:
        return self.core.ring

    @property
    def counters(self) -> Mapping[str, int]:
        return self.core.counters

    @property
    def members(self) -> tuple[Member, ...]:
        return self.core.members

    def start(self, now: float) -> None:
        self.core.start(self.local(now))

    def receive(self, frame: bytes, now: float) -> None:
        self.core.receive(frame, self.local(now))

    def drained(self, now: float) -> None:
        self.core.drained(self.local(now))

    def next_timer(self) -> float | None:
        due = self.core.next_timer()
        return None if due is None else (due - self.began) / self.rate + CLOCK_STEP_S

    def wake(self, now: float) -> None:
        self.core.wake(self.local(now))

    def submit(
        self, payload: bytes, now: float, guarantee: Guarantee, *, urgent: bool = True
    ) -> bool:
        return self.core.submit(payload, self.local(now), guarantee, urgent=urgent)

    def set_mark(self, mark: int, now: float) -> None:
        self.core.set_mark(mark, self.local(now))

    def expect_mark(self, mark: int) -> None:
        self.core.expect_mark(mark)

    def send_direct(self, to: Member, payload: bytes) -> None:
        self.core.send_direct(to, payload)

    def leave(self, now: float) -> None:
        self.core.leave(self.local(now))

    def suspect(self, address: str, now: float, *, refused: bool) -> None:
        self.core.suspect(address, self.local(now), refused=refused)

    def take(self) -> list[Output]:
        return self.core.take()

    def invariants(self) -> None:
        self.core.invariants()
