"""The check counts votes by itself (G7, G9), not by the arithmetic that it checks."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from broker.memberlog.records import Active
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import good_history
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import BadInput
from tools.verify.input.voters import read_voters
from vsync.quorum import voter_set

TERMS = [
    ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"), ("a=3", "b", "c"), ("a", "b=2"),
    ("a", "b", "@arbitrator=w"), ("a", "b", "c=2", "@arbitrator=w=2"), ("a", "b", "@two_node"),
    ("a", "b", "c", "@expected_votes=5"), ("a", "b", "c", "d", "@auto_tie_breaker=lowest"),
    ("a", "b", "@auto_tie_breaker=highest"), ("a", "b", "c", "d", "@auto_tie_breaker=c+b"),
    ("a", "b", "c", "@away=b"), ("a", "b", "c", "d", "@last_man_standing=9", "@away=a", "@away=d"),
    ("a", "b", "c", "d", "@auto_tie_breaker=a+d", "@away=a", "@wait_for_all"),
    ("a", "b", "c", "->", "b", "c", "d"), ("a", "->", "a", "b", "@arbitrator=w"), (),
]  # fmt: skip


@pytest.mark.parametrize("terms", TERMS, ids=" ".join)
def test_both_arithmetics_agree(terms: tuple[str, ...]) -> None:
    ours, theirs = read_voters(terms), voter_set.parse(terms)
    assert ours.names == set(theirs.names)
    assert ours.data_names == set(theirs.data_names)
    assert ours.arbitrators == theirs.arbitrators
    everybody = "abcdwx"
    for present in chain.from_iterable(combinations(everybody, n) for n in range(7)):
        assert ours.is_majority(present) == theirs.quorate(present), present


def test_a_primary_of_half_is_found_even_where_the_broker_counts_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: two of four, by a broker whose majority is one vote too low."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(voter_set, "majority", lambda votes: (votes + 1) // 2)
    assert voter_set.parse(("a", "b", "c", "d")).quorate(("a", "b"))
    maker = good_history(3)
    for records in maker.logs.values():
        for at, record in enumerate(records):
            if isinstance(record, Active):
                records[at] = record._replace(voters=("a", "b", "c", "d"))
    maker.write(tmp_path, 1 << 20)
    found = check_control_rows(rows_in(sorted(tmp_path.rglob("*.qml")))).findings
    assert {one.property for one in found} == {"G7", "G9"}
    assert [one.what for one in found if one.property == "G7"] == [
        "the primary of epoch 2 has no majority of its voters: 2 of 4 votes, without c, d"
    ]


def test_a_term_that_cannot_be_counted_gives_no_verdict() -> None:
    with pytest.raises(BadInput, match="'@coin=2', which this release cannot count"):
        read_voters(("a", "@coin=2"))
    with pytest.raises(BadInput, match="'a=x', which has no number of votes"):
        read_voters(("a=x",))
