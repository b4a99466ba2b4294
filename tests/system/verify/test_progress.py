"""Following live logs, without Spark: new data in files, and the progress of members.

Members write at different paces, rotate, crash and return; a reader must neither report what it has
not read yet nor read anything twice.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest

from broker.machine.commands import VOTERS
from broker.memberlog.codec import FRAME, MAGIC, NO_LINK, encode, frame, next_link
from broker.memberlog.reader import read_segment
from broker.memberlog.records import ROLE_CLIENT, Active, Client, End, Header, Snapshot
from broker.memberlog.writer import MemberLogWriter
from tests.system.verify.corruption.corrupt_logs import WITHIN_INCARNATIONS, Corruption
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.live_logs import LiveWriters
from tests.system.verify.support.make_logs import LogMaker, good_history, of_three, root_of
from tools.verify.checks.views_and_segments import CONTROL_KINDS
from tools.verify.findings import BadInput, Finding
from tools.verify.format.files import identity_of
from tools.verify.input import offsets
from tools.verify.input.offsets import LiveLogs, segments_by_incarnation, whole_records
from tools.verify.input.rows import FAULT, SEGMENT, Row
from tools.verify.live import bygone
from tools.verify.live import progress as progress_module
from tools.verify.live.progress import ClusterProgress

A, B, C = ("a", 1), ("b", 1), ("c", 1)


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Reader:
    """Reads logs as the follower does, and keeps the rows."""

    def __init__(self, *places: Path, saved: list[Row] | None = None) -> None:
        self.logs = LiveLogs([*places], saved or [])
        self.progress = ClusterProgress()
        self.rows: list[Row] = []
        self.found: list[Finding] = []
        self.progress.take(saved or [])

    def poll(self) -> bool:
        """Read new data; False if there were none."""
        rows = [row for part in self.logs.advance() for row in part]
        if rows:
            self.progress.take(row for row in rows if row.kind in CONTROL_KINDS)
            bygone.forget(self.logs.read, self.progress.first_epoch, self.progress.gone)
        self.found += self.progress.check()
        self.rows += rows
        return bool(rows)

    def held(self) -> int:
        """Return how much is held, except for the last positions."""
        ends = [log.parser.ends for log in self.logs.read.values() if log.parser is not None]
        return len(pickle.dumps((vars(self.progress), ends)))

    def to_the_end(self) -> None:
        """Poll until there is nothing new, and once more."""
        while self.poll():
            pass
        self.poll()


def records(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return the records among rows, without fields that depend on how they were read."""
    kept = [
        (r.member, r.incarnation, r.lsn, r.kind, r.last, r.chain, r.names)
        for r in rows
        if r.kind < SEGMENT
    ]
    return sorted(kept, key=lambda row: row[:4])


@pytest.mark.parametrize("seed", range(12))
def test_any_pace_gives_the_same_rows_and_no_finding(tmp_path: Path, seed: int) -> None:
    """Members are read at other places each time, segments end anywhere."""
    random = Random(seed)
    maker = good_history()
    writers = LiveWriters(maker, tmp_path, random.choice([1, 300, 3000, 1 << 20]))
    reader = Reader(tmp_path)
    verified = -1
    while writers.step(random.randint(0, 4), *random.sample(list(maker.logs), 3)):
        if random.random() < 0.6:
            reader.poll()
        assert reader.progress.verified >= verified
        verified = reader.progress.verified
    reader.to_the_end()
    assert reader.found == []
    assert records(reader.rows) == records(rows_in(sorted(tmp_path.rglob("*.qml"))))
    assert reader.progress.verified == maker.history.position
    last = reader.progress.progress()
    assert (last.unverified, last.absent) == (0, [])
    assert {lag.member for lag in last.lags if lag.live} == {"a", "b", "c"}


def test_voters_may_change_while_they_are_followed(tmp_path: Path) -> None:
    """The command that changed them is read long after the beginning of its log."""
    maker = of_three(3)
    maker.item("a", bytes([VOTERS]), A, B, C)
    maker.leave(A, B, C)
    maker.view(2, A, B, C)
    maker.activate(A, B, C)
    for log in maker.logs.values():
        at = max(i for i, record in enumerate(log) if isinstance(record, Active))
        active = log[at]
        assert isinstance(active, Active)
        log[at] = active._replace(voters=("a", "b"))
    writers = LiveWriters(maker, tmp_path, 1 << 20)
    reader = Reader(tmp_path)
    while writers.step(1, A, B, C):
        reader.poll()
    reader.to_the_end()
    assert reader.found == []


