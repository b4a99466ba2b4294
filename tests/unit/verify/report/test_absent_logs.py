"""Members whose logs are missing are named, and the logs of a minority prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")

from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import good_history
from tools.verify.absent_logs import AbsentLogs, find_absent
from tools.verify.input.rows import Row


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.fsync", lambda _: None)
    good_history(2).write(tmp_path, 1 << 20)
    return tmp_path


def absent_without(logs: Path, *members: str) -> AbsentLogs:
    files = [path for path in sorted(logs.rglob("*.qml")) if path.parent.name not in members]
    return find_absent(rows_in(files))


def with_voters(logs: Path, *voters: str) -> list[Row]:
    """Return the rows of a's log, in which all primaries have these voters."""
    return [
        row if row.voters is None else row._replace(voters=list(voters))
        for row in rows_in(sorted((logs / "a").glob("*.qml")))
    ]


def test_with_all_logs_nothing_is_noted(logs: Path) -> None:
    assert absent_without(logs) == AbsentLogs((), ("a", "b", "c"), True)


def test_a_missing_log_is_named(logs: Path) -> None:
    absent = absent_without(logs, "b")
    assert (absent.members, absent.enough) == (("b",), True)
    assert "b is named by the other members, but no log of it is here" in absent.notes()[0]


def test_logs_of_a_minority_cannot_be_compared(logs: Path) -> None:
    absent = absent_without(logs, "a", "c")
    assert (absent.members, absent.enough) == (("a", "c"), False)
    assert absent.reason() == (
        "nothing to compare: of the voters a, b, c the logs of b are here, and those of a majority "
        "are needed; collect DATA-DIR/memberlog of a, c too, also from the disks of dead members"
    )


def test_voters_that_were_in_no_view_count_too(logs: Path) -> None:
    absent = find_absent(with_voters(logs, "a", "b", "c", "x"))
    assert absent.members == ("b", "c", "x")


@pytest.mark.parametrize(
    ("voters", "enough"),
    [
        (("a",), True),
        (("a", "@arbitrator=c"), True),  # it has no log
        (("a", "b", "@arbitrator=c"), False),
        (("a=3", "b", "c"), True),
        (("a", "b", "@two_node"), False),  # what b did alone is unknown
        (("a", "b", "@away=b"), True),
        (("a", "->", "b", "c"), False),
    ],
)
def test_votes_count_and_arbitrators_have_no_log(
    logs: Path, voters: tuple[str, ...], enough: bool
) -> None:
    absent = find_absent(with_voters(logs, *voters))
    assert absent.enough == enough
    assert ("c" in absent.members) == ("@arbitrator=c" not in voters)
