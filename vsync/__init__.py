"""Total order multicast after Totem, with extended virtual synchrony; usable as a library.

The names below are the public API, described in docs/VSYNC.md. They change only in a new minor
release, with an entry in the changelog. Everything else in these modules may change at any time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vsync.api.cluster import Cluster
    from vsync.api.group import Group
    from vsync.cpg.events import (
        AGREED,
        DURABLE,
        SAFE,
        Cause,
        GroupMessage,
        GroupView,
        Level,
    )
    from vsync.errors import (
        ClusterClosed,
        ConfigError,
        GroupError,
        NotDurable,
        PayloadTooLarge,
        VsyncError,
    )
    from vsync.io.keys import KeyFileError
    from vsync.io.security import Curve
    from vsync.io.transport import TransportError
    from vsync.totem.config import RingConfig
    from vsync.types import Member

__all__ = [
    "AGREED",
    "DURABLE",
    "SAFE",
    "Cause",
    "Cluster",
    "ClusterClosed",
    "ConfigError",
    "Curve",
    "Group",
    "GroupError",
    "GroupMessage",
    "GroupView",
    "KeyFileError",
    "Level",
    "Member",
    "NotDurable",
    "PayloadTooLarge",
    "RingConfig",
    "TransportError",
    "VsyncError",
]

_HOMES = {
    "api.cluster": ("Cluster",),
    "api.group": ("Group",),
    "cpg.events": ("AGREED", "DURABLE", "SAFE", "Cause", "GroupMessage", "GroupView", "Level"),
    "errors": (
        "ClusterClosed", "ConfigError", "GroupError", "NotDurable", "PayloadTooLarge", "VsyncError",
    ),
    "io.keys": ("KeyFileError",),
    "io.security": ("Curve",),
    "io.transport": ("TransportError",),
    "totem.config": ("RingConfig",),
    "types": ("Member",),
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name on first use: a tool that needs a type should not load sockets."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(import_module(f"vsync.{module}"), name)
            return found
    raise AttributeError(f"module 'vsync' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, so that `help(vsync)` and completion show them."""
    return sorted({*globals(), *__all__})
