"""The queue contract over logs of real machines, without Spark (G11, G12, G13, G20)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb")

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.move_log import (
    BY_LETTER,
    CLOSED,
    EXPIRED,
    FLAG,
    MOVE,
    REPLACED,
    SENT_ON,
    TAKEN_BACK,
    Op,
)
from broker.machine.requests.properties import with_header
from broker.memberlog.records import (
    Batch,
    Checkpoint,
    Queues,
    Readers,
    Record,
    Snapshot,
)
from tests.support.three_machines import Client
from tests.system.verify.corruption.contract_violations import (
    VIOLATIONS,
    Violation,
    channel_is_overtaken_by_itself,
    cold_start_loses_a_persistent_one,
    delivered_to_two_at_once,
    older_one_is_overtaken,
)
from tests.system.verify.corruption.fresh_lies import BROKEN_BY_LIES
from tests.system.verify.support.make_moves import (
    INCARNATIONS,
    MoveMaker,
    MoveTuple,
    check_records,
    contract_breaches,
    in_one_batch,
)
from tests.system.verify.support.read_back import read_back
from tests.system.verify.support.recorded_history import (
    checkpoint_of,
    plain_history,
    put,
    rewrite_at,
)
from tools.commands.qpid_cluster_verify import qpid_cluster_verify
from tools.verify.checks.canonical_history import Gap, Stretch
from tools.verify.contract import lives
from tools.verify.contract.job import BY_MESSAGE, RULES, ContractResult, limits, tasks_for
from tools.verify.contract.replay import Replay
from tools.verify.contract.segment import SCHEMAS, SegmentParts, check_segment
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.input.rows import SEGMENT, Row
from tools.verify.input.tables import arrow_schema, table_of
from tools.verify.sql.statements import answer


@cache
def _recorded() -> MoveMaker:
    return plain_history()


def history() -> MoveMaker:
    """Return the logs of the history, to be corrupted."""
    twin = _recorded().copy()
    assert isinstance(twin, MoveMaker)
    return twin


def test_a_correct_history_keeps_the_contract() -> None:
    maker = history()
    assert maker.breaches() == []
    result = check_records([maker.logs[INCARNATIONS[0]]])
    assert result.counts["moves"] == result.counts["replayed"] > 70
    assert result.counts["examined"] == result.counts["within"] > 40
    assert result.counts["checkpoints"] == 3
    assert result.counts["compared"] > 8
    assert result.counts["recoveries"] > 1


@pytest.mark.lies
@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda violation: violation.__name__)
def test_each_violation_is_named_where_it_is(violation: Violation) -> None:
    maker = history()
    rule, position = violation(maker)
    found = maker.breaches()
    assert (rule, position) in {(one.rule, one.position) for one in found}, found
    assert {one.rule for one in found} <= RULES.keys()
    assert len({one.rule for one in found}) == len(found)


def test_each_rule_is_broken_by_a_violation() -> None:
    """Rules about reasons, and some others, are broken by a fresh lie instead."""
    broken = {violation(history())[0] for violation in VIOLATIONS}
    assert RULES.keys() - BROKEN_BY_LIES == broken


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_give_no_finding(seed: int) -> None:
    maker = wander(random.Random(seed), 150)
    assert maker.breaches() == []


@pytest.mark.parametrize("seed", range(4))
def test_delayed_messages_give_no_finding(seed: int) -> None:
    """Seed 2 has 15 due messages, and a cold start that keeps some not yet due."""
    maker = wander(random.Random(seed), 200, delayed=True)
    assert maker.breaches() == []


@pytest.mark.parametrize("seed", range(6))
def test_streams_and_last_values_give_no_finding(seed: int) -> None:
    maker = wander(random.Random(seed), 450, others=5)
    assert maker.breaches() == []
    moves = [MOVE.iter_unpack(one.moves) for one in maker.logs[INCARNATIONS[0]]
             if isinstance(one, Batch)]  # fmt: skip
    whats = [row[0] & ~FLAG for rows in moves for row in rows]
    ops = [what & 15 for what in whats]
    assert min(map(ops.count, (Op.READER, Op.READ, Op.READ_END))) > 5
    assert whats.count(REPLACED) > 3


def test_a_reader_that_skips_between_two_segments_is_found() -> None:
    """The checkpoint between them states the reader's offset, and the first segment led to it."""
    maker = MoveMaker()
    maker.rig.activate()
    client = maker.rig.client("a")
    client.queue("log", {"x-queue-type": "stream"})
    client.consume("log", "r", 10, {"x-stream-offset": "first"})
    for number in range(3):
        client.publish("log", b"%d" % number, no=number + 1)
    maker.checkpoint()
    for number in range(3, 6):
        client.publish("log", b"%d" % number, no=number + 1)
    maker.end()
    records = maker.logs[INCARNATIONS[0]]
    at = next(i for i, one in enumerate(records) if isinstance(one, Readers) and one.readers)
    names = next(one for one in records if isinstance(one, Queues))
    first, second = records[:at], [names, *records[at:]]
    assert contract_breaches([first, second]) == []

    def leaves_out(offset: int, log: list[Record]) -> list[Record]:
        """The reader is not sent this message, and its offset is stated as if it had been."""
        changed = []
        for one in log:
            if isinstance(one, Batch):
                rows = list(MOVE.iter_unpack(one.moves))
                kept = [row for row in rows if not (row[0] == Op.READ and row[3] == offset)]
                one = one._replace(moves=b"".join(MOVE.pack(*row) for row in kept))
            changed.append(one)
        return changed

    for offset, log in ((2, [leaves_out(2, first), second]), (3, [first, leaves_out(3, second)])):
        rules = [breach.rule for breach in contract_breaches(log)]
        assert rules[:1] == ["wrong read"], offset

    silent: list[Record] = [one for one in second if not isinstance(one, Readers)]
    rules = [breach.rule for breach in contract_breaches([first, silent])]
    assert rules[:1] == ["wrong read"], "a checkpoint without READERS states that nobody reads"


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_repeats_found_by_queues_give_no_finding(seed: int, delayed: bool) -> None:
    window: c.Table = {"x-message-deduplication": True, "x-cache-size": 4, "x-cache-ttl": 2_000}
    maker = wander(random.Random(seed), 300, delayed, 0, **window)
    assert maker.breaches() == []
    moves = [MOVE.iter_unpack(one.moves) for one in maker.logs[INCARNATIONS[0]]
             if isinstance(one, Batch)]  # fmt: skip
    assert sum(row[0] & 15 == Op.REPEATED for rows in moves for row in rows) > 3


