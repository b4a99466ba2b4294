"""The operators' manual as tests read it: docs/OPERATIONS.md and the pages of docs/operations."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "OPERATIONS.md"
FOLDER = ROOT / "docs" / "operations"


def pages() -> list[Path]:
    """The index, then the pages by subject."""
    return [INDEX, *sorted(FOLDER.glob("*.md"))]


def text() -> str:
    """The text of the whole manual."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages())


def chapter(heading: str, page: Path | None = None) -> str:
    """The text under a heading, up to the next heading of the same or a higher level.

    It is looked up in the whole manual unless a page is named; only one page may have such a
    chapter.
    """
    read = text() if page is None else page.read_text(encoding="utf-8")
    found = re.findall(
        rf"^(##+) {re.escape(heading)}\n(.*?)(?=^(?!\1#)#+ |\Z)", read, re.MULTILINE | re.DOTALL
    )
    assert len(found) == 1, f"{len(found)} chapters are named {heading}"
    return str(found[0][1])


def anchors(page: Path) -> set[str]:
    """The link anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
