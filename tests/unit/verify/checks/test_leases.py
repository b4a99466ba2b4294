"""Leaders of a shared store, by their logs (G38): a true history is consistent, each lie is
named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("duckdb")

from broker.machine.commands import PUBLISH
from broker.memberlog.records import Batch, ConfirmRecord, Durable, Lease, Record
from broker.replication.chain import History
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import IncarnationId, LogMaker
from tools.verify.checks.control_checks import check_control_rows
from tools.verify.findings import Finding
from tools.verify.job import verify

FIRST, SECOND, THIRD = ("a", 10), ("a", 20), ("a", 30)
LEASE_US = 800


class StoreMaker(LogMaker):
    """Writes the logs of a store that brokers led one after another; all logs are in one
    directory."""

    def __init__(self) -> None:
        super().__init__(("a",))
        self.now_us = 1_000
        self.begins: dict[IncarnationId, int] = {}

    def lead(self, who: IncarnationId, token: int, source: int, *, says: bool = True) -> None:
        """Start with the present history, under this token, with a session of its own."""
        self.first_session = self.history.position * 256 + 1
        self.submitted.clear()
        self.begins[who] = self.history.position
        self.start(who, self.history)
        self.now_us += 1_000
        if says:
            self.logs[who].append(self.lease("taken", who, token, source, LEASE_US))
        self.view(self.ring[0] + 1, who)
        self.activate(who)

    def lease(self, what: str, who: IncarnationId, token: int, source: int, for_us: int) -> Lease:
        """The lease record that a leader writes now."""
        owner = f"owner-{who[1]}"
        return Lease(what, token, owner, source, "boot/1", self.now_us, self.now_us + for_us)

    def replace(self, who: IncarnationId, of: type[Record], to: Callable[[Record], Record]) -> None:
        """Change the records of one kind."""
        self.logs[who] = [to(one) if isinstance(one, of) else one for one in self.logs[who]]

    def change(self, who: IncarnationId, **fields: object) -> None:
        """Change the record of the leader's takeover."""
        self.replace(who, Lease, lambda one: one._replace(**fields))  # type: ignore[arg-type]


def orderly() -> StoreMaker:
    """One leader is killed, one is stopped while it works and finds itself overtaken, and one ends
    in order.

    The second one continues for a moment: it applies positions there, and stores them on its own
    disk, but tells nobody; the third one gives these positions to other commands."""
    maker = StoreMaker()
    maker.lead(FIRST, 1, 0)
    maker.traffic(3, FIRST)
    maker.lead(SECOND, 2, 1)
    maker.traffic(2, SECOND)
    copied = maker.history
    maker.item("a", bytes([PUBLISH, PUBLISH]), SECOND)
    maker.logs[SECOND].append(Durable(maker.history.position))
    orphaned = maker.history
    maker.history = copied
    maker.lead(THIRD, 4, 2)
    maker.logs[SECOND].append(maker.lease("lost", SECOND, 2, 1, -500))
    maker.history, third = orphaned, maker.history
    maker.stop(SECOND)
    maker.history = third
    maker.traffic(2, THIRD)
    maker.logs[THIRD].append(maker.lease("given up", THIRD, 4, 2, 0))
    maker.stop(THIRD)
    return maker


def found(maker: LogMaker, directory: Path, segment_bytes: int = 1 << 30) -> list[Finding]:
    """Return the findings about G38 of the check of control records."""
    maker.write(directory, segment_bytes)
    findings = check_control_rows(rows_in(sorted(directory.rglob("*.qml")))).findings
    assert [one for one in findings if one.property == "LOG"] == []
    return [one for one in findings if one.property == "G38"]


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.slow
def test_the_whole_check_finds_a_true_history_consistent(tmp_path: Path) -> None:
    """It reports the number of leaders; for logs without any, that there is nothing to check."""
    maker = orderly()
    maker.write(tmp_path / "leaders")
    report = verify(None, [tmp_path / "leaders"])
    assert report.findings == []
    assert report.held["G38"] == "3 tokens that leaders took"
    silent(maker).write(tmp_path / "silent")
    report = verify(None, [tmp_path / "silent"])
    assert report.findings == []
    (never,) = [line for line in report.verdict() if line.startswith("nothing to see of")]
    assert "G38" in never


