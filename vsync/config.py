"""Every number of the ring, with its unit in its name and the relations between them asserted.

Milliseconds in the record (what an operator writes), seconds in the derived properties (what the
core computes with).  All members of a cluster must run the same values; only time limits may differ
without harm.
"""

from __future__ import annotations

from vsync.codec import WANTED_MAX
from vsync.control import MEMBERS_MAX
from vsync.errors import ConfigError
from vsync.types import record

_MAY_BE_ZERO = ("accelerated_frames", "lead_frames", "token_timeout_per_member_ms")


@record
class RingConfig:
    """Validated when built.  A zero in a `*_ms` means: derive it from `token_timeout_ms`."""

    # failure detection
    token_timeout_ms: int = 1000
    token_timeout_per_member_ms: int = 200  # for each member above two
    token_retransmit_ms: int = 0  # token_timeout / 4.2
    consensus_timeout_ms: int = 0  # 1.2 * token_timeout
    join_timeout_ms: int = 50
    lonely_wait_ms: int = 200  # a starting member that hears nobody forms its own ring after this
    merge_interval_ms: int = 200
    merge_backoff_max_ms: int = 0  # 3 * token_timeout; see membership.Shunned
    receive_failure_visits: int = 50
    receive_failure_ms: int = 0  # token_timeout / 2
    # idle
    hold_ms: int = 50
    idle_visits_before_hold: int = 10  # some 5 ms of spinning after the last work
    # flow
    window_frames: int = 64
    personal_frames: int = 24
    accelerated_frames: int = 16  # how many new frames may follow the token; 0: the plain ring
    lead_frames: int = 2  # how many at least precede it: the next member then acknowledges them now
    wanted_max: int = 256
    store_frames_max: int = 1024
    # sizes
    frame_bytes_max: int = 32768
    message_bytes_max: int = 64 * 1024 * 1024
    queue_bytes_max: int = 8 * 1024 * 1024
    queue_messages_max: int = 10000
    members_max: int = 64

    def __post_init__(self) -> None:
        derived = {
            "token_retransmit_ms": int(self.token_timeout_ms / 4.2),
            "consensus_timeout_ms": int(self.token_timeout_ms * 1.2),
            "merge_backoff_max_ms": 3 * self.token_timeout_ms,
            "receive_failure_ms": self.token_timeout_ms // 2,
        }
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        for name in self.__slots__:  # type: ignore[attr-defined]
            floor = 0 if name in _MAY_BE_ZERO else 1
            if getattr(self, name) < floor:
                raise ConfigError(f"{name} must be at least {floor}")
        for holds, words in self._relations():
            if not holds:
                raise ConfigError(words)

    def _relations(self) -> list[tuple[bool, str]]:
        """What must hold between the numbers, in the words that the operator gets to read."""
        return [
            (
                self.hold_ms * 2 <= self.token_retransmit_ms,
                "hold_ms must be at most half of token_retransmit_ms: held is not lost",
            ),
            (
                self.token_retransmit_ms * 3 <= self.token_timeout_ms,
                "token_retransmit_ms must fit three times into token_timeout_ms",
            ),
            (
                self.consensus_timeout_ms > self.token_timeout_ms,
                "consensus_timeout_ms must exceed token_timeout_ms: members notice a loss apart",
            ),
            (
                self.join_timeout_ms * 4 <= self.consensus_timeout_ms,
                "join_timeout_ms must fit four times into consensus_timeout_ms",
            ),
            (
                self.personal_frames <= self.window_frames,
                "personal_frames must not exceed window_frames",
            ),
            (
                self.accelerated_frames <= self.personal_frames,
                "accelerated_frames must not exceed personal_frames",
            ),
            (
                self.store_frames_max >= 4 * self.window_frames,
                "store_frames_max must hold four windows: release lags two rotations",
            ),
            (self.idle_visits_before_hold >= 3, "idle_visits_before_hold must be at least 3"),
            (self.frame_bytes_max >= 1024, "frame_bytes_max must be at least 1024"),
            (self.frame_bytes_max <= 1 << 20, "frame_bytes_max must be at most 1 MiB"),
            (
                self.message_bytes_max >= self.frame_bytes_max,
                "message_bytes_max must be at least frame_bytes_max",
            ),
            (self.wanted_max <= WANTED_MAX, f"wanted_max must be at most {WANTED_MAX}"),
            (self.members_max <= MEMBERS_MAX, f"members_max must be at most {MEMBERS_MAX}"),
        ]

    def token_timeout(self, members: int) -> float:
        """Seconds without a token of the ring after which it counts as lost."""
        extra = self.token_timeout_per_member_ms * max(0, members - 2)
        return (self.token_timeout_ms + extra) / 1000

    def consensus_timeout(self, members: int) -> float:
        """Seconds after which a candidate that does not agree counts as failed."""
        extra = 1.2 * self.token_timeout_per_member_ms * max(0, members - 2)
        return (self.consensus_timeout_ms + extra) / 1000
