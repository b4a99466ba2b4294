"""Which logs are client histories, and how much of the history the members' logs hold."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from broker.memberlog.client_history import ClientHistory, ClusterName
from broker.memberlog.records import (
    ROLE_CLIENT,
    ROLE_MEMBER,
    Batch,
    ConfirmRecord,
    Durable,
    RecordKind,
)
from broker.memberlog.writer import MemberLogWriter
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import good_history
from tools.verify.checks.canonical_history import Gap, Stretch
from tools.verify.checks.views_and_segments import CONTROL_KINDS, PrimaryView, primaries
from tools.verify.clients.evidence import EvidenceFile, read_evidence
from tools.verify.clients.histories import (
    extent_of,
    read_header,
    split_clients,
    told_history,
    unsure_confirms,
)
from tools.verify.findings import BadInput
from tools.verify.input.rows import FAULT, SEGMENT, Row, ends_of, in_json
from tools.verify.input.tables import Unsure
from tools.verify.live import checkpoint


def a_client(directory: Path, of: ClusterName | None = None) -> Path:
    """Write the history of a client."""
    history = ClientHistory(directory, "spout-1@host", 1, lambda: 1)
    history.session("q", of).published(1, b"body")
    history.close()
    return next(directory.glob("spout*"))


def a_member(directory: Path, cluster_id: str = "c1") -> Path:
    """Write the log of a member."""
    log = MemberLogWriter(directory, "prod", cluster_id, "client:5672", 1, lambda: 1)
    log.append(Durable(1))
    log.close()
    return next(directory.glob("client*"))


def test_the_header_names_the_role(tmp_path: Path) -> None:
    client, member = a_client(tmp_path), a_member(tmp_path)
    packed = tmp_path / "packed.qml.gz"
    packed.write_bytes(gzip.compress(client.read_bytes()))
    nothing, other = tmp_path / "nothing.qml", tmp_path / "other.qml"
    nothing.write_bytes(b"")
    other.write_bytes(b"something else")
    roles = [found.role if (found := read_header(p)) else "" for p in (client, packed, member)]
    assert roles == [ROLE_CLIENT, ROLE_CLIENT, ROLE_MEMBER]
    assert [read_header(path) for path in (nothing, other, tmp_path / "none.qml")] == [None] * 3
    assert split_clients([client, member, packed]) == ([member], [client, packed])


def test_a_compressed_file_of_noise_counts_as_a_members(tmp_path: Path) -> None:
    noise = tmp_path / "noise.qml.gz"
    for data in (b"noise", gzip.compress(b"x" * 999)[:10] + b"noise", gzip.compress(b"x")[:-9]):
        noise.write_bytes(data)
        assert read_header(noise) is None


@pytest.mark.parametrize(
    ("member", "client"),
    [
        ("c1", ("prod", "c2")), ("c1", ("test", "c2")), ("", ("test", "c2")),
        ("c1", ("test", "")),
    ],
)  # fmt: skip
def test_a_client_of_another_cluster_is_named_once(
    tmp_path: Path, member: str, client: tuple[str, str]
) -> None:
    """Otherwise all its confirms would be missing here: twenty accusations of honest members."""
    files = [a_client(tmp_path, ClusterName(*client)), a_member(tmp_path, member)]
    with pytest.raises(BadInput) as told:
        split_clients(files)
    assert f"{files[0]} is of {' '.join(client).strip()}; " in str(told.value)
    assert "leave their histories out" in str(told.value)


@pytest.mark.parametrize(
    ("member", "client"),
    [("c1", ("prod", "c1")), ("", ("prod", "c2")), ("c1", ("prod", "")), ("c1", ("", ""))],
)
def test_an_unknown_cluster_id_is_no_difference(
    tmp_path: Path, member: str, client: tuple[str, str]
) -> None:
    """The first segment of a member lacks the id, and so does the whole history of an older
    client."""
    files = [a_client(tmp_path, ClusterName(*client)), a_member(tmp_path, member)]
    assert split_clients(files) == (files[1:], files[:1])


def test_client_histories_alone_prove_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name the members' logs as well"):
        split_clients([a_client(tmp_path)])


def row(member: str, incarnation: int, kind: RecordKind) -> Row:
    """Return a control row."""
    return Row("file", member, incarnation, 0, 0, int(kind))


def test_the_end_is_known_when_the_last_incarnation_of_each_member_stopped() -> None:
    a1, a2 = row("a", 1, RecordKind.START), row("a", 2, RecordKind.START)
    stopped = [row("a", 2, RecordKind.STOP), row("b", 1, RecordKind.STOP)]
    assert extent_of([a1, a2, *stopped], []).to_end
    assert not extent_of([a1, a2, *stopped, row("b", 2, RecordKind.START)], []).to_end
    assert not extent_of([a1, a2, row("a", 1, RecordKind.STOP)], []).to_end
    assert not extent_of([], []).to_end


def test_gaps_at_the_beginning_and_in_the_middle() -> None:
    late, holed = Gap(1, 9), Gap(20, 30)
    extents = [extent_of([], gaps) for gaps in ([], [late], [late, holed], [holed])]
    assert [(extent.from_start, extent.complete) for extent in extents] == [
        (True, True), (False, True), (False, False), (True, False),
    ]  # fmt: skip


class TestConfirms:
    """Whether the logs hold everything that members confirmed."""

    @pytest.fixture
    def rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
        monkeypatch.setattr("os.fsync", lambda _: None)
        good_history(6).write(tmp_path, segment_bytes=1500)
        return rows_in(sorted(tmp_path.rglob("*.qml")))

    @staticmethod
    def found(rows: list[Row]) -> Unsure | None:
        return unsure_confirms(rows, primaries(rows), {row.file for row in rows})

    @staticmethod
    def cut(rows: list[Row], member: str, incarnation: int, last: int) -> list[Row]:
        """Return the rows without an incarnation's STOP and its confirms above a position."""
        kept = []
        for row in rows:
            if (row.member, row.incarnation) == (member, incarnation):
                if row.kind == RecordKind.STOP:
                    continue
                if row.kind == SEGMENT:
                    ends = ends_of(row)
                    for one in ends.epochs.values():
                        one.confirmed = min(one.confirmed, last)
                    row = row._replace(text=in_json(ends))
            kept.append(row)
        return kept

    def test_an_orderly_stop_leaves_no_confirm_unsure(self, rows: list[Row]) -> None:
        found = self.found(rows)
        assert found is not None
        assert found.keys() == {("c", 1)}  # it was killed, and is only in the first primary

    def test_the_last_confirms_may_be_unrecorded(self, rows: list[Row]) -> None:
        """The mark does not tell: replies may be sent before the log records them."""
        found = self.found(self.cut(rows, "c", 1, 5))
        assert found == {("c", 1): 5}

    def test_confirms_are_unsure_in_all_epochs_a_crashed_member_was_in(
        self, rows: list[Row]
    ) -> None:
        """And in an epoch whose members no log names; two incarnations of one member may be in
        that."""
        rows = [one for one in self.cut(rows, "b", 1, 5) if not self.begins(one, 2)]
        found = self.found(self.cut(rows, "c", 1, 7))
        assert found is not None
        assert found == {("c", 1): 7, ("c", 2): 7, ("b", 1): 5, ("b", 2): 5, ("b", 3): 5}

    @staticmethod
    def begins(row: Row, epoch: int) -> bool:
        return row.kind == RecordKind.ACTIVE and row.epoch == epoch

    @pytest.mark.parametrize(("of", "excused"), [("a", False), ("c", True)])
    def test_a_crash_excuses_no_confirm_of_a_command_another_member_submitted(
        self, of: str, excused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Simulated seed 8900003: a confirm that nobody recorded was accepted, as a member that had
        crashed at any time might have given it."""
        monkeypatch.setattr("os.fsync", lambda _: None)
        maker = good_history(6)
        for incarnation, records in maker.logs.items():
            maker.logs[incarnation] = [r for r in records if not isinstance(r, ConfirmRecord)]
        maker.write(tmp_path / "untold")
        files = sorted((tmp_path / "untold").rglob("*.qml"))
        rows = rows_in(files)
        told = told_history(rows, primaries(rows), files, absent=False)
        assert told.extent.confirms
        log = tmp_path / "untold" / "a"
        read = [EvidenceFile(str(path), False, unsure=told.unsure) for path in log.glob("*.qml")]
        parts = [
            part["confirms"] for one in read for part in read_evidence(one) if "confirms" in part
        ]
        confirmed = {position for part in parts for position in part["position"].to_pylist()}
        published = {
            record.first_position + at
            for record in maker.logs["a", 1]
            if isinstance(record, Batch) and (record.origin, record.epoch) == (of, 1)
            for at in range(record.commands)
        }
        assert published
        assert confirmed >= published if excused else not confirmed & published

    def test_an_incomplete_log_gives_no_verdict(self, rows: list[Row]) -> None:
        assert self.found([row for row in rows if (row.member, row.segment) != ("a", 0)]) is None
        assert self.found([*rows, rows[0]._replace(kind=FAULT)]) is None
        assert unsure_confirms(rows, primaries(rows), {rows[0].file}) is None

    def test_nor_do_logs_that_lack_a_former_incarnation(self, rows: list[Row]) -> None:
        """Its confirms are in no log: the check accused its clients of each of them (G9)."""
        assert ("c", 2) in {(row.member, row.incarnation) for row in rows}
        left = [row for row in rows if (row.member, row.incarnation) != ("c", 1)]
        assert self.found(left) is None


class TestSince:
    """Clients are judged by everything the logs at hand tell, including positions settled by an
    earlier check."""

    @pytest.fixture
    def point(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("os.fsync", lambda _: None)
        good_history(6).write(tmp_path / "logs", segment_bytes=1500)
        killed = max((tmp_path / "logs" / "c").glob("c.1.*"))
        killed.write_bytes(killed.read_bytes()[:-1])
        checkpoint.save(tmp_path / "point", self.rows(self.logs(tmp_path)))
        return tmp_path / "point"

    @staticmethod
    def logs(tmp_path: Path) -> list[Path]:
        return sorted((tmp_path / "logs").rglob("*.qml"))

    @staticmethod
    def rows(files: list[Path]) -> list[Row]:
        return [row for row in rows_in(files) if row.kind in CONTROL_KINDS]

    def told(self, files: list[Path], saved: list[Row]) -> tuple[list[Stretch], list[object]]:
        left, rows = checkpoint.unread(files, saved)
        assert left
        assert len(left) < len(files)
        rows += self.rows(left)
        told = told_history(rows, primaries(rows), files)
        return told.stretches, list(told.extent)

    def test_the_history_is_the_same_from_a_saved_point(self, point: Path) -> None:
        files = self.logs(point.parent)
        rows = self.rows(files)
        whole = told_history(rows, primaries(rows), files)
        found = self.told(files, checkpoint.load(point))
        assert found == (whole.stretches, list(whole.extent))
        assert len({one.file for one in found[0]}) > 3

    def test_the_history_is_the_same_where_logs_were_moved(self, point: Path) -> None:
        saved = checkpoint.load(point)
        (point.parent / "elsewhere").mkdir()
        (point.parent / "logs").rename(point.parent / "elsewhere" / "logs")
        files = self.logs(point.parent / "elsewhere")
        stretches, (begin, _, whole, *_) = self.told(files, saved)
        assert (begin, whole) == (True, True)
        assert {one.file for one in stretches} <= set(map(str, files))

    def test_archived_segments_are_missing_and_not_the_end(self, point: Path) -> None:
        """Only the log of a killed member is left: nothing records the end."""
        files = self.logs(point.parent)
        left, saved = checkpoint.unread(files, checkpoint.load(point))
        rows = saved + self.rows(left)
        stretches, extent, _ = told_history(rows, primaries(rows), left)
        assert stretches
        assert not extent.complete


@pytest.mark.parametrize(
    ("cold", "stops", "lost"),
    [(True, (), True), (True, ("a",), True), (True, ("a", "b"), False), (False, (), False)],
)
def test_deliveries_before_a_cold_start_may_be_in_no_log(
    cold: bool, stops: tuple[str, ...], lost: bool
) -> None:
    """Broker seed 8900299: a message is sent when it is safe, and the power fails before any disk
    or log has it. A member that carries a state over has everything that was safe."""
    first = PrimaryView(1, 1, "a", 0, b"", ("a/1", "b/1"), ("a", "b"), True)
    second = first._replace(epoch=2, base=9, base_chain=b"x", members=("a/2", "b/2"), cold=cold)
    rows = [row(member, 1, RecordKind.STOP) for member in stops]
    assert told_history(rows, {1: first, 2: second}, []).extent.lost_ends is lost
    assert not told_history(rows, {1: first}, []).extent.lost_ends
