"""Generated corruptions of member logs: each field and each record of one log is changed.

A finding must name the member or the place.  Corruptions that the check cannot find are in UNSEEN
or PARTLY with the reason; the test fails if one is found after all, so that the list, which
docs/reference/memberlog-blind-spots.md repeats, stays true.  A new field or kind of record is
corrupted automatically; the test fails until the check finds that or the list has the reason.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from broker.memberlog.records import Checkpoint, Client, Lease, Queues, Readers, Record
from tests.system.verify.corruption.corrupt_fields import (
    CorruptibleLogs,
    FieldCorruption,
    kind_name,
)
from tests.system.verify.support.make_logs import good_history
from tests.system.verify.support.spark_session import shared_session
from tools.verify.findings import BadInput, Finding
from tools.verify.job import verify

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

SEED = 20_261_121
SAMPLE = 8  # corruptions checked with Spark in the everyday run
SLOW_SAMPLE = 24  # in the slow one; a check takes seconds, so all only on request
ALL = "ALL_LIES" in os.environ
SEGMENT_BYTES = 1800  # a and b write two segments, the incarnations of c one each
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "memberlog-blind-spots.md"

CLOCK = "a clock may show anything; it draws the pictures of the report and proves nothing"
LABEL = "text for people; no promise is about it"
LESS = "a smaller claim is not contradicted by other logs"
AGAIN = "a repetition contradicts nothing"
ORDER = "neither of the two depends on the other, so either order may be true"
BLOB = "in a segment that is neither a source nor replayed"
LOWER = "below the highest mark of its primary"
LATER = "where a later one of the same primary covers more"
EPOCH = "only draws the line between superseded histories; chain and root are compared"
CRASHED = "in the last segment of an incarnation that did not stop in order"

ELSEWHERE = (Queues, Readers, Checkpoint, Client, Lease)
"""Corrupted in tests/unit/verify/contract/test_corrupted_moves.py (each field of a move), in
test_clients.py, and in tests/unit/verify/checks/test_leases.py: here no store is shared."""

# By key: never seen.
UNSEEN: dict[str, str] = {
    "Header.wall_us +1": CLOCK,
    "Batch.time_us +1": CLOCK,
    "Start.state_epoch +1": EPOCH,
    "Snapshot.state_epoch +1": EPOCH,
    "Snapshot.donor changed": LABEL,
    "Stop.reason changed": LABEL,
    "Inactive.reason changed": LABEL,
    "Confirm.positions without its first": LESS,
    "Confirm.positions without its last": LESS,
    "Confirm dropped": LESS,
    "Vote dropped": LESS,
    "Stop dropped": LESS,
    "Inactive dropped": LESS,
    "Decided dropped": "the others log that the same batches were decided",
    "Decided.epoch +1": "only lets older epochs pass; which primary followed is in ACTIVE",
    "Durable duplicated": AGAIN,
    "Vote duplicated": AGAIN,
    "Inactive duplicated": AGAIN,
    "Decided duplicated": AGAIN,
    "Snapshot duplicated": AGAIN,
    "Durable after Confirm": ORDER,
    "Durable after Batch": ORDER,
    "Durable after Vote": ORDER,
    "Confirm after Batch": ORDER,
    "Confirm after ViewSeen": ORDER,
    "Confirm after Vote": ORDER,
    "Vote after Batch": ORDER,
    "Batch after ViewSeen": ORDER,
    "ViewSeen after Inactive": ORDER,
    "Inactive after ViewSeen": ORDER,
    "Inactive after Decided": ORDER,
    "Decided after Batch": ORDER,
    "Active after Snapshot": ORDER,
}

# By key: seen at some places only, and why not at others.
PARTLY: dict[str, str] = {
    "Batch.session +1": BLOB,
    "Batch.blob_no +1": BLOB,
    "Start.position +1": "between two batches there is no state to compare with",
    "Start.root +1": "at position 0, where there is no state yet",
    "Confirm.durable_mark +1": LOWER,
    "Durable dropped": LATER,
    "Durable after ViewSeen": "where no mark of its primary depends on it",
    "End dropped": CRASHED,
    "Active.base_chain flipped": "at position 0, which means that the member received its state",
    "Active after Batch": "after DECIDED, as at a member that catches up within the primary",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> CorruptibleLogs:
    """Logs of a short correct history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # the disk is not the subject
        return CorruptibleLogs(good_history(3), tmp_path_factory.mktemp("stage"), SEGMENT_BYTES)


