"""What can go wrong, in families that are never mixed.

`FrameError`: what a peer or the wire did; always counted and dropped, never let out of the node.
`ConfigError`: what the operator did; raised while the configuration record is built.
`PayloadTooLarge`, `GroupError`: what the caller did; raised by the call, which took nothing.
`NotDurable`, `ClusterClosed`: what became of a message that was accepted.
`ProtocolBug`: what we did; the member must stop.
"""

from __future__ import annotations


class VsyncError(Exception):
    """Root of the package's errors."""


class FrameError(VsyncError):
    """A received frame that is not what it must be; `code` names the counter that it bumps."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code


class ConfigError(VsyncError, ValueError):
    """A configuration value, or a relation between two of them, that cannot work."""


class PayloadTooLarge(VsyncError, ValueError):
    """A payload above the configured limit: it could never be ordered, whatever the load."""


class ProtocolBug(VsyncError, AssertionError):
    """The core reached a state that its own rules exclude."""


class GroupError(VsyncError, ValueError):
    """A call that makes no sense now: a second join, a message to a group that I am not in."""


class NotDurable(VsyncError):
    """The message was ordered, but too few members are left that could have it on disk."""


class ClusterClosed(VsyncError):
    """This member is closed: what had no place in the order by then will never get one."""
