"""What a member has promised: the part of its durable state that is not history."""

from __future__ import annotations

from vsync.types import record


@record
class Promise:
    """The cluster it belongs to, who votes there, and the highest epoch it agreed to."""

    cluster_id: str
    voters: tuple[str, ...]
    promised_epoch: int
