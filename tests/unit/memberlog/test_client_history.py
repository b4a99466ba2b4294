"""What a client records about itself, read back from the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from broker.memberlog import client_history as module
from broker.memberlog.client_history import ClientHistory, ClusterName
from broker.memberlog.reader import read_segment
from broker.memberlog.records import CLIENT_ROW, ROLE_CLIENT, Client, ClientOp, Header
from broker.memberlog.writer import LogWriteFailed


def hashed(body: bytes) -> int:
    """Return the digest that stands for a body."""
    return xxh3_64_intdigest(body)


def history(directory: Path) -> ClientHistory:
    """Open the history of incarnation 7 of spout-1@host, with a stopped clock."""
    return ClientHistory(directory, "spout-1@host", 7, lambda: 99)


def recorded(directory: Path) -> list[tuple[int, str, list[tuple[int, int, int]]]]:
    """Return (session, queue, operations) of each record."""
    (path,) = directory.iterdir()
    records = [entry.record for entry in read_segment(path.read_bytes(), path.name)]
    return [
        (record.session, record.queue, list(CLIENT_ROW.iter_unpack(record.ops)))
        for record in records
        if isinstance(record, Client)
    ]


def test_it_is_a_clients_log(tmp_path: Path) -> None:
    log = history(tmp_path)
    log.session("q").published(1, b"a")
    log.close()
    (path,) = tmp_path.iterdir()
    assert path.name == "spout-1@host.7.000000.qml"
    header, record, _ = [entry.record for entry in read_segment(path.read_bytes(), path.name)]
    assert isinstance(header, Header)
    assert (header.member, header.incarnation, header.role) == ("spout-1@host", 7, ROLE_CLIENT)
    assert (header.cluster_name, header.cluster_id) == ("", "")  # the broker did not say
    assert isinstance(record, Client)
    assert record == Client(1, "q", 99, CLIENT_ROW.pack(ClientOp.PUBLISHED, hashed(b"a"), 1))


def test_each_session_and_turn_has_a_record(tmp_path: Path) -> None:
    log = history(tmp_path)
    one, two = log.session("q"), log.session()
    one.published(1, b"a")
    two.published(1, b"b")
    one.confirmed(1)
    log.flush()
    log.flush()
    two.lost()
    log.close()
    assert recorded(tmp_path) == [
        (1, "q", [(1, hashed(b"a"), 1), (2, hashed(b"a"), 1)]),
        (2, "", [(1, hashed(b"b"), 1)]),
        (2, "", [(7, 0, 0)]),
    ]


def test_a_confirm_may_cover_several(tmp_path: Path) -> None:
    log = history(tmp_path)
    session = log.session("q")
    for number in range(1, 6):
        session.published(number, b"%d" % number)
    session.confirmed(3)
    session.confirmed(3)  # again: it was answered already
    session.refused(2, multiple=True)
    session.confirmed(9)  # never sent
    session.confirmed(0, multiple=True)  # 0: all
    log.close()
    (_, _, operations) = recorded(tmp_path)[0]
    assert [(what, number) for what, _, number in operations[5:]] == [
        (ClientOp.CONFIRMED, 3), (ClientOp.REFUSED, 1), (ClientOp.REFUSED, 2),
        (ClientOp.CONFIRMED, 4), (ClientOp.CONFIRMED, 5),
    ]  # fmt: skip


def test_received_and_acked_messages(tmp_path: Path) -> None:
    log = history(tmp_path)
    session = log.session("q")
    session.received(1, b"a", redelivered=False)
    session.received(2, b"b", redelivered=True)
    session.received(3, b"c", redelivered=False, acks=False)
    session.acked(2, multiple=True)
    session.acked(3)  # nobody waits for it
    session.unroutable(b"d")
    log.close()
    (_, _, operations) = recorded(tmp_path)[0]
    assert operations == [
        (5, hashed(b"a"), 1), (0x85, hashed(b"b"), 2), (5, hashed(b"c"), 3),
        (6, hashed(b"a"), 1), (6, hashed(b"b"), 2), (4, hashed(b"d"), 0),
    ]  # fmt: skip


def test_operations_open_when_the_connection_breaks_are_not_settled(tmp_path: Path) -> None:
    log = history(tmp_path)
    session = log.session("q")
    session.published(1, b"a")
    session.received(1, b"b", redelivered=False)
    session.lost()
    session.confirmed(1)
    session.acked(1)
    log.close()
    (_, _, operations) = recorded(tmp_path)[0]
    assert [what for what, _, _ in operations] == [
        ClientOp.PUBLISHED,
        ClientOp.RECEIVED,
        ClientOp.LOST,
    ]


def test_a_long_turn_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPS_BYTES_MAX", 3 * CLIENT_ROW.size)
    log = history(tmp_path)
    session = log.session("q")
    for number in range(1, 8):
        session.published(number, b"x")
    log.close()
    assert [len(operations) for _, _, operations in recorded(tmp_path)] == [3, 3, 1]


def test_the_header_names_the_cluster_of_the_first_connection(tmp_path: Path) -> None:
    log = history(tmp_path)
    log.session("q", ClusterName("prod", "c1")).published(1, b"a")
    log.session("q", ClusterName("prod", "c1")).published(1, b"b")
    log.close()
    (path,) = tmp_path.iterdir()
    header = next(read_segment(path.read_bytes(), path.name)).record
    assert isinstance(header, Header)
    assert (header.cluster_name, header.cluster_id) == ("prod", "c1")


def test_a_client_that_never_connected_leaves_no_file(tmp_path: Path) -> None:
    history(tmp_path / "deep" / "there").close()
    assert list((tmp_path / "deep" / "there").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(LogWriteFailed, match="file"):  # before anything is sent
        history(tmp_path / "file")


def test_an_unwritable_directory_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(LogWriteFailed, match="no file can be made there"):
        history(tmp_path)
