"""The errors of the package, by the party that caused them.

`FrameError`: a peer or the network; always counted and dropped, never raised by the node.
`ConfigError`: the operator; raised while the configuration record is built.
`PayloadTooLarge`, `GroupError`: the caller; raised by the call, which had no effect.
`NotDurable`, `ClusterClosed`: the outcome of a message that was accepted.
`ProtocolBug`: a bug of this package; the member must stop.
"""

from __future__ import annotations


class VsyncError(Exception):
    """The root of the package's errors."""


class FrameError(VsyncError):
    """A received frame is invalid; `code` names the counter for it."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code


class ConfigError(VsyncError, ValueError):
    """A configuration value, or a relation between two of them, is invalid."""


class PayloadTooLarge(VsyncError, ValueError):
    """A payload is above the configured limit."""


class ProtocolBug(VsyncError, AssertionError):
    """The core reached a state that its rules exclude."""


class GroupError(VsyncError, ValueError):
    """A call in the wrong state: a second join, or a message to a group that was not joined."""


class NotDurable(VsyncError):
    """The message was ordered, but too few remaining members may have it on disk."""


class ClusterClosed(VsyncError):
    """This member is closed: messages not ordered by then will not be."""