@pytest.mark.slow
def test_a_leader_paused_at_its_start_shares_an_epoch_with_its_successor(
    tmp_path: Path,
) -> None:
    """It held its token and paused before its first command was on the disk that was copied: it
    activated the epoch that its successor activated too. The check called that a second primary,
    with three more findings."""
    maker = StoreMaker()
    maker.lead(FIRST, 1, 0)
    maker.traffic(3, FIRST)
    copied, ring = maker.history, maker.ring
    maker.lead(SECOND, 2, 1)
    maker.item("a", bytes([PUBLISH]), SECOND)
    maker.history, maker.epoch, maker.ring = copied, maker.epoch - 1, ring
    maker.lead(THIRD, 3, 2)
    maker.logs[SECOND].append(maker.lease("lost", SECOND, 2, 1, -500))
    maker.traffic(2, THIRD)
    maker.write(tmp_path / "well")
    report = verify(None, [tmp_path / "well"])
    assert report.findings == []
    assert report.held["G38"] == "2 tokens that leaders took"
    assert [note for note in report.notes if "incarnation 20" in note and "token 3" in note]
    maker.logs[SECOND].insert(-1, ConfirmRecord(2, copied.position + 2, (copied.position + 2,)))
    maker.write(tmp_path / "ill")
    promises = {one.property for one in verify(None, [tmp_path / "ill"]).findings}
    assert {"G7", "G38"} <= promises, "its successor must account for what it confirmed"


def silent(maker: StoreMaker) -> StoreMaker:
    """Logs as an older release, or a broker with a store of its own, would write them."""
    for who, records in maker.logs.items():
        maker.logs[who] = [one for one in records if not isinstance(one, Lease)]
    return maker


@pytest.mark.parametrize("segment_bytes", [1 << 30, 700])
def test_a_true_history_has_no_findings(tmp_path: Path, segment_bytes: int) -> None:
    assert found(orderly(), tmp_path / "leaders", segment_bytes) == []
    assert found(silent(orderly()), tmp_path / "silent", segment_bytes) == []


def test_an_orderly_end_lets_the_next_leader_begin_before_the_lease_expires(
    tmp_path: Path,
) -> None:
    maker = orderly()
    maker.lead(("a", 40), 5, 4)
    taken = next(one for one in maker.logs[THIRD] if isinstance(one, Lease))
    at = maker.logs[THIRD].index(taken)
    maker.logs[THIRD][at] = taken._replace(until_us=maker.now_us + 7)
    assert found(maker, tmp_path / "given up") == []
    given_up = next(one for one in maker.logs[THIRD] if getattr(one, "what", "") == "given up")
    maker.logs[THIRD].remove(given_up)
    (overlap,) = found(maker, tmp_path / "killed")
    assert "took token 5 7 us before the lease of token 4" in overlap.what


def test_leaders_of_a_release_without_lease_records_are_not_accused(tmp_path: Path) -> None:
    maker = orderly()
    maker.logs[FIRST] = [one for one in maker.logs[FIRST] if not isinstance(one, Lease)]
    assert found(maker, tmp_path) == []


