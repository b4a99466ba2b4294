"""The demo's check of its stream: it must notice every way in which a stream can be wrong."""

from __future__ import annotations

import hashlib
import json
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tools.demo.__main__ import Demo, DemoFailed, main
from tools.demo.local_cluster import BrokerProcess, LocalCluster
from tools.demo.stream import Arrivals, Mixed, write_input


def arrival(sequence: int, text: str = "x", *, redelivered: bool = False) -> str:
    """One line as `drain --format json` writes it."""
    message = {"body": f"{sequence} {text}", "message_id": str(sequence)}
    return json.dumps({**message, "redelivered": redelivered}) + "\n"


def test_input_is_numbered_and_digested(tmp_path: Path) -> None:
    path = tmp_path / "in"
    digest = write_input(path, 5000)
    data = path.read_bytes()
    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert [int(line.split(b" ", 1)[0]) for line in lines] == list(range(1, 5001))
    assert hashlib.sha256(data).hexdigest() == digest


def test_repeats_are_counted_by_their_flag_and_do_not_change_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(
        arrival(1) + arrival(2) + arrival(1, redelivered=True) + arrival(2) + arrival(3)
    )
    seen = Arrivals(path)
    seen.read()
    assert (seen.count, seen.different) == (5, 3)
    assert (seen.flagged_repeats, seen.unflagged_repeats) == (1, 1)
    assert seen.first_digest.hexdigest() == hashlib.sha256(b"1 x\n2 x\n3 x\n").hexdigest()


def test_order_matters(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(arrival(2) + arrival(1))
    seen = Arrivals(path)
    seen.read()
    assert seen.first_digest.hexdigest() != hashlib.sha256(b"1 x\n2 x\n").hexdigest()


def test_a_body_under_a_wrong_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(arrival(1).replace('"message_id": "1"', '"message_id": "9"'))
    with pytest.raises(Mixed, match="message 9 arrived with the body of another"):
        Arrivals(path).read()


def test_a_file_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    seen = Arrivals(path)
    seen.read()
    whole = arrival(1) + arrival(2)
    for end in (10, len(whole) - 5, len(whole)):
        path.write_text(whole[:end])
        seen.read()
    assert seen.different == 2


def test_bytes_that_are_not_text_survive(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(arrival(1, b"caf\xe9".decode("utf-8", "surrogateescape")))
    seen = Arrivals(path)
    seen.read()
    assert seen.first_digest.hexdigest() == hashlib.sha256(b"1 caf\xe9\n").hexdigest()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """A demo whose clock is moved by the events it waits for, and by its pauses."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr("tools.demo.__main__.time", clock)
    return Demo(tmp_path, 20_000)


def test_a_slow_machine_is_waited_for_while_it_makes_progress(
    run: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour in which something changes every minute."""
    texts = [f"broker-2 is at position {minute}" for minute in range(60) for _ in range(60)]
    said = iter([*texts, ""])
    run.wait(lambda: next(said))
    out = capsys.readouterr().out
    assert "waiting: broker-2 is at position 0" in out
    assert "waiting: broker-2 is at position 59" in out


@pytest.mark.parametrize("texts", [("it says JOINING",), ("it says JOINING", "it says INQUORATE")])
def test_a_demo_without_progress_is_given_up(run: Demo, texts: tuple[str, ...]) -> None:
    said = cycle(texts)
    with pytest.raises(DemoFailed, match="for 90 s nothing went on: it says"):
        run.wait(lambda: next(said))


def test_a_ring_that_reforms_counts_as_progress(run: Demo, tmp_path: Path) -> None:
    """No message arrives meanwhile: on a busy machine that took longer than the limit."""
    path, turns = tmp_path / "out", iter(range(200))
    path.write_text(arrival(1))

    def late(members: object = None) -> tuple[str, str] | None:
        turn = next(turns)
        if turn == 199:
            path.write_text(arrival(1) + arrival(2))
        return "broker-3", f"it says JOINING, at position {turn}"

    run.cluster = cast("LocalCluster", SimpleNamespace(late=late, members=[]))
    run.until(Arrivals(path), 2)
    run.cluster = cast("LocalCluster", SimpleNamespace(late=lambda _: None, members=[]))
    with pytest.raises(DemoFailed, match="nothing went on: so far 2 have arrived, 3 are waited"):
        run.until(Arrivals(path), 3)


def test_a_picture_of_the_cluster_waits_for_its_view(
    run: Demo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A view may change between the wait for a member and the query for the picture."""
    answers = iter(["", "  Cluster Size: 2", "  Cluster Size: 3"])

    def tool(*_: str) -> str:
        if answer := next(answers):
            return answer
        raise DemoFailed("qpid-cluster ended with code 1: JOINING: the view is changing")

    monkeypatch.setattr(run, "tool", tool)
    monkeypatch.setattr(run, "where", lambda: "")
    member = cast("BrokerProcess", SimpleNamespace(address="a:1", alive=True))
    run.show(member, 3)
    assert "ok: 3 members" in capsys.readouterr().out


def test_a_folder_of_somebody_else_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An `input.txt` is in many folders."""
    monkeypatch.setattr(Demo, "run", lambda _: None)
    for name in ("input.txt", "spout.json", "kept.jsonl", "broker-1.log"):
        (tmp_path / name).write_text("x")
    (tmp_path / "thesis.txt").write_text("x")
    for code, left in ((64, ["broker-1.log", "input.txt", "kept.jsonl", "spout.json"]), (0, [])):
        with pytest.raises(SystemExit) as ended:
            main(["--data", str(tmp_path)])
        assert ended.value.code == code
        (tmp_path / "thesis.txt").unlink(missing_ok=True)
        assert sorted(one.name for one in tmp_path.iterdir()) == left
    assert "holds something else than an earlier demo: thesis.txt" in capsys.readouterr().err
