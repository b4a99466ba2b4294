"""A seed's choices: cluster, timing, load, and which faults exist at all.

Swarm testing: every seed leaves most faults out, because with everything on the rare combinations
drown in the common ones.  `without` takes faults away from a failing seed, to find those that it
needs.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.sim.world.net import Weather
from tests.sim.world.random_tape import Tape
from vsync.types import record

WEATHER_FAULTS = (
    "loss",
    "loss_token",
    "loss_data",
    "loss_join",
    "loss_commit",
    "loss_large",
    "burst",
    "duplicate",
    "reorder",
    "repeat_old",
    "garbage",
)
EPISODE_FAULTS = (
    "isolate",
    "halves",
    "oneway",
    "pairwise",
    "flap",
    "clog",
    "slow",
    "crash",
    "crash_mid_output",
    "crash_quick",
    "crash_all",
    "wipe",
    "pause",
    "leave",
)
OTHER_FAULTS = ("staggered_start", "late_timers", "stays_dead")

# Drawn from their own tape, so that the groups above stay the same for every seed.
LATER_WEATHER = ("spike", "corrupt", "corrupt_behind", "foreign")
LATER_EPISODES = (
    "bridge",
    "neighbours",
    "swizzle",
    "slow_member",
    "pause_long",
    "restart_storm",
    "disk_slow",
    "disk_fails",
    "disk_full",
    "restore",
    "clock_jump",
    "flood",
    "client_abort",
    "client_reconnect",
)
LATER_OTHERS = ("clock_drift", "strike", "stays_cut")
LATEST = ("late", "outage")  # each in a quarter of the seeds, whatever other faults they have
VOTES = ("arbitrator", "unequal_votes", "voter_changes")  # by another tape: who has a vote
# Each by its own tape: seeds without them stay as they were.
FROZEN = ("disk_freeze",)
RELEASES = ("mixed_releases",)  # members that read different versions of the frames
YOUNGEST = ("restore_two", "client_twin", "stop")
YOUNGEST_FROM = 1000
"""The first seed that may have them: tests name many smaller seeds for what these show."""
NEWEST = ("shutdown",)
ALL_EPISODES = EPISODE_FAULTS + LATER_EPISODES + FROZEN + YOUNGEST + NEWEST
YOUNGEST_LASTING = ("chain", "clock_rates", "dealers")
"""If there are shovels, there are two, of which one feeds the other; clock rates differ by nearly
as much as the lease tolerates; clients use transactions, too."""
ALL_FAULTS = (
    *WEATHER_FAULTS, *LATER_WEATHER, *ALL_EPISODES, *OTHER_FAULTS, *LATER_OTHERS, *LATEST, *VOTES,
    *RELEASES, *YOUNGEST_LASTING,
)  # fmt: skip

VIEW_CHANGERS = (
    "isolate", "halves", "flap", "crash", "crash_quick", "crash_mid_output", "crash_all", "wipe",
    "leave", "disk_full", "restart_storm", "pause_long", "strike",
)  # fmt: skip
ALWAYS_ON = ("late_timers", "staggered_start", "clock_drift", *RELEASES, *YOUNGEST_LASTING)
"""These last for a whole run, so nothing counts them."""

# The counts that a run needs to count in a campaign.
COUNTED_STEPS = 10_000
COUNTED_KINDS = 3
COUNTED_CHANGES = 3

# The largest probability of each weather fault; a seed draws between a fiftieth of it and all.
WORST = {
    "loss": 0.15,
    "loss_token": 0.15,
    "loss_data": 0.25,
    "loss_join": 0.4,
    "loss_commit": 0.4,
    "loss_large": 0.4,
    "burst": 0.3,
    "duplicate": 0.3,
    "reorder": 0.4,
    "repeat_old": 0.2,
    "garbage": 0.1,
    "spike": 0.03,
    "corrupt": 0.1,
    "corrupt_behind": 0.1,
    "foreign": 0.1,
}


@record
class Plan:
    """Everything that a run derives from its seed before it starts."""

    seed: int
    names: tuple[str, ...]
    faults: tuple[str, ...]
    weather: Weather
    storms: bool  # bad weather comes and goes instead of lasting
    calm_s: float  # mean time between two episodes of one fault
    episode_s: float  # mean length of an episode, in token timeouts
    chaos_s: float
    steps_min: int
    steps_max: int
    queue_frames: int
    turn_s: float  # mean time that a member takes to get around to its inbox
    token_timeout_ms: int
    frame_bytes_max: int
    window_frames: int
    personal_frames: int
    accelerated_frames: int
    store_frames_max: int
    queue_bytes_max: int
    queue_messages_max: int
    load_gap_s: float  # mean time between two bursts of one member
    load_burst: int
    load_safe: float  # share of the messages submitted as SAFE
    load_large: float  # share of the messages larger than a frame
    fsync_s: float
    transfer_s: float
    primary: bool
    # The parts of its seed that a shrunk scenario leaves out; see `tests.sim.run.shrink`.
    episodes: tuple[int, ...] | None = None  # the only ones that begin, by number; None: all
    strikes: tuple[int, ...] | None = None
    loaded: bool = True

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def describe(self) -> str:
        names = "".join(self.names)
        faults = ",".join(self.faults) or "none"
        return f"members {names} token {self.token_timeout_ms} ms faults {faults}"


def make_plan(
    seed: int,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
    primary: bool = False,
) -> Plan:
    """Draw the plan of a seed; the draw does not depend on `without` or `only`."""
    tape = Tape(seed, "plan")
    size = tape.pick((1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5))
    drawn = [
        *tape.some(WEATHER_FAULTS, 0, tape.pick((0, 3, 5, 9))),
        *tape.some(EPISODE_FAULTS, tape.pick((0, 1, 1)), tape.pick((1, 3, 5, 9))),
        *tape.some(OTHER_FAULTS, 0, len(OTHER_FAULTS)),
    ]
    rates = {
        fault: min(WORST[fault], WORST[fault] * tape.between(0.02, 1.0)) for fault in WEATHER_FAULTS
    }
    later = tape.fork("later")
    drawn += _later(later, drawn)
    latest = tape.fork("latest")
    drawn += [fault for fault in LATEST if latest.chance(0.25)] + _drawn_apart(tape, seed)
    for fault in LATER_WEATHER:
        rates[fault] = WORST[fault] * later.between(0.02, 1.0)
    faults = tuple(f for f in drawn if f not in without and (only is None or f in only))
    delay_s = tape.pick((0.0002, 0.0005, 0.001, 0.003))
    weather = Weather(
        delay_s=delay_s,
        jitter=tape.between(0.0, 0.9),
        spike_s=later.between(0.05, 1.5) * 0.1,
        **{fault: rate for fault, rate in rates.items() if fault in faults},
    )
    token_timeout_ms = tape.pick((60, 100, 100, 200, 500, 1000))
    token_s = token_timeout_ms / 1000.0
    window_frames = tape.pick((8, 32, 64))
    personal_frames = min(window_frames, tape.pick((2, 8, 24)))
    return Plan(
        seed=seed,
        names=tuple("abcde"[:size]),
        faults=faults,
        weather=weather,
        storms=tape.chance(0.5),
        calm_s=token_s * tape.between(1.0, 12.0),
        episode_s=tape.pick((0.3, 1.0, 1.5, 4.0)),
        chaos_s=token_s * tape.between(30.0, 150.0),
        steps_min=COUNTED_STEPS,
        steps_max=tape.pick((10500, 11000, 14000)),
        queue_frames=tape.pick((16, 64, 128)),
        turn_s=tape.pick((0.00002, 0.0001, 0.0005)),
        token_timeout_ms=token_timeout_ms,
        frame_bytes_max=tape.pick((1024, 1500, 4096, 32768)),
        window_frames=window_frames,
        personal_frames=personal_frames,
        accelerated_frames=tape.pick((0, 1, personal_frames // 2, personal_frames)),
        store_frames_max=window_frames * tape.pick((4, 8, 16)),
        queue_bytes_max=tape.pick((1 << 18, 1 << 20, 8 << 20)),
        queue_messages_max=tape.pick((50, 1000, 10000)),
        load_gap_s=tape.pick((0.002, 0.01, 0.05, 0.5)),
        load_burst=tape.pick((1, 3, 12)),
        load_safe=tape.pick((0.0, 0.5, 1.0)),
        load_large=tape.pick((0.0, 0.05, 0.3)),
        fsync_s=tape.pick((0.0005, 0.003, 0.03, 0.2)),
        transfer_s=tape.pick((0.01, 0.1, 0.5)),
        primary=primary,
    )


def _drawn_apart(tape: Tape, seed: int) -> list[str]:
    """Votes and the latest faults: each group from its own tape."""
    votes = tape.fork("votes")
    return [
        *(choice for choice in VOTES if votes.chance(0.25)),
        *(FROZEN if tape.fork("frozen").chance(0.25) else ()),
        *(RELEASES if tape.fork("releases").chance(0.2) else ()),
        *(
            one
            for one in (*YOUNGEST, *YOUNGEST_LASTING, *NEWEST)
            if seed >= YOUNGEST_FROM and tape.fork(one).chance(0.25)
        ),
    ]


def _later(tape: Tape, drawn: list[str]) -> list[str]:
    """Faults of the later groups: many if the seed has few others, often none if it has many.

    Nearly every seed gets a fault that changes the view, or its run would not count.  One in twenty
    adds none, so that calm runs and runs of the old kind remain.
    """
    if tape.chance(0.05):
        return []
    least = max(0, COUNTED_KINDS + 1 - sum(fault not in OTHER_FAULTS for fault in drawn))
    most = max(least, tape.pick((0, 2, 4)))
    count = tape.number(least, most)
    found = tape.some(LATER_WEATHER + LATER_EPISODES + LATER_OTHERS, count, count)
    change = tape.pick(VIEW_CHANGERS[-3:])
    if not any(fault in VIEW_CHANGERS for fault in (*drawn, *found)):
        found.append(change)
    return found


def calm_of(plan: Plan) -> Weather:
    """The plan's network in good weather."""
    return Weather(delay_s=plan.weather.delay_s, jitter=plan.weather.jitter)
