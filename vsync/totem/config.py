"""Every number of the ring, with its unit in its name; the relations between them are asserted.

The record holds milliseconds (the operator's unit), the methods return seconds (the core's unit).
All members of a cluster must run with the same values; only time limits may differ without harm.
"""

from __future__ import annotations

from typing import NamedTuple

from vsync.errors import ConfigError
from vsync.types import record
from vsync.wire.codec import WANTED_MAX, WIRE_VERSION, WIRE_VERSION_MIN, Versions
from vsync.wire.membership_codec import MEMBERS_MAX

_MAY_BE_ZERO = ("accelerated_frames", "lead_frames", "token_timeout_per_member_ms")


class Relation(NamedTuple):
    """One rule between settings: its name, whether it holds, and the requirement in words."""

    name: str
    holds: bool
    required: str


@record
class RingConfig:
    """Validated when built. A zero in a `*_ms` means: derive it from `token_timeout_ms`."""

    # failure detection
    token_timeout_ms: int = 600
    token_timeout_per_member_ms: int = 50  # more, for each member above two
    token_timeout_max_ms: int = 0  # 4 * token_timeout: the most on a ring that is slow; see tempo
    token_retransmit_ms: int = 0  # token_timeout / 4.2
    consensus_timeout_ms: int = 0  # 1.2 * token_timeout
    join_timeout_ms: int = 50
    probe_ms: int = 0  # token_timeout / 10: length of the check of a member whose link broke
    lease_ms: int = 0  # token_timeout / 3: how long a member acts without the token; see lease
    lease_max_ms: int = 0  # token_timeout_max: the most on a ring that is slow
    lonely_wait_ms: int = 200  # then a starting member that found nobody forms its own ring
    merge_interval_ms: int = 300
    hearing_ms: int = 0  # 3 * merge_interval, at most consensus: memory of receptions
    merge_backoff_max_ms: int = 0  # 3 * token_timeout; see merge.BackedOff
    receive_failure_visits: int = 50
    receive_failure_ms: int = 0  # token_timeout / 2
    # idle
    commit_wait_ms: int = 2  # how long the token waits for the commit of a member at most
    rest_ms: int = 5  # how long it rests where a call for it may come too late, or be lost
    keep_ms: int = 0  # hold * 2 / 5: the same where the last urgent work came from
    idle_visits_before_rest: int = 2
    hold_ms: int = 65
    idle_visits_before_hold: int = 10  # some 30 ms after the last frame, with the rests
    # flow
    window_frames: int = 64
    personal_frames: int = 24
    accelerated_frames: int = 16  # new frames that may follow the token; 0: the plain ring
    lead_frames: int = 2  # that precede it at least: the next member acknowledges them now
    wanted_max: int = 256
    store_frames_max: int = 1024
    # sizes
    frame_bytes_max: int = 262144
    message_bytes_max: int = 64 * 1024 * 1024
    queue_bytes_max: int = 8 * 1024 * 1024
    queue_messages_max: int = 10000
    members_max: int = 64
    # meaning
    payload_version: int = 1  # newest format of the payloads that this member reads
    payload_version_min: int = 1  # and the oldest one
    wire_version: int = WIRE_VERSION  # newest version of the frames that this member reads
    wire_version_min: int = WIRE_VERSION_MIN  # and the oldest: members need one in common

    def __post_init__(self) -> None:
        consensus_ms = self.consensus_timeout_ms or int(self.token_timeout_ms * 1.2)
        timeout_max_ms = self.token_timeout_max_ms or 4 * self.token_timeout_ms
        derived = {
            "token_retransmit_ms": int(self.token_timeout_ms / 4.2),
            "consensus_timeout_ms": consensus_ms,
            "token_timeout_max_ms": timeout_max_ms,
            "lease_ms": self.token_timeout_ms // 3,
            "lease_max_ms": timeout_max_ms,
            "probe_ms": max(1, self.token_timeout_ms // 10),
            "hearing_ms": min(3 * self.merge_interval_ms, consensus_ms),
            "merge_backoff_max_ms": 3 * self.token_timeout_ms,
            "receive_failure_ms": self.token_timeout_ms // 2,
            "keep_ms": max(1, self.hold_ms * 2 // 5),
        }
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        for name in self.__slots__:  # type: ignore[attr-defined]
            floor = 0 if name in _MAY_BE_ZERO else 1
            if getattr(self, name) < floor:
                raise ConfigError(f"{name} must be at least {floor}")
        for relation in self.relations():
            if not relation.holds:
                raise ConfigError(f"{relation.name}: {relation.required}")

    def relations(self) -> tuple[Relation, ...]:
        """The rules between the settings; operators read these texts."""
        rows = (
            ("a held token is not lost", self.hold_ms * 2 <= self.token_retransmit_ms,
             "hold_ms must be at most half of token_retransmit_ms"),
            ("a token is resent before it is lost",
             self.token_retransmit_ms * 3 <= self.token_timeout_ms,
             "token_retransmit_ms must fit three times into token_timeout_ms"),
            ("consensus outlasts the loss of a token",
             self.consensus_timeout_ms > self.token_timeout_ms,
             "consensus_timeout_ms must exceed token_timeout_ms: members notice a loss apart"),
            ("joins are repeated before a member is failed",
             self.join_timeout_ms * 4 <= self.consensus_timeout_ms,
             "join_timeout_ms must fit four times into consensus_timeout_ms"),
            ("a check ends before the token is lost", self.probe_ms * 4 <= self.token_timeout_ms,
             "probe_ms must fit four times into token_timeout_ms: a check is early or useless"),
            ("a token is held within the lease", self.hold_ms * 3 <= self.lease_ms,
             "hold_ms must fit three times into lease_ms: an idle ring keeps its lease"),
            ("the lease ends before the token is lost", self.lease_ms < self.token_timeout_ms,
             "lease_ms must be less than token_timeout_ms"),
            ("a slow ring is given more time", self.token_timeout_ms <= self.token_timeout_max_ms,
             "token_timeout_max_ms must be at least token_timeout_ms"),
            ("a slow ring is given a longer lease", self.lease_ms <= self.lease_max_ms,
             "lease_max_ms must be at least lease_ms"),
            ("failure to receive is found before the token is lost",
             self.receive_failure_ms < self.token_timeout_ms,
             "receive_failure_ms must be less than token_timeout_ms"),
            ("a ring of one after two joins", self.join_timeout_ms * 2 <= self.lonely_wait_ms,
             "join_timeout_ms must fit twice into lonely_wait_ms: two joins go first"),
            ("reception outlasts missed announcements",
             max(self.merge_interval_ms * 2, self.join_timeout_ms * 4) <= self.hearing_ms,
             "hearing_ms must hold two of merge_interval_ms and four of join_timeout_ms"),
            ("reception expires before the decision", self.hearing_ms <= self.consensus_timeout_ms,
             "hearing_ms must not exceed consensus_timeout_ms: who is gone has expired by then"),
            ("backing off begins with one interval",
             self.merge_interval_ms <= self.merge_backoff_max_ms,
             "merge_interval_ms must not exceed merge_backoff_max_ms"),
            ("a visit is a share of the window", self.personal_frames <= self.window_frames,
             "personal_frames must not exceed window_frames"),
            ("what follows the token is a share of the visit",
             self.accelerated_frames <= self.personal_frames,
             "accelerated_frames must not exceed personal_frames"),
            ("release lags two rotations", self.store_frames_max >= 4 * self.window_frames,
             "store_frames_max must hold four windows"),
            ("a frame carries something", self.frame_bytes_max >= 1024,
             "frame_bytes_max must be at least 1024"),
            ("a frame is sent at once", self.frame_bytes_max <= 1 << 20,
             "frame_bytes_max must be at most 1 MiB"),
            ("a message may fill a frame", self.message_bytes_max >= self.frame_bytes_max,
             "message_bytes_max must be at least frame_bytes_max"),
            ("the token fits a frame", self.wanted_max <= WANTED_MAX,
             f"wanted_max must be at most {WANTED_MAX}"),
            *self._pace(),
            *self._ranges(),
            ("the joins fit a frame", self.members_max <= MEMBERS_MAX,
             f"members_max must be at most {MEMBERS_MAX}"),
        )  # fmt: skip
        return tuple(Relation(*row) for row in rows)

    def _pace(self) -> tuple[tuple[str, bool, str], ...]:
        return (
            ("marks go round before the token rests", self.idle_visits_before_rest >= 2,
             "idle_visits_before_rest must be at least 2: who has work calls at the first one"),
            ("a token rests before it is held",
             self.idle_visits_before_rest < self.idle_visits_before_hold,
             "idle_visits_before_rest must be less than idle_visits_before_hold"),
            ("a rest is shorter than a hold",
             max(self.rest_ms, self.keep_ms, self.commit_wait_ms) <= self.hold_ms,
             "rest_ms, keep_ms and commit_wait_ms must be at most hold_ms"),
        )  # fmt: skip

    def _ranges(self) -> tuple[tuple[str, bool, str], ...]:
        return (
            ("some payloads can be read", self.payload_version_min <= self.payload_version,
             "payload_version_min must not exceed payload_version"),
            ("some frames can be read", self.wire_version_min <= self.wire_version <= 255,
             "wire_version_min must not exceed wire_version, and that one is a byte"),
        )  # fmt: skip

    @property
    def wire_versions(self) -> Versions:
        """Versions of the frames that this member reads."""
        return Versions(self.wire_version_min, self.wire_version)

    @property
    def busy_lease_ms(self) -> int:
        """The lease while messages flow: half as long, at least three times the longest rest."""
        return min(self.lease_ms, max(self.lease_ms // 2, 3 * (self.keep_ms + self.rest_ms)))

    def token_timeout(self, members: int) -> float:
        """Seconds without a token of the ring after which it counts as lost."""
        extra = self.token_timeout_per_member_ms * max(0, members - 2)
        return (self.token_timeout_ms + extra) / 1000

    def consensus_timeout(self, members: int) -> float:
        """Seconds after which a candidate that does not agree counts as failed."""
        extra = 1.2 * self.token_timeout_per_member_ms * max(0, members - 2)
        return (self.consensus_timeout_ms + extra) / 1000
