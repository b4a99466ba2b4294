"""Totem-like total order multicast with extended virtual synchrony; usable by itself.

The names below are the public face, described in docs/VSYNC.md: they change only with a new minor
release and a word in the changelog.  What else the modules hold may change at any time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vsync.cluster import Cluster
    from vsync.config import RingConfig
    from vsync.errors import (
        ClusterClosed,
        ConfigError,
        GroupError,
        NotDurable,
        PayloadTooLarge,
        VsyncError,
    )
    from vsync.group import Group
    from vsync.group_events import (
        AGREED,
        DURABLE,
        SAFE,
        Cause,
        GroupMessage,
        GroupView,
        Level,
    )
    from vsync.transport import TransportError
    from vsync.types import Member

__all__ = [
    "AGREED",
    "DURABLE",
    "SAFE",
    "Cause",
    "Cluster",
    "ClusterClosed",
    "ConfigError",
    "Group",
    "GroupError",
    "GroupMessage",
    "GroupView",
    "Level",
    "Member",
    "NotDurable",
    "PayloadTooLarge",
    "RingConfig",
    "TransportError",
    "VsyncError",
]

_HOMES = {
    "cluster": ("Cluster",),
    "config": ("RingConfig",),
    "errors": (
        "ClusterClosed", "ConfigError", "GroupError", "NotDurable", "PayloadTooLarge", "VsyncError",
    ),
    "group": ("Group",),
    "group_events": ("AGREED", "DURABLE", "SAFE", "Cause", "GroupMessage", "GroupView", "Level"),
    "transport": ("TransportError",),
    "types": ("Member",),
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a tool that needs a type needs no sockets."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(f"vsync.{module}"), name)
            return found
    raise AttributeError(f"module 'vsync' has no attribute {name!r}")
