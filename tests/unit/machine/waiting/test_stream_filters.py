"""Stream readers with filters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import DeliverEffect
from broker.machine.move_log import FLAG, MOVE, Op
from broker.machine.queueing import streams
from broker.machine.requests.arguments import filter_of
from broker.waiting.filter_column import NONE, FilterColumn, entry_of
from tests.support.three_machines import Client, Rig

STREAM: c.Table = {"x-queue-type": "stream"}
UNFILTERED: c.Table = {"x-stream-match-unfiltered": True}


def valued(value: c.Value) -> bytes:
    headers: c.Table = {} if value is None else {"x-stream-filter-value": value}
    return codec.encode_properties({"headers": headers})


def fill(client: Client, *values: c.Value, **more: c.Value) -> None:
    if not client.rig.has_queue("s"):
        client.queue("s", {**STREAM, **more})
    for value in values:
        client.publish("s", b"m", properties=valued(value))


def wants(*values: c.Value, **more: c.Value) -> c.Table:
    given: c.Value = values[0] if len(values) == 1 else values
    return {"x-stream-offset": "first", "x-stream-filter": given, **more}


def offsets(client: Client) -> list[int]:
    return [
        codec.decode_properties(one.properties)["headers"]["x-stream-offset"]  # type: ignore[index, call-overload, misc]
        for one in client.rig.effects
        if isinstance(one, DeliverEffect) and (one.conn, one.chan) == (client.conn, client.chan)
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (wants("eu"), [1, 4]),
        (wants("us"), [2]),
        (wants("eu", "us"), [1, 2, 4]),
        (wants("eu", "eu"), [1, 4]),
        (wants("asia"), []),
        (wants("eu", **UNFILTERED), [0, 1, 3, 4, 5]),
        (wants("asia", **UNFILTERED), [0, 3, 5]),
        (wants("eu", **{"x-stream-match-unfiltered": False}), [1, 4]),
        ({"x-stream-offset": "first", **UNFILTERED}, [0, 1, 2, 3, 4, 5]),
        ({**wants("eu"), "x-stream-offset": 2}, [4]),
        ({**wants("eu"), "x-stream-offset": "next"}, []),
    ],
)
def test_a_reader_gets_only_the_values_it_wants(
    rig: Rig, arguments: c.Table, expected: list[int]
) -> None:
    """A value that is not text counts as no value, as in RabbitMQ."""
    client = rig.client()
    fill(client, None, "eu", "us", None, "eu", 7)
    assert client.consume("s", "t", 10, arguments) == c.OK
    assert offsets(client) == expected


def test_later_messages_are_filtered_too(rig: Rig) -> None:
    client = rig.client()
    fill(client, "us")
    client.consume("s", "t", 2, wants("eu"))
    fill(client, "eu")
    assert offsets(client) == [1]
    for value in ("us", None):
        fill(client, value)
        assert offsets(client) == []
    fill(client, "eu")
    assert offsets(client) == [4]
    fill(client, "eu")
    assert offsets(client) == [], "the reader has no credit; skipped messages cost none"
    client.ack(1)
    assert offsets(client) == [5]


@pytest.mark.parametrize(
    ("argument", "value", "why"),
    [
        ("x-stream-filter", 7, "a string is needed, or a list of strings"),
        ("x-stream-filter", (), "a string is needed, or a list of strings"),
        ("x-stream-filter", ("eu", 7), "a string is needed, or a list of strings"),
        ("x-stream-filter", ("v",) * 33, "33 values: at most 32 are taken"),
        ("x-stream-match-unfiltered", "yes", "a boolean is needed"),
    ],
)
def test_invalid_filters_are_refused(rig: Rig, argument: str, value: c.Value, why: str) -> None:
    client = rig.client()
    fill(client, "eu")
    assert client.consume("s", "t", 1, {argument: value}) == 406
    assert client.error() == (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 's' in vhost '/': {why}"
    )


def test_other_queues_have_no_filters(rig: Rig) -> None:
    client = rig.client()
    client.queue("q")
    assert client.consume("q", "t", 1, {"x-stream-filter": "eu"}) == 406
    assert "invalid arg 'x-stream-filter' for queue 'q'" in client.error()


@pytest.mark.parametrize(("size", "outcome"), [(16, c.OK), (255, c.OK), (15, 406), ("16", 406)])
def test_the_filter_size_is_accepted_without_effect(rig: Rig, size: c.Value, outcome: int) -> None:
    assert rig.client().queue("s", {**STREAM, "x-stream-filter-size-bytes": size}) == outcome


def test_skipping_many_messages_takes_several_positions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a turn may skip 64 messages for each value, and 20 turns may be taken."""
    monkeypatch.setattr(streams, "PASSED_PER_READ", 2)
    monkeypatch.setattr(streams, "READS_MAX", 60)
    client = rig.client()
    fill(client, "eu", *["us"] * 400, "eu")
    found, parts = [], 0
    client.consume("s", "t", 10, wants("eu"))
    found += offsets(client)
    reader = next(iter(rig.machine.vhosts["/"].queues["s"].consumers.values())).reader
    assert reader is not None
    assert 0 < reader.offset < 200
    while rig.machine.reading:
        assert rig.machine.wants_tick
        rig.tick("a", rig.machine.now_us)
        found += offsets(client)
        parts += 1
    assert found == [0, 401]
    assert parts > 2