SLOW = [pytest.mark.slow, pytest.mark.turns(11)]


@pytest.mark.parametrize("corrupt", WITHIN_INCARNATIONS, ids=lambda corrupt: corrupt.__name__)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=SLOW) for n in (0, 2))])
def test_findings_without_spark_are_reported_while_logs_grow(
    tmp_path: Path, corrupt: Corruption, seed: int
) -> None:
    random = Random(seed)
    maker = good_history()
    expected = corrupt(maker)
    writers = LiveWriters(maker, tmp_path, random.choice([300, 1 << 20]))
    reader = Reader(tmp_path)
    while writers.step(random.randint(1, 5)):
        reader.poll()
    reader.to_the_end()
    assert expected in [(f.property, f.member, f.position) for f in reader.found]
    assert len(set(reader.found)) == len(reader.found)


def test_an_incomplete_record_is_read_later(tmp_path: Path) -> None:
    """A reader may come between two halves of a write."""
    maker = good_history()
    maker.write(tmp_path / "whole", 1 << 20)
    whole = (tmp_path / "whole" / "a" / "a.1.000000.qml").read_bytes()
    live = tmp_path / "live"
    live.mkdir()
    reader = Reader(live)
    cuts = sorted({0, 3, 7, 9, 40, *range(100, len(whole), 613), len(whole)})
    for cut in cuts:
        (live / "a.1.000000.qml").write_bytes(whole[:cut])
        reader.poll()
    assert records(reader.rows) == records(rows_in([tmp_path / "whole" / "a" / "a.1.000000.qml"]))
    assert [row for row in reader.rows if row.kind == FAULT] == []


def test_a_torn_tail_is_cut_off_and_written_on(tmp_path: Path) -> None:
    writers = LiveWriters(good_history(), tmp_path)
    writers.step(9, A)
    path = writers.path(*A)
    reader = Reader(tmp_path)
    reader.poll()
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\x30\0\0\0torn")
    assert not reader.poll()
    os.truncate(path, size)
    writers.step(9, A)
    assert reader.poll()
    assert reader.found == []


def test_a_tail_that_is_torn_before_a_later_segment_is_reported(tmp_path: Path) -> None:
    good_history().write(tmp_path, 700)
    path = sorted((tmp_path / "a").iterdir())[1]
    path.write_bytes(path.read_bytes()[:-9])
    reader = Reader(tmp_path)
    reader.to_the_end()
    assert [(f.property, f.member) for f in reader.found[:1]] == [("LOG", "a")]
    assert "ends in the middle of a record" in reader.found[0].what


def test_closed_segments_may_be_compressed_meanwhile(tmp_path: Path) -> None:
    maker = good_history(12)
    writers = LiveWriters(maker, tmp_path, 500)
    reader = Reader(tmp_path)
    while writers.step(3):
        reader.poll()
        for segments in segments_by_incarnation([tmp_path]).values():
            for number in sorted(segments)[:-1]:
                if segments[number].suffix == ".qml":
                    packed = segments[number].with_name(f"{segments[number].name}.gz")
                    packed.write_bytes(gzip.compress(segments[number].read_bytes()))
                    segments[number].unlink()
    reader.to_the_end()
    assert reader.found == []
    assert reader.progress.verified == maker.history.position


def test_retention_may_delete_segments_that_were_read(tmp_path: Path) -> None:
    maker = good_history(12)
    writers = LiveWriters(maker, tmp_path, 500)
    reader = Reader(tmp_path)
    deleted = 0
    while writers.step(3):
        reader.poll()
        for key, segments in segments_by_incarnation([tmp_path]).items():
            for number, path in segments.items():
                if key in reader.logs.read and number <= reader.logs.read[key].segment < max(
                    segments
                ):
                    path.unlink()
                    deleted += 1
    reader.to_the_end()
    assert deleted > 6
    assert reader.found == []
    assert reader.progress.verified == maker.history.position


