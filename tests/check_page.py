"""Takes the pictures of the consistency check's page in docs/pictures with a headless Chromium.

python -m tests.check_page --write
python -m tests.check_page PAGE.html PICTURE.png [--dark] [--width PIXELS]
"""

from __future__ import annotations

import argparse
import base64
import random
import tempfile
from itertools import pairwise
from pathlib import Path

from tests.support.dashboard.chromium import browser
from tools.verify.findings import PROPERTIES, Coverage, Finding
from tools.verify.format.moves import Op
from tools.verify.report.html import page
from tools.verify.report.result import Counts, Report
from tools.verify.report.timeline import (
    SLICES,
    Event,
    IncarnationTimeline,
    MoveCount,
    Slice,
    Span,
    Timeline,
)

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
HEIGHT = 900  # of the window
SHOWN, SCALE = 1180, 0.8  # of the page: the manual shows its beginning
BEGIN_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000
RATE = 400  # approximate positions a second


def example(members: int, hours: int, *, broken: bool = False, epochs: int = 5) -> Report:
    """Return the report of a cluster whose second member was killed and came back late.

    The last member lags for a while.  `epochs` is the number of changes of the primary, mostly
    within a short time, as on a flapping network.
    """
    chance = random.Random(members * hours)
    end = BEGIN_US + hours * HOUR_US
    timeline = Timeline(BEGIN_US, end, [], [])
    away, back = (BEGIN_US + hours * HOUR_US * share // 10 for share in (3, 6))
    flaps = sorted(chance.randrange(back, back + (end - back) // 3) for _ in range(epochs - 3))
    begins = [BEGIN_US, away, back, *flaps]
    for number in range(members):
        name = f"rack{number % 3 + 1}-{chr(ord('a') + number)}"
        absent = [(away, back)] if number == 1 else []
        _add_member(timeline, name, begins, absent, late=number == members - 1)
    timeline.slices.sort()
    usual = RATE * 0.4 * timeline.slice_us / 1e6
    timeline.move_counts = [
        MoveCount(n, op, 0, False, int(usual * chance.uniform(0.8, 1.2)))
        for n in range(SLICES)
        for op in (Op.PUBLISHED, Op.DELIVERED, Op.SETTLED)
    ]
    timeline.move_counts += [
        MoveCount(37, Op.RETURNED, 3, False, 2400),  # its member was lost
        MoveCount(38, Op.DELIVERED, 0, True, 2710),
        MoveCount(60, Op.RETURNED, 0, False, 310),  # a nack
    ]
    report = Report(timeline=timeline)
    records = members * hours * 3600 * RATE // 8
    report.counts = Counts(
        members, len(timeline.incarnations), members * hours // 2 + members, records * 38, records,
        records - 40, records * 8 // members, records // 2, records // 2, epochs, epochs,
    )  # fmt: skip
    of = {"LOG": "records", "G1 G2 G14": "batches", "G9": "confirms", "G20": "moves"}
    report.checks = [Coverage(names, "example", records, what) for names, what in of.items()]
    report.checks += [
        Coverage(name, "example", records // 9, "moves")
        for name in PROPERTIES
        if name not in " ".join(of) and name not in ("G5", "G10")
    ]
    report.notes = [f"{name} ends without a stop" for name in ("rack2-b (incarnation 1)",)]
    if broken:
        at = max(one.position for one in timeline.slices) * 8 // 10
        report.findings = [Finding("G14", "rack2-b", 2, at, "another chain after PUBLISH")]
    elif members > 3:
        report.checks.append(Coverage("G20", "what logs say is there", 0, "checkpoints", due=True))
    return report


def _add_member(
    timeline: Timeline, name: str, begins: list[int], absent: list[tuple[int, int]], *, late: bool
) -> None:
    """Add what one member's logs show; each incarnation covers a part of the time."""
    parts, since = [], timeline.begin_us
    for gone, back in absent:
        parts.append((since, gone))
        since = back
    parts.append((since, timeline.end_us))
    for number, (begin, end) in enumerate(parts):
        one = IncarnationTimeline(name, number + 1, begin, end)
        limits = [max(at, begin) for at in begins if at < end] + [end]
        spans = [
            Span(a, b, epoch + 1, _position(timeline, a))
            for epoch, (a, b) in enumerate(pairwise(limits))
            if a < b
        ]
        one.spans = spans
        one.events = [Event(begin, "start", "starts")]
        if end < timeline.end_us:
            one.events.append(Event(end, "end", "the log ends without a stop"))
        if number:
            one.events.append(Event(begin, "snapshot", "takes the state"))
        timeline.incarnations.append(one)
        for n in range(timeline.slice_of(begin), timeline.slice_of(end) + 1):
            at = min(timeline.begin_us + (n + 1) * timeline.slice_us, end)
            behind = max(0, 12 - abs(n - 95)) * 150 if late else n % 7
            position = max(_position(timeline, at) - behind, 1)
            timeline.slices.append(Slice(n, name, position))


def _position(timeline: Timeline, at: int) -> int:
    return (at - timeline.begin_us) // 1_000_000 * RATE


def write(report: Report, file: Path) -> None:
    """Write the page of a report."""
    file.write_text(page(report, "Consistency of logs"), encoding="utf-8")


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1040)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser(Path(scratch) / "profile") as found:
        wanted: list[tuple[Path, Path, int, bool]] = []
        if given.page and given.picture:
            wanted.append((given.page.resolve(), given.picture, given.width, given.dark))
        if given.write:
            PICTURES.mkdir(exist_ok=True)
            hour, month, phone = (Path(scratch) / f"{name}.html" for name in ("h", "m", "p"))
            write(example(3, 1, broken=True), hour)
            write(example(9, 24 * 30, epochs=120), month)
            write(example(3, 1), phone)
            wanted += [
                (hour, PICTURES / "check-hour.png", 1040, False),
                (month, PICTURES / "check-month.png", 1040, True),
                (phone, PICTURES / "check-phone.png", 390, False),
            ]
        for file, picture, width, dark in wanted:
            found.screen(width, HEIGHT, dark=dark)
            found.open(file.as_uri())
            found.wait("document.readyState === 'complete'")
            clip = {"x": 0, "y": 0, "width": width, "height": SHOWN, "scale": SCALE}
            taken = found.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main()
