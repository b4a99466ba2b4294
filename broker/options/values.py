"""The definition of an option, the parsing of its text, and the error for refused options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Whether an option may differ among the members of a cluster."""

    EQUAL = "must be equal"
    ALIKE = "should be equal"
    OWN = "may differ"


class Option(NamedTuple):
    """One option of a broker: everything known before its value is read."""

    default: str
    placeholder: str
    """The placeholder of its value; in brackets: the value may be left out, and then is yes."""
    help: str
    kind: Kind = Kind.OWN


def defaults_of(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the default text of each option."""
    return {name: option.default for name, option in options.items()}


SECRET_OPTIONS = frozenset(("cluster-password", "ha-password", "shared-store-lock"))
"""Options whose values are never shown."""


_PASSWORD = re.compile(r"(?<=//)([^/@:?]*):.*(?=@)")
"""Up to the last @, to hide also a password that is not percent-encoded as it should be."""
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:passw|%)[^=&]*=).*", re.IGNORECASE)
"""With everything after it, as an & may be part of the password."""


def has_password(option: str, text: str) -> bool:
    """Whether this value is a password, or a URL that contains one."""
    if option == "shared-store-lock":
        return without_password(text) != text
    return option in SECRET_OPTIONS


def without_password(url: str) -> str:
    """Return a URL in a form that may be shown."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***", url))


class OptionError(Exception):
    """One option's value cannot be used, alone or together with the others.

    `option` is its long name without dashes.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option, self.reason = option, reason


DIGITS_MAX = 20
"""Python reads no number of thousands of digits, and makes floats of hundreds infinite."""


def number(option: str, text: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    digits = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    if not digits or not low <= int(text) <= high:
        raise OptionError(option, f"'{text}' is not a whole number from {low} to {high}")
    return int(text)


_UNITS = {
    "": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_LETTER = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])", re.ASCII | re.IGNORECASE)
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d+)?) ?(%|[KMGT]I?B|)", re.ASCII | re.IGNORECASE)


def amount(option: str, text: str) -> int | float:
    """Bytes as a whole number (`2GB`, `512MiB`), or a share below 1 (`0.4`, `40%`)."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        why = f"'{text}' is neither an amount (2GB, 512MiB) nor a share (0.4, 40%)"
        raise OptionError(option, _ambiguous(text) or why)
    value, unit = float(match[1]), match[2].upper()
    if unit == "%" or (not unit and "." in match[1]):
        share = value / 100 if unit else value
        if share >= 1:
            raise OptionError(option, f"'{text}' is a share of 1 or more")
        return share
    return int(value * _UNITS[unit])


def size(option: str, text: str, low: int, high: int) -> int:
    """Bytes from `low` to `high` as a whole number, with or without a unit."""
    match = _AMOUNT.fullmatch(text)
    unit = match[2].upper() if match is not None else "%"
    value = int(float(match[1]) * _UNITS[unit]) if match is not None and unit != "%" else -1
    if not low <= value <= high:
        why = f"'{text}' is no number of bytes from {low} to {high} (64MiB)"
        raise OptionError(option, _ambiguous(text) or why)
    return value


def _ambiguous(text: str) -> str:
    """Return why a single letter at the end of `text` is no unit: RabbitMQ read 70M in units of
    2^20 until 3.13, and reads it in units of 10^6 since."""
    match = _LETTER.fullmatch(text)
    if match is None:
        return ""
    number, unit = match[1], match[2].upper()
    return f"'{text}' may be {number}{unit}B (thousands) or {number}{unit}iB (1024): write which"


def yes(option: str, text: str) -> bool:
    """Whether the text is yes; anything but yes and no is refused."""
    if text.lower() not in ("yes", "no"):
        raise OptionError(option, f"'{text}' is neither yes nor no")
    return text.lower() == "yes"


def choice(option: str, text: str, choices: tuple[str, ...]) -> str:
    """One of `choices`."""
    if text not in choices:
        raise OptionError(option, f"'{text}' is not one of {', '.join(choices)}")
    return text