@pytest.mark.parametrize("seed", [1, 6])
def test_kept_dead_letters_give_no_finding(seed: int) -> None:
    """Their exchange is a delaying one that comes and goes and reaches some queues. Of the first
    ten seeds, these send some letters on."""
    waiting: c.Table = {
        "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "late",
    }  # fmt: skip
    maker = wander(random.Random(seed), 500, True, 0, **waiting)
    assert maker.breaches() == []
    moves = [MOVE.iter_unpack(one.moves) for one in maker.logs[INCARNATIONS[0]]
             if isinstance(one, Batch)]  # fmt: skip
    whats = [row[0] & ~FLAG for rows in moves for row in rows]
    assert whats.count(SENT_ON) == whats.count(BY_LETTER) > 0


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("then", ["tick", "publish", "late command", "activate"])
def test_ends_that_continue_at_later_positions_give_no_finding(
    lost: bool, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that exceeds one position continues at the next ones, whatever they order."""
    for module in ("connections", "sessions"):
        monkeypatch.setattr(f"broker.machine.handlers.{module}.ENDING_WORK_MAX", 9)
    maker = MoveMaker()
    rig = maker.rig
    other, holder = rig.client("b"), rig.client("a")
    other.queue("grave")
    grave: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    holder.queue("q", {"x-delivery-limit": 1, **grave})
    for _ in range(12):
        holder.publish("q", b"m")
    for again in (True, False):
        for _ in range(12):
            holder.get("q")
        if again:
            holder.recover()
        elif lost:
            rig.activate("a")
        else:
            holder.close()
    assert rig.machine.ending
    while rig.machine.ending:
        if then == "tick":
            rig.tick("b", 0)
        elif then == "publish":
            other.publish("grave", b"n")
        elif then == "activate":
            rig.activate()
        else:
            rig.apply(other.session, c.ConnectionClose(c.CONNECTION_CLOSE, 99))
    maker.checkpoint()
    assert maker.breaches() == []


def test_a_zero_time_to_live_gives_no_finding() -> None:
    """Broker seed 640062: such a message dies where it enters or returns; the check blamed its
    publish."""
    maker = MoveMaker()
    client = maker.rig.client()
    client.queue("grave")
    grave: c.Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    client.queue("q", {"x-message-ttl": 0, **grave})
    client.publish("q", b"m")
    maker.checkpoint()
    assert maker.breaches() == []


@pytest.mark.parametrize("grouped", [False, True])
def test_what_expired_behind_others_is_dropped_in_a_queue_with_groups_only(grouped: bool) -> None:
    """Elsewhere it was the turn of an older message, which is alive."""
    maker = MoveMaker()
    rig, client = maker.rig, maker.rig.client()
    client.queue("q", {"qpid.group_header_key": "g"} if grouped else {})
    for name in "ab":
        client.publish("q", b"alive", properties=with_header(b"\0\0", "g", "a"))
        client.publish("q", b"dead", properties=with_header(b"\x01\0\x03100", "g", name))
    client.consume("q", prefetch=1)
    rig.pass_time(300_001)
    client.get("q")
    maker.checkpoint()
    assert maker.breaches() == []
    dropped = [
        row[3] for record in maker.logs[INCARNATIONS[0]] if isinstance(record, Batch)
        for row in MOVE.iter_unpack(record.moves) if row[0] == EXPIRED
    ]  # fmt: skip
    if grouped:
        assert [seq >> 1 for seq in dropped] == [1, 3]
    else:
        assert dropped == [1]
        at = maker.edit(lambda row: (*row[:3], 3, *row[4:]) if row[0] == EXPIRED else None)
        assert at in {one.position for one in maker.breaches()}


def test_a_return_without_cause_on_a_live_channel_is_found() -> None:
    """Only channels that ended have returns at the positions of other commands."""
    maker = MoveMaker()
    client = maker.rig.client()
    client.queue("q")
    client.publish("q", b"m")
    client.publish("q", b"n")
    client.get("q")
    client.recover()
    client.get("q")
    at = maker.edit(lambda row: (CLOSED, *row[1:]) if row[0] == TAKEN_BACK else None)
    assert [(one.rule, one.position) for one in maker.breaches()] == [("return without cause", at)]


def test_an_activation_returns_nothing_from_a_live_channel() -> None:
    """The log says that the session of its member has ended: it cannot act any more."""
    maker = MoveMaker()
    client = maker.rig.client("a")
    client.queue("q")
    client.publish("q", b"m")
    client.get("q")
    maker.rig.activate(members=("a", "b"))
    at = maker.machine.position
    client.ack(1)
    assert maker.breaches() == []
    take_and_give_again(maker, at, cause=3)
    assert [(one.rule, one.position) for one in maker.breaches()] == [("return without cause", at)]


def test_the_end_of_a_connection_returns_nothing_from_a_live_channel() -> None:
    """The channel belongs to another connection, and a closed connection never returns."""
    maker = MoveMaker()
    client, other = maker.rig.client("a"), maker.rig.client("a")
    client.queue("q")
    client.publish("q", b"m")
    client.get("q")
    other.close()
    at = maker.machine.position
    client.ack(1)
    assert maker.breaches() == []
    take_and_give_again(maker, at, cause=2)
    assert [(one.rule, one.position) for one in maker.breaches()] == [("return without cause", at)]


def test_a_closed_channel_gives_back_what_it_held_at_once() -> None:
    """In the log it comes back at the next position, as after the end of a large connection."""
    maker = MoveMaker()
    client, other = maker.rig.client("a"), maker.rig.client("a")
    client.queue("q")
    client.publish("q", b"m")
    client.get("q")
    client.close_channel()
    at = maker.machine.position
    other.queue("beside")
    assert maker.breaches() == []
    (back,) = [row for row in _moves_of(maker) if row[0] & 15 == Op.RETURNED]
    rewrite_at(maker, at, lambda rows: [row for row in rows if row != back])
    rewrite_at(maker, at + 1, lambda rows: [put(back, index=at + 1), *rows])
    assert [(one.rule, one.position) for one in maker.breaches()] == [("left behind", at)]
    superseded = check_segment(read_back(maker.logs[INCARNATIONS[0]]), (), [FileRange(1, at - 1)])
    assert not any(map(len, (part["closings"] for part in superseded if "closings" in part)))


@pytest.mark.parametrize("holes", [0, 1])
def test_a_hole_may_hide_what_became_of_a_message_before_its_channel_was_closed(holes: int) -> None:
    moves: list[MoveRow] = [(1, 0, op << 20, op, False, 0, 7, 9, 0) for op in (2, 3)]
    found, *_ = judged(moves, [(1, 0, 0, 8, False, 0, 0, 0)], [(7, holes, 4 << 20)])
    assert ("left behind" in str(found)) == (holes == 0)


@pytest.mark.parametrize("does", ["publishes", "reads", "nacks"])
def test_a_channel_that_goes_on_was_not_closed(does: str) -> None:
    maker = MoveMaker()
    client, other = maker.rig.client("a"), maker.rig.client("a")
    client.queue("q")
    client.queue("log", {"x-queue-type": "stream"})
    for body in (b"m", b"n"):
        client.publish("q", body)
        client.get("q")
    if does == "reads":
        client.consume("log", "r", 10, {"x-stream-offset": "first"})
    other.close()
    at = maker.machine.position
    if does == "nacks":
        client.nack(2)
    else:
        (client if does == "publishes" else maker.rig.client("b")).publish("log", b"m")
    assert maker.breaches() == []
    held = next(row for row in _moves_of(maker) if row[0] & 15 == Op.DELIVERED)
    rewrite_at(maker, at, lambda rows: [*rows, put(held, what=Op.RETURNED | 2 << 4, index=at)])
    assert ("return without cause", at) in {(one.rule, one.position) for one in maker.breaches()}


def take_and_give_again(maker: MoveMaker, at: int, cause: int) -> None:
    """At one position, the first delivery is returned by this cause and delivered again."""
    held = next(row for row in _moves_of(maker) if row[0] & 15 == Op.DELIVERED)
    given, back = FLAG | Op.DELIVERED, Op.RETURNED | cause << 4
    taken = [put(held, what=what, index=at) for what in (back, given)]
    rewrite_at(maker, at, lambda rows: [*rows, *taken])


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_channel_returns_nothing_from_another(fails: bool) -> None:
    """The log says which channel was closed, by its client or for an error."""
    maker = MoveMaker()
    client, other = maker.rig.client("a"), maker.rig.client("a")
    client.queue("q")
    client.publish("q", b"m")
    client.publish("q", b"n")
    client.get("q")
    other.get("q")
    if fails:
        other.get("there is none")
    else:
        other.close_channel()
    at = maker.machine.position
    client.ack(1)
    held = next(row for row in _moves_of(maker) if row[0] & 15 == Op.DELIVERED)
    given, back = FLAG | Op.DELIVERED, Op.RETURNED | 2 << 4
    taken = [put(held, what=what, index=at) for what in (back, given)]
    assert maker.breaches() == []
    rewrite_at(maker, at, lambda rows: [*rows, *taken])
    assert [(one.rule, one.position) for one in maker.breaches()] == [("return without cause", at)]


def test_a_limit_may_change_within_a_batch() -> None:
    """Seed 8740011 of the broker stack: one item drops messages and defines a policy."""
    maker = MoveMaker()
    client = maker.rig.client("a")
    client.queue("q")
    body: c.Table = {"pattern": "q", "apply-to": "queues", "priority": 0}
    several: tuple[c.Table, ...] = {"max-length": 2}, {"max-length": 5, "max-length-bytes": 1}
    for n, definition in enumerate(several):
        maker.rig.define("policy", "/", "p", {**body, "definition": definition})
        for i in range(4):
            client.publish("q", b"%d" % i, no=4 * n + i + 1)
    maker.end()
    records = in_one_batch(maker.logs[INCARNATIONS[0]])
    assert max(one.commands for one in records if isinstance(one, Batch)) > 8
    assert [one for one in contract_breaches([records]) if one.rule != "blob order"] == []


def _moves_of(maker: MoveMaker) -> list[MoveTuple]:
    batches = (one for one in maker.logs[INCARNATIONS[0]] if isinstance(one, Batch))
    return [row for batch in batches for row in MOVE.iter_unpack(batch.moves)]


def breaks_in_lives() -> list[Record]:
    """Return a log with a breach early in it, and one after it in a cold start."""
    maker = history()
    delivered_to_two_at_once(maker)
    cold_start_loses_a_persistent_one(maker)
    return maker.logs[INCARNATIONS[0]]


@pytest.mark.parametrize("commands", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_parts_of_any_length_give_the_same_verdict(
    commands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With parts of one command, no two commands share a part; with parts of 20, some do."""
    records = breaks_in_lives()
    whole = check_records([records])
    assert "delivered held" in {one.rule for one in whole.breaches}
    monkeypatch.setattr("tools.verify.contract.segment._COMMANDS_MAX", commands)
    parted = check_records([records])
    more = parted.counts - whole.counts
    assert more.keys() == {"high_waters"}  # each part has a high water of its own
    assert replace(parted, counts=parted.counts - more) == whole


LIFE = ((2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 5, 3, 4), (2, 3), (3, 4), (2,), (4,), (2, 6))
AFTER = ((), (), (), (2,), (3,), (4,), (5,), (6,), (3, 4))
MoveRow = tuple[int, ...]
"""Queue, place, time, op, flag, cause, channel, content, and holes before it."""


def lives_of(chance: random.Random, part: int) -> list[MoveRow]:
    """Return moves at some places, nearly all correct, in the order of time."""
    rows: list[MoveRow] = []
    for place in range(part * 30, part * 30 + 40):  # the last moves belong to the next part
        queue, ops = chance.randrange(1, 3), chance.choice(LIFE) + chance.choice(AFTER)
        times = sorted(chance.sample(range(part << 30, (part + 1) << 30), len(ops)))
        for time, op in zip(times, ops, strict=True):
            odd = chance.random() < 0.05
            cause, channel = (3 if odd else 0), 8 if chance.random() < 0.05 else 7
            content = place + (chance.random() < 0.05)
            gaps = part if odd else 0
            rows.append((queue, place, time, op, odd, cause, channel, content, gaps))
    return sorted(rows, key=lambda row: row[2])


def judged(
    moves: list[MoveRow], queue_moves: list[MoveRow], closings: Sequence[MoveRow] = (), **other: str
) -> list[list[str]]:
    """Return the findings; `other` replaces the statements of the rules."""
    given = {
        "moves": table_of(moves, SCHEMAS["moves"]),
        "queue_moves": table_of(queue_moves, SCHEMAS["queue_moves"]),
        "high_waters": arrow_schema(SCHEMAS["high_waters"]).empty_table(),
        "closings": table_of(closings, SCHEMAS["closings"]),
    }
    made = answer(BY_MESSAGE | other, given, ["breaches", "survivors", "counts"])
    made["counts"] = made["counts"].group_by("name").aggregate([("n", "sum")])
    return [sorted(map(str, table.to_pylist())) for table in made.values()]


@pytest.mark.parametrize("emptied", [0, 1, 2, 100])
@pytest.mark.parametrize("seed", range(8))
def test_an_ordinary_life_breaks_no_rule(seed: int, emptied: int) -> None:
    """So the tests of single moves find nothing else."""
    moves, queue_moves = moves_of_lives(random.Random(seed))
    declared, emptyings = queue_moves[:2], queue_moves[2:]
    of_queues = declared + random.Random(seed).sample(emptyings, min(emptied, len(emptyings)))
    none = "SELECT queue, seq FROM moves WHERE FALSE"
    found = judged(moves, of_queues)
    assert found == judged(moves, of_queues, ordinary=none)
    found_rules = {rule for rule in lives.RULES if f"'{rule}'" in str(found)}
    assert found_rules > {"ended twice", "delivered ended", "returned unheld", "dropped ended"}


def moves_of_lives(chance: random.Random) -> tuple[list[MoveRow], list[MoveRow]]:
    """Return moves of lives, many of them wrong, and moves of their queues."""
    moves: list[MoveRow] = []
    queue_moves: list[MoveRow] = [(queue, 0, 0, 8, False, 0, 0, 0) for queue in (1, 2)]
    for part in range(1, 25):
        moves += lives_of(chance, part)
        what = chance.choice([(7, 0, 0), (7, 1, 1), (9, 0, 0), (9, 0, part * 30 + 20)])
        queue, (op, cause, first) = chance.randrange(1, 3), what
        time = chance.choice([(part + 1) << 30, chance.randrange(part << 30, (part + 1) << 30)])
        queue_moves.append((queue, first, time, op, False, cause, 9, 0))
    return moves, queue_moves


COLUMNS_OF_ORDER = """
    SELECT nth,
        CASE WHEN ordinal > 0 THEN LAG(position) OVER (ORDER BY nth) ELSE -1 END AS before,
        COALESCE(MAX(CASE WHEN op = 1 AND seq > 0 AND cause <> 3 THEN nth END) OVER (
            ORDER BY nth ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW), -1) AS source
    FROM logged"""
"""Windows over all moves, which are in their order already."""


def test_columns_of_order_agree_with_sql_over_all_moves() -> None:
    parts = list(
        SegmentParts([FileRange(1, 1 << 40)]).of(read_back(history().logs[INCARNATIONS[0]]))
    )
    assert parts
    for part in parts:
        logged = part.tables["logged"]
        stated = answer({"stated": COLUMNS_OF_ORDER}, {"logged": logged}, ["stated"])["stated"]
        assert stated.sort_by("nth").to_pydict() == logged.select(stated.column_names).to_pydict()


@pytest.mark.parametrize("violation", [older_one_is_overtaken, channel_is_overtaken_by_itself])
def test_order_is_compared_across_parts(
    violation: Violation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both moves are before the second checkpoint, which may be the end of the log."""
    maker = history()
    rule, position = violation(maker)
    end, checkpoint = checkpoint_of(maker, 1)
    assert position < checkpoint.position
    monkeypatch.setattr("tools.verify.contract.segment._COMMANDS_MAX", 1)
    found = check_records([maker.logs[INCARNATIONS[0]][: end + 1]])
    assert (rule, position) in {(one.rule, one.position) for one in found.breaches}


def test_several_bins_give_the_same_verdict_as_one() -> None:
    records = breaks_in_lives()
    outcomes = [check_records([records], bins=bins) for bins in (1, 2, 7, 25)]
    assert all(one == outcomes[0] for one in outcomes)
    assert "delivered held" in {one.rule for one in outcomes[0].breaches}


def test_missing_positions_give_no_finding() -> None:
    maker = wander(random.Random(3), 150)
    records = maker.logs[INCARNATIONS[0]]
    half = len(records) // 2
    cut = next(r.first_position for r in records[half:] if isinstance(r, Batch))
    unaware = check_records([records], cut)
    assert unaware.breaches  # when the gap is not known
    assert check_records([records], cut, gaps=[cut - 1]).breaches == []


def test_segments_of_an_incarnation_are_joined() -> None:
    maker = history()
    records = maker.logs[INCARNATIONS[0]]
    cuts = [i for i, record in enumerate(records) if isinstance(record, Checkpoint)][1:]
    named = [record for record in records if isinstance(record, Queues)]
    parts = [
        records[: cuts[0]],
        [*named, *records[cuts[0] : cuts[1]]],
        [*named, *records[cuts[1] :]],
    ]
    assert contract_breaches(parts) == []
    # A message is lost between two segments.
    lost = list(parts[1])
    at, last = next(
        (i, record)
        for i, record in reversed(list(enumerate(lost)))
        if isinstance(record, Batch) and record.moves
    )
    lost[at] = last._replace(moves=b"")
    found = contract_breaches([parts[0], lost, parts[2]])
    assert "wrong state" in {one.rule for one in found}
    # A session goes on in the next segment with the next number but one.
    skipped = [
        r._replace(blob_no=r.blob_no + 1) if isinstance(r, Batch) and r.session else r
        for r in parts[1]
    ]
    found = contract_breaches([parts[0], skipped])
    assert {one.rule for one in found} == {"blob order"}
    assert found[0].position == next(
        r.first_position for r in skipped if isinstance(r, Batch) and r.session
    )


def _connect(maker: MoveMaker, member: str, conn: int) -> Client:
    """Return a client with a new connection."""
    session = maker.machine.sessions[member].session
    opened = c.ConnectionOpen(c.CONNECTION_OPEN, conn, "/", "guest", f"{member}:1")
    maker.rig.apply(session, opened)
    return Client(maker.rig, session, conn, 0).channel(1)


def _delay(one: Client, name: str, step: int, chance: random.Random) -> None:
    """Publish to a delaying exchange; or declare it, bind to it, or, rarely, delete it."""
    roll, durable = chance.random(), chance.random() < 0.8
    exchange = "late" if durable else "late and passing"
    if roll < 0.1:
        one.exchange(exchange, "x-delayed-message", {"x-delayed-type": "direct"}, durable=durable)
    elif roll < 0.2:
        one.bind(name, exchange, name)
    elif roll < 0.22:
        one.delete_exchange(exchange)
    else:
        delay = codec.encode_properties(
            {"headers": {"x-delay": chance.randrange(1, 2_000)}, "message_id": str(step % 3)}
        )
        flags = c.PERSISTENT if chance.random() < 0.7 else 0
        one.publish(name, b"%d" % step, exchange, flags=flags, no=step + 1, properties=delay)


KINDS: dict[str, c.Table] = {
    "ranked": {"x-max-priority": 2},
    "short": {"x-max-length": 3, "x-dead-letter-exchange": "",
              "x-dead-letter-routing-key": "q"},
    "dying": {"x-message-ttl": 1000, "x-overflow": "reject-publish", "x-max-length": 5},
    "last": {"qpid.last_value_queue": 1, "x-max-length": 4},
    "grouped": {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1, "x-max-length": 9},
    "log": {"x-queue-type": "stream", "x-max-length-bytes": 30, "x-max-age": "2s"},
}  # fmt: skip


def _consume(one: Client, name: str, step: int, chance: random.Random, others: int) -> None:
    if name == "log":
        begin: c.Value = chance.choice(("first", "last", "next", "1s", "number"))
        begin = chance.randrange(20) if begin == "number" else begin
        one.consume(name, f"t{step}", 1 + chance.randrange(4), {"x-stream-offset": begin})
    else:
        browses: c.Table = {"x-filter-no-consume": bool(others) and step % 2 == 0}
        given = browses if name != "ranked" else {}
        one.consume(name, f"t{step}", chance.randrange(4), given, no_ack=chance.random() < 0.2)


def _properties(name: str, step: int, priority: int) -> bytes:
    properties = b"\x08\x80" + bytes([priority, 1, 97 + step % 5])
    if name == "last" and step % 7:
        return with_header(properties, "qpid.LVQ_key", step % 5)
    if name == "grouped" and step % 7:
        return with_header(properties, "g", step % 3)
    return properties


def wander(
    chance: random.Random, steps: int, delayed: bool = False, others: int = 0, **more: c.Value
) -> MoveMaker:
    """Random operations of clients, losses of members, and now and then a cold start."""
    maker = MoveMaker()
    rig = maker.rig
    clients: list[Client] = []
    names = ["q", "ranked", "short", "passing", "dying", *["log", "last", "grouped"] * others]
    for step in range(steps):
        alive = [
            one for one in clients if (one.session, one.conn, one.chan) in rig.machine.channels
        ]
        roll = chance.random()
        if not alive or roll < 0.04:
            clients.append(_connect(maker, chance.choice("abc"), step))
            continue
        one, name = chance.choice(alive), chance.choice(names)
        if roll < 0.1:
            one.queue(name, KINDS.get(name, {}) | more, durable=name != "passing")
        elif delayed and roll < 0.25:
            _delay(one, name, step, chance)
        elif roll < 0.5:
            properties = _properties(name, step, chance.randrange(4))
            flags = c.PERSISTENT if chance.random() < 0.7 else 0
            one.publish(name, b"%d" % step, flags=flags, no=step + 1, properties=properties)
        elif roll < (0.66 if name == "log" else 0.56):
            _consume(one, name, step, chance, others)
        elif roll < 0.64:
            one.get(name, no_ack=chance.random() < 0.3)
        elif roll < 0.84:
            channel = rig.machine.channels[one.session, one.conn, one.chan]
            tag = chance.choice([*channel.unacked, 1])
            what = chance.random()
            if what < 0.5:
                one.ack(tag, multiple=chance.random() < 0.3)
            elif what < 0.9:
                one.nack(tag, multiple=chance.random() < 0.3, requeue=chance.random() < 0.6)
            else:
                one.recover()
        elif roll < 0.88:
            one.sent(chance.randrange(8))
        elif roll < 0.9:
            one.commit(
                [c.TxPublish("", name, c.PERSISTENT, b"\0\0", b"tx%d" % step)] * 2,
                [c.TxSettle(0, True, chance.randrange(3))],
            )
        elif roll < 0.92:
            one.purge(name if name != "log" else "q")
        elif roll < 0.93:
            one.delete(name)
        elif roll < 0.96:
            chance.choice([one.close, one.close_channel])()
        elif roll < 0.97:
            rig.time_us += 700_000
            rig.pass_time(700_000)
        elif roll < 0.985:
            rig.activate(chance.choice("abc"))
        elif roll < 0.99:
            rig.activate(cold=True)
        else:
            maker.checkpoint()
    maker.end()
    return maker


def test_the_first_breach_of_each_rule_is_reported_with_their_number() -> None:
    maker = history()
    given_up = (Op.SETTLED, Op.RETURNED)
    maker.rewrite(
        lambda _, rows: [(*r[:4], r[4] ^ 1, r[5]) if r[0] & 15 in given_up else r for r in rows]
    )
    found = {one.rule: one for one in maker.breaches()}
    where = [
        (record.first_position, row)
        for record in maker.logs[INCARNATIONS[0]]
        if isinstance(record, Batch)
        for row in MOVE.iter_unpack(record.moves)
        if row[0] & 15 in given_up
    ]
    assert found["other holder"].n == len(where) > 5
    assert found["other holder"].position == where[0][0]


def test_positions_checked_before_are_not_called_unknown() -> None:
    """--since reported each position that it left out as missing from all logs."""
    ends = {"runs": [(1, 5, 1, 0), (6, 20, 1, 0)]}
    settled = Row("f", "a", 1, 0, 9, SEGMENT, text=json.dumps(ends))
    found = ContractResult(gaps=[Gap(3, 20), Gap(30, 40)])
    assert len(list(limits(found))) == 2
    (note,) = limits(found, [settled])
    assert "positions 30 to 40" in note


def test_an_invalid_number_of_replays() -> None:
    outcome = CliRunner().invoke(qpid_cluster_verify, ["--replay", "some", "."])
    assert outcome.exit_code == 2
    assert "'sources', 'all'" in outcome.output


def test_each_position_is_checked_once_by_default() -> None:
    """Only the model judges redeliveries and priorities: a sample would leave them out."""
    rows = [Row(f"{m}{n}", m, 1, n, 9, SEGMENT, position=9) for m in "ab" for n in range(4)]
    stretches = [Stretch("a0", 1, 5), Stretch("b1", 6, 8), Stretch("a2", 9, 9)]

    def checked(*, everywhere: bool) -> list[str]:
        return [task.file for task in tasks_for(rows, stretches, everywhere=everywhere)]

    assert checked(everywhere=False) == ["a0", "a2", "b1"]
    assert checked(everywhere=True) == [row.file for row in rows]


def test_the_checkpoint_of_a_received_state_has_its_root() -> None:
    """H1: nothing was applied between START or SNAPSHOT and the queues recorded there."""
    state = Snapshot(1, 7, b"c" * 16, 77, "b")
    replay = Replay()
    for record in read_back([state, Checkpoint(7, 78, 1, b"")]):
        replay.take(record)
    assert [(one.rule, one.position) for one in replay.breaches] == [("other root", 7)]


def test_a_repeated_number_makes_no_message() -> None:
    """G23: nor is a message missing. The number stands for a message of this log, or for one of
    those that reached no queue."""
    maker = MoveMaker()
    client = maker.rig.client()
    client.queue("q")
    sent = ((1, "q"), (1, "q"), (2, "nowhere"), (3, "nowhere"), (2, "nowhere"), (4, "q"))
    for number, key in sent:
        headers: c.Table = {"x-producer-id": "p", "x-sequence": number}
        properties = codec.encode_properties({"headers": headers})
        client.publish(key, b"body %d" % number, no=maker.rig.position, properties=properties)
    maker.checkpoint()
    outcomes = [r.outcomes for r in maker.logs[INCARNATIONS[0]] if isinstance(r, Batch)]
    assert [int.from_bytes(one, "little") for one in outcomes[-6:]] == [0, 201, 200, 200, 201, 0]
    assert maker.breaches() == []