def test_a_new_incarnation_of_a_member_is_followed(tmp_path: Path) -> None:
    """The old one ends anywhere; the verified position continues with the remaining members."""
    maker = good_history()
    writers = LiveWriters(maker, tmp_path)
    reader = Reader(tmp_path)
    seen: list[tuple[int, bool]] = []  # incarnations of c, and whether the newest primary has it
    first = len(maker.logs[C])
    for number in count():
        if not writers.step(1, *((A, B, C) if number < first else ())):
            break
        reader.poll()
        lags = [one for one in reader.progress.progress().lags if one.member == "c"]
        seen += {(one.incarnation, one.live) for one in lags}.difference(seen)
    reader.to_the_end()
    assert reader.found == []
    assert [key for key in seen if key[1]] == [(1, True), (2, True)]
    assert reader.progress.verified == maker.history.position


def test_unread_bytes_are_counted(tmp_path: Path) -> None:
    """A lagging follower must report that."""
    maker = good_history()
    maker.write(tmp_path, 900)
    sizes = sum(path.stat().st_size for path in tmp_path.rglob("*.qml"))
    reader = Reader(tmp_path)
    left = [reader.logs.unread()]
    while reader.poll():
        left.append(reader.logs.unread())
    assert left[0] == sizes
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left)
    assert left[-1] == 0
    firsts = [tmp_path / name / f"{name}.1.000000.qml" for name in "abc"]
    unread_after = LiveLogs([tmp_path], rows_in(firsts)).unread()
    assert unread_after == sizes - sum(path.stat().st_size for path in firsts)


def test_a_difference_is_reported_once_and_the_next_one_too() -> None:
    """Looks overlap, and positions after a difference differ too."""
    progress = ClusterProgress()
    polls = [[10, 20], [10, 20], [20], [], [90], [90], [90]]
    found = [
        [
            found.position
            for found in progress.new_differences(Finding("G14", "b", 1, at, "w") for at in poll)
        ]
        for poll in polls
    ]
    assert found == [[10], [], [], [], [90], [], []]


def test_a_segment_that_was_deleted_before_it_was_read_is_reported(tmp_path: Path) -> None:
    writers = LiveWriters(good_history(), tmp_path, 300)
    writers.step(9)
    reader = Reader(tmp_path)
    reader.poll()
    while writers.step(9):
        pass
    for path in sorted((tmp_path / "a").iterdir())[:-1]:
        path.unlink()
    reader.to_the_end()
    assert ("LOG", "a") in [(f.property, f.member) for f in reader.found]


@pytest.mark.parametrize("noted", [True, False])
def test_segments_dropped_by_their_member_are_no_gap(tmp_path: Path, noted: bool) -> None:
    """It is reported: as a log that begins behind dropped segments."""
    maker = good_history()
    writers = LiveWriters(maker, tmp_path, 300)
    writers.step(9)
    reader = Reader(tmp_path)
    reader.poll()
    while writers.step(9):
        pass
    for name in ("a", "b"):
        *gone, _, _, _ = sorted((tmp_path / name).glob("*.qml"))
        note = json.dumps({f"{name}.1": (identity_of(gone[-1])[2], 1)})
        (tmp_path / name / "dropped").write_text(note if noted else "{}")
        for path in gone:
            path.unlink()
    reader.to_the_end()
    unknown = reader.progress.progress().unknown
    if noted:
        assert reader.found == []
        assert [what[:1] for what in unknown] == ["a", "b"]
        assert all("dropped by its member" in what for what in unknown)
        assert reader.progress.verified == maker.history.position
    else:
        assert ("LOG", "a") in [(f.property, f.member) for f in reader.found]
        assert unknown == []
    late = Reader(tmp_path)
    late.to_the_end()
    assert late.found == []
    what = "was dropped by its member" if noted else "is not known"
    assert [what in one for one in late.progress.progress().unknown] == [True, True]


def test_damage_does_not_stop_the_reading(tmp_path: Path) -> None:
    good_history().write(tmp_path, 1 << 20)
    path = tmp_path / "b" / "b.1.000000.qml"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reader = Reader(tmp_path)
    reader.to_the_end()
    assert ("LOG", "b") in [(f.property, f.member) for f in reader.found]


