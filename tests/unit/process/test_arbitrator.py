"""An arbitrator's record, and what its presence means for a first start (G8)."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest

from broker.admin.operations import STOP_DATAGRAM
from broker.exit_codes import Exit
from broker.process import arbitrator, arbitrator_record, server
from broker.process.arbitrator_record import FILE_NAME, ArbiterRecord, RecordFile
from store.errors import MEND, StoreBusy, StoreError, StoreUnreadable
from vsync.quorum.counting import Voter, contradiction, count_votes, voters_of_first_start
from vsync.quorum.voter_set import Terms
from vsync.totem.events import Direct, View
from vsync.types import Member, RingId

A, B, X = (Member(name, 1, f"{name}:1") for name in "abx")
PAIR: Terms = ("a", "b", "@arbitrator=x")
ASKED: Terms = ("@arbitrator=x",)


def data(epoch: int = 0, requested: Terms = ASKED, *, voters: Terms = PAIR) -> Voter:
    return Voter(False, epoch, epoch * 10, voters, (), requested, waits=True)


def record(epoch: int, *holders: str) -> Voter:
    return Voter(True, epoch, 0, PAIR, holders, ASKED, waits=True)


def test_the_record_survives_the_process_and_its_incarnations_rise(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "x", "shop", "x:1")
    written = replace(file.record, epoch=7, holders=("a", "b"), voters=PAIR, cluster_id="c")
    file.write(written)
    with pytest.raises(StoreBusy):
        RecordFile(tmp_path / "x", "shop", "x:1")
    file.close()
    again = RecordFile(tmp_path / "x", "shop", "x:1")
    assert again.record.incarnation > written.incarnation
    assert replace(again.record, incarnation=written.incarnation) == written
    assert json.loads((tmp_path / "x" / FILE_NAME).read_text())["holders"] == ["a", "b"]
    again.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", "cannot be read"), ("[]", "no arbitrator's record"),
        ('{"format": 9}', "another release"), ('{"format": 1}', "no arbitrator's record"),
        ('{"format": 1, "holders": [], "voters": [], "x": 1}', "no arbitrator's record"),
        (
            '{"format": 1, "cluster_name": "shop", "member": "x:1", "holders": [], "voters": [],'
            ' "epoch": -1}', "a number that cannot be",
        ),
        (
            '{"format": 1, "cluster_name": "shop", "member": "y:1", "holders": [], "voters": []}',
            "is of member y:1, this arbitrator was started for x:1",
        ),
        (
            '{"format": 1, "cluster_name": "old", "member": "x:1", "holders": [], "voters": []}',
            "is of cluster old",
        ),
    ],
)  # fmt: skip
def test_an_invalid_record_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """Forgetting a record could let a stale member form a view: never start over silently."""
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(StoreUnreadable, match=words):
        RecordFile(tmp_path, "shop", "x:1")
    (tmp_path / FILE_NAME).unlink()
    RecordFile(tmp_path, "shop", "x:1").close()


def test_a_members_directory_is_not_an_arbitrators(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreUnreadable, match="of its own"):
        RecordFile(tmp_path, "shop", "x:1")


def test_a_record_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "shop", "x:1")
    (tmp_path / "arbitrator.new").mkdir()
    with pytest.raises(StoreError, match="arbitrator"):
        file.write(ArbiterRecord("shop", "x:1", epoch=9))
    assert file.record.epoch == 0
    file.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, Exit.FULL),
        (errno.EDQUOT, Exit.FULL),
        (errno.EROFS, Exit.IO_ERROR),
        (errno.EIO, Exit.IO_ERROR),
    ],
)
@pytest.mark.parametrize("where", ["mkdir", "open", "replace_file", "read_text"])
def test_a_disk_that_does_not_take_the_record_is_not_a_wrong_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int, code: Exit
) -> None:
    """With 65 the sample unit would not start it again, though the disk may have space by then."""
    RecordFile(tmp_path, "shop", "x:1").close()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    place = {"open": os, "replace_file": arbitrator_record}.get(where, Path)
    with monkeypatch.context() as patch:
        patch.setattr(place, where, refuse)
        with pytest.raises(server._Refused) as refused, server._opening():
            RecordFile(tmp_path, "shop", "x:1")
    assert refused.value.code is code
    assert str(tmp_path) in refused.value.reason
    assert ("free space there" if code is Exit.FULL else MEND) in refused.value.reason
    RecordFile(tmp_path, "shop", "x:1").close()  # as soon as the disk takes it


def test_only_a_member_of_its_view_stops_an_arbitrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hung in a shutdown of all stopped the arbitrator that had begun again since."""
    ring = Mock(me=X, node=Mock(members=(X,)))  # where A's order to stop is followed by its leave
    monkeypatch.setattr(arbitrator, "RingEndpoint", lambda *_: ring)
    monkeypatch.setattr(arbitrator, "Arbiter", Mock())
    loop = Mock(create_future=Mock(return_value=Mock(done=lambda: False)))
    one = arbitrator.Arbitrator(Mock(), RecordFile(tmp_path, "shop", "x"), Mock(), loop)
    one._on_output(View(RingId(1, "a", 1), (A, X), (A, X), ()))
    one._on_output(Direct(B, STOP_DATAGRAM))
    assert not ring.leave.called
    one._on_output(Direct(A, STOP_DATAGRAM))
    assert ring.leave.called


def test_an_arbitrator_without_a_record_has_no_vote() -> None:
    """G8: its disk may have been lost with the record of a later epoch."""
    assert not count_votes({A: data(3)}).quorate
    assert count_votes({A: data(3), X: record(3, "a")}).quorate
    assert count_votes({A: data(3), B: data(2)}).quorate


def test_a_stale_member_is_told_whom_the_arbitrator_waits_for() -> None:
    """G8."""
    count = count_votes({B: data(2), X: record(3, "a")})
    assert not count.quorate
    assert count.text.endswith("the arbitrator x votes only beside a or a later state")


def test_the_voters_are_those_of_the_largest_epoch_and_position() -> None:
    """G7: a change that only some members have on disk."""
    newer: Terms = (*PAIR, "->", "a", "c", "@arbitrator=x")
    count = count_votes({A: data(3, voters=newer), B: data(2)})
    assert count.voters == newer
    assert not count.quorate


def test_a_first_start_waits_for_its_arbitrator_and_counts_data_members() -> None:
    empty = data(voters=())
    assert (
        voters_of_first_start({A: empty, X: record(0)}, 2)[1]
        == "1 of 2 members for the first start are here"
    )
    assert "the arbitrator x is missing" in voters_of_first_start({A: empty, B: empty}, 2)[1]
    assert voters_of_first_start({A: empty, B: empty, X: record(0)}, 2)[0] == PAIR


def test_a_member_in_another_role_is_told_both_roles() -> None:
    assert "as an arbitrator, for the cluster it is a member with data" in contradiction(
        "a", record(0), PAIR
    )
    assert "as a member with data, for the cluster it is an arbitrator" in contradiction(
        "x", data(), PAIR
    )
    assert not contradiction("y", record(0), PAIR)  # it may replace the other one


def test_a_directory_that_may_not_be_entered_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(server._Refused, match="Permission denied") as refused, server._opening():
        RecordFile(tmp_path, "shop", "x:1")
    assert str(tmp_path) in refused.value.reason
    assert refused.value.code is Exit.CANNOT_CREATE
