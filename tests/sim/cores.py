"""The real ring core, configured by a plan."""

from __future__ import annotations

import random

from tests.sim.plan import Plan
from tests.sim.tap import Core
from vsync.config import RingConfig
from vsync.node import Node
from vsync.types import Member

CLUSTER = "simulated"


def ring_config(plan: Plan) -> RingConfig:
    """The real configuration with the plan's timing and sizes; all else as delivered."""
    token = plan.token_timeout_ms
    return RingConfig(
        token_timeout_ms=token,
        token_timeout_per_member_ms=token // 5,
        join_timeout_ms=max(10, token // 20),
        lonely_wait_ms=max(20, token // 5),
        merge_interval_ms=max(20, token // 5),
        hold_ms=max(5, token // 20),
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


def make_node(me: Member, plan: Plan, chance: random.Random) -> Core:
    return Node(me, CLUSTER, ring_config(plan), chance)
