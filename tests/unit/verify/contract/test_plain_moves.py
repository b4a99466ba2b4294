"""Plain moves pass the model at once: that gives the same findings, and leaves the same state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

pytest.importorskip("duckdb")

from pyarrow import Table

from broker.machine import commands as c
from broker.machine import machine
from broker.machine.handlers import consumers
from broker.machine.move_log import MOVE
from broker.machine.queueing import settlement
from broker.machine.state import Channel, State
from broker.memberlog.records import Batch, Record
from tests.system.verify.support.make_moves import INCARNATIONS, MoveMaker, packed
from tests.system.verify.support.read_back import read_back
from tools.verify.contract import segment
from tools.verify.contract.replay import Replay
from tools.verify.contract.segment import SegmentParts, check_segment
from tools.verify.format.records import RecordMalformed
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
    parts = SegmentParts([FileRange(1, 1 << 40)])
    for part in parts.of(read_back(busy(seed, 300, 0.04))):
        plain.append(at_once.take_part(part.records, part.moves, part.commands))
        for record in part.records:
            one_by_one.take(record)
        assert state_of(at_once) == state_of(one_by_one)
    for record in parts.behind:
        at_once.take(record)
    assert at_once.checkpoints == 1
    assert at_once.breaches == one_by_one.breaches == []
    assert plain.count(True) > 4
    assert plain.count(False) > 1


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


def rows_of(tables: Mapping[str, Table]) -> list[str]:
    return sorted(map(str, tables["high_waters"].to_pylist()))


def changed(records: list[Record], chance: random.Random) -> tuple[list[Record], int]:
    """Return a log with a change of a move, or of a command, and the position of its batch."""
    at = chance.choice([i for i, one in enumerate(records) if isinstance(one, Batch) and one.moves])
    batch = records[at]
    assert isinstance(batch, Batch)
    rows = [list(row) for row in MOVE.iter_unpack(batch.moves)]
    row, how = chance.randrange(len(rows)), chance.randrange(10)
    if how < 6:
        rows[row][how] += chance.choice((-1, 1)) if rows[row][how] else 1
    elif how == 6:
        rows[row][0] ^= 0x80
    elif how == 7:
        del rows[row]
    elif how == 8:
        rows.insert(row, rows[row])
    else:
        outcome = chance.choice((b"\0\0", b"\1\0", b"\xc8\0"))
        kind = batch.kinds[0] if any(outcome) else batch.kinds[0] ^ 4
        batch = batch._replace(kinds=bytes([kind]), outcomes=outcome)
    batch = batch._replace(moves=packed([tuple(one) for one in rows]))
    return [*records[:at], batch, *records[at + 1 :]], batch.first_position


@pytest.mark.parametrize("seed", range(3))
def test_plain_moves_break_no_rule(seed: int) -> None:
    """Nor do they where something was changed: it is then nothing that a rule is about."""
    chance, seen, found = random.Random(seed), 0, 0
    records = busy(seed, 120)
    for _ in range(40):
        lie, at = changed(records, chance)
        try:
            read = read_back(lie)
        except RecordMalformed:
            continue
        at_once, one_by_one = Replay(), Replay()
        for part in SegmentParts([FileRange(1, 1 << 40)]).of(read):
            plain = at_once.take_part(part.records, part.moves, part.commands)
            for record in part.records:
                one_by_one.take(record)
            assert state_of(at_once) == state_of(one_by_one)
            if plain and part.batches[0].first_position <= at <= part.batches[-1].first_position:
                seen += 1
                answers = answer(segment._OF_MOVES, part.tables, ["breaches", "high_waters"])
                assert not len(answers["breaches"])
                short = answer(segment._OF_PLAIN_MOVES, part.tables, ["high_waters"])
                assert rows_of(short) == rows_of(answers)
        assert at_once.breaches == one_by_one.breaches
        found += bool(at_once.breaches)
    assert seen
    assert found > 10
