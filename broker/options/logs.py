"""The options of this process's log: how much, where, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import choice

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

DEFAULTS: Mapping[str, str] = {"log-level": "info", "log-file": "", "log-format": "text"}


class LogOptions(NamedTuple):
    """How this process logs."""

    level: str = "info"
    file: Path | None = None
    """Absolute; None: standard error."""
    format: str = "text"


def read_log_options(text: Mapping[str, str]) -> LogOptions:
    """Read the options.  Raises OptionError."""
    return LogOptions(
        choice("log-level", text["log-level"].lower(), LEVELS),
        Path(text["log-file"]).expanduser().absolute() if text["log-file"] else None,
        choice("log-format", text["log-format"].lower(), FORMATS),
    )
