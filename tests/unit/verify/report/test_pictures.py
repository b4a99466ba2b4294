"""Pictures of the report: gaps while a member was away, epochs as bands, times of any length."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import good_history
from tools.verify.format.moves import Op
from tools.verify.report.pictures import (
    PLOT,
    TICKS_MAX,
    Points,
    epoch_bands,
    lags,
    pictures,
    time_ticks,
)
from tools.verify.report.timeline import (
    SLICES,
    Event,
    IncarnationTimeline,
    MoveCount,
    Slice,
    Span,
    Timeline,
    build_timeline,
)
from tools.verify.sql.kept import read_kept

BEGIN = 1_767_225_600_000_000
STEP = 1_000_000
END = BEGIN + SLICES * STEP - 1


def timeline(*members: tuple[str, list[Span]]) -> Timeline:
    """One second for each slice; member a applies ten positions in each."""
    found = Timeline(BEGIN, END, [], [Slice(n, "a", 10 * n + 10) for n in range(SLICES)])
    assert found.slice_us == STEP
    for name, spans in (("a", [Span(BEGIN, END, 1)]), *members):
        one = IncarnationTimeline(name, 1, spans[0].begin_us, spans[-1].end_us, list(spans))
        found.incarnations.append(one)
    return found


def at(slice_number: float) -> int:
    return BEGIN + int(slice_number * STEP)


def drawn(points: Points) -> list[int]:
    """Return the slices at which a line begins, or goes on after a gap, and at which it ends."""
    return [at for at in points if not {at - 1, at + 1} <= points.keys()]


def test_a_member_that_was_away_leaves_a_gap() -> None:
    """The gap covers what it missed and what others applied in the slice in which it left."""
    away = timeline(("b", [Span(BEGIN, at(20.1), 1), Span(at(90.5), END, 2, 900)]))
    away.slices += [Slice(n, "b", 10 * n + 10) for n in range(20)]
    away.slices += [Slice(20, "b", 201)]
    away.slices += [Slice(n, "b", 10 * n + 10) for n in range(90, SLICES)]
    found = lags(away)
    assert drawn(found["b"]) == [0, 19, 90, SLICES - 1]
    assert set(found["b"].values()) == {0}
    assert drawn(found["a"]) == [0, SLICES - 1]
    assert "".join(pictures(away, [])).count("<polyline") == 3


def test_a_member_that_stalls_in_a_primary_falls_behind() -> None:
    still = timeline(("b", [Span(BEGIN, END, 1)]))
    still.slices += [Slice(n, "b", 10 * n + 10) for n in range(50)]
    line = lags(still)["b"]
    assert drawn(line) == [0, SLICES - 1]
    assert (line[49], line[50], line[51]) == (0, 10, 20)


def test_a_member_that_received_the_state_begins_there() -> None:
    """It applied nothing after its return, but it has the position."""
    quiet = timeline(("b", [Span(BEGIN, at(2), 1), Span(at(60), END, 2, 300)]))
    quiet.slices = [Slice(n, "a", 10 * n + 10) for n in range(30)]
    assert {lag for at, lag in lags(quiet)["b"].items() if at >= 60} == {0}


def test_epochs_are_bands_without_overlap_and_with_the_times_between_them() -> None:
    spans = [Span(at(0), at(30), 1), Span(at(50), at(80), 2), Span(at(80), END, 3)]
    late = timeline(("b", [Span(at(0), at(85), 2)]))  # learns late that another epoch began
    late.incarnations[0].spans = spans
    bands = epoch_bands(late)
    assert [(band.begin_us, band.end_us, str(band)) for band in bands] == [
        (at(0), at(0), "epoch 1"),
        (at(0), at(80), "epoch 2"),
        (at(80), END, "epoch 3"),
    ]
    late.incarnations.pop()
    first, second, _ = epoch_bands(late)
    assert (first.end_us, second.begin_us) == (at(30), at(50))


def test_thousands_of_epochs_are_a_few_bands() -> None:
    many = timeline()
    many.incarnations[0].spans = [
        Span(BEGIN + n * 100_000, BEGIN + (n + 1) * 100_000, n + 1) for n in range(1100)
    ]
    bands = epoch_bands(many)
    assert len(bands) < PLOT / 7
    assert (bands[0].first, bands[-1].last) == (1, 1100)
    assert all(a.last + 1 == b.first for a, b in pairwise(bands))


def test_times_fit_an_hour_and_a_month() -> None:
    hour = [label for _, label in time_ticks(BEGIN, BEGIN + 3_600_000_000)]
    assert hour == ["01 Jan 00:00", "00:10", "00:20", "00:30", "00:40", "00:50", "01:00"]
    month = [label for _, label in time_ticks(BEGIN, BEGIN + 30 * 86_400_000_000)]
    assert month == ["01 Jan 2026", "08 Jan", "15 Jan", "22 Jan", "29 Jan"]
    for seconds in (1, 7, 61, 5000, 90_000, 700_000, 40_000_000, 400_000_000):
        ticks = list(time_ticks(BEGIN + 17, BEGIN + 17 + seconds * 1_000_000))
        assert len(ticks) <= TICKS_MAX + 1
        assert all(BEGIN < time <= BEGIN + 17 + seconds * 1_000_000 for time, _ in ticks)


def test_names_are_beside_bars_and_marks_name_their_member() -> None:
    story = timeline(("b", [Span(at(30), END, 1)]))
    story.incarnations[1].events = [Event(at(30), "snapshot", "takes the state")]
    text = "".join(pictures(story, []))
    assert "in no primary for 25.0 % of the time" in text
    assert "<title>b (incarnation 1) takes the state</title>" in text
    assert text.count('class="name"') == 2


def test_messages_a_second_and_deliveries_of_what_came_back_are_counted() -> None:
    moved = timeline()
    moved.move_counts = [
        MoveCount(3, Op.PUBLISHED, 0, False, 40), MoveCount(3, Op.PUBLISHED, 0, True, 2),
        MoveCount(4, Op.DELIVERED, 0, False, 20), MoveCount(4, Op.DELIVERED, 0, True, 5),
        MoveCount(4, Op.RETURNED, 0, False, 5),
    ]  # fmt: skip
    drawn = "".join(pictures(moved, []))
    assert "published: at most 42" in drawn
    assert "Of 25 deliveries 5 were" in drawn


def test_an_incarnation_ends_as_its_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one of c was killed; the second one received the state."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    good_history(10).write(tmp_path, 1 << 30)
    paths = sorted(tmp_path.rglob("*.qml"))
    lives = build_timeline(read_kept(None, "scan", paths), rows_in(paths)).incarnations
    events = {(one.member, one.incarnation): [did.what for did in one.events] for one in lives}
    assert events["a", 1] == ["start", "stop"]
    assert events["c", 1] == ["start", "end"]
    assert events["c", 2] == ["start", "snapshot", "stop"]
    (again,) = [one for one in lives if (one.member, one.incarnation) == ("c", 2)]
    assert again.spans[0].position > 0
