"""Corrupted logs: the check must report the right finding for each corruption.

A checker that never fails proves nothing, so each case states the broken promise, the member and
the position that must be reported.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.machine.commands import ACTIVATE
from broker.memberlog.codec import FRAME, MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import read_segment
from broker.memberlog.records import (
    VERSION,
    Active,
    Batch,
    ConfirmRecord,
    Decided,
    Durable,
    Header,
    Inactive,
    Snapshot,
    Start,
    Stop,
    ViewSeen,
    Vote,
)
from tests.system.verify.corruption.corrupt_logs import (
    ACROSS_MEMBERS,
    A,
    Corruption,
    apply_a_batch_twice,
    confirm_before_durable,
    flipped,
    miss_a_view,
    second_primary_in_one_epoch,
    swap_two_batches,
)
from tests.system.verify.support.make_logs import LogMaker, good_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.checks.confirms import check_gaps
from tools.verify.findings import BadInput, Finding
from tools.verify.job import verify
from tools.verify.report.result import Report
from tools.verify.sql.kept import InSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """The session that all tests share."""
    return shared_session()


def has(report: Report, promise: str, member: str, position: int) -> bool:
    """Whether exactly this was found."""
    return any(
        (found.property, found.member, found.position) == (promise, member, position)
        for found in report.findings
    )


# Other corruptions are found without Spark, see test_segments.
CORRUPTIONS = [
    *ACROSS_MEMBERS,
    *(swap_two_batches, apply_a_batch_twice, miss_a_view, second_primary_in_one_epoch),
    confirm_before_durable,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_each_broken_promise_is_named(
    spark: SparkSession, tmp_path: Path, corrupt: Corruption
) -> None:
    maker = good_history()
    expected = corrupt(maker)
    maker.write(tmp_path)
    report = verify(spark, [tmp_path])
    assert has(report, *expected), "\n".join(map(str, report.findings))
    assert not any(found.property == "LOG" for found in report.findings)


def test_the_first_confirm_of_each_gap_is_named(spark: SparkSession) -> None:
    confirms = [("b", 7, [3, 9, 10]), ("c", 7, [8]), ("b", 6, [4]), ("a", 7, [20])]
    table = spark.createDataFrame(confirms, "member string, kind int, positions array<bigint>")
    gaps = [
        Finding("G1", "c", 1, begin, f"positions {begin} to {until} are missing", until)
        for begin, until in ((8, 12), (4, 7), (19, 20))
    ]
    assert [
        (f.property, f.member, f.position, f.what) for f in check_gaps(lambda: InSpark(table), gaps)
    ] == [
        ("G8", "c", 8, "the publish that c confirmed is not applied here"),
        ("G8", "c", 20, "the publish that a confirmed is not applied here"),
    ]


class TestGood:
    def test_a_correct_history_is_consistent_and_counted(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        maker = good_history()
        maker.write(tmp_path, segment_bytes=1500)  # many segments
        report = verify(spark, [tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path])
        assert report.findings == []
        c = report.counts
        assert (c.members, c.lives, c.views, c.epochs) == (3, 4, 3, 3)
        assert c.segments >= 8
        batches = [r for records in maker.logs.values() for r in records if isinstance(r, Batch)]
        assert c.batches == len(batches)
        assert c.positions == maker.history.position
        assert c.records == sum(map(len, maker.logs.values())) + 2 * c.segments
        given = [
            r for records in maker.logs.values() for r in records if isinstance(r, ConfirmRecord)
        ]
        assert c.confirms == sum(len(r.positions) for r in given)
        assert c.publishes >= c.confirms > 30
        assert [note.split(":")[0] for note in report.notes if "again" not in note] == [
            "c (incarnation 1)"
        ]

    def test_a_cut_tail_is_unknown_not_wrong(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path)
        last = max((tmp_path / "b").iterdir())
        last.write_bytes(last.read_bytes()[:-160])
        report = verify(spark, [tmp_path])
        assert report.findings == []
        notes = [note for note in report.notes if "middle of a record" in note]
        assert any("b (incarnation 1)" in note for note in notes)


class TestDamage:
    def test_a_flipped_byte(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path)
        path = min((tmp_path / "b").iterdir())
        entries = list(read_segment(path.read_bytes(), "b"))
        hit = next(e for e in entries[10:] if isinstance(e.record, Batch))
        path.write_bytes(flipped(path.read_bytes(), hit.end - 5))
        report = verify(spark, [tmp_path])
        assert isinstance(hit.record, Batch)
        assert has(report, "LOG", "b", hit.record.first_position - 1)
        assert f"after lsn {hit.lsn - 1}" in str(report.findings[0])
        assert {found.property for found in report.findings} <= {"LOG", "G9"}

    def test_a_removed_record(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path)
        path = min((tmp_path / "c").iterdir())
        data = path.read_bytes()
        entries = list(read_segment(data, "c"))
        path.write_bytes(data[: entries[11].end] + data[entries[12].end :])
        report = verify(spark, [tmp_path])
        assert any(
            found.property == "LOG"
            and found.member == "c"
            and "lsn 13 follows lsn 11" in found.what
            for found in report.findings
        )

    def test_impossibly_large_numbers(self, spark: SparkSession, tmp_path: Path) -> None:
        """Once the check ended with an error about some integer, and named no file."""
        maker = good_history()
        expected = []
        for kind in (Batch, ConfirmRecord, Durable, Active, Stop):
            log = maker.logs["b", 1]
            at, record = [(i, r) for i, r in enumerate(log) if type(r) is kind][-1]
            fields: dict[str, Any] = {
                name: (1 << 63) + 5 for name, value in record._asdict().items()
                if type(value) is int and name not in ("root", "commands")
            }  # fmt: skip
            log[at] = record._replace(**fields)
            expected.append(f"{kind.__name__.removesuffix('Record').upper()} ")
        maker.write(tmp_path, 900)
        found = [
            one.what
            for one in verify(spark, [tmp_path]).findings
            if (one.property, one.member) == ("LOG", "b") and "9223372036854775813" in one.what
        ]
        assert all(".qml, after lsn " in what for what in found)
        assert [kind for kind in expected if not any(what.startswith(kind) for what in found)] == []

    def test_numbers_that_skip(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path, 1 << 20)
        path = next((tmp_path / "b").iterdir())
        out, link = MAGIC, NO_LINK
        for entry in read_segment(path.read_bytes(), "b"):
            payload = encode(entry.lsn + (entry.lsn > 20), entry.record)
            link = next_link(link, payload)
            out += frame(payload, link)
        path.write_bytes(out)
        report = verify(spark, [tmp_path])
        assert [(found.property, found.member) for found in report.findings] == [("LOG", "b")]
        assert "lsn 22 follows lsn 20" in report.findings[0].what

    def test_a_missing_and_a_foreign_segment(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path, segment_bytes=1500)
        paths = sorted((tmp_path / "a").iterdir())
        paths[1].unlink()
        (tmp_path / "x").mkdir()
        changed = paths[0].read_bytes()
        changed = changed[:-1] + bytes([changed[-1] ^ 1])  # otherwise it is a copy
        (tmp_path / "x" / paths[0].name).write_bytes(changed)
        report = verify(spark, [tmp_path])
        found_in_log = [found.what for found in report.findings if found.property == "LOG"]
        assert any("segment 1 is missing" in what for what in found_in_log)
        assert any("both claim to be segment 0" in what for what in found_in_log)

    def test_a_log_collected_twice(self, spark: SparkSession, tmp_path: Path) -> None:
        """The same logs again, an earlier state, and a compressed one: each is read once."""
        good_history().write(tmp_path, segment_bytes=1500)
        paths = sorted((tmp_path / "a").iterdir())
        alone = verify(spark, [tmp_path])
        for name in ("again", "sooner", "packed"):
            (tmp_path / name).mkdir()
        (tmp_path / "again" / paths[0].name).write_bytes(paths[0].read_bytes())
        (tmp_path / "sooner" / paths[-1].name).write_bytes(paths[-1].read_bytes()[:-100])
        packed = tmp_path / "packed" / f"{paths[1].name}.gz"
        packed.write_bytes(gzip.compress(paths[1].read_bytes()))
        report = verify(spark, [tmp_path])
        assert report.consistent
        assert report.counts == alone.counts
        copies = [note for note in report.notes if "is a copy of" in note]
        assert len(copies) == 3
        assert any(f"{tmp_path / 'sooner' / paths[-1].name} is a copy of {paths[-1]}" in note
                   for note in copies)  # fmt: skip


class TestNoVerdict:
    def test_nothing_there(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="there is no member log"):
            verify(spark, [tmp_path])
        with pytest.raises(BadInput, match="does not exist"):
            verify(spark, [tmp_path / "no"])

    def test_nothing_applied(self, spark: SparkSession, tmp_path: Path) -> None:
        maker = LogMaker()
        maker.start(A)
        maker.write(tmp_path)
        with pytest.raises(BadInput, match="no batch"):
            verify(spark, [tmp_path])

    def test_a_version_from_the_future(self, spark: SparkSession, tmp_path: Path) -> None:
        maker = good_history()
        maker.write(tmp_path)
        header = Header(VERSION + 1, "prod", "c1", "d", 1, 0, NO_LINK, "blake2b-16", 0)
        payload = encode(0, header)
        future = tmp_path / "d.1.000000.qml"
        future.write_bytes(MAGIC + frame(payload, next_link(NO_LINK, payload)))
        with pytest.raises(BadInput, match=rf"d\.1\.000000\.qml: format version {VERSION + 1}"):
            verify(spark, [tmp_path])

    def test_logs_of_two_clusters(self, spark: SparkSession, tmp_path: Path) -> None:
        good_history().write(tmp_path / "one")
        good_history().write(tmp_path / "two", cluster="c2")
        with pytest.raises(BadInput, match="more than one cluster"):
            verify(spark, [tmp_path])

    def test_something_else(self, spark: SparkSession, tmp_path: Path) -> None:
        (tmp_path / "x.qml").write_bytes(b"#!/bin/sh")
        with pytest.raises(BadInput, match=r"x\.qml: this is not a member log"):
            verify(spark, [tmp_path])


def test_the_history_has_every_kind_of_record() -> None:
    found_in_log = {type(r) for records in good_history().logs.values() for r in records}
    assert found_in_log == {
        Start, ViewSeen, Active, Inactive, Decided, Batch, ConfirmRecord, Snapshot, Durable,
        Stop, Vote,
    }  # fmt: skip
    assert bytes([ACTIVATE]) in {
        r.kinds for records in good_history().logs.values() for r in records if isinstance(r, Batch)
    }
    assert FRAME.size == 16
