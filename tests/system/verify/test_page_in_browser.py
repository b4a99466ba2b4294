"""The check's page in a real browser: 3 and 9 members, an hour and a month, light and dark.

Skipped, with the reason, without a Chromium (Debian: `apt-get install chromium-headless-shell`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check_page import example, write
from tests.support.dashboard import chromium
from tests.support.dashboard.chromium import Browser, browser, executable
from tools.verify.report.result import Report

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(
        executable() is None, reason="no Chromium: apt-get install chromium-headless-shell"
    ),
]
FAULTS = Path(chromium.__file__).with_name("page_faults.js").read_text(encoding="utf-8")
OVERLAPS = """[...document.querySelectorAll("svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  const bars = [...svg.querySelectorAll("rect:not(.band)")].map(
    (one) => one.getBoundingClientRect());
  return [...svg.querySelectorAll("text:not(.event)")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || bars.some((bar) =>
      box.left < bar.right - 1 && bar.left < box.right - 1
      && box.top < bar.bottom - 3 && bar.top < box.bottom - 3);
  }).map((one) => one.textContent);
})"""
"""Labels that overlap a bar, or are cut off at the edge of their picture."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browser(tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


def hostile() -> Report:
    report = example(3, 1, broken=True)
    assert report.timeline is not None
    for one in report.timeline.incarnations:
        one.member = f"<script>alert(1)</script>{one.member}" + "W" * 200
    report.notes.append("<img src=x onerror=alert(1)>" + "M" * 400)
    return report


EXAMPLES = {
    "hour": lambda: example(3, 1, broken=True),
    "month": lambda: example(9, 24 * 30, epochs=400),
    "hostile": hostile,
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, True)])
def test_the_page_is_readable(
    started: Browser, tmp_path: Path, name: str, width: int, *, dark: bool
) -> None:
    file = tmp_path / "page.html"
    write(EXAMPLES[name](), file)
    started.complaints.clear()
    started.screen(width, 900, dark=dark)
    started.open(file.as_uri())
    started.wait("document.readyState === 'complete' && document.querySelector('.verdict')")
    assert started.evaluate(FAULTS) == []
    assert started.evaluate(OVERLAPS) == []
    assert started.complaints == []
    assert started.dialogs == 0
    background = started.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)")


def test_the_page_can_be_printed(started: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write(example(3, 1), file)
    started.open(file.as_uri())
    started.wait("document.readyState === 'complete' && document.querySelector('.verdict')")
    printed = base64.b64decode(started.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