def test_logs_of_another_cluster_are_refused(tmp_path: Path) -> None:
    good_history().write(tmp_path / "one")
    good_history().write(tmp_path / "two", cluster="c2")
    with pytest.raises(BadInput, match="more than one cluster"):
        Reader(tmp_path / "one", tmp_path / "two").to_the_end()


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.1.000000.qml").write_bytes(b"this is a letter to my aunt" * 9)
    (tmp_path / "a.1.000001.qml").write_bytes(b"and so is this")
    with pytest.raises(BadInput, match="not a member log"):
        Reader(tmp_path).to_the_end()


def test_a_member_without_a_log_is_named_and_holds_nothing_back(tmp_path: Path) -> None:
    good_history().write(tmp_path)
    reader = Reader(tmp_path / "a", tmp_path / "b")
    reader.to_the_end()
    progress = reader.progress.progress()
    assert progress.absent == ["c (incarnation 2)"]
    assert progress.verified == progress.newest > 0


def test_a_member_that_is_behind_holds_the_verified_position(tmp_path: Path) -> None:
    maker = good_history()
    writers = LiveWriters(maker, tmp_path)
    writers.step(16, A, B, C)
    writers.step(6, A, B)
    reader = Reader(tmp_path)
    reader.to_the_end()
    progress = reader.progress.progress()
    lag = {one.member: one.behind for one in progress.lags}
    assert progress.verified == progress.newest - lag["c"] < progress.newest
    assert lag["a"] == 0
    assert progress.unverified == lag["c"]


def test_logs_of_clients_are_not_those_of_members(tmp_path: Path) -> None:
    good_history().write(tmp_path)
    log = MemberLogWriter(tmp_path, "", "", "spout-1@host", 7, lambda: 1, role=ROLE_CLIENT)
    log.append(Client(1, "q", 1, b""))
    log.close()
    reader = Reader(tmp_path)
    reader.to_the_end()
    assert {lag.member for lag in reader.progress.progress().lags} == {"a", "b", "c"}
    assert reader.found == []


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_following_continues_from_a_saved_checkpoint(tmp_path: Path, kept: int) -> None:
    maker = good_history(12)
    maker.write(tmp_path, 700)
    paths = [path for name in "abc" for path in sorted((tmp_path / name).iterdir())[:kept]]
    settled = [row for row in rows_in(paths) if row.kind in CONTROL_KINDS]
    reader = Reader(tmp_path, saved=settled)
    reader.to_the_end()
    assert reader.found == []
    assert reader.progress.verified == maker.history.position
    assert not {row.file for row in reader.rows} & {str(path) for path in paths}


def test_a_record_may_be_longer_than_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "STRETCH_BYTES", 64)  # every record is longer
    maker = good_history()
    maker.write(tmp_path, 900)
    reader = Reader(tmp_path)
    reader.to_the_end()
    assert reader.found == []
    assert reader.progress.verified == maker.history.position


def test_an_end_is_checked_against_a_segment_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "STRETCH_BYTES", 300)
    good_history().write(tmp_path, 900)
    link, changed = NO_LINK, 0
    for path in sorted((tmp_path / "a").iterdir()):
        out = bytearray(MAGIC)
        for entry in read_segment(path.read_bytes(), path.name):
            record = entry.record
            if isinstance(record, Header):
                record = record._replace(prev_link=link)
            elif isinstance(record, End) and not changed:
                record, changed = record._replace(moves=record.moves + 1), 1
            payload = encode(entry.lsn, record)
            link = next_link(link, payload)
            out += frame(payload, link)
        path.write_bytes(out)
    reader = Reader(tmp_path)
    reader.to_the_end()
    assert [(f.property, f.member) for f in reader.found] == [("LOG", "a")]
    assert "is not about what is in it" in reader.found[0].what


def test_whole_records_are_found_by_their_lengths() -> None:
    data = FRAME.pack(3, 0, b"12345678") + b"\x92\x02\x07"
    assert whole_records(data, first=False) == len(data)  # whole, but not a record
    assert whole_records(data[:-1], first=False) == 0
    assert whole_records(b"", first=True) == 0


