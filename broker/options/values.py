"""Text of one option into its value; the error that every refusal of an option is."""

from __future__ import annotations


class OptionError(Exception):
    """One option's value cannot be used, alone or together with the others.

    `option` is its long name without dashes.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(reason)
        self.option, self.reason = option, reason


def number(option: str, text: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        raise OptionError(option, f"'{text}' is not a whole number from {low} to {high}")
    return int(text)


def yes(option: str, text: str) -> bool:
    """Whether it is yes; anything but yes and no is refused."""
    if text.lower() not in ("yes", "no"):
        raise OptionError(option, f"'{text}' is neither yes nor no")
    return text.lower() == "yes"


def choice(option: str, text: str, choices: tuple[str, ...]) -> str:
    """One of `choices`."""
    if text not in choices:
        raise OptionError(option, f"'{text}' is not one of {', '.join(choices)}")
    return text
