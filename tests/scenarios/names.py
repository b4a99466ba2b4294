"""Numbered words in stories: m1..m3 for m1 m2 m3."""

from __future__ import annotations

import re


def expand(words: list[str]) -> list[str]:
    """Write m1..m3 out as m1 m2 m3."""
    found = []
    for word in words:
        match = re.fullmatch(r"(\D+)(\d+)\.\.\1(\d+)(\*\d+)?", word)
        if match is None:
            found.append(word)
        else:
            numbers = range(int(match[2]), int(match[3]) + 1)
            found += [f"{match[1]}{number}{match[4] or ''}" for number in numbers]
    return found


def runs(words: list[str]) -> str:
    """The reverse of `expand`: m1 m2 m3 becomes m1..m3."""
    found: list[list[str]] = []
    for word in words:
        if found and expand([f"{found[-1][-1]}..{word}"]) == [found[-1][-1], word]:
            found[-1].append(word)
        else:
            found.append([word])
    return " ".join(f"{r[0]}..{r[-1]}" if len(r) > 2 else " ".join(r) for r in found)
