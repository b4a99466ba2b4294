"""Pages of the documentation with blocks made from code, behind `<!-- generated: NAME -->`.

A command that makes such a page fails when the page is behind the code, and writes it with
`--write`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Blocks = Mapping[str, Callable[[str], str]]
"""By name, in the order of the page: a function from the present block to the new one."""


def renewed(text: str, blocks: Blocks) -> str:
    """Return a page with its blocks made anew.  Raises AssertionError if it has other blocks."""
    found = [match[2] for match in _BLOCK.finditer(text)]
    assert found == list(blocks), f"blocks of the page: {found}, not {list(blocks)}"
    return _BLOCK.sub(lambda m: m[1] + blocks[m[2]](m[3]) + m[4], text)


def bring_up_to_date(page: Path, blocks: Blocks, command: str, *, write: bool) -> None:
    """Write a page that is behind the code, or exit with its name and the command that writes
    it."""
    text = page.read_text(encoding="utf-8")
    new = renewed(text, blocks)
    if new != text and not write:
        raise SystemExit(f"{page.name} is behind the code: python -m {command} --write")
    if new != text:
        page.write_text(new, encoding="utf-8")


def run(pages: Mapping[Path, Blocks], command: str, description: str) -> None:
    """The command line of a module that makes these pages and does nothing else."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description)
    parser.add_argument("--write", action="store_true", help="update the page")
    write = parser.parse_args().write
    for page, blocks in pages.items():
        bring_up_to_date(page, blocks, command, write=write)
