"""One simulated member: an inbox, a core for each incarnation, and the layer above it.

It plays the part of the real driver: feed all frames, tell the core when the inbox is empty, fire
timers, send everything, and only then hand deliveries and views upwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tests.sim.world.random_tape import Tape
from tests.sim.world.ringtrace import Recorder
from tests.sim.world.tap import Tap
from vsync.totem.events import Broadcast, Hail, Output, Send
from vsync.types import Guarantee, Member

if TYPE_CHECKING:
    from tests.sim.world.world import World

FRAMES_PER_TURN = 64
COMMIT_WORST_S = 10.0  # a commit under way takes its time, even if all heals meanwhile


class Upper(Protocol):
    """The layer above a core; `pump` may submit and is called after every step."""

    @property
    def ready(self) -> bool: ...
    def started(self, now: float) -> None: ...
    def on_output(self, output: Output, now: float) -> None: ...
    def pump(self, now: float) -> None: ...
    def submit(self, payload: bytes, now: float, guarantee: Guarantee) -> bool: ...
    def crashed(self) -> None: ...


@runtime_checkable
class Leaving(Protocol):
    """An upper layer with work to do when its process stops cleanly."""

    def leaving(self) -> None: ...


class SimMember:
    """A member: its present incarnation, if it is up, and its machine."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.address = f"{name}:1"
        self.tape: Tape = world.tape.fork(f"member {name}")
        self.others = tuple(other for other in world.plan.names if other != name)
        self.late_timers = world.plan.has("late_timers")
        self.incarnation = 0
        self.tap: Tap | None = None
        self.upper: Upper | None = None
        self.paused = False
        self.removed = False  # never returns in this run
        self.inbox: deque[bytes] = deque()
        self.mark = 0
        self.crash_after: int | None = None
        self.crash_down_s = 0.0
        self.slowness = 1.0  # how much longer than usual its turns take
        self.disk_slowness = 1.0
        self.disk_fails = self.disk_frozen = False
        self._until_it_answers: list[Callable[[], None]] = []
        self.kept_lease_ms = 0  # on its disk
        self.wall_offset_us = 0
        self._turn_at: float | None = None
        self._timer_at: float | None = None

    @property
    def up(self) -> bool:
        return self.tap is not None

    @property
    def running(self) -> bool:
        return self.tap is not None and not self.paused

    # -- start and end --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a new incarnation."""
        assert self.tap is None
        self.incarnation += 1
        me = Member(self.name, self.incarnation, self.address)
        process = self.world.history.new_process(self.name, self.incarnation)
        self.paused = False
        self.crash_after = None
        self.inbox.clear()
        self.mark = 0
        self.tap = Tap(self.world.make_core(me), me, process, self._trace)
        if self.tap.node is not None:
            tempo = self.tap.node.tempo
            tempo.former_ms = max(tempo.former_ms, self.kept_lease_ms)
        if self.world.ringtrace is not None:
            now = self.world.now
            self.tap.recorder = Recorder(self.world.ringtrace, me, self.tap.core, now)
        self.upper = self.world.make_upper(self, self.tap)
        self._trace("start", f"incarnation {self.incarnation}")
        self.tap.core.start(self.world.now)
        self.upper.started(self.world.now)
        self.finish_step()

    def crash(self) -> None:
        self._end("crash")

    def _end(self, how: str) -> None:
        if self.tap is None:
            return
        self._trace(how, "")
        self.tap.ended(self.world.now, how)
        self.world.retire(self.tap)
        self.tap = None
        if self.upper is not None:
            self.upper.crashed()
        self.upper = None
        self.inbox.clear()
        self.world.hints.died(self.name)

    def arm_crash(self, outputs: int, down_s: float) -> None:
        """Crash in the middle of the core's next outputs, and start again after `down_s`."""
        self.crash_after = outputs
        self.crash_down_s = down_s

    def leave(self, down_s: float) -> None:
        """Leave cleanly and stop; start again after `down_s`."""
        if self.tap is None:
            return
        self.tap.core.leave(self.world.now)
        self.finish_step()
        if isinstance(self.upper, Leaving):
            self.upper.leaving()
        self._end("stop")
        self.world.after(down_s, self.world.revive, self.name)

    def fsync_s(self, tape: Tape) -> float:
        """How long the commit that begins now takes."""
        return min(tape.gap(self.world.plan.fsync_s) * self.disk_slowness, COMMIT_WORST_S)

    def disk_waits(self, call: Callable[[], None]) -> bool:
        """Whether the disk stands still; if so, `call` runs when it answers again."""
        if self.disk_frozen:
            self._until_it_answers.append(call)
        return self.disk_frozen

    def freeze_disk(self) -> None:
        """Let no write, sync or open return from now on."""
        self.disk_frozen = True

    def thaw_disk(self) -> None:
        """Let the stopped operations continue."""
        self.disk_frozen = False
        waiting, self._until_it_answers = self._until_it_answers, []
        for call in waiting:
            self.world.after(0.0, call)

    def disk_failed(self) -> bool:
        """End a commit: True if it failed, and then the member has stopped."""
        if self.disk_fails and self.up:
            self.world.fault("commit_failed", self.name, self)
            self._end("crash")
            self.world.after(
                self.world.plan.token_timeout_ms / 1000.0, self.world.revive, self.name
            )
            return True
        return False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._trace("resume", f"{len(self.inbox)} frames waiting")
            self.schedule_turn()

    # -- work ------------------------------------------------------------------------------------

    def submit(self, size: int, guarantee: Guarantee) -> bool:
        """A client wants `size` bytes ordered."""
        if self.tap is None or self.upper is None or self.paused:
            return False
        fill = bytes([self.tape.number(0, 255)])
        taken = self.upper.submit(fill * size, self.world.now, guarantee)
        self.finish_step()
        return taken

    def advance_mark(self) -> None:
        if self.tap is not None and not self.paused and not self.world.plan.primary:
            self.mark += 1
            self.tap.core.set_mark(self.mark, self.world.now)
            self.tap.core.expect_mark(self.mark + self.mark % 2)  # the token waits half of the time
            self.finish_step()

    def send_direct(self, size: int) -> None:
        """Send a datagram to a member of the ring, perhaps to oneself."""
        if self.tap is not None and not self.paused and self.tap.core.members:
            to = self.tape.pick(self.tap.core.members)
            self.tap.send_direct(to, bytes(size))
            self.finish_step()

    def arrive(self, frame: bytes) -> None:
        """Take a frame from the wire; the buffer of a process that stands still overflows."""
        if self.tap is None:
            return
        if len(self.inbox) >= 8 * self.world.plan.queue_frames:
            self.world.net.met["inbox_full"] += 1
            return
        self.inbox.append(frame)
        self.schedule_turn()

    def turn_s(self) -> float:
        """The mean time of one turn of its loop."""
        return self.world.plan.turn_s * self.slowness

    def schedule_turn(self) -> None:
        if self._turn_at is None and self.tap is not None and not self.paused:
            world = self.world
            self._turn_at = world.now + self.turn_s() * self.tape.between(0.2, 1.8)
            world.at(self._turn_at, self._turn)

    def _turn(self) -> None:
        """Go once around the loop of the driver."""
        self._turn_at = None
        if self.tap is None or self.paused:
            return
        world, core, inbox = self.world, self.tap.core, self.inbox
        now = world.now
        for _ in range(min(FRAMES_PER_TURN, len(inbox))):
            core.receive(inbox.popleft(), now)
            world.step(core)
        if inbox:
            self.schedule_turn()
        else:
            core.drained(now)
        timer = core.next_timer()
        if timer is not None and timer <= now:
            core.wake(now)
        self.finish_step()

    def _timer(self, due: float) -> None:
        if self._timer_at == due:
            self._timer_at = None
            if self.running:
                self._turn()

    def finish_step(self) -> None:
        """Check the core, send and hand up its outputs, and set its timer."""
        tap = self.tap
        assert tap is not None
        world = self.world
        world.step(tap.core)
        if tap.node is not None and (wanted := tap.node.tempo.wanted_ms) > self.kept_lease_ms:
            self.kept_lease_ms = wanted
            world.counters["sim_leases_kept"] += 1
        if tap.node is not None:
            tap.node.tempo.keep(self.kept_lease_ms)
        for _ in range(1000):
            outputs = tap.take(world.now)
            if outputs:
                if tap.node is not None:
                    world.numbers.look(tap.node)
                if not self._emit(outputs):
                    return
            elif not self._pump():
                break
        else:
            raise AssertionError(f"{self.name} never stops speaking")
        self._arm_timer(tap)

    def _pump(self) -> bool:
        """Let the layer above submit; True if it did."""
        if self.upper is None or self.tap is None:
            return False
        before = self.tap.submitted
        self.upper.pump(self.world.now)
        return self.tap.submitted != before

    def _emit(self, outputs: Sequence[Output]) -> bool:
        """Send, then hand up; False if the member crashed on the way."""
        upper, world, name = self.upper, self.world, self.name
        for output in outputs:
            if self.crash_after is not None:
                self.crash_after -= 1
                if self.crash_after < 0:
                    self.crash_after = None
                    world.fault("crash_mid_output", name, self)
                    self._end("crash")
                    world.after(self.crash_down_s, world.revive, name)
                    return False
            if isinstance(output, Send):
                world.send(name, output.to.name, output.frame)
            elif isinstance(output, Broadcast):
                for other in self.others:
                    world.net.send(world.now, name, other, output.frame)
            elif isinstance(output, Hail) and world.plan.has("mixed_releases"):
                for other in self.others:
                    if world.members[other].address == output.address:
                        world.net.send(world.now, name, other, output.frame)
            elif upper is not None:
                upper.on_output(output, world.now)
        return True

    def _arm_timer(self, tap: Tap) -> None:
        timer = tap.core.next_timer()
        if timer is None or (self._timer_at is not None and self._timer_at <= timer):
            return
        world = self.world
        late = self.tape.between(0.0, 0.01) if self.late_timers else 0.0
        due = max(timer, world.now + 1e-6) + late
        self._timer_at = due
        world.at(due, self._timer, due)

    def _trace(self, code: str, text: str) -> None:
        self.world.trace.add(self.world.now, self.name, code, text)
        if code == "phase":
            for tell in self.world.on_phase:
                tell(self)
        elif code == "view" or code == "transitional":
            for tell in self.world.on_view:
                tell(self)