def test_memory_grows_with_views_and_not_with_traffic(tmp_path: Path) -> None:
    """A day of traffic in one view holds no more than its first minutes."""
    held: list[int] = []
    for rounds in (40, 400):
        maker = LogMaker()
        for incarnation in (A, B, C):
            maker.start(incarnation)
        maker.view(4, A, B, C)
        maker.activate(A, B, C)
        maker.traffic(rounds, A, B, C)
        place = tmp_path / str(rounds)
        writers, reader = LiveWriters(maker, place, 1_000_000), Reader(place)
        while writers.step(60):
            reader.poll()
        reader.to_the_end()
        assert reader.found == []
        assert reader.progress.verified == maker.history.position
        held.append(reader.held())
    assert held[1] < held[0] + 100  # longer numbers, and nothing else


Lengths = dict[tuple[str, int], int]


def history_of_views(views: int) -> tuple[LogMaker, list[Lengths]]:
    """Return a history in which c is lost at each second view and returns as a new incarnation; and
    the lengths of the logs after each view.
    """
    maker, lengths = LogMaker(), []
    maker.start(A)
    maker.start(B)
    for number in range(views):
        together = [A, B]
        if number % 2 == 0:
            together.append(("c", 1 + number // 2))
            maker.start(together[2])
        maker.view(1 + number, *together)
        fresh = tuple(together[2:]) if number else ()
        maker.activate(*together, fresh=fresh)
        for c in fresh:
            h = maker.history
            maker.logs[c].append(Snapshot(h.epoch, h.position, h.chain, root_of(h), "a"))
        maker.traffic(2, *together)
        maker.leave(A, B)
        lengths.append({key: len(log) for key, log in maker.logs.items()})
    return maker, lengths


def follow_views(
    history: tuple[LogMaker, list[Lengths]], directory: Path, *late: tuple[str, int]
) -> Reader:
    """Follow a history to its end; records of the incarnations `late` are read after all others."""
    maker, lengths = history
    writers, reader, done = (
        LiveWriters(maker, directory, 2000),
        Reader(directory),
        Counter[object](),
    )
    for there in lengths:
        for key, length in there.items():
            if key not in late and length > done[key]:
                writers.step(length - done[key], key)
                done[key] = length
        reader.poll()
    writers.step(1 << 20)
    reader.to_the_end()
    assert reader.progress.verified == maker.history.position
    return reader


def test_memory_does_not_grow_with_past_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month of views and restarts holds no more than the last of them."""
    monkeypatch.setattr(bygone, "VIEWS_KEPT", 4)
    monkeypatch.setattr(progress_module, "KEPT", 20)
    held: list[int] = []
    for views in (24, 64):
        reader = follow_views(history_of_views(views), tmp_path / str(views))
        assert reader.found == []
        held.append(reader.held())
    assert held[1] < held[0] * 1.2


def test_a_dead_incarnation_that_is_read_late_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' records of its views are no longer held."""
    monkeypatch.setattr(bygone, "VIEWS_KEPT", 4)
    monkeypatch.setattr(progress_module, "KEPT", 20)
    assert follow_views(history_of_views(32), tmp_path, ("c", 3), ("c", 9)).found == []


def test_a_contradiction_to_a_held_view_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bygone, "VIEWS_KEPT", 4)
    monkeypatch.setattr(progress_module, "KEPT", 20)
    history = history_of_views(32)
    log = history[0].logs[B]
    at = max(i for i, record in enumerate(log) if isinstance(record, Active))
    active = log[at]
    assert isinstance(active, Active)
    log[at] = active._replace(base_chain=bytes(16))
    found = follow_views(history, tmp_path).found
    assert ("G7", "b") in [(one.property, one.member) for one in found]


def test_a_damaged_log_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.verify.input.parse.FAULTS_MAX", 10)
    maker = LogMaker()
    maker.start(A)
    maker.view(1, A)
    maker.activate(A)
    maker.traffic(60, A)
    reader, writers, size = Reader(tmp_path), LiveWriters(maker, tmp_path, 1 << 20), 0
    while writers.step(4):
        path = writers.path(*A)
        data = bytearray(path.read_bytes())
        data[size + 60] ^= 1  # of the first new record
        path.write_bytes(data)
        size = len(data)
        reader.poll()
    reader.to_the_end()
    of_a = [found.what for found in reader.found if (found.property, found.member) == ("LOG", "a")]
    assert len(of_a) == len(set(of_a)) == 11  # and that it begins with lsn 1
