"""A verdict names what was seen to hold and on how much, and nothing that no check saw."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from tools.commands.qpid_cluster_verify import render
from tools.verify.findings import Coverage, Finding
from tools.verify.report.html import page
from tools.verify.report.result import Report

SEEN = [
    Coverage("LOG", "links", 9, "records"),
    Coverage("G1 G14", "the same everywhere", 1200, "batches"),
    Coverage("G12", "C5 order", 0, "queues"),
    Coverage("G12", "H2 replay", 7, "moves", due=True),
    Coverage("G10", "votes", 0, "votes"),
]


def test_each_promise_is_named_with_how_much_was_checked() -> None:
    said = render(Report(checks=SEEN), 1.0).splitlines()
    assert said[-3:] == [
        "consistent: G1, G12, G14 hold in these logs",
        "seen: G1 on 1,200 batches, G12 on 7 moves, G14 on 1,200 batches",
        "nothing to see of G2, G5, G6, G7, G8, G9, G10, G11, G13, G17, G20, G23, G25, G29, G30, "
        "G32, G34, G38 in these logs",
    ]


def test_a_check_that_saw_nothing_of_its_subject_limits_the_verdict() -> None:
    report = Report(checks=[*SEEN, Coverage("G20", "balances", 0, "checkpoints", due=True)])
    said = render(report, 1.0)
    assert "consistent as far as looked: G1, G12, G14 hold in these logs" in said
    assert "not seen: G20: balances: no checkpoints" in said
    assert report.as_document()["not_seen"] == ["G20: balances"]
    assert 'class="verdict unsure"' in page(report, "logs")


def test_a_finding_gives_no_such_verdict() -> None:
    said = render(Report(findings=[Finding("G1", "a", 1, 2, "x")], checks=SEEN), 1.0)
    assert "hold in these logs" not in said
