"""The simulated network: one queue per directed link, with every way a frame can go wrong.

A link normally behaves like a TCP connection (late, but in order) and loses frames when its queue
is full or a fault says so.  Frames go to an address, not to a process: a frame sent to a member
that crashed in the meantime reaches its next incarnation, as after a reconnect.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable

from tests.sim.world.random_tape import Tape
from vsync.types import record
from vsync.wire.codec import checksum
from vsync.wire.messages import FrameKind

HEAD_BYTES, NAME_BYTES = 24, 22  # all bytes before the name, and the offset of the two lengths
CHECKED_FROM = 6  # version, kind, checksum; then the cluster's tag: see `vsync.wire.codec`
TAG_BYTES = 8
LOST = {
    int(FrameKind.TOKEN): "loss_token",
    int(FrameKind.DATA): "loss_data",
    int(FrameKind.EARLY): "loss_data",
    int(FrameKind.JOIN): "loss_join",
    int(FrameKind.COMMIT): "loss_commit",
}
ODD = ("corrupt", "duplicate", "repeat_old", "garbage", "corrupt_behind", "foreign")
REMEMBERED_FRAMES = 40  # per link, for late repeats of old frames
LOST_FRAMES = 16
LARGE_FRAME_BYTES = 400


@record
class Weather:
    """Rates of random network faults; all zero is a perfect network."""

    delay_s: float = 0.0005  # mean one-way delay
    jitter: float = 0.5  # random share of the delay
    loss: float = 0.0
    loss_token: float = 0.0
    loss_data: float = 0.0
    loss_join: float = 0.0
    loss_commit: float = 0.0
    loss_large: float = 0.0
    burst: float = 0.0  # probability that a loss also takes the next frames of the link
    duplicate: float = 0.0
    reorder: float = 0.0
    repeat_old: float = 0.0  # an old frame of the same link arrives again
    garbage: float = 0.0  # truncated or overwritten bytes arrive as well
    spike: float = 0.0  # a frame is much later, and all behind it wait
    spike_s: float = 0.05  # mean of such a delay
    corrupt: float = 0.0  # one or two bits flip: for the checksum to find
    corrupt_behind: float = 0.0  # a body cut or padded under a right checksum: for the decoder
    foreign: float = 0.0  # whole and right, but of another cluster


CALM = Weather()


def _sealed(start: bytes, rest: bytes) -> bytes:
    """A frame whose checksum is right whatever it holds."""
    frame = start + bytes(CHECKED_FROM - len(start)) + rest
    body = (
        HEAD_BYTES + frame[NAME_BYTES] + frame[NAME_BYTES + 1]
        if len(frame) >= HEAD_BYTES
        else len(frame)
    )
    return start + struct.pack("<I", checksum(frame, body)) + rest


class Link:
    """One direction between two members."""

    def __init__(self) -> None:
        self.cut = False
        self.clogged = False  # frames pile up and arrive when it ends
        self.extra_delay_s = 0.0
        self.free_at = 0.0
        self.doomed = 0  # frames of a running burst that will be lost
        self.lose_next: set[int] = set()  # the next frame of each of these kinds is lost
        self.in_flight = 0
        self.piled: list[bytes] = []
        self.remembered: deque[bytes] = deque(maxlen=REMEMBERED_FRAMES)
        self.lost: deque[bytes] = deque(maxlen=LOST_FRAMES)  # they may still arrive, much later


class Net:
    """All links; `deliver_at(time, source, target, frame)` puts an arrival on the event heap."""

    def __init__(
        self,
        names: list[str],
        tape: Tape,
        weather: Weather,
        queue_frames: int,
        deliver_at: Callable[[float, str, str, bytes], None],
    ) -> None:
        self.tape = tape
        self.weather = weather
        self.queue_frames = queue_frames
        self.deliver_at = deliver_at
        self.links = {(a, b): Link() for a in names for b in names if a != b}
        self.met: Counter[str] = Counter()
        self.on_fault: Callable[[str, str], None] = lambda name, target: None

    @property
    def weather(self) -> Weather:
        """The present rates of faults."""
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        # In most weather none of these can happen to a frame.
        self._lossy = any(getattr(weather, name) for name in ("loss", "loss_large", *LOST.values()))
        self._odd = any(getattr(weather, name) for name in ODD)

    def send(self, now: float, source: str, target: str, frame: bytes) -> None:
        """One frame leaves `source`; it may arrive never, once, late or more often."""
        link = self.links.get((source, target))
        if link is None:  # a frame to an unknown address
            self.met["nowhere"] += 1
            return
        link.remembered.append(frame)
        if self._is_lost(link, target, frame):
            link.lost.append(frame)
            return
        if link.clogged:
            if len(link.piled) < self.queue_frames:
                link.piled.append(frame)
            else:
                self.met["queue_full"] += 1
            return
        weather, tape = self.weather, self.tape
        if not self._odd:
            self._pass(now, source, target, link, frame)
            return
        if tape.chance(weather.corrupt):
            self._cover("corrupt", target)
            self._pass(now, source, target, link, self._flip(frame))
            return
        self._pass(now, source, target, link, frame)
        if tape.chance(weather.duplicate):
            self._cover("duplicate", target)
            self._pass(now, source, target, link, frame)
        if tape.chance(weather.repeat_old):
            self._cover("repeat_old", target)
            self._pass(now, source, target, link, tape.pick(link.remembered))
        if tape.chance(weather.garbage):
            self._cover("garbage", target)
            self._pass(now, source, target, link, self._corrupted(frame))
        if tape.chance(weather.corrupt_behind):
            self._cover("corrupt_behind", target)
            self._pass(now, source, target, link, self._forge(frame))
        if tape.chance(weather.foreign):
            self._cover("foreign", target)
            self._pass(now, source, target, link, self._retag(frame))

    def _cover(self, name: str, target: str) -> None:
        self.met[name] += 1
        self.on_fault(name, target)

    def _is_lost(self, link: Link, target: str, frame: bytes) -> bool:
        weather, tape = self.weather, self.tape
        if link.cut:
            self.met["cut"] += 1
            return True
        if frame[1] in link.lose_next:
            link.lose_next.discard(frame[1])
            return True
        if link.in_flight >= self.queue_frames:
            self.met["queue_full"] += 1
            return True
        if link.doomed > 0:
            link.doomed -= 1
            self._cover("burst", target)
            return True
        if not self._lossy:
            return False
        rate = weather.loss + self._loss_of_kind(frame[1])
        if len(frame) >= LARGE_FRAME_BYTES:
            rate += weather.loss_large
        if not tape.chance(rate):
            return False
        self._cover(LOST.get(frame[1], "loss"), target)
        if tape.chance(weather.burst):
            link.doomed = tape.number(1, 20)
        return True

    def _loss_of_kind(self, kind: int) -> float:
        weather = self.weather
        if kind == FrameKind.TOKEN:
            return weather.loss_token
        if kind in (FrameKind.DATA, FrameKind.EARLY):
            return weather.loss_data
        if kind == FrameKind.JOIN:
            return weather.loss_join
        return weather.loss_commit if kind == FrameKind.COMMIT else 0.0

    def _pass(self, now: float, source: str, target: str, link: Link, frame: bytes) -> None:
        weather, tape = self.weather, self.tape
        spread = weather.delay_s * weather.jitter
        delay = weather.delay_s - spread + 2 * spread * tape.random.random() + link.extra_delay_s
        if weather.spike > 0.0 and tape.chance(weather.spike):
            self._cover("spike", target)
            delay += tape.gap(weather.spike_s)
        if weather.reorder > 0.0 and tape.chance(weather.reorder):
            self._cover("reorder", target)
            at = now + delay * tape.between(1.0, 10.0)
        else:
            at = max(now + delay, link.free_at)
            link.free_at = at
        link.in_flight += 1
        self.deliver_at(at, source, target, frame)

    def _corrupted(self, frame: bytes) -> bytes:
        """A frame cut short, padded, or of another protocol."""
        tape = self.tape
        how = tape.number(0, 3)
        if how == 0:
            return frame[: tape.number(0, max(0, len(frame) - 1))]
        if how == 1:
            return frame + tape.random.randbytes(tape.number(1, 30))
        if how == 2:
            return tape.random.randbytes(tape.number(0, 200))
        return frame[:2] + tape.random.randbytes(8) + frame[10:]  # another cluster's tag

    def _flip(self, frame: bytes) -> bytes:
        """Flip one or two bits, which no checksum of 32 bits may miss."""
        corrupted = bytearray(frame)
        for _ in range(self.tape.number(1, 2)):
            bit = self.tape.number(0, 8 * len(frame) - 1)
            corrupted[bit // 8] ^= 1 << bit % 8
        return bytes(corrupted)

    def _forge(self, frame: bytes) -> bytes:
        """A body that is too short or too long, with a matching checksum."""
        tape = self.tape
        if tape.chance(0.5):
            body = frame[CHECKED_FROM : max(CHECKED_FROM, len(frame) - tape.number(1, 40))]
        else:
            body = frame[CHECKED_FROM:] + tape.random.randbytes(tape.number(1, 40))
        return _sealed(frame[:2], body)

    def _retag(self, frame: bytes) -> bytes:
        """The same frame as another cluster would have sent it."""
        tag = self.tape.random.randbytes(TAG_BYTES)
        return _sealed(frame[:2], tag + frame[CHECKED_FROM + TAG_BYTES :])

    def cut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.links[pair].cut = True

    def mend(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.links[pair].cut = False

    def clog(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.links[pair].clogged = True

    def unclog(self, now: float, pairs: list[tuple[str, str]]) -> None:
        """Let everything that piled up arrive at once."""
        for source, target in pairs:
            link = self.links[source, target]
            link.clogged = False
            piled, link.piled = link.piled, []
            for frame in piled:
                self._pass(now, source, target, link, frame)

    def slow(self, pairs: list[tuple[str, str]], extra_delay_s: float) -> None:
        for pair in pairs:
            self.links[pair].extra_delay_s = extra_delay_s

    def heal(self, now: float) -> None:
        """End all faults; frames that piled up still arrive."""
        self.weather = Weather(delay_s=self.weather.delay_s, jitter=self.weather.jitter)
        for link in self.links.values():
            link.cut = False
            link.doomed = 0
            link.extra_delay_s = 0.0
        self.unclog(now, [pair for pair, link in self.links.items() if link.clogged])
