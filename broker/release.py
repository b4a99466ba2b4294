"""The release of this broker, shown to operators and recorded with quarantined commands."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "qpid-cluster-py"


def version() -> str:
    """Return the release of this broker."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "source tree"