def goes_on_in_its_log(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """It knows that its token was taken, and confirms."""
    base = maker.begins[THIRD]
    at = next(i for i, one in enumerate(maker.logs[SECOND]) if one == maker.logs[SECOND][-2])
    maker.logs[SECOND].insert(at + 1, ConfirmRecord(2, base, (base - 1,)))
    return SECOND, base - 1, "goes on after its token of the shared store was lost"


def applies_in_its_log(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """It knows that its token was taken, and still applies what is ordered."""
    records = maker.logs[SECOND]
    last = max(i for i, one in enumerate(records) if isinstance(one, Batch))
    records.insert(last, records.pop(-2))
    return SECOND, maker.begins[THIRD] + 1, "goes on after its token of the shared store was lost"


def goes_on_unknowing(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """It confirms what it applied after the next leader had begun, and never learned of that
    leader."""
    last = maker.begins[THIRD] + 2
    maker.logs[SECOND] = maker.logs[SECOND][:-2]
    maker.logs[SECOND].append(ConfirmRecord(2, last, (last - 1, last)))
    return SECOND, last, "confirmed under token 2, but incarnation 30 of a began with token 4"


def one_token_twice(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    maker.change(THIRD, token=2, source=1)
    return THIRD, maker.begins[THIRD], "took token 2 (owner-30), which incarnation 20 of a took"


def a_token_falls_back(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """The third leader has the commands of the second, and claims to have been before it."""
    maker.change(SECOND, token=3)
    maker.change(THIRD, token=2, source=1)
    return THIRD, maker.begins[THIRD], "took token 2 with this state, and token 3 was taken at"


def a_store_of_a_later_token(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    maker.change(THIRD, source=5)
    return THIRD, maker.begins[THIRD], "took token 4 and the store of token 5, which is none before"


def lost_at_the_takeover(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """The last leader began with the state that the second had found, without what the second
    confirmed."""
    rewound = StoreMaker()
    rewound.lead(FIRST, 1, 0)
    rewound.traffic(3, FIRST)
    before = rewound.history
    rewound.lead(SECOND, 2, 1)
    rewound.traffic(2, SECOND)
    last = rewound.history.position
    rewound.history = before
    rewound.lead(THIRD, 4, 1)
    maker.logs, maker.begins = rewound.logs, rewound.begins
    return SECOND, last, f"and what was there at position {before.position}"


def no_token(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    maker.logs[THIRD] = [one for one in maker.logs[THIRD] if not isinstance(one, Lease)]
    return THIRD, maker.begins[THIRD], "its log does not say first by which token"


def a_token_too_late(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """It is in a view before it records its token."""
    records = maker.logs[SECOND]
    records.insert(4, records.pop(1))
    return SECOND, maker.begins[SECOND], "its log does not say first by which token"


def two_tokens(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    maker.logs[THIRD].insert(2, maker.lease("taken", THIRD, 5, 2, LEASE_US))
    return THIRD, maker.begins[THIRD], "took token 4 (owner-30), and says of token 5 (owner-30)"


def the_end_of_another_token(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    at = next(
        i for i, one in enumerate(maker.logs[THIRD]) if getattr(one, "what", "") == "given up"
    )
    one = maker.logs[THIRD][at]
    assert isinstance(one, Lease)
    maker.logs[THIRD][at] = one._replace(token=3)
    return THIRD, maker.history.position, "took token 4 (owner-30), and says of token 3 (owner-30)"


def two_at_one_time(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    """By one clock, the lease of the second leader had not expired when the third began."""
    maker.replace(SECOND, Lease, lambda one: one._replace(until_us=maker.now_us + 7))  # type: ignore[call-arg]
    return THIRD, maker.begins[THIRD], "took token 4 7 us before the lease of token 2"


def keeps_what_it_gave_up(maker: StoreMaker) -> tuple[IncarnationId, int, str]:
    maker.logs[THIRD][-2] = maker.lease("given up", THIRD, 4, 2, 9)
    return THIRD, maker.history.position, "gave up token 4, and keeps it for 9 us"


LIES: Sequence[Callable[[StoreMaker], tuple[IncarnationId, int, str]]] = [
    goes_on_in_its_log, applies_in_its_log, goes_on_unknowing, one_token_twice, a_token_falls_back,
    a_store_of_a_later_token, lost_at_the_takeover, no_token, a_token_too_late, two_tokens,
    the_end_of_another_token, two_at_one_time, keeps_what_it_gave_up,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_each_lie_is_found_at_its_place(
    lie: Callable[[StoreMaker], tuple[IncarnationId, int, str]], tmp_path: Path
) -> None:
    maker = orderly()
    (member, incarnation), position, says = lie(maker)
    findings = found(maker, tmp_path)
    assert [
        one for one in findings
        if one[:4] == ("G38", member, incarnation, position) and says in one.what
    ], findings  # fmt: skip
    assert {one.member for one in findings} == {"a"}


def test_a_leader_that_goes_on_in_a_later_segment_is_found(tmp_path: Path) -> None:
    maker = orderly()
    lost = maker.logs[SECOND].pop(-2)
    at = next(i for i, one in enumerate(maker.logs[SECOND]) if isinstance(one, ConfirmRecord))
    maker.logs[SECOND].insert(at, lost)
    assert [one for one in found(maker, tmp_path, 300) if "goes on in" in one.what]


def test_clocks_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    maker = orderly()
    two_at_one_time(maker)
    maker.change(THIRD, clock="boot/2")
    assert found(maker, tmp_path / "two") == []
    for who in (SECOND, THIRD):
        maker.change(who, clock="")
    assert found(maker, tmp_path / "unknown") == []


def test_the_first_leader_begins_with_an_empty_history() -> None:
    assert orderly().begins[FIRST] == History().position == 0