@pytest.fixture(scope="module")
def unproven(logs: CorruptibleLogs) -> dict[str, list[FieldCorruption]]:
    """By key, the corruptions that only Spark could find; earlier findings must name the member or
    the place.
    """
    assert logs.uncorrupted() == []
    left: dict[str, list[FieldCorruption]] = defaultdict(list)
    caught: set[str] = set()
    for corruption in logs.corruptions():
        found = logs.without_spark(corruption)
        if found == []:
            left[corruption.key].append(corruption)
            continue
        assert found is None or corruption.is_named(found), f"{corruption}: {found}"
        caught.add(corruption.key)
    assert not caught & UNSEEN.keys(), "the check sees these after all: take them off the list"
    return left


def seen(logs: CorruptibleLogs, corruption: FieldCorruption) -> bool:
    """Whether the full check finds a corruption; the finding must name it."""
    try:
        found: list[Finding] = verify(shared_session(), logs.write(corruption)).findings
    except BadInput:
        return True
    assert not found or corruption.is_named(found), f"{corruption}: {found}"
    return bool(found)


def unexpected(logs: CorruptibleLogs, corruptions: list[FieldCorruption]) -> Iterator[str]:
    """Yield the contradictions to the lists."""
    for corruption in corruptions:
        if corruption.key in UNSEEN and seen(logs, corruption):
            yield f"{corruption} is seen after all: take it off the list"
        elif (
            corruption.key not in UNSEEN
            and corruption.key not in PARTLY
            and not seen(logs, corruption)
        ):
            yield f"{corruption} is not seen"


def test_every_field_of_every_kind_is_corrupted(logs: CorruptibleLogs) -> None:
    kinds = set(get_args(Record)) - set(ELSEWHERE)
    fields = {f"{kind_name(kind)}.{field}" for kind in kinds for field in kind._fields}
    keys = {corruption.key for corruption in logs.corruptions()}
    assert fields - {key.split(" ")[0] for key in keys} == set()
    assert (UNSEEN.keys() | PARTLY.keys()) - keys == set(), "no such corruption any more"
    assert UNSEEN.keys() & PARTLY.keys() == set()


def test_the_list_is_the_documents(logs: CorruptibleLogs) -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert [key for key in (*UNSEEN, *PARTLY) if f"`{key}`" not in text] == []


def test_a_sample_of_corruptions(
    logs: CorruptibleLogs, unproven: dict[str, list[FieldCorruption]]
) -> None:
    chance = random.Random(SEED)
    keys = chance.sample(sorted(unproven.keys() - PARTLY.keys()), SAMPLE)
    assert list(unexpected(logs, [chance.choice(unproven[key]) for key in keys])) == []


@pytest.mark.slow
def test_each_kind_of_corruption(
    logs: CorruptibleLogs, unproven: dict[str, list[FieldCorruption]]
) -> None:
    chance = random.Random(SEED)
    keys = sorted(unproven)
    if not ALL:
        keys = chance.sample(keys, SLOW_SAMPLE)
    assert list(unexpected(logs, [chance.choice(unproven[key]) for key in keys])) == []


@pytest.mark.slow
def test_partly_seen_corruptions_are_not_always_seen(
    logs: CorruptibleLogs, unproven: dict[str, list[FieldCorruption]]
) -> None:
    keys = sorted(PARTLY) if ALL else random.Random(SEED).sample(sorted(PARTLY), 4)
    always = [
        key
        for key in keys
        if all(seen(logs, corruption) for corruption in unproven.get(key, [])[::-1][:4])
    ]
    assert always == [], "the check sees these everywhere: take them off the list"
