"""The fast comparison: what it compares, what it reports as not compared, what to check in full."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.memberlog.client_history import ClientHistory
from broker.memberlog.codec import encode
from broker.memberlog.records import Batch, End
from broker.memberlog.segment_totals import MARKS_MAX, STEP, SegmentTotals, marks_of
from broker.memberlog.writer import MemberLogWriter
from tests.bench.support.verifylogs import write_logs
from tests.system.verify.support.make_logs import LogMaker, good_history
from tools.commands.qpid_cluster_verify import qpid_cluster_verify
from tools.verify.fast import compare_ends
from tools.verify.findings import BadInput
from tools.verify.format.reader import ENDS_BYTES, LogError, read_ends, read_segment
from tools.verify.input.parse import parse_segment
from tools.verify.input.rows import FAULT


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def batch(first: int, commands: int) -> Batch:
    """Return a batch whose chain depends on where it ends."""
    chain = (first + commands).to_bytes(16, "little")
    return Batch(
        1, 1, 1, first, commands, "a", 1, 1, 1, b"\x0e" * commands, bytes(2 * commands),
        bytes(16), chain, 0, bytes(16), b"",
    )  # fmt: skip


class TestTally:
    def test_marks_do_not_depend_on_where_segments_are_cut(self) -> None:
        chance = random.Random(5)
        whole, parts, position = SegmentTotals(), [SegmentTotals()], 1
        for _ in range(3000):
            one = batch(position, chance.randint(1, 30))
            position += one.commands
            if chance.random() < 0.005:
                parts.append(SegmentTotals())
            whole.take(one)
            parts[-1].take(one)
        marks = marks_of(whole.end())
        assert marks == [mark for part in parts for mark in marks_of(part.end())]
        assert len(marks) == position // STEP

    def test_many_marks_are_thinned_to_a_coarser_grid(self) -> None:
        tally, every = SegmentTotals(), {}
        for number in range(3 * MARKS_MAX):
            one = batch(1 + number * STEP, STEP)
            every[(number + 1) * STEP] = one.chain
            tally.take(one)
        end = tally.end()
        assert end.step == 4 * STEP
        assert len(marks_of(end)) == 3 * MARKS_MAX // 4
        assert all(every[position] == chain for position, chain in marks_of(end))
        assert len(encode(1 << 60, end)) < ENDS_BYTES // 2

    def test_the_parser_compares_the_closing_record_with_the_segment(self, tmp_path: Path) -> None:
        log = MemberLogWriter(tmp_path, "prod", "c1", "a", 1, lambda: 1)
        log.append(batch(1, 3))
        log.append(End(1, 3, bytes(16), 3, 1, 3, 0, 0, STEP, b""))  # of another chain
        log.flush()
        rows = list(parse_segment(log.path.read_bytes(), "x"))
        assert ["closing record" in (r.text or "") for r in rows if r.kind == FAULT] == [True]


class TestEnds:
    def test_ends_equal_those_of_the_whole_segment(self, tmp_path: Path) -> None:
        good_history().write(tmp_path, segment_bytes=1500)
        for path in tmp_path.rglob("*.qml"):
            with path.open("rb") as file:
                ends = read_ends(file, path.stat().st_size, "x")
            entries = list(read_segment(path.read_bytes(), "x", []))
            assert ends.header == entries[0].record
            assert ends.end == entries[-1].record
            assert (ends.last_lsn, ends.link) == (entries[-1].lsn, entries[-1].link)

    def test_a_cut_segment_has_no_end(self, tmp_path: Path) -> None:
        good_history().write(tmp_path, 1 << 20)
        data = (tmp_path / "a" / "a.1.000000.qml").read_bytes()
        for cut in (1, 30, 200):
            assert read_ends(io.BytesIO(data[:-cut]), len(data) - cut, "x").end is None
        with pytest.raises(LogError):
            read_ends(io.BytesIO(b"#!/bin/sh"), 9, "x")


class TestCompare:
    def test_good_logs_agree_though_they_are_cut_differently(self, tmp_path: Path) -> None:
        good_history(200).write(tmp_path, segment_bytes=6000)
        report = compare_ends([tmp_path])
        assert (report.differences, report.check_in_full, report.not_closed) == ([], [], [])
        assert report.positions_compared >= 2
        assert report.nothing_in_common == []

    def test_a_difference_names_the_segments_around_it(self, tmp_path: Path) -> None:
        maker = good_history(400)
        a = ("a", 1)
        batches = [i for i, r in enumerate(maker.logs[a]) if isinstance(r, Batch)]
        for i in batches[500:]:
            old = maker.logs[a][i]
            assert isinstance(old, Batch)
            maker.logs[a][i] = old._replace(chain=old.chain[::-1])
        wrong = maker.logs[a][batches[500]]
        assert isinstance(wrong, Batch)
        maker.write(tmp_path, segment_bytes=6000)
        report = compare_ends([tmp_path])
        assert not report.agree
        assert report.agreed_to < wrong.first_position
        assert "at a" in report.differences[0]
        assert 2 <= len(report.check_in_full) < report.segments
        held = b"".join(path.read_bytes() for path in report.check_in_full)
        assert wrong.chain in held

    def test_a_missing_segment_and_a_foreign_one(self, tmp_path: Path) -> None:
        good_history(50).write(tmp_path, segment_bytes=3000)
        paths = sorted((tmp_path / "a").iterdir())
        paths[1].unlink()
        assert any("is missing" in what for what in compare_ends([tmp_path]).differences)
        good_history().write(tmp_path / "two", cluster="c2")
        with pytest.raises(BadInput, match="more than one cluster"):
            compare_ends([tmp_path])

    def test_a_change_that_keeps_the_ends_is_not_found(self, tmp_path: Path) -> None:
        planted = write_logs(tmp_path, 3000, seed=1, segment_bytes=1 << 16)
        assert planted.position > 0
        assert compare_ends([tmp_path]).agree  # which is why the result is not called consistent


class TestCommand:
    def test_it_never_claims_consistency(self, tmp_path: Path) -> None:
        good_history().write(tmp_path)
        for extra in ([], ["--json"]):
            done = CliRunner().invoke(qpid_cluster_verify, ["--fast", *extra, str(tmp_path)])
            assert done.exit_code == 0
            assert "consistent" not in done.output
        assert (
            "nothing in between was read"
            in CliRunner().invoke(qpid_cluster_verify, ["--fast", str(tmp_path)]).output
        )

    def test_logs_with_nothing_in_common_give_no_verdict(self, tmp_path: Path) -> None:
        maker = LogMaker()
        maker.start(("a", 1))
        maker.write(tmp_path)
        done = CliRunner().invoke(qpid_cluster_verify, ["--fast", str(tmp_path)])
        assert done.exit_code == 2
        assert "no verdict" in done.output

    def test_a_difference_names_the_command(self, tmp_path: Path) -> None:
        good_history(50).write(tmp_path, segment_bytes=3000)
        sorted((tmp_path / "b").iterdir())[1].unlink()
        done = CliRunner().invoke(qpid_cluster_verify, ["--fast", str(tmp_path / "*")])
        assert done.exit_code == 1
        assert "check these in full: qpid-cluster-verify /" in done.output


def test_clients_do_not_count_as_members(tmp_path: Path) -> None:
    good_history(3).write(tmp_path)
    history = ClientHistory(tmp_path, "spout-1@host", 1, lambda: 1)
    history.session("q").published(1, b"body")
    history.close()
    report = compare_ends([tmp_path])
    assert report.members == 3
    assert not any("spout" in name for name in report.nothing_in_common)
    with pytest.raises(BadInput, match="histories of clients only"):
        compare_ends(list(tmp_path.glob("spout*")))
