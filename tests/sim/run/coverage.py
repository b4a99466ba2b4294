"""Which faults hit members in which stages, over a whole campaign.

A pair that no seed produced is untested, so the table lists those as well.  Stages are the ring's
phases, and while the ring is operational those of the primary layer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vsync.primary.component import Primary
from vsync.totem.phases import Phase as RingPhase

if TYPE_CHECKING:
    from tests.sim.world.member import SimMember

Pair = tuple[str, str]

DOWN = "down"
ALONE = "operational"
RING_STAGES = (DOWN, "gather", "commit", "recovery")
PRIMARY_STAGES = ("apart", "exchange", "inquorate", "levelling", "active")
STAGES = (*RING_STAGES, ALONE, *PRIMARY_STAGES)

# The names under which faults are counted: those that hit a member.
WEATHER = (
    "loss", "loss_token", "loss_data", "loss_join", "loss_commit", "burst", "duplicate", "reorder",
    "repeat_old", "late", "garbage", "spike", "corrupt", "corrupt_behind", "foreign",
)  # fmt: skip
NETWORK = (
    "isolate", "halves", "oneway", "deaf", "mute", "pairwise", "flap", "bridge", "neighbours",
    "clog", "swizzle", "slow", "mend", "strike_cut", "strike_lose", "strike_mend",
)  # fmt: skip
PROCESS = (
    "crash", "crash_quick", "crash_mid_output", "crash_all", "outage", "restart_storm", "wipe",
    "restore", "restore_two", "pause", "pause_long", "slow_member", "leave", "stop", "clock_jump",
    "strike_crash", "strike_pause", "strike_leave", "reset",
)  # fmt: skip
DISK = ("disk_slow", "disk_fails", "disk_full", "disk_freeze", "commit_failed")
CLIENTS = ("flood", "client_abort", "client_reconnect", "client_twin")
FAULTS = WEATHER + NETWORK + PROCESS + DISK + CLIENTS
NEVER_WHILE_DOWN = frozenset(PROCESS + DISK + CLIENTS)
"""Faults of a process need a running one; those of the network hit an address, up or down."""


def stage_of(member: SimMember) -> str:
    """The present stage of a member."""
    if member.tap is None:
        return DOWN
    phase = member.tap.core.phase
    if phase is not RingPhase.OPERATIONAL:
        return str(phase.value)
    upper = member.upper
    primary = getattr(getattr(upper, "core", upper), "primary", None)
    if not isinstance(primary, Primary):
        return ALONE
    return str(primary.phase.value)


def possible() -> list[Pair]:
    return [
        (fault, stage)
        for fault in FAULTS
        for stage in STAGES
        if not (stage == DOWN and fault in NEVER_WHILE_DOWN)
    ]


def lines(met: Counter[Pair]) -> list[str]:
    """The table of a campaign, and the pairs that never occurred."""
    width = max(map(len, FAULTS))
    head = " ".join(f"{stage[:9]:>9}" for stage in STAGES)
    table = [f"{'':{width}} {head}"]
    for fault in FAULTS:
        cells = " ".join(f"{met[fault, stage] or '-':>9}" for stage in STAGES)
        table.append(f"{fault:{width}} {cells}")
    pairs = possible()
    never = [pair for pair in pairs if not met[pair]]
    table.append(f"{len(pairs) - len(never)} of {len(pairs)} pairs of fault and stage were met")
    for fault in FAULTS:
        missing = [stage for name, stage in never if name == fault]
        if missing:
            table.append(f"never: {fault} in {', '.join(missing)}")
    others = sorted({fault for fault, _ in met} - set(FAULTS))
    if others:
        table.append(f"counted besides: {', '.join(others)}")
    return table
