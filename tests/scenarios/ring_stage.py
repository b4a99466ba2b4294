"""The verbs of ring stories: real nodes, a network with one list of rules, a stopped clock.

Every frame takes 0.1 ms from member to member, so a rotation of three members takes 0.3 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from tests.scenarios.engine import Stage
from tests.scenarios.names import expand, runs
from tests.support.ring.virtual_network import Net
from vsync.totem.config import RingConfig
from vsync.totem.events import Deliver, Marks, Note, Output, Transitional, View
from vsync.totem.phases import Phase
from vsync.types import Guarantee, Member, RingId
from vsync.wire.messages import FrameKind

LATENCY_S = 0.0001
KINDS = ("any", "recovered", *(kind.name.lower() for kind in FrameKind))


@dataclass
class Rule:
    """The fate of matching frames: dropped, held, passed, copied, or delayed by 3ms."""

    action: str
    kind: str
    source: str
    to: str
    left: int
    text: str
    used: int = 0
    kept: list[tuple[str, bytes]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.action} {self.kind} from {self.source} to {self.to}: {self.used}"


class RingStage(Stage):
    """Members of one ring over a network with faults."""

    subject = "ring"

    def __init__(self) -> None:
        super().__init__()
        self.net = Net("")
        self.net.drop = self._on_wire
        self.rules: list[Rule] = []
        self.traced: set[str] = set()
        self.delivered: dict[str, list[str]] = {}
        self._incarnations: dict[str, list[int]] = {}
        self._observed: dict[str, int] = {}
        self._sides: list[str] = []
        self._since = 0.0

    # -- members -----------------------------------------------------------------------------

    def do_nodes(self, *args: str) -> None:
        """NAME... [SETTING=VALUE]...: start members, with settings of the ring."""
        settings = dict(arg.split("=") for arg in args if "=" in arg)
        self.net.config = RingConfig(**{name: int(value) for name, value in settings.items()})
        for name in args:
            if "=" not in name:
                self.do_start(name)

    def do_start(self, name: str) -> None:
        """NAME: start a member, or the next incarnation of one that crashed."""
        self._incarnations.setdefault(name, []).append(0)
        self.delivered[name], self._observed[name] = [], 0
        node = self.net.boot(name)
        self._incarnations[name][-1] = node.me.incarnation

    def do_crash(self, name: str, how: str = "") -> None:
        """NAME [noticed]: kill a member; noticed: its host refuses connections at once."""
        self.observe()
        self.net.crash(name, noticed=how == "noticed")

    def do_suspect(self, name: str, other: str, how: str = "") -> None:
        """NAME NAME [refused]: the first one's connection to the other broke, or was refused."""
        address = f"{other}:1"
        self.net.suspect(name, address, refused=how == "refused")

    def do_leave(self, name: str) -> None:
        """NAME: leave cleanly."""
        self.net.nodes[name].leave(self.net.now)
        self.net.flush(name)

    def do_pause(self, name: str) -> None:
        """NAME: stop a process; frames for it queue up."""
        self.net.paused[name] = []

    def do_resume(self, name: str) -> None:
        """NAME: let a stopped process go on; what queued up comes first, then the late timers."""
        self.net.resume(name)

    def do_submit(self, name: str, *payloads: str) -> None:
        """NAME PAYLOAD... [agreed] [unurgent]: submit payloads, safe unless agreed.

        m1..m9 are nine of them.  big*5000 has 5000 bytes, and is printed as big.  unurgent: the
        token need not come for them.
        """
        guarantee = Guarantee.AGREED if "agreed" in payloads else Guarantee.SAFE
        urgent = "unurgent" not in payloads
        for payload in expand([p for p in payloads if p not in ("agreed", "unurgent")]):
            size = int(payload.partition("*")[2] or 0)
            body = payload.encode().ljust(size, b".")
            if not self.net.submit(name, body, guarantee, urgent=urgent):
                self.print(f"{name} takes no {payload}")

    def do_mark(self, name: str, mark: str) -> None:
        """NAME NUMBER: change the number that rides on the token."""
        self.net.nodes[name].set_mark(int(mark), self.net.now)
        self.net.flush(name)

    def do_expect(self, name: str, mark: str) -> None:
        """NAME NUMBER: the member's disk begins on what leads to this mark."""
        self.net.nodes[name].expect_mark(int(mark))

    # -- network -----------------------------------------------------------------------------

    def do_partition(self, *sides: str) -> None:
        """NAME... | NAME...: only members of the same side receive from each other."""
        self._sides = "".join(sides).split("|")
        self.net.split(*self._sides)

    def do_cut(self, source: str, to: str) -> None:
        """NAME NAME: nothing of the first reaches the second; the other direction works."""
        self.net.cut.add((source, to))

    def do_heal(self) -> None:
        """Every link works again; rules stay."""
        self._sides = []
        self.net.split()

    def do_drop(self, *spec: str) -> None:
        """KIND from NAME to NAME [COUNT] [with TEXT]: lose frames; names may be lists, or any.

        Kinds: token, data, recovered (data of an old ring in recovery), join, commit, merge, wake,
        any.
        """
        self._rule("drop", spec)

    def do_pass(self, *spec: str) -> None:
        """KIND from NAME to NAME [COUNT] [with TEXT]: later rules do not concern these frames."""
        self._rule("pass", spec)

    def do_hold(self, *spec: str) -> None:
        """KIND from NAME to NAME [COUNT] [with TEXT]: keep frames back until `release`."""
        self._rule("hold", spec)

    def do_copy(self, *spec: str) -> None:
        """KIND from NAME to NAME [COUNT] [with TEXT]: record frames that pass, for `release`."""
        self._rule("copy", spec)

    def do_delay(self, time: str, *spec: str) -> None:
        """TIME KIND from NAME to NAME [COUNT] [with TEXT]: frames arrive later, also overtaken."""
        self._rule(time, spec)

    def do_release(self) -> None:
        """What rules kept arrives now; forget all rules, and print how many frames each met."""
        rules, self.rules = self.rules, []
        for rule in rules:
            self.print(str(rule))
            for to, frame in rule.kept:
                self.net.push(self.net.now, to, frame)
        self.net.run(0.0)

    def _rule(self, action: str, spec: tuple[str, ...]) -> None:
        match = re.fullmatch(
            r"(\w+) from (\S+) to (\S+)(?: (\d+))?(?: with (\S+))?", " ".join(spec)
        )
        if match is None or match[1] not in KINDS:
            raise ValueError(f"expected KIND from NAME to NAME; kinds: {', '.join(KINDS)}")
        self.rules.append(
            Rule(action, match[1], match[2], match[3], int(match[4] or 10**9), match[5] or "")
        )

    def _on_wire(self, source: str, to: str, frame: bytes) -> bool:
        """Deliver every frame itself, after a fixed time; the tests' net must therefore drop it."""
        kind = FrameKind(frame[1]).name.lower()
        if kind == "data" and self.net.nodes[source].phase is Phase.RECOVERY:
            kind = "recovered"
        delay = LATENCY_S
        for rule in self.rules:
            if (
                rule.left
                and rule.kind in (kind, "any", "data" if kind == "early" else kind)
                and (rule.source == "any" or source in rule.source.split(","))
                and (rule.to == "any" or to in rule.to.split(","))
                and rule.text.encode() in frame
            ):
                rule.left -= 1
                rule.used += 1
                if rule.action in ("hold", "copy"):
                    rule.kept.append((to, frame))
                if rule.action in ("hold", "drop"):
                    return True
                if rule.action == "pass":
                    break
                if rule.action != "copy":
                    delay += seconds(rule.action)
        self.net.push(self.net.now + delay, to, frame)
        return True

    # -- time --------------------------------------------------------------------------------

    def do_run(self, *until: str) -> None:
        """TIME, or: until NAME in PHASE, or: until NAME delivers PAYLOAD."""
        match until:
            case [time]:
                self.net.run(seconds(time))
            case ["until", name, "in", phase]:
                self._run_until(lambda: self.net.nodes[name].phase is Phase(phase))
            case ["until", name, "delivers", payload]:
                self._run_until(lambda: payload.encode() in self.net.payloads(name))
            case _:
                raise ValueError(f"cannot run {' '.join(until)}")

    def do_stabilize(self, *sides: str) -> None:
        """[NAME... | NAME...]: run until each side is one ring, and 0.2 s more.

        Without sides: those of `partition`, as far as they have not crashed.
        """
        wanted = "".join(sides).split("|") if sides else self._sides or ["".join(self.net.nodes)]
        alive = ["".join(n for n in side if n in self.net.nodes) for side in wanted]
        self._run_until(lambda: self.net.settled(*alive))
        self.net.run(0.2)

    def _run_until(self, condition: Callable[[], bool]) -> None:
        self.net.run(8.0, condition)

    def do_stopwatch(self) -> None:
        """Begin to measure, for `elapsed`."""
        self._since = self.net.now

    def do_elapsed(self) -> None:
        """Print the time since `stopwatch`."""
        self.print(f"{(self.net.now - self._since) * 1000:.1f} ms")

    # -- what is seen ------------------------------------------------------------------------

    def do_trace(self, *what: str) -> None:
        """phases|marks...: print these from here on, besides views and deliveries."""
        self.traced = set(what)

    def do_leases(self) -> None:
        """Print who may act on its ring now (section 8.1)."""
        self.print()
        for name, node in self.net.nodes.items():
            holds = node.lease.holds(node.ring, self.net.now)
            self.saw(name, "may act" if holds else "may not act")
        self.print()

    def do_counters(self, names: str, *prefixes: str) -> None:
        """NAME,...|all PREFIX...: print the counters whose names begin so."""
        self.print()
        for name in sorted(self.net.nodes) if names == "all" else names.split(","):
            counters = self.net.nodes[name].counters
            found = [f"{c} {counters[c]}" for c in sorted(counters) if c.startswith(prefixes)]
            self.saw(name, ", ".join(found) or "none")
        self.print()

    def do_phases(self) -> None:
        """Print the phase, ring and members of each member."""
        self.print()
        for name, node in self.net.nodes.items():
            ring = f"ring {self._ring(node.ring)}: {self._names(node.members)}"
            self.saw(name, f"{node.phase.value}, {ring}")
        self.print()

    def do_deliveries(self) -> None:
        """Print everything that each member delivered in this incarnation."""
        self.print()
        for name in self.net.nodes:
            self.saw(name, f"delivered {runs(self.delivered[name]) or 'nothing'}")
        self.print()

    def observe(self) -> None:
        for name, outputs in self.net.seen.items():
            shown = [(o, self._line(o)) for o in outputs[self._observed[name] :]]
            self._observed[name] = len(outputs)
            for late, some in groupby([pair for pair in shown if pair[1]], key=_configuration):
                lines = [line for _, line in some]
                if late is None:
                    for line in lines:
                        self.saw(name, line)
                else:
                    found = " ".join(lines).split()
                    self.delivered[name] += found
                    self.saw(name, f"deliver {runs(found)}{', transitional' if late else ''}")

    def _line(self, output: Output) -> str:
        match output:
            case Deliver():
                return " ".join(p.partition(b"*")[0].decode() for p in output.payloads)
            case Transitional(ring, members):
                return f"transitional of {self._ring(ring)}: {self._names(members)}"
            case View(ring, members, joined, left):
                changes = (("joined", joined), ("left", left))
                text = "".join(f"; {word} {self._names(who)}" for word, who in changes if who)
                return f"view {self._ring(ring)}: {self._names(members)}{text}"
            case Note("phase", fields) if "phases" in self.traced:
                return f"{fields['now']} ({fields['why']})"
            case Marks(marks) if "marks" in self.traced:
                return "marks " + " ".join(f"{n}={marks[n]}" for n in sorted(marks))
        return ""

    def _ring(self, ring: RingId) -> str:
        return f"{ring.seq}.{self._name(ring.rep, ring.rep_incarnation)}"

    def _names(self, members: tuple[Member, ...]) -> str:
        return " ".join(self._name(member.name, member.incarnation) for member in members)

    def _name(self, name: str, incarnation: int) -> str:
        """A member as it is printed: b(2) is the second incarnation of b."""
        number = self._incarnations[name].index(incarnation) + 1
        return name if number == 1 else f"{name}({number})"


def _configuration(shown: tuple[Output, str]) -> bool | None:
    """Whether a delivery is in a transitional configuration; None for anything else."""
    return shown[0].transitional if isinstance(shown[0], Deliver) else None


def seconds(text: str) -> float:
    """Read 300ms or 2s."""
    match = re.fullmatch(r"([0-9.]+)(ms|s)", text)
    if match is None:
        raise ValueError(f"'{text}' is no time such as 300ms or 2s")
    return float(match[1]) * (0.001 if match[2] == "ms" else 1.0)
