"""The options of this process's log: how much, where, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker.options.values import Option, choice, defaults_of

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

OPTIONS: Mapping[str, Option] = {
    "log-level": Option("info", "LEVEL", "debug, info, warning or error. Default info."),
    "log-file": Option("", "FILE",
        "Log to FILE, which is reopened at SIGHUP. Default: standard error."),
    "log-format": Option("text", "FORM", "text, or json: one object per line. Default text."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)


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
