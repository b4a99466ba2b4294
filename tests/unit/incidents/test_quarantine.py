"""A command that kills its member is not executed again, and no member diverges (G16).

Decision: docs/decisions/0007-quarantine-and-culprits.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.durability.recovery import checkpoint_of, recover
from broker.durability.startup import Unusable, resume
from broker.incidents import incidents
from broker.incidents.incidents import KEPT_MAX, Incidents
from broker.incidents.quarantine import KIND, ORDERED, RECOVERY, TRANSFER, Quarantine, declare
from broker.machine import commands as c
from broker.machine.handlers.poison import content_of
from broker.machine.image.restore import SnapshotError
from broker.replication.replica import ExecutionFailed, Withheld
from store import schema
from store.api import Marker
from store.errors import StoreCorrupt
from store.lmdb_store import LmdbStore
from tests.properties.models.memory_shelf import pager
from tests.support.replaced_message import replace_message
from tests.support.stores.memory import MemoryDisk, MemoryStore
from tests.support.stores.poisoned import (
    META,
    POISON,
    VOTERS,
    Author,
    flip_on_disk,
    publish,
    raising,
)
from tools.commands.qpid_cluster_store import qpid_cluster_store as store_tool
from vsync.primary.events import StateReport
from vsync.primary.state_exchange import PlanVerdict, make_plan
from vsync.types import Member


def failure_of(author: Author, *commands: c.Command) -> ExecutionFailed:
    with raising(), pytest.raises(ExecutionFailed) as caught:
        author.submit(*commands)
    return caught.value


def test_a_failure_names_its_command_and_place_and_keeps_the_history_before() -> None:
    author = Author()
    before = author.replica.history
    failure = failure_of(author, publish(1, b"good"), publish(2, POISON))
    assert failure.position == before.position + 2
    assert (failure.index, failure.kind) == (1, c.PUBLISH)
    assert failure.command == publish(2, POISON)
    assert author.replica.history == before
    assert author.replica.broken
    commit = author.replica.cut()
    assert commit is not None
    assert commit.last == before.position


def test_evidence_is_kept_and_read_back(tmp_path: Path) -> None:
    """G16: the record is durable before the member stops, and names command and position."""
    failure = failure_of(Author(), publish(1, POISON))
    sentence = Quarantine(Incidents(tmp_path), "1.0").add(failure, ORDERED, "a")
    assert "Publish of a at position 5" in sentence
    assert "RuntimeError: tripped" in sentence
    assert str(tmp_path) in sentence
    again = Quarantine(Incidents(tmp_path), "1.0")
    assert again.withheld() == {failure.order: ()}
    assert again.beyond() == 5
    content = content_of(publish(7, POISON))
    assert [report.content for report in again.reports()] == [content]
    path, facts = Incidents(tmp_path).all(KIND)[0]
    assert "trip" in str(facts["traceback"])
    assert (path / "item.msgpack").read_bytes()


def test_another_release_tries_again(tmp_path: Path) -> None:
    failure = failure_of(Author(), publish(1, POISON))
    Quarantine(Incidents(tmp_path), "1.0").add(failure, ORDERED, "a")
    other = Quarantine(Incidents(tmp_path), "1.1")
    assert (other.withheld(), other.reports(), other.beyond()) == ({}, [], 0)


def test_evidence_is_on_the_disk_before_the_member_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file, then the names of all directories down to it."""
    synced: list[tuple[Path, bytes]] = []
    monkeypatch.setattr(
        incidents, "sync_file", lambda path: synced.append((path, path.read_bytes()))
    )
    monkeypatch.setattr(incidents, "sync_directory", lambda path: synced.append((path, b"")))
    kept = Incidents(tmp_path).keep(KIND, {"number": 1}, {"item": b"bytes"})
    facts = kept / incidents.FACTS_NAME
    assert synced == [
        (kept / "item", b"bytes"), (facts, facts.read_bytes()),
        (kept, b""), (kept.parent, b""), (tmp_path, b""),
    ]  # fmt: skip
    assert synced[1][1]


