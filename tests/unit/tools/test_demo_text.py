"""The demo's check of its stream: it must notice every way in which a stream can be wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

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


def test_repeats_are_counted_by_their_flag_and_do_not_disturb_the_digest(tmp_path: Path) -> None:
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


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(arrival(1, b"caf\xe9".decode("utf-8", "surrogateescape")))
    seen = Arrivals(path)
    seen.read()
    assert seen.first_digest.hexdigest() == hashlib.sha256(b"1 caf\xe9\n").hexdigest()
