"""What a member records about its queues and the fate of messages, from blobs to records."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest

from broker.machine import commands as c
from broker.machine.command_codec import pack_blob
from broker.machine.commands import Command
from broker.machine.machine import Machine
from broker.machine.move_log import (
    BY_CLIENT,
    DELIVERED,
    ENQUEUED,
    FLAG,
    MOVE,
    PASSED,
    Op,
    spelled_out,
)
from broker.memberlog.archive import archive_segments
from broker.memberlog.reader import TornTail, read_segment
from broker.memberlog.recorder import QUEUES_PER_RECORD
from broker.memberlog.records import (
    CHECKPOINT_ROW,
    READER_ROW,
    Active,
    Batch,
    Checkpoint,
    Durable,
    End,
    Header,
    Queues,
    Readers,
    Snapshot,
    Start,
    Stop,
)
from broker.memberlog.segment_totals import moves_in
from broker.memberlog.segments import open_segment, segments_in
from broker.memberlog.writer import LogWriteFailed, MemberLogWriter
from broker.options.retention import Policy
from broker.replication.chain import History
from broker.replication.replica import ExecutionFailed, Item, Replica, records_of
from tests.support.memberlog_writer import RING, Scene, read_until_fault
from tests.support.move_ledger import Ledger
from vsync.primary.events import Activated, Activation
from vsync.types import Member


def test_an_incarnation_begins_with_its_state_and_names_queues_first(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.traffic()
    records = list(scene.records())
    assert [type(record) for record in records] == [
        Header, Start, Checkpoint, Batch, Batch, Queues, Batch, Batch, Batch,
    ]  # fmt: skip
    assert records[2] == Checkpoint(0, Machine("a").root(), 1, b"")
    assert records[5] == Queues(((1, "/", "one", True, -1), (2, "/", "two", True, -1)))
    ops = [[what & 15 for what, *_ in MOVE.iter_unpack(moves)] for _, moves in scene.moves()]
    assert ops[2:] == [
        [Op.DECLARED, Op.DECLARED],
        [Op.PUBLISHED, Op.ENQUEUED, Op.PUBLISHED, Op.ENQUEUED, Op.PUBLISHED, Op.NOTED,
         Op.PUBLISHED, Op.ENQUEUED],
        [Op.DELIVERED, Op.RETURNED, Op.DELIVERED, Op.SETTLED],
    ]  # fmt: skip
    first, moves = scene.moves()[3]
    indices = [index for _, index, *_ in MOVE.iter_unpack(moves)]
    assert indices == [first + at for at in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_the_moves_of_a_log_lead_to_its_checkpoints(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_us=10)
    ledger = Ledger()
    scene.traffic()
    scene.writer.flush()
    scene.now_us += 10
    scene.publish("two", "one", "two")
    scene.writer.flush()  # ends the segment: the next one begins with the state of the queues
    scene.publish("one")
    for record in scene.records():
        if isinstance(record, Batch):
            ledger.take(record.moves)
        elif isinstance(record, Checkpoint) and record.position:
            rows = {number: rest for number, *rest in CHECKPOINT_ROW.iter_unpack(record.queues)}
            assert {n: ready for n, (ready, *_) in rows.items()} == {
                number: len(places) for number, places in ledger.ready.items()
            }
            assert rows[1][:3] == [2, 0, 3]
            assert record.next_message == 1 + max(ledger.bodies)
            break
    else:
        pytest.fail("no checkpoint")
    ledger.take(scene.moves()[-1][1])
    ledger.agrees_with(scene.replica.machine)


def test_a_segment_ends_when_it_is_old_but_not_while_it_is_empty(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_us=1000)
    scene.writer.flush()
    scene.now_us += 1000
    scene.writer.flush()  # with nothing new to write
    assert len(segments_in(tmp_path)) == 2
    for _ in range(3):
        scene.now_us += 5000
        scene.writer.flush()
    assert len(segments_in(tmp_path)) == 2
    scene.book.durable(1)
    scene.writer.flush()
    assert len(segments_in(tmp_path)) == 3
    assert scene.kinds()[-2:] == [Header, Checkpoint]


def test_a_clock_set_back_does_not_keep_a_segment_open(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_us=1000)
    scene.now_us = 10
    scene.book.durable(1)
    scene.writer.flush()
    assert len(segments_in(tmp_path)) == 1
    scene.now_us = 1010
    scene.writer.flush()
    assert len(segments_in(tmp_path)) == 2


def test_queues_are_recorded_at_an_activation_and_at_the_end(tmp_path: Path) -> None:
    """So that even a log of one segment has something to compare their moves with."""
    scene = Scene(tmp_path)
    scene.traffic()
    activation = Activation(2, (("a", 1, False), ("b", 1, False)), False, ("a", "b"), "c1")
    event = Activated(RING, 9, Member("a", 1, ""), activation, True)
    scene.book.activated(event, scene.replica.history)
    scene.book.activated(event, scene.replica.history)  # nothing was applied in between
    scene.publish("one")
    scene.book.stop("shutdown", scene.replica.history)
    records = list(scene.records())
    kinds = [type(record) for record in records]
    assert kinds[-6:] == [Active, Checkpoint, Active, Batch, Checkpoint, Stop]
    first, last = (record for record in records[-5:] if isinstance(record, Checkpoint))
    assert (last.position, last.root) == (
        scene.replica.history.position, scene.replica.machine.root(),
    )  # fmt: skip
    ready = [
        {number: ready for number, ready, *_ in CHECKPOINT_ROW.iter_unpack(one.queues)}
        for one in (first, last)
    ]
    assert ready == [{1: 1, 2: 1}, {1: 2, 2: 1}]


def test_a_transferred_state_is_recorded_whole(tmp_path: Path) -> None:
    donor = Scene(tmp_path / "donor")
    donor.traffic()
    scene = Scene(tmp_path / "joiner", "b")
    scene.book.snapshot(donor.replica.history, donor.replica.machine, "a")
    last = list(scene.records())[-3:]
    assert [type(record) for record in last] == [Snapshot, Queues, Checkpoint]
    assert isinstance(last[2], Checkpoint)
    assert last[2].position == donor.replica.history.position
    assert last[2].root == donor.replica.machine.root()
    assert [row[:4] for row in CHECKPOINT_ROW.iter_unpack(last[2].queues)] == [
        (1, 1, 0, 2), (2, 1, 0, 1),
    ]  # fmt: skip


def test_more_queues_than_one_record_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUEUES_PER_RECORD * 2 * 260 < 16 << 20
    monkeypatch.setattr("broker.memberlog.recorder.QUEUES_PER_RECORD", 2)
    donor = Scene(tmp_path / "donor")
    donor.declare(*"abcde")
    scene = Scene(tmp_path / "joiner", "b")
    scene.book.snapshot(donor.replica.history, donor.replica.machine, "a")
    assert scene.kinds()[-6:] == [Queues] * 3 + [Checkpoint] * 3
    recorded = [r for r in scene.records() if isinstance(r, Checkpoint)][-3:]
    assert {(r.position, r.root) for r in recorded} == {
        (donor.replica.history.position, donor.replica.machine.root())
    }
    rows = [row for r in recorded for row in CHECKPOINT_ROW.iter_unpack(r.queues)]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5]


def test_a_segment_does_not_end_in_the_middle_of_an_item(tmp_path: Path) -> None:
    """Seed 8731051 of the broker stack: the next segment did not say which queues there were."""
    scene = Scene(tmp_path, segment_us=1000)
    scene.declare("one")
    scene.book.flush()
    session = scene.replica.machine.sessions["a"]
    get = c.Get(c.GET, 1, 1, "one", False)
    publish = c.Publish(c.PUBLISH, 1, 1, 1, "", "one", c.PERSISTENT, b"", b"x")
    blob = pack_blob(session.session, session.last_blob_no + 1, 5, [publish, get])
    applied = scene.replica.execute(Item(1, RING, scene.seq + 1, "a", blob))
    scene.now_us += 1000
    scene.book.durable(1)
    scene.book.flush()  # the item waits for a page, for instance
    assert scene.kinds()[-1] == Durable
    scene.replica.record(applied)
    scene.book.flush()
    assert scene.kinds()[-5:] == [Batch, End, Header, Queues, Checkpoint]


def test_an_aborted_command_leaves_no_checkpoint_of_half_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, segment_us=1)
    scene.declare("one")
    scene.publish("one")
    monkeypatch.setattr("broker.machine.queueing.queue.place_of", None)
    with pytest.raises(ExecutionFailed):
        scene.run(c.Get(c.GET, 1, 1, "one", False), c.Nack(c.NACK, 1, 1, 1, False, True))
    scene.now_us += 1
    scene.book.durable(1)
    assert scene.kinds()[-2:] == [Batch, Durable]
    scene.book.stop("a command failed", scene.replica.history)
    assert scene.kinds()[-2:] == [Durable, Stop]


def test_a_message_straight_to_a_consumer_is_one_row_and_reads_as_two(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.declare("one", "two")
    scene.run(
        c.ExchangeDeclare(
            c.EXCHANGE_DECLARE, 1, 1, "all", "fanout", False, True, False, False, False, {}
        ),
        c.QueueBind(c.QUEUE_BIND, 1, 1, "one", "all", "", False, {}),
        c.QueueBind(c.QUEUE_BIND, 1, 1, "two", "all", "", False, {}),
        c.Consume(c.CONSUME, 1, 1, "two", "t", False, True, False, False, {}, 0),
    )
    channel = next(iter(scene.replica.machine.channels.values())).mark
    session = scene.replica.machine.sessions["a"]
    publishes: list[Command] = [
        c.Publish(c.PUBLISH, 1, 1, no, "all", "", no % 2 * c.PERSISTENT, b"", b"x") for no in (1, 2)
    ]
    blob = pack_blob(session.session, session.last_blob_no + 1, 5, publishes)
    rows = scene.replica.apply(Item(1, RING, scene.seq + 1, "a", blob)).moves
    scene.book.close()
    recorded = list(MOVE.iter_unpack(scene.moves()[-1][1]))
    flags = FLAG, 0
    assert [what for what, *_ in MOVE.iter_unpack(rows)] == [
        what | flag for flag in flags for what in (BY_CLIENT, ENQUEUED, PASSED)
    ]
    assert [what for what, *_ in recorded] == [
        what
        for flag in flags
        for what in (BY_CLIENT | flag, ENQUEUED | flag, ENQUEUED | flag, DELIVERED)
    ]
    for number in (1, 2):
        published, one, two, out = recorded[4 * number - 4 : 4 * number]
        assert {row[1] for row in (published, one, two, out)} == {published[1]}
        assert (published[3], one[4], two[4], out[4]) == (number, number, number, channel)
        assert (two[2], two[3]) == (out[2], out[3]) == (2, number - 1)
        assert one[5] == two[5] == out[5]
    end = list(scene.records())[-1]
    assert isinstance(end, End)
    assert end.moves == 2 + 2 + 8  # two queues were declared and bound
    assert spelled_out(rows) == scene.moves()[-1][1]
    assert moves_in(rows) == len(recorded) == 8


def test_all_members_and_every_replay_write_the_same_moves(tmp_path: Path) -> None:
    one, other = Scene(tmp_path / "a", "a"), Scene(tmp_path / "b", "b")
    for scene in (one, other):
        scene.traffic()
        scene.publish("two")
    assert one.moves() == other.moves()
    assert sum(len(moves) for _, moves in one.moves()) > 10 * MOVE.size
    for restart in range(1, len(one.entries)):
        again = Replica("a", Machine("a"), History())
        for entry in one.entries[:restart]:
            again.replay(entry)  # what the store had
        moves = {}
        for entry in one.entries[restart:]:
            for first, _, item, _ in records_of(entry):
                moves[first] = spelled_out(again.apply(item).moves)
        assert moves == dict(one.moves()[restart:])
    for (position, _), (after, _) in pairwise(one.moves()):
        assert position < after


def test_idle_turns_write_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.book.flush()
    size = segments_in(tmp_path)[0].stat().st_size
    scene.book.flush()
    assert segments_in(tmp_path)[0].stat().st_size == size
    scene.book.durable(3)
    assert list(scene.records())[-1] == Durable(3)


class TestADiskThatFails:
    def test_at_any_cut_the_rest_is_a_prefix_and_the_log_continues(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path / "whole")
        scene.traffic()
        scene.writer.flush()
        (path,) = segments_in(tmp_path / "whole")
        data = path.read_bytes()
        original = [(e.end, e.lsn, e.record) for e in read_segment(data, "whole")]
        for cut in range(9, len(data), 7):
            directory = tmp_path / str(cut)
            directory.mkdir()
            (directory / path.name).write_bytes(data[:cut])
            log = MemberLogWriter(directory, "prod", "c1", "a", 1, lambda: 2)
            kept = [(lsn, record) for end, lsn, record in original if end <= cut]
            assert log.next_lsn == max(len(kept), 1)  # if nothing is whole it starts over
            log.append(Durable(9))
            log.flush()
            read = list(read_segment(open_segment(log.path), "again"))
            assert [(e.lsn, e.record) for e in read[:-1]] == (kept or [(0, read[0].record)])
            log._file.give_up()

    def test_a_rotation_without_room_for_its_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene = Scene(tmp_path, segment_us=10)
        scene.declare(*(f"queue {number}" for number in range(100)))
        scene.book.flush()
        first = scene.writer.path
        scene.now_us += 10
        original, room = (
            os.write,
            iter((1000, 300, 0)),
        )  # END; part of the next start; full

        def full(fd: int, data: bytes) -> int:
            if not (bytes_max := next(room)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(fd, data[:bytes_max])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(LogWriteFailed, match=r"000001\.qml: No space left"):
            scene.book.flush()
        with pytest.raises(LogWriteFailed):
            scene.book.flush()
        with pytest.raises(LogWriteFailed):
            scene.book.close()
        paths = segments_in(tmp_path)
        assert paths[0] == first
        assert isinstance([e.record for e in read_segment(open_segment(first), "")][-1], End)
        entries, fault = read_until_fault(open_segment(paths[1]))
        assert [type(e.record) for e in entries] == [Header]
        assert isinstance(fault, TornTail)

    def test_a_log_without_room_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each later start would call an empty file damaged."""

        def full(_fd: int, _data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(LogWriteFailed, match="No space left"):
                MemberLogWriter(tmp_path, "prod", "c1", "a", 1, lambda: 2)
        assert [*tmp_path.iterdir()] == []
        MemberLogWriter(tmp_path, "prod", "c1", "a", 1, lambda: 2).close()
        assert len(segments_in(tmp_path)) == 1

    def test_it_resumes_after_dropped_or_compressed_segments(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, segment_us=10)
        for number in range(4):
            scene.declare(f"queue {number}")
            scene.book.flush()
            scene.now_us += 10
            scene.book.durable(number)
            scene.book.flush()
        scene.book.close()
        assert (
            len(list(archive_segments(tmp_path, "", Policy(), 0)))
            == len(segments_in(tmp_path))
            == 5
        )
        for path in segments_in(tmp_path)[:3]:
            path.unlink()
        before = [e for path in segments_in(tmp_path) for e in read_segment(open_segment(path), "")]
        log = MemberLogWriter(tmp_path, "prod", "c1", "a", 1, lambda: 1)
        assert log.path.name == "a.1.000005.qml"
        (header,) = read_segment(open_segment(log.path), "")
        assert isinstance(header.record, Header)
        assert header.record.prev_link == before[-1].link
        assert header.lsn == before[-1].lsn + 1
        log.close()

    def test_an_unwritable_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(*_: object, **__: object) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(os, "open", refuses)  # root could write it
        with pytest.raises(LogWriteFailed, match="Permission denied"):
            Scene(tmp_path)


def test_everything_one_member_held_returns_in_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages one command moves, the record is readable."""
    monkeypatch.setattr("broker.memberlog.codec.LARGE_BYTES", 2000)
    scene = Scene(tmp_path)
    scene.declare("one")
    for _ in range(9):
        scene.publish(*(["one"] * 20))
        scene.run(*[c.Get(c.GET, 1, 1, "one", False)] * 20)
    scene.item(Activation(2, (("a", 1, True), ("b", 1, False)), False, ("a", "b"), "c1"))
    last = list(scene.records())[-1]
    assert isinstance(last, Batch)
    assert last.commands == 1
    assert len(last.moves) == 180 * MOVE.size > 2000
    ledger = Ledger()
    for _, moves in scene.moves():
        ledger.take(moves)
    ledger.agrees_with(scene.replica.machine)


def test_stream_readers_are_recorded_with_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there is a stream: an older check reads the other logs as well."""
    monkeypatch.setattr("broker.memberlog.recorder.READERS_PER_RECORD", 2)
    scene = Scene(tmp_path, segment_us=10)
    scene.traffic()
    scene.writer.flush()
    scene.now_us += 10
    scene.writer.flush()
    assert Readers not in scene.kinds()
    stream: c.Table = {"x-queue-type": "stream"}
    scene.run(
        c.QueueDeclare(c.QUEUE_DECLARE, 1, 1, "log", False, True, False, False, False, stream)
    )
    scene.publish("log", "log")
    for tag in ("r", "s", "t"):
        begin: c.Table = {"x-stream-offset": 1}
        scene.run(
            c.Consume(c.CONSUME, 1, 1, "log", tag, False, False, False, True, begin, len(tag))
        )
    scene.writer.flush()
    scene.now_us += 10
    scene.writer.flush()
    assert scene.kinds()[-5:] == [Header, Queues, Readers, Readers, Checkpoint]
    rows = [
        row
        for one in scene.records()
        if isinstance(one, Readers)
        for row in READER_ROW.iter_unpack(one.readers)
    ]
    queue = scene.replica.machine.vhosts["/"].queues["log"]
    assert [(number, offset) for number, _, _, offset, _ in rows] == [(queue.number, 2)] * 3
    assert len({name for _, _, name, *_ in rows}) == 3