def test_evidence_is_bounded_and_a_broken_disk_does_not_prevent_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evidence = Incidents(tmp_path)
    for number in range(KEPT_MAX + 3):
        evidence.keep("scrub", {"number": number})
    evidence.keep(KIND, {"number": -1})
    assert [facts["number"] for _, facts in evidence.all("scrub")] == list(range(3, KEPT_MAX + 3))
    assert len(evidence.all(KIND)) == 1
    (tmp_path / "evidence" / "9999-scrub").write_text("in the way")
    evidence.keep("scrub", {"number": 99})
    assert '"number": 99' not in caplog.text
    (tmp_path / "file").write_text("")
    Incidents(tmp_path / "file").keep(KIND, {"number": 77})
    assert '"number": 77' in caplog.text


def filled_store(path: Path, *bodies: bytes) -> LmdbStore:
    store = LmdbStore(path / "store", META)
    author = Author()
    for number, body in enumerate(bodies, 1):
        author.submit(publish(number, body))
    author.keep(store)
    return store


def test_a_store_whose_command_fails_has_no_vote_and_is_not_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G16, G8: others may rely on what this member has durable, so it never goes on from before the
    command; nor does it claim to be empty, as a first start could then forget everything."""
    store = filled_store(tmp_path, b"good", POISON, b"more")
    with raising() as wire:
        its = pager()
        replica, filled = resume(store, Quarantine(Incidents(tmp_path), "1.0"), its)
        assert wire.tried == 1
        assert not filled
        assert replica.machine.pager is its, "a state from another member uses it too"
        assert replica.history.position == store.meta.position == 7
        assert "at position 6 failed here" in caplog.text
        assert "has no vote until another member" in caplog.text
        replica, filled = resume(store, Quarantine(Incidents(tmp_path), "1.0"))
        assert wire.tried == 1
        assert not filled
        assert "not executed again" in caplog.text
    replica, filled = resume(store, Quarantine(Incidents(tmp_path), "1.1"))
    assert filled
    assert replica.machine.queue_rows()[0].ready == 3


def test_a_sole_voter_reports_the_remedy(tmp_path: Path) -> None:
    store = filled_store(tmp_path, POISON)
    store.put_meta(replace(store.meta, voters=("a",)))
    with raising(), pytest.raises(Unusable, match="--skip-quarantined"):
        resume(store, Quarantine(Incidents(tmp_path), "1.0"))


def test_an_inconsistent_store_is_not_executed_at_all(tmp_path: Path) -> None:
    """G10: a store with wrong outcomes never executes, and its member could not come back."""
    store = filled_store(tmp_path, b"good")
    wrong = replace(store.meta, chain=b"w" * 16, marker=Marker.INCONSISTENT, note="out-voted")
    store.put_meta(wrong)
    replica, filled = resume(store, Quarantine(Incidents(tmp_path), "1.0"))
    assert not filled
    assert replica.history.position == store.meta.position


def test_a_command_nobody_can_execute_is_skipped_alike_by_all(
    tmp_path: Path,
) -> None:
    """G16, G14: outcome 541, no change, the same chain and root everywhere, and no way back."""
    points = set()
    for member in "ab":
        data = tmp_path / member
        data.mkdir()
        store = filled_store(data, b"good", POISON, b"more")
        before = store.meta
        with raising() as wire:
            resume(store, Quarantine(Incidents(data), "1.0"))
            store.close()
            result = CliRunner().invoke(store_tool, ["--skip-quarantined", str(data)])
            assert result.exit_code == 0
            assert "Publish at position 6 will be skipped" in result.output
            store = LmdbStore(data / "store")
            assert "declared Publish at position 6 skipped" in store.meta.note
            assert store.meta.incarnation == before.incarnation + 1
            replica, filled = resume(store, Quarantine(Incidents(data), "1.0"))
            assert wire.tried == 1
            assert filled
            assert replica.machine.queue_rows()[0].ready == 2
            replica.machine.invariants()
            assert store.meta.position == before.position
            assert store.meta.chain == replica.history.chain != before.chain
            # A member that copies this store never meets the command.
            assert recover("c", store).machine.root() == replica.machine.root()
            assert wire.tried == 1
        points.add((str(replica.history), replica.machine.root()))
        store.close()
    assert len(points) == 1


def test_two_commands_of_one_blob_are_skipped_one_by_one(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", META)
    author = Author()
    author.submit(publish(1, POISON), publish(2, b"good"), publish(3, POISON + b" too"))
    author.keep(store)
    with raising() as wire:
        for tried in (1, 2):
            assert not resume(store, Quarantine(Incidents(tmp_path), "1.0")).filled
            assert wire.tried == tried
            assert len(declare(Incidents(tmp_path), skip=True)) == 1
        replica, filled = resume(store, Quarantine(Incidents(tmp_path), "1.0"))
    assert filled
    assert replica.machine.queue_rows()[0].ready == 1
    assert wire.tried == 2


def test_no_view_is_skipped_and_no_command_outside_the_store(tmp_path: Path) -> None:
    """The members would differ, or the declaration would wait for a later command."""
    evidence = Incidents(tmp_path)
    failure = failure_of(Author(), publish(1, POISON))
    quarantine = Quarantine(evidence, "1.0")
    for during in (RECOVERY, RECOVERY, ORDERED):
        quarantine.add(failure, during, "a")
    path, facts = evidence.all(KIND)[0]
    evidence.amend(path, {**facts, "of_kind": c.ACTIVATE})
    declared = declare(evidence, skip=True)
    assert [one.path for one in declared] == [evidence.all(KIND)[1][0]]


def test_of_several_failures_of_one_item_the_last_counts(tmp_path: Path) -> None:
    failure = failure_of(Author(), publish(1, POISON))
    quarantine = Quarantine(Incidents(tmp_path), "1.0")
    quarantine.add(failure, TRANSFER, "a")
    quarantine.add(failure, ORDERED, "a")
    found = quarantine.of(failure.order)
    assert found is not None
    assert found.during == ORDERED
    assert quarantine.of(b"another") is None


def test_garbage_in_the_evidence_is_skipped(tmp_path: Path) -> None:
    evidence = Incidents(tmp_path)
    evidence.keep(KIND, {"position": "seven"})
    failure = failure_of(Author(), publish(1, POISON))
    Quarantine(evidence, "1.0").add(failure, ORDERED, "a")
    path, facts = evidence.all(KIND)[1]
    evidence.amend(path, {**facts, "order": "no hex"})
    (evidence.all(KIND)[0][0] / "facts.json").write_text("{")
    assert not Quarantine(evidence, "1.0").records
    assert path.joinpath("item.msgpack").stat().st_mode & 0o007 == 0


def test_an_operator_may_order_one_more_try(tmp_path: Path) -> None:
    store = filled_store(tmp_path, POISON)
    with raising():
        resume(store, Quarantine(Incidents(tmp_path), "1.0"))
    store.close()
    assert (
        "quarantine:  Publish at position 5"
        in CliRunner().invoke(store_tool, [str(tmp_path)]).output
    )
    assert CliRunner().invoke(store_tool, ["--retry-quarantined", str(tmp_path)]).exit_code == 0
    store = LmdbStore(tmp_path / "store")
    _, filled = resume(store, Quarantine(Incidents(tmp_path), "1.0"))
    assert filled
    store.close()
    refused = CliRunner().invoke(store_tool, ["--retry-quarantined", str(tmp_path / "store")])
    assert refused.exit_code == 0  # a command may be declared again
    nothing = CliRunner().invoke(store_tool, ["-c", "--skip-quarantined", str(tmp_path)])
    assert nothing.exit_code == 2


@pytest.mark.parametrize("rotten", [schema.CHUNK_PREFIX, schema.LOG_PREFIX, b"memory"])
def test_a_damaged_store_has_no_vote_where_others_have_the_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rotten: bytes
) -> None:
    """G10: corruption on disk, and corruption in memory that a checkpoint made durable."""
    store = LmdbStore(tmp_path / "store", META)
    author = Author()
    author.submit(publish(1, b"one"))
    author.keep(store)
    if rotten == b"memory":
        queue = author.replica.machine.vhosts["/"].queues["q"]
        replace_message(queue.ready, 0, (*queue.ready.first[:8], b"0ne"))
    position = author.replica.history.position
    store.write_checkpoint(position, checkpoint_of(author.replica), store.meta)
    author.submit(publish(2, b"two"))
    author.keep(store)
    if rotten != b"memory":
        flip_on_disk(store, rotten)
    quarantine = Quarantine(Incidents(tmp_path), "1.0")
    replica, filled = resume(store, quarantine)
    assert not filled
    assert replica.history.position == store.meta.position
    assert "this member's store is damaged" in caplog.text
    store.put_meta(replace(store.meta, voters=("a",)))
    with pytest.raises((StoreCorrupt, SnapshotError)):
        resume(store, quarantine)
    store.close()


def test_a_received_copy_is_requested_beyond_the_command(tmp_path: Path) -> None:
    """G16: the effect of a quarantined command arrives without its execution."""
    author = Author("d")
    store = MemoryStore(MemoryDisk(), META)
    author.submit(publish(1, POISON))
    author.keep(store)
    joiner = Quarantine(Incidents(tmp_path), "1.0")
    with raising() as wire:
        with pytest.raises(ExecutionFailed) as caught:
            recover("a", store, withheld=joiner.withheld())
        joiner.add(caught.value, TRANSFER, "a")
        with pytest.raises(Withheld):
            recover("a", store, withheld=joiner.withheld())
        assert wire.tried == 1
        assert joiner.beyond() == 5
        chunks = checkpoint_of(author.replica)
        store.write_checkpoint(author.replica.history.position, chunks, store.meta)
        replica = recover("a", store, withheld=joiner.withheld())
        assert replica.machine.root() == author.replica.machine.root()
        assert wire.tried == 1


def test_a_reordered_quarantined_command_is_not_executed(tmp_path: Path) -> None:
    """G16: a surviving member may hold it undecided, and give it to the members it killed."""
    store = filled_store(tmp_path, b"good")
    quarantine = Quarantine(Incidents(tmp_path), "1.0")
    author, other = Author(), Author()
    for one in (author, other):
        one.submit(publish(1, b"good"))
    quarantine.add(failure_of(other, publish(2, POISON)), ORDERED, "a")
    replica, filled = resume(store, quarantine)
    assert filled
    with raising() as wire, pytest.raises(Withheld):
        replica.apply(author.item(publish(2, POISON)))
    assert wire.tried == 0
    replica.apply(author.item(publish(2, b"another")))
    assert replica.machine.queue_rows()[0].ready == 2


def test_a_quarantined_command_found_in_the_store_stops_that_store_too(
    tmp_path: Path,
) -> None:
    """It failed as it was ordered, and a later transfer put it into the own store."""
    store = filled_store(tmp_path, POISON)
    failure = failure_of(Author(), publish(1, POISON))
    quarantine = Quarantine(Incidents(tmp_path), "1.0")
    quarantine.add(failure, ORDERED, "a")
    assert not resume(store, quarantine).filled
    assert Quarantine(Incidents(tmp_path), "1.0").records[0].during == RECOVERY


def test_a_store_without_a_vote_is_not_an_empty_one() -> None:
    """G8: members whose stores may not be used had formed a new, empty cluster in their place."""
    a, b = Member("a", 1, "a:1"), Member("b", 1, "b:1")
    barred = StateReport(
        False, False, False, False, "ab" * 16, "new", VOTERS, 2, 7, 3, 100, b"c" * 16, b"o" * 16, ""
    )
    empty = StateReport(
        False, False, False, False, "", "new", (), 2, 0, 0, 0, bytes(16), bytes(16), ""
    )
    plan = make_plan((a, b), {a: barred, b: empty})
    assert plan.verdict is PlanVerdict.WAIT
    assert "the store of a has no vote" in plan.reason
    assert make_plan((a, b), {a: empty, b: empty}).verdict is PlanVerdict.FORM
