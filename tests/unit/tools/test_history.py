"""spout and drain with --history: the history records what happened to them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from broker.memberlog.reader import read_segment
from broker.memberlog.records import CLIENT_ROW, REDELIVERED, Client, ClientOp, Header
from tests.support.toy_broker import ToyCluster
from tests.unit.tools.test_spout_drain import lines, run


def operations(directory: Path) -> list[tuple[int, int, int, int]]:
    """Return (session, what, body, number) of everything that a command recorded."""
    found: list[tuple[int, int, int, int]] = []
    for path in sorted(directory.iterdir()):
        for entry in read_segment(path.read_bytes(), path.name):
            record = entry.record
            if isinstance(record, Header):  # the reason the broker gave
                assert (record.cluster_name, record.cluster_id) == ("toys", "c0ffee")
            if isinstance(record, Client):
                assert record.queue == "q"
                found += [(record.session, *row) for row in CLIENT_ROW.iter_unpack(record.ops)]
    return found


def test_spout_survives_the_loss_of_a_broker(tmp_path: Path) -> None:
    with ToyCluster(2) as toy:
        toy.kill_at = 123
        arguments = ("-b", toy.brokers, "-q", "q", "--window", "50", "--history", str(tmp_path))
        code, _, err = run("spout", *arguments, typed=lines(400))
        assert code == 0, err
    done = operations(tmp_path)
    counts = Counter(what for _, what, _, _ in done)
    assert counts[ClientOp.CONFIRMED] == 400
    assert counts[ClientOp.LOST] == 1
    again = counts[ClientOp.PUBLISHED] - 400
    assert 1 <= again <= 50  # at most one window is sent again
    assert {session for session, _, _, _ in done} == {1, 2}
    numbers = [number for session, what, _, number in done if (session, what) == (2, 1)]
    assert numbers == list(range(1, len(numbers) + 1))
    bodies = {xxh3_64_intdigest(body) for body in lines(400).splitlines()}
    assert {body for _, what, body, _ in done if what == ClientOp.CONFIRMED} == bodies


def test_spout_is_refused_or_finds_no_queue(tmp_path: Path) -> None:
    with ToyCluster() as toy:
        toy.nack = {2}
        arguments = ("-b", toy.brokers, "-q", "q", "--window", "1", "--history", str(tmp_path))
        code, _, err = run("spout", *arguments, typed=b"a\nb\nc\n")
        assert code == 1, err
    done = [(what, number) for _, what, _, number in operations(tmp_path)]
    assert done == [(1, 1), (2, 1), (1, 2), (3, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize("acks", [True, False])
def test_drain(tmp_path: Path, acks: bool) -> None:
    with ToyCluster() as toy:
        assert run("spout", "-b", toy.brokers, "-q", "q", typed=b"a\nb\n")[0] == 0
        toy.queues["q"][0].redelivered = True  # type: ignore[misc]
        arguments = ["-q", "q", "--count", "2", "--history", str(tmp_path)]
        arguments += [] if acks else ["--no-ack"]
        code, out, err = run("drain", "-b", toy.brokers, *arguments)
        assert (code, out) == (0, b"a\nb\n"), err
    a, b = (xxh3_64_intdigest(body) for body in (b"a", b"b"))
    received = [(1, ClientOp.RECEIVED | REDELIVERED, a, 1), (1, int(ClientOp.RECEIVED), b, 2)]
    acked = [(1, int(ClientOp.ACKED), a, 1), (1, int(ClientOp.ACKED), b, 2)] if acks else []
    assert sorted(operations(tmp_path)) == sorted(received + acked)


@pytest.mark.parametrize("tool", ["spout", "drain"])
def test_an_unwritable_directory(tmp_path: Path, tool: str) -> None:
    (tmp_path / "file").write_text("")
    with ToyCluster() as toy:
        arguments = ("-b", toy.brokers, "-q", "q", "--history", str(tmp_path / "file"))
        code, _, err = run(tool, *arguments, typed=b"a\n")
    assert code == 73
    assert "history: " in err
    assert len(err.splitlines()) == 1