def test_the_log_says_that_a_reader_has_a_filter(rig: Rig) -> None:
    """Otherwise the check would miss the skipped messages."""
    client = rig.client()
    fill(client, "us", "eu")
    everything: c.Table = {"x-stream-offset": "first"}
    for tag, arguments in (("a", wants("eu")), ("b", everything)):
        client.consume("s", tag, 10, arguments)
        (what,) = (row[0] for row in MOVE.iter_unpack(rig.moves) if row[0] & 15 == Op.READER)
        assert bool(what & FLAG) == (tag == "a")


def test_a_filtered_reader_skips_dropped_messages(rig: Rig) -> None:
    client = rig.client()
    fill(client, "us", "eu", "us", **{"x-max-length-bytes": 6})
    client.consume("s", "t", 1, wants("eu"))
    assert offsets(client) == [1]
    fill(client, *["eu"] * 5, *["us"] * 5, "eu")
    assert rig.depth("s") == 6
    client.ack(1)
    assert offsets(client) == [13]


def test_a_snapshot_holds_filters_and_their_column(rig: Rig) -> None:
    client = rig.client()
    fill(client, None, "eu", "us", "eu", **{"x-max-length-bytes": 4})
    client.consume("s", "t", 1, wants("eu"))
    fill(client, "us")
    rig.restore()
    fill(client, None, "eu")
    client.ack(1)
    assert offsets(client) == [3]
    client.ack(2)
    assert offsets(client) == [6]


VALUES = st.sampled_from(["", "a", "b", "c"])


@given(
    st.lists(st.tuples(VALUES, st.integers(0, 2)), max_size=60),
    st.sets(VALUES.filter(bool), min_size=1),
    st.booleans(),
    st.data(),
)
def test_the_filter_column_agrees_with_a_plain_list(
    messages: list[tuple[str, int]], wanted: set[str], unfiltered: bool, data: st.DataObject
) -> None:
    column, first = FilterColumn(), 0
    for offset, (value, dropped) in enumerate(messages):
        column.note(first, offset, entry_of(value) if value else NONE)
        first = min(offset + 1, first + dropped)
    filtered = filter_of(
        {"x-stream-filter": tuple(wanted), "x-stream-match-unfiltered": unfiltered}
    )
    start = data.draw(st.integers(first, len(messages)))
    end = data.draw(st.integers(start, len(messages)))
    match = wanted | ({""} if unfiltered else set())
    expected = next((at for at in range(start, end) if messages[at][0] in match), end)
    assert column.next_match(filtered, start, end) == expected
