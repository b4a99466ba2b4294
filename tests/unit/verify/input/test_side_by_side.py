"""Logs read side by side: a batch is decoded once for several logs, however long they are."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

from tests.bench.support.verifylogs import write_logs
from tools.verify.format.records import RecordKind
from tools.verify.input import batch_summaries, source
from tools.verify.input.batch_summaries import KnownBatch
from tools.verify.input.parse import scan_segment
from tools.verify.input.rows import SPAN, Row
from tools.verify.input.segments import find_segments
from tools.verify.input.source import read_here, shares_of, side_by_side

SEGMENT_BYTES = 1 << 14


def row(position: int | None) -> Row:
    return Row("", "", 0, 0, 0, int(RecordKind.VIEW))._replace(last=position)


def test_the_log_that_is_least_far_comes_next() -> None:
    first = [row(at) for at in (None, 10, 20, None, 30)]
    second = [row(at) for at in (5, 25, 26)]
    taken = [one.last for one in side_by_side([iter(first), iter(second), iter([])])]
    assert taken == [None, 10, 5, 25, 20, None, 30, 26]


def test_rows_are_those_of_each_segment_alone(tmp_path: Path) -> None:
    write_logs(tmp_path, 6000, 3, SEGMENT_BYTES)
    segments = find_segments([tmp_path])
    assert len(segments) > 6
    read = read_here("scan", reversed(segments))
    found: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for one in zip(*read.to_pydict().values(), strict=True):
        found[str(one[0])].append(one)
    for segment in segments:
        alone = list(scan_segment(segment.read_bytes(), str(segment)))
        columns = read.schema.names
        assert found.pop(str(segment)) == [
            tuple(getattr(one, name, None) for name in columns) for one in alone
        ]
    assert not found


@pytest.mark.parametrize("members_at_once", [1, 2, 3])
def test_a_batch_is_decoded_once_for_logs_read_together(
    tmp_path: Path, members_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer batches are known at a time than a segment has."""
    write_logs(tmp_path, 20_000, 1, 1 << 21)
    segments = find_segments([tmp_path])
    decoded: list[int] = []
    of = KnownBatch.of

    def counted(*args: object, **options: object) -> KnownBatch:
        decoded.append(1)
        return of(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(batch_summaries.KnownBatch, "of", counted)
    list(scan_segment(segments[0].read_bytes(), str(segments[0])))
    batches = len(decoded)
    decoded.clear()
    monkeypatch.setattr(source, "LOGS_AT_ONCE", members_at_once)
    monkeypatch.setattr(source, "BATCHES_KNOWN", batches // 2)
    read_here("scan", segments)
    times = {1: 3, 2: 2, 3: 1}[members_at_once]
    assert times <= len(decoded) / batches < times + 0.5


def files(*lengths: int) -> list[str]:
    """Names of segments of as many members."""
    return [
        f"/logs/{name}/{name}.1.{number:06}.qml"
        for name, length in zip("abcdefghi", lengths, strict=False)
        for number in range(length)
    ]


@pytest.mark.parametrize("lengths", [(5, 5, 5), (7, 3, 0), (1,), (12, 11, 12, 9, 1), ()])
@pytest.mark.parametrize("least", [1, 2, 4, 8])
@pytest.mark.parametrize("most", [8, 100])
def test_each_file_is_in_one_share(lengths: tuple[int, ...], least: int, most: int) -> None:
    of = files(*lengths)
    shares = shares_of(of, least, most)
    assert sorted(chain(*shares)) == sorted(of)
    assert all(shares)
    assert min(least, len(of)) <= len(shares) <= most


def test_a_share_has_the_same_segments_of_all_members() -> None:
    numbers = [[Path(one).name.split(".")[2] for one in share]
               for share in shares_of(files(6, 6, 6), 2, 3)]  # fmt: skip
    assert numbers == [[f"{n:06}" for n in (at, at + 1)] * 3 for at in (0, 2, 4)]


def test_few_segments_are_shared_by_all_cores() -> None:
    """Three segments a member on eight cores: nine tasks, not three."""
    assert [len(share) for share in shares_of(files(3, 3, 3), 8, 100)] == [1] * 9


def test_a_summary_spans_fewer_batches_than_are_known() -> None:
    """Logs read side by side are at most one summary apart."""
    assert batch_summaries.BATCHES_KNOWN >= 2 * SPAN
