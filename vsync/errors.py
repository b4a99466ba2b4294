"""The errors of the package, by who caused them.

`FrameError`: a peer or the network; always counted and dropped, never raised by the node.
`ConfigError`: the operator; raised while the configuration record is built.
`PayloadTooLarge`, `GroupError`: the caller; raised by the call, which had no effect.
`NotDurable`, `ClusterClosed`: the outcome of a message that was accepted.
`ProtocolBug`: a bug of this package; the member must stop.
"""

from __future__ import annotations


class VsyncError(Exception):
    """Root of the package's errors."""


class FrameError(VsyncError):
    """A received frame that is invalid; `code` names the counter for it."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code


class ConfigError(VsyncError, ValueError):
    """A configuration value, or a relation between two of them, that is invalid."""


class PayloadTooLarge(VsyncError, ValueError):
    """A payload above the configured limit."""


class ProtocolBug(VsyncError, AssertionError):
    """The core reached a state that its rules exclude."""


class GroupError(VsyncError, ValueError):
    """A call in the wrong state: a second join, a message to a group that was not joined."""


class NotDurable(VsyncError):
    """The message was ordered, but too few members are left that may have it on disk."""


class ClusterClosed(VsyncError):
    """This member is closed: what was not ordered by then will not be."""
