"""Elements of HTML and SVG as text. All text from logs comes through `text` or an attribute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def tag(name: str, *inside: str, **attributes: object) -> str:
    """Return an element around markup; attributes are escaped, an empty one is left out.

    `class_` is the attribute class, other underscores are hyphens.
    """
    written = [f' {key.rstrip("_").replace("_", "-")}="{_value(of)}"'
               for key, of in attributes.items() if of != ""]  # fmt: skip
    return f"<{name}{''.join(written)}>{''.join(inside)}</{name}>"


def _value(of: object) -> str:
    return f"{of:.1f}" if isinstance(of, float) else escape(str(of))


def text(name: str, content: str, **attributes: object) -> str:
    """Return an element around plain text, which is escaped."""
    return tag(name, escape(content), **attributes)


def table(heads: Sequence[str], rows: Iterable[Iterable[str]], class_: str = "") -> str:
    """Return a table of cells, which are elements."""
    head = tag("thead", tag("tr", *(text("th", one, scope="col") for one in heads)))
    return tag("table", head, tag("tbody", *(tag("tr", *row) for row in rows)), class_=class_)
