"""The page of the report: complete, self-contained, and safe whatever the logs hold."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from broker.machine.move_log import BY_CLIENT, DELIVERED, FLAG, MEMBER_LOST, NACKED
from tools.verify.findings import Coverage, Finding
from tools.verify.report.html import page
from tools.verify.report.result import Counts, Report
from tools.verify.report.timeline import Event, IncarnationTimeline, Slice, Span, Timeline
from tools.verify.report.traffic import MoveCount

BEGIN = 1_800_000_000_000_000
SECOND = 1_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def timeline() -> Timeline:
    """Three members; b crashes and comes back with a state from a."""
    a = IncarnationTimeline("a", 1, BEGIN, BEGIN + 60 * SECOND)
    a.spans = [Span(BEGIN, BEGIN + 20 * SECOND, 1), Span(BEGIN + 22 * SECOND, a.end_us, 2)]
    b = IncarnationTimeline("b", 1, BEGIN, BEGIN + 20 * SECOND)
    b.spans = [Span(BEGIN, b.end_us, 1)]
    b.events = [Event(b.end_us, "end", "the log ends without a stop")]
    back = IncarnationTimeline("b", 2, BEGIN + 30 * SECOND, BEGIN + 60 * SECOND)
    back.spans = [Span(BEGIN + 35 * SECOND, back.end_us, 3)]
    back.events = [Event(BEGIN + 33 * SECOND, "snapshot", "takes the state from a")]
    slices = [Slice(n, m, 100 + n, 100 * n) for n in range(1, 100) for m in ("a", "b")]
    slices += [Slice(110, "a", 500, 12_000), Slice(110, "b", 100, 11_000)]
    move_counts = [
        MoveCount(n, what, 50 + n) for n in range(1, 100) for what in (BY_CLIENT, DELIVERED)
    ]
    move_counts += [
        MoveCount(30, MEMBER_LOST, 400),
        MoveCount(60, NACKED, 3),
        MoveCount(31, DELIVERED | FLAG, 403),
    ]
    return Timeline(BEGIN, BEGIN + 60 * SECOND, [a, b, back], sorted(slices), sorted(move_counts))


def report(*findings: Finding) -> Report:
    return Report(Counts(members=2, batches=77_001), list(findings), ["b: not known"], timeline())


DIVERGED = Finding("G14", "b", 2, 5000, "another chain after <script>alert(1)</script>")


def test_verdict_and_counts_are_on_it() -> None:
    text = page(report(), "Consistency of logs")
    assert 'class="verdict good"' in text
    assert "77,001" in text
    assert "b: not known" in text


def test_findings_are_listed_and_marked_in_the_pictures() -> None:
    text = page(report(DIVERGED), "t")
    assert 'class="verdict bad"' in text
    assert "same state everywhere" in text
    assert text.count("<title>a finding: G14 at position 5,000 b</title>") == 4
    assert ">G14 at position 5,000 b</text>" in text
    assert timeline().time_of(5000) == BEGIN + 50 * timeline().slice_us


def test_text_from_logs_cannot_become_markup() -> None:
    text = page(report(DIVERGED), "<b>title</b>")
    assert "<script" not in text
    assert "<b>" not in text


def test_nothing_is_fetched_from_anywhere() -> None:
    text = page(report(DIVERGED), "t")
    assert not re.search(r"(src|href|url\()\s*=?", text)
    assert "http" not in text


def test_the_pictures_are_well_formed_and_inside_their_frame() -> None:
    pictures = re.findall(r"<svg.*?</svg>", page(report(DIVERGED), "t"), re.DOTALL)
    assert len(pictures) == 5
    for picture in pictures:
        tree = ElementTree.fromstring(picture)
        _, _, width, height = map(float, tree.attrib["viewBox"].split())
        for box in tree.iter("rect"):
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width + 1
            assert 0 <= float(box.attrib["y"]) <= height


def test_redeliveries_are_counted_by_cause() -> None:
    text = page(report(), "t")
    assert "its member was lost" in text
    assert ">400</text>" in text
    assert "requeued by its consumer (nack, reject)" in text
    delivered = 99 * 50 + sum(range(1, 100)) + 403
    assert f"Of {delivered:,} deliveries 403 were of messages" in text


def test_no_redelivery_is_reported() -> None:
    calm = report()
    assert calm.timeline is not None
    calm.timeline.move_counts = [MoveCount(3, DELIVERED, 7)]
    assert "No message went back to its queue; 7 were delivered." in page(calm, "t")


@pytest.mark.slow
def test_large_logs_stay_small_pages() -> None:
    """A week with a restart and a view every few seconds draws no more than can be seen."""
    large = report(*(Finding("G14", "b", 2, n, "differs") for n in range(5_000)))
    assert large.timeline is not None
    for n in range(2_000):
        one = IncarnationTimeline("c", n, BEGIN, BEGIN + 60 * SECOND)
        one.spans = [Span(BEGIN + i * 9000, BEGIN + i * 9000 + 8000, i) for i in range(500)]
        one.events = [Event(BEGIN + i * 9000, "snapshot", "takes") for i in range(500)]
        large.timeline.incarnations.append(one)
    large.notes = [f"c (incarnation {n}): the log ends without a stop" for n in range(2_000)]
    text = page(large, "t")
    assert len(text) < 1_500_000
    assert "earlier incarnations are not drawn" in text


def test_context_of_a_finding_and_coverage() -> None:
    detailed = report(DIVERGED._replace(around=("4999: PUBLISH", "5000: <ACK>")))
    detailed.checks = [Coverage("G11", "redeliveries", 1234, "deliveries")]
    text = page(detailed, "t")
    assert "<pre>4999: PUBLISH\n5000: &lt;ACK&gt;</pre>" in text
    assert '<td>redeliveries</td><td class="n">1,234</td><td>deliveries</td>' in text


def test_a_report_without_a_timeline_has_no_pictures() -> None:
    bare = report()
    bare.timeline = None
    assert "<svg" not in page(bare, "t")


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look at the page with")
def test_a_browser_shows_and_prints_it(tmp_path: Path) -> None:
    """The colours of the verdict, of the primaries and of the bars are on the screen."""
    file = tmp_path / "report.html"
    file.write_text(page(report(), "Consistency of logs"), encoding="utf-8")
    open_in_browser(tmp_path, file, f"--screenshot={tmp_path / 'shot.png'}")
    seen = colours(tmp_path / "shot.png")
    for colour in ((0xE2, 0xF2, 0xE0), (0x3F, 0x7D, 0x20), (0x1B, 0x6C, 0xA8), (0xC2, 0x57, 0x1A)):
        assert seen.get(colour, 0) > 200, colour
    open_in_browser(tmp_path, file, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def open_in_browser(tmp_path: Path, file: Path, what: str) -> None:
    assert CHROMIUM is not None
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    more = "--disable-background-networking --disable-component-update --hide-scrollbars"
    subprocess.run(
        [CHROMIUM, *flags.split(), *more.split(), f"--user-data-dir={tmp_path / 'profile'}",
         "--window-size=1100,1600", what, file.as_uri()],
        check=True, capture_output=True, timeout=240,
    )  # fmt: skip


def colours(png: Path) -> dict[tuple[int, ...], int]:
    """Count the colours of an 8 bit RGB or RGBA picture (PNG specification, sections 5 and 9)."""
    data = png.read_bytes()
    at, packed = 8, b""
    width = height = mode = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, mode = struct.unpack(">IIBB", body[:10])
            assert depth == 8
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    pixel = {2: 3, 6: 4}[mode]
    raw, row = zlib.decompress(packed), bytes(width * pixel)
    found: dict[tuple[int, ...], int] = {}
    for y in range(height):
        start = y * (width * pixel + 1)
        row = unfilter(raw[start], raw[start + 1 : start + 1 + width * pixel], row, pixel)
        if y % 2 == 0:
            for x in range(0, width * pixel, 2 * pixel):
                colour = tuple(row[x : x + 3])
                found[colour] = found.get(colour, 0) + 1
    return found


def unfilter(kind: int, line: bytes, above: bytes, pixel: int) -> bytes:
    if kind == 0:
        return line
    out = bytearray(line)
    for i, byte in enumerate(line):
        left = out[i - pixel] if i >= pixel else 0
        pair = above[i - pixel] if i >= pixel else 0
        guess = (left, above[i], (left + above[i]) // 2, paeth(left, above[i], pair))[kind - 1]
        out[i] = (byte + guess) & 0xFF
    return bytes(out)


def paeth(left: int, above: int, pair: int) -> int:
    estimate = left + above - pair
    return min((left, above, pair), key=lambda value: abs(estimate - value))
