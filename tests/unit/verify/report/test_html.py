"""The HTML report: complete, self-contained, and safe whatever the logs hold."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.verify.clients.check import ClientCounts, ClientReport
from tools.verify.findings import PROPERTIES, Coverage, Finding
from tools.verify.format.moves import Op
from tools.verify.report.html import AROUND_MAX, LISTED_MAX, page
from tools.verify.report.result import Counts, Report
from tools.verify.report.timeline import (
    Event,
    IncarnationTimeline,
    MoveCount,
    Slice,
    Span,
    Timeline,
)

BEGIN = 1_800_000_000_000_000
SECOND = 1_000_000


def timeline() -> Timeline:
    """Three members; b crashes and returns with a state from a."""
    a = IncarnationTimeline("a", 1, BEGIN, BEGIN + 60 * SECOND)
    a.spans = [Span(BEGIN, BEGIN + 20 * SECOND, 1), Span(BEGIN + 22 * SECOND, a.end_us, 2)]
    b = IncarnationTimeline("b", 1, BEGIN, BEGIN + 20 * SECOND)
    b.spans = [Span(BEGIN, b.end_us, 1)]
    b.events = [Event(b.end_us, "end", "the log ends without a stop")]
    back = IncarnationTimeline("b", 2, BEGIN + 30 * SECOND, BEGIN + 60 * SECOND)
    back.spans = [Span(BEGIN + 35 * SECOND, back.end_us, 3)]
    back.events = [Event(BEGIN + 33 * SECOND, "snapshot", "takes the state from a")]
    slices = [Slice(n, m, 100 * n) for n in range(1, 100) for m in ("a", "b")]
    slices += [Slice(110, "a", 12_000), Slice(110, "b", 11_000)]
    move_counts = [
        MoveCount(n, op, 0, False, 50 + n)
        for n in range(1, 100)
        for op in (Op.PUBLISHED, Op.DELIVERED)
    ]
    move_counts += [
        MoveCount(30, Op.RETURNED, 3, False, 400),  # its member was lost
        MoveCount(60, Op.RETURNED, 0, False, 3),  # a nack
        MoveCount(31, Op.DELIVERED, 0, True, 403),
    ]
    return Timeline(BEGIN, BEGIN + 60 * SECOND, [a, b, back], sorted(slices), sorted(move_counts))


def report(*findings: Finding) -> Report:
    counts = Counts(members=2, batches=77_001)
    seen = [Coverage("G1 G14", "the same everywhere", 77_001, "batches")]
    return Report(counts, list(findings), ["b: not known"], timeline(), checks=seen)


DIVERGED = Finding("G14", "b", 2, 5000, "another chain after <script>alert(1)</script>")


def test_it_has_the_verdict_and_the_counts() -> None:
    text = page(report(), "Consistency of logs")
    assert 'class="verdict good"' in text
    assert "77,001 batches" in text
    assert "b: not known" in text


def test_each_promise_states_what_it_was_examined_on() -> None:
    """A promise that no check examined is not green, nor is the whole where something is
    missing."""
    seen = report(DIVERGED)
    seen.checks = [
        Coverage("G1 G14", "the same everywhere", 77_001, "batches"),
        Coverage("G20", "causes", 5, "moves"),
        Coverage("G20", "what logs say is there", 0, "checkpoints", due=True),
    ]
    marks = {
        promise: (look, mark, on)
        for promise, look, mark, on in re.findall(
            r'<tr><td>(\w+): [^<]*</td><td class="(\w+)">([^<]*)</td><td>([^<]*)</td>',
            page(seen, "t"),
        )
    }
    assert marks["G1"] == ("good", "\u2713 holds", "77,001 batches")
    assert marks["G14"] == ("bad", "\u2717 1 finding", "77,001 batches")
    assert marks["G20"] == (
        "unsure", "! not all seen", "5 moves; what logs say is there: no checkpoints",
    )  # fmt: skip
    assert marks["G10"][:2] == ("quiet", "\u2013")
    assert len(marks) == len(PROPERTIES)
    seen.findings = []
    assert 'class="verdict unsure"' in page(seen, "t")
    seen.checks = []
    assert 'class="verdict unsure"' in page(seen, "t")


def test_findings_are_listed_and_marked_in_the_pictures() -> None:
    text = page(report(DIVERGED), "t")
    assert 'class="verdict bad"' in text
    assert "same state everywhere" in text
    assert text.count("<title>a finding: G14 at position 5,000 b</title>") == 3
    assert ">G14 at position 5,000 b</text>" in text
    assert timeline().time_of(5000) == BEGIN + 50 * timeline().slice_us


def test_text_from_logs_cannot_become_markup() -> None:
    text = page(report(DIVERGED), "<b>title</b>")
    assert "<script" not in text
    assert "<b>" not in text
    hostile = report(DIVERGED._replace(member="</svg><script>", around=("<img src=x>",)))
    assert hostile.timeline is not None
    for one in hostile.timeline.incarnations:
        one.member = f'"><script>{one.member}' + "x" * 300
        one.events = [Event(BEGIN, "start", "<script>")]
    text = page(hostile, "t")
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("</svg>") == 3


def test_the_page_loads_nothing() -> None:
    text = page(report(DIVERGED), "t")
    assert not re.search(r"(src|href|url\()\s*=?", text)
    assert "http" not in text


def test_the_pictures_are_well_formed_and_inside_their_frame() -> None:
    pictures = re.findall(r"<svg.*?</svg>", page(report(DIVERGED), "t"), re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        tree = ElementTree.fromstring(picture)
        _, top, width, height = map(float, tree.attrib["viewBox"].split())
        for box in tree.iter("rect"):
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width + 1
            assert top <= float(box.attrib["y"]) <= height


def test_redeliveries_are_counted_by_cause() -> None:
    text = page(report(), "t")
    assert "its member was lost" in text
    assert ">400</td>" in text
    assert "by a nack or reject" in text
    delivered = 99 * 50 + sum(range(1, 100)) + 403
    assert f"Of {delivered:,} deliveries 403 were of messages" in text


def test_a_report_without_redeliveries() -> None:
    calm = report()
    assert calm.timeline is not None
    calm.timeline.move_counts = [MoveCount(3, Op.DELIVERED, 0, False, 7)]
    assert "No message went back to its queue; 7 were delivered." in page(calm, "t")


@pytest.mark.slow
def test_large_logs_give_small_pages() -> None:
    """A week with a restart and a view every few seconds draws no more than a reader can see."""
    large = report(*(Finding("G14", "b", 2, n, "differs") for n in range(5_000)))
    assert large.timeline is not None
    for n in range(100):
        one = IncarnationTimeline("c", n, BEGIN, BEGIN + 60 * SECOND)
        one.spans = [Span(BEGIN + i * 9000, BEGIN + i * 9000 + 8000, i) for i in range(300)]
        one.events = [Event(BEGIN + i * 9000, "snapshot", "takes") for i in range(300)]
        large.timeline.incarnations.append(one)
    large.notes = [f"c (incarnation {n}): the log ends without a stop" for n in range(2_000)]
    text = page(large, "t")
    assert len(text) < 1_500_000
    assert "100 incarnations" in text


def test_a_finding_has_its_context_and_coverage() -> None:
    detailed = report(DIVERGED._replace(around=("4999: PUBLISH", "5000: <ACK>")))
    detailed.checks = [Coverage("G11", "redeliveries", 1234, "deliveries")]
    text = page(detailed, "t")
    assert "<pre>4999: PUBLISH\n5000: &lt;ACK&gt;</pre>" in text
    assert '<td>redeliveries</td><td class="n">1,234</td><td>deliveries</td>' in text


def test_a_report_without_a_timeline_has_no_pictures() -> None:
    bare = report()
    bare.timeline = None
    assert "<svg" not in page(bare, "t")
    bare.timeline = Timeline(BEGIN, BEGIN, [], [])
    assert "<svg" not in page(bare, "t"), "nor has one of no time"


def test_what_was_read_is_told_in_words() -> None:
    read = report()
    read.counts = Counts(lives=3, batches=77_001)
    read.clients = ClientReport(ClientCounts(clients=2, acked=5), [], [], None)
    text = page(read, "t")
    zeros = "0 segments, 0 bytes, 0 records"
    assert f'<p class="quiet">Read: 0 members, {zeros}, 77,001 batches, 0 positions, ' in text
    assert "0 views, 0 epochs, 3 incarnations.</p>" in text
    assert f'<p class="quiet">{read.clients}</p>' in text


def test_a_finding_names_whom_and_where_if_there_is_such() -> None:
    of_all = DIVERGED._replace(member="", position=0, what="x")
    text = page(report(of_all, DIVERGED._replace(position=-1, what="y")), "t")
    assert "<h2>Findings, the earliest first</h2>" in text
    assert '<td>all</td><td class="n">0</td><td>x</td>' in text
    assert '<td>b (incarnation 2)</td><td class="n"></td><td>y</td>' in text


@pytest.mark.parametrize("beyond", [0, 1])
def test_long_lists_are_cut_and_say_so(beyond: int) -> None:
    long = report(*[DIVERGED._replace(around=("moves",))] * (LISTED_MAX + beyond))
    long.notes = ["unknown"] * (LISTED_MAX + beyond)
    text = page(long, "t")
    rows = text.count("<td>b (incarnation 2)</td>")
    assert text.count("<li>unknown</li>") == rows == LISTED_MAX
    assert text.count("and 1 more (--json has them all)") == 2 * beyond
    assert text.count(" more (--json") == 2 * beyond
    assert text.count("<pre>moves</pre>") == AROUND_MAX
