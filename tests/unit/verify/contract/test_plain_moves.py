"""Plain moves pass the model at once: that gives the same findings, and leaves the same state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("duckdb")

from pyarrow import Table

from broker.machine import commands as c
from broker.machine import machine
from broker.machine.handlers import consumers
from broker.machine.move_log import MOVE
from broker.machine.queueing import settlement
from broker.machine.state import Channel, State
from broker.memberlog.records import Batch, Queues, Record
from tests.system.verify.support.make_moves import (
    INCARNATIONS,
    MoveMaker,
    MoveTuple,
    in_one_batch,
    packed,
)
from tests.system.verify.support.read_back import read_back
from tools.verify.contract import segment
from tools.verify.contract.replay import Replay
from tools.verify.contract.segment import SegmentParts, check_segment
from tools.verify.format.moves import WHATS
from tools.verify.format.records import Checkpoint, RecordMalformed
from tools.verify.format.records import Queues as NamedQueues
from tools.verify.input.ranges_of_file import FileRange
from tools.verify.sql.statements import answer

PART = 24  # commands


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.verify.contract.segment._COMMANDS_MAX", PART)
    monkeypatch.setattr("tools.verify.contract.plain_moves._MOVES_OF_QUEUE", 0)


def busy(seed: int, steps: int, returned: float = 0) -> list[Record]:
    """Return a log of two queues with consumers and one without; some messages wait, some are
    held, and this share of what is given back is returned.
    """
    chance, maker = random.Random(seed), MoveMaker()
    maker.rig.activate()
    clients = [maker.rig.client(name) for name in "abc"]
    for name in ("one", "two", "none"):
        clients[0].queue(name)
    clients[1].consume("one", "x", 2)
    clients[1].consume("two", "y", 5)
    clients[2].consume("one", "z", 3)
    for step in range(steps):
        client = chance.choice(clients)
        held = list(maker.machine.channels[client.session, client.conn, client.chan].unacked)
        if held and chance.random() < 0.6:
            if chance.random() < returned:
                client.nack(held[0])
            else:
                client.ack(chance.choice(held), multiple=chance.random() < 0.2)
        elif chance.random() < 0.1:
            client.qos(7)
        else:
            body = b"%d" % chance.randrange(20)
            client.publish(chance.choice(("one", "one", "two", "none")), body, no=step + 1)
    maker.end()
    return maker.logs[INCARNATIONS[0]]


def state_of(replay: Replay) -> object:
    """Return all that later moves are judged by."""
    model, reasons = replay._model, replay._reasons
    if model is None:  # since a mismatch
        return None
    queues = {
        number: replace(queue, order=sorted(queue.ready)) for number, queue in model.queues.items()
    }
    of_reasons = reasons.given, reasons.nth, reasons.ahead, reasons._published, reasons._dead
    at = replay.moves, replay._position, replay._root, reasons.done, reasons.closed
    return model.next_message, model._body, queues, of_reasons, at


@pytest.mark.parametrize("seed", range(4))
def test_plain_moves_leave_what_they_leave_one_by_one(seed: int) -> None:
    at_once, one_by_one = Replay(), Replay()
    plain: list[bool] = []
    for part in parts_of(read_back(busy(seed, 300, 0.04))):
        plain.append(at_once.take_part(part.records, part.moves, part.commands))
        for record in part.records:
            one_by_one.take(record)
        assert state_of(at_once) == state_of(one_by_one)
    assert at_once.checkpoints == 1
    assert at_once.breaches == one_by_one.breaches == []
    assert plain.count(True) > 4
    assert plain.count(False) > 1


def test_what_waited_before_a_segment_keeps_few_of_its_moves_from_being_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = MoveMaker()
    maker.rig.activate()
    client = maker.rig.client("a")
    client.queue("q")
    client.publish("q", b"before", no=1)
    maker.checkpoint()
    client.consume("q", "x", 0)
    for step in range(4 * PART):
        client.publish("q", b"%d" % step, no=step + 2)
        client.ack(step + 1)
    records = read_back(maker.logs[INCARNATIONS[0]])
    _, begin = (at for at, one in enumerate(records) if isinstance(one, Checkpoint))
    names = [one for one in records[:begin] if isinstance(one, NamedQueues)]
    monkeypatch.setattr(segment, "_COMMANDS_FIRST", 3)
    replay = Replay()
    plain = [
        (len(part.commands["kind"]), replay.take_part(part.records, part.moves, part.commands))
        for part in parts_of([*names, *records[begin:]])
    ]
    assert plain == [(3, False), *[(PART, True)] * 7, (22, True)]
    assert replay.breaches == []


def test_an_ack_of_several_that_left_one_out_is_found_among_plain_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = settlement.tags_up_to
    monkeypatch.setattr(consumers, "tags_up_to", lambda channel, tag, multiple: (
        whole(channel, tag, multiple) or [tag])[-2:])  # fmt: skip
    records = read_back(busy(0, 200))
    at_once, one_by_one = Replay(), Replay()
    for part in SegmentParts([FileRange(1, 1 << 40)]).of(records):
        at_once.take_part(part.records, part.moves, part.commands)
        for record in part.records:
            one_by_one.take(record)
    assert [one.rule for one in one_by_one.breaches] == ["left out"]
    assert at_once.breaches == one_by_one.breaches


def test_an_ack_for_two_channels_is_found_among_plain_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(state: State, channel: Channel, command: c.Ack) -> int:
        others = [one for one in state.channels.values() if one is not channel and one.unacked]
        for one in others[:1]:
            consumers.on_ack(state, one, command._replace(tag=min(one.unacked), multiple=False))
        return consumers.on_ack(state, channel, command)

    handlers = list(machine._ON_CHANNEL)
    handlers[c.ACK] = both  # type: ignore[assignment]
    monkeypatch.setattr(machine, "_ON_CHANNEL", handlers)
    found = [
        rule
        for tables in check_segment(read_back(busy(0, 100)), [], [FileRange(1, 1 << 40)])
        for rule in tables["breaches"]["rule"].to_pylist()
    ]
    assert set(found) == {"two channels"}


def parts_of(records: list[Any]) -> list[segment.Part]:
    return list(SegmentParts([FileRange(1, 1 << 40)]).of(records))


def rows_of(tables: Mapping[str, Table]) -> list[str]:
    return sorted(map(str, tables["high_waters"].to_pylist()))


def changes_of(batch: Batch) -> Iterator[Batch]:
    """Yield a batch with each change of one of its moves, or of one of its commands."""
    rows: list[MoveTuple] = list(MOVE.iter_unpack(batch.moves))
    for at, row in enumerate(rows):
        others: list[list[MoveTuple]] = [[], [row, row], [row, (row[0], *rows[at - 1][1:])]]
        others += [[(what, *row[1:])] for what in sorted(WHATS)[at % 7 :: 7]]
        for field in range(1, len(row)):
            for by in (-1, 1):
                if row[field] + by >= 0:
                    others.append([(*row[:field], row[field] + by, *row[field + 1 :])])  # type: ignore[list-item]
        for other in others:
            yield batch._replace(moves=packed([*rows[:at], *other, *rows[at + 1 :]]))
        yield batch._replace(
            moves=packed([*rows[:at], *rows[at + 1 : at + 2], row, *rows[at + 2 :]])
        )
    for at in range(batch.commands):
        for kind in (c.PUBLISH, c.ACK, c.QOS, c.CHANNEL_OPEN):
            kinds = batch.kinds[:at] + bytes([kind]) + batch.kinds[at + 1 :]
            yield batch._replace(kinds=kinds)
        for outcome in (1, 200, 201):
            outcomes = bytearray(batch.outcomes)
            outcomes[2 * at] = outcome
            yield batch._replace(outcomes=bytes(outcomes))


@pytest.mark.lies
def test_plain_moves_break_no_rule() -> None:
    """Nor do they where something was changed: it is then nothing that a rule is about."""
    records = in_one_batch(busy(1, 90))
    names = [one for one in records if isinstance(one, Queues)]
    first, second, *_ = parts_of(read_back(records))
    batches = [one for one in records if isinstance(one, Batch)][len(first.batches) :]
    batches = batches[: len(second.batches)]
    replay = Replay()
    assert not replay.take_part(first.records, first.moves, first.commands)
    seen = found = 0
    for at, batch in list(enumerate(batches))[::2]:
        for changed in changes_of(batch):
            try:
                lie = read_back([*batches[:at], changed, *batches[at + 1 :]])
            except RecordMalformed:
                continue
            [part] = parts_of([*read_back(names), *lie])
            at_once, one_by_one = deepcopy(replay), deepcopy(replay)
            if not at_once.take_part(lie, part.moves, part.commands):
                found += 1
                continue
            seen += 1
            for record in lie:
                one_by_one.take(record)
            assert state_of(at_once) == state_of(one_by_one)
            assert at_once.breaches == one_by_one.breaches == []
            answers = answer(segment._OF_MOVES, part.tables, ["breaches", "high_waters"])
            assert not len(answers["breaches"])
            short = answer(segment._OF_PLAIN_MOVES, part.tables, ["high_waters"])
            assert rows_of(short) == rows_of(answers)
    assert seen > 10
    assert found > 500
