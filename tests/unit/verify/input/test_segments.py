"""Which segments are read, and how tasks share them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.client_history import ClientHistory
from tests.system.verify.support.checks_without_spark import rows_in
from tools.verify.checks.views_and_segments import check_input
from tools.verify.findings import BadInput
from tools.verify.format.files import ends_of
from tools.verify.input import segments
from tools.verify.input.segments import (
    count_rows,
    dropped_before,
    find_segments,
    is_few,
)

GOLDEN = Path(__file__).parents[1] / "format" / "golden"


def sized(directory: Path, *sizes: int) -> list[Path]:
    """Make files of these sizes, without writing their contents."""
    paths = []
    for number, size in enumerate(sizes):
        path = directory / f"a.1.{number:06d}.qml"
        with path.open("wb") as file:
            file.truncate(size)
        paths.append(path)
    return paths


def test_directories_files_and_globs_give_each_file_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "memberlog").mkdir(parents=True)
        sized(tmp_path / name / "memberlog", 1, 1)
    (tmp_path / "two" / "other.txt").write_text("x")
    everything = sorted(tmp_path.rglob("*.qml"))
    assert find_segments([tmp_path]) == everything
    assert find_segments([tmp_path / "*" / "memberlog"]) == everything
    assert find_segments([tmp_path / "one" / "memberlog" / "*.000001.qml"]) == [everything[1]]
    assert find_segments([tmp_path, tmp_path / "one", everything[0]]) == everything


@pytest.mark.parametrize("place", ["no", "no*", "empty"])
def test_a_place_without_logs_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"does not exist|there is no member log"):
        find_segments([tmp_path / place])


def test_rows_are_counted_by_closing_records_even_if_compressed() -> None:
    plain = GOLDEN / "member.qml"
    end = ends_of(plain).end
    assert end is not None
    rows = end.moves + end.commands + plain.stat().st_size // 32
    assert count_rows([plain]) == count_rows([GOLDEN / "member.qml.gz"]) == rows > 0


def test_rows_of_open_segments_are_estimated_by_size(tmp_path: Path) -> None:
    data = (GOLDEN / "member.qml").read_bytes()
    (path,) = sized(tmp_path, 0)
    path.write_bytes(data[:-1])
    assert count_rows([path]) == (len(data) - 1) // 8
    path.write_bytes(bytes(800))  # not a log
    assert count_rows([path]) == 100
    assert count_rows([tmp_path / "away.1.000000.qml"]) == 0


def test_rows_of_clients_are_their_operations(tmp_path: Path) -> None:
    client = ClientHistory(tmp_path, "spout-1@host", 1, lambda: 1)
    session = client.session("q")
    for number in range(1000):
        session.published(number, b"body")
    client.close()
    assert 1000 <= count_rows(find_segments([tmp_path])) < 1100


def test_the_number_of_rows_decides_who_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of any size may have few moves, and a compressed one many."""
    plain, packed = GOLDEN / "member.qml", GOLDEN / "member.qml.gz"
    monkeypatch.setattr(segments, "FEW_ROWS", count_rows([plain]) + 1)
    assert is_few([plain])
    assert is_few([packed])
    assert not is_few([plain, packed])


def test_segments_dropped_by_members_are_reported(tmp_path: Path) -> None:
    sized(tmp_path, 1, 1)
    assert dropped_before(find_segments([tmp_path])).notes == []
    note = tmp_path / "dropped"
    note.write_text('{"a_5672.1": [4, 2], "a_5672.2": [0, 0]}')
    first, second = dropped_before(find_segments([tmp_path])).notes
    assert first.startswith("a_5672 (incarnation 1): segments up to 4 were dropped")
    assert "2 of them never verified" in first
    assert "all of them verified" in second
    note.write_text("[1]")
    (what,) = dropped_before(find_segments([tmp_path])).notes
    assert "does not say what was dropped" in what


def test_directories_behind_links_are_searched_once(tmp_path: Path) -> None:
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (path,) = sized(tmp_path / "disk" / "deep", 1)
    place = tmp_path / "place"
    place.mkdir()
    (place / "b").symlink_to(tmp_path / "disk")
    (place / "again").symlink_to(tmp_path / "disk" / "deep")
    (tmp_path / "disk" / "deep" / "round").symlink_to(place)
    assert find_segments([place]) == [path]


def test_a_path_that_cannot_be_a_segment_is_named(tmp_path: Path) -> None:
    """Reading a FIFO would wait, and a dangling link would be left out silently."""
    for name in ("fifo", "link", "folder", "nonsense"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo" / "a.1.000000.qml")
    with pytest.raises(BadInput, match=r"fifo/a\.1\.000000\.qml is no ordinary file"):
        find_segments([tmp_path / "fifo"])
    (tmp_path / "link" / "a.1.000000.qml").symlink_to("nowhere")
    with pytest.raises(BadInput, match=r"a\.1\.000000\.qml is a link to nowhere"):
        find_segments([tmp_path / "link"])
    (tmp_path / "folder" / "a.1.000000.qml").mkdir()
    with pytest.raises(BadInput, match="there is no member log"):
        find_segments([tmp_path / "folder"])
    odd = os.fsencode(tmp_path / "nonsense") + b"/\xff.1.000000.qml"
    with open(odd, "wb") as file:
        file.write(b"x")
    with pytest.raises(BadInput, match=r"the name of .*\\xff\.1\.000000\.qml is not UTF-8"):
        find_segments([tmp_path / "nonsense"])


def test_a_compressed_file_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.1.000000.qml.gz").write_bytes(gzip.compress(b"noise"))
    rows = rows_in(find_segments([tmp_path]))
    with pytest.raises(BadInput, match=r"a\.1\.000000\.qml\.gz"):
        check_input(rows)


def test_an_unreadable_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the logs of a member would be left out silently."""
    (tmp_path / "one").mkdir()
    sized(tmp_path / "one", 1)
    (tmp_path / "closed").mkdir()
    there = os.scandir

    def scandir(place: str) -> Iterator[os.DirEntry[str]]:
        if Path(place).name == "closed":
            raise PermissionError(13, "Permission denied", place)
        return there(place)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BadInput, match=r"closed: Permission denied"):
        find_segments([tmp_path])
