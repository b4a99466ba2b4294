"""Streams: queues that are read without being consumed."""

import pytest

from broker.amqp import codec
from broker.machine import commands as c
from broker.machine.effects import Confirm, DeliverEffect
from broker.machine.limits import READS_PER_TURN
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE, Op
from broker.machine.publishing.runs import apply_publishes
from broker.machine.queueing import streams
from tests.support.three_machines import Client, Rig

STREAM: c.Table = {"x-queue-type": "stream"}
ENDS = ["first", "last", "next"]


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.client()


def fill(client: Client, count: int, queue: str = "s") -> None:
    if not client.rig.has_queue(queue):
        client.queue(queue, STREAM)
    begin = client.rig.depth(queue)
    for number in range(begin, begin + count):
        client.publish(queue, b"%d" % number)


def offsets(client: Client) -> list[int]:
    """The offsets that the latest command sent to this channel; each body is its offset."""
    found = []
    for one in client.rig.effects:
        if isinstance(one, DeliverEffect) and (one.conn, one.chan) == (client.conn, client.chan):
            headers = codec.decode_properties(one.properties)["headers"]
            assert isinstance(headers, dict)
            offset = headers["x-stream-offset"]
            assert isinstance(offset, int)
            assert one.body == b"%d" % offset
            assert not one.redelivered
            found.append(offset)
    return found


def begin(offset: c.Value) -> c.Table:
    return {"x-stream-offset": offset}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-length", 1), ("x-message-ttl", 1), ("x-expires", 1), ("x-max-priority", 1),
        ("x-overflow", "drop-head"), ("x-dead-letter-exchange", "x"), ("x-delivery-limit", 1),
        ("x-single-active-consumer", True), ("x-consumer-timeout", 1), ("x-queue-mode", "lazy"),
        ("x-message-deduplication", True),
    ],
)  # fmt: skip
def test_arguments_of_other_queues_are_refused(
    client: Client, argument: str, value: c.Value
) -> None:
    assert client.queue("s", {**STREAM, argument: value}) == 406
    assert client.error() == (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 's' in vhost '/' "
        "of queue type rabbit_stream_queue"
    )


def test_arguments_of_streams_are_refused_for_other_queues(client: Client) -> None:
    assert client.queue("q", {"x-max-age": "1h", "x-queue-type": "quorum"}) == 406
    assert client.error().endswith(" of queue type rabbit_quorum_queue")
    client = client.channel(2)
    client.queue("q")
    assert client.consume("q", arguments=begin("first")) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' "
        "of queue type rabbit_classic_queue"
    )


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"auto_delete": True}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"durable": False}, "non-durable"),
    ],
)
def test_a_stream_is_durable_and_not_exclusive(
    client: Client, flags: dict[str, bool], what: str
) -> None:
    assert client.queue("s", STREAM, **flags) == 406
    assert client.error() == (
        f"PRECONDITION_FAILED - invalid property '{what}' for queue 's' in vhost '/'"
    )


def test_a_stream_cannot_be_server_named(client: Client) -> None:
    assert client.queue("amq.gen-1", STREAM) == 406
    assert "Cannot declare a server-named queue for type rabbit_stream_queue" in client.error()


@pytest.mark.parametrize("age", ["", "7", "D", "0D", "7d", "-1D", "1.5h", 7, "9999999999Y"])
def test_ages_are_numbers_with_units(client: Client, age: c.Value) -> None:
    assert client.queue("s", {**STREAM, "x-max-age": age}) == 406
    assert client.error().endswith("invalid_max_age")


def test_the_segment_size_is_accepted_without_effect(client: Client) -> None:
    sized: c.Table = {**STREAM, "x-stream-max-segment-size-bytes": 1000, "x-max-age": "7D"}
    assert client.queue("s", sized) == c.OK
    assert client.queue("s", sized) == c.OK
    assert client.queue("s", {**sized, "x-max-age": "8D"}) == 406
    assert (
        client.channel(2).queue("t", {**STREAM, "x-stream-max-segment-size-bytes": 1 << 40}) == 406
    )


def test_a_reader_needs_a_prefetch_and_acks(client: Client) -> None:
    client.queue("s", STREAM)
    assert client.consume("s") == 406
    assert client.error() == (
        "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue 's' in vhost '/''"
    )
    assert client.channel(2).consume("s", prefetch=1, no_ack=True) == 540
    assert client.error() == (
        "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues "
        "queue 's' in vhost '/'"
    )


def test_global_qos_is_refused(client: Client) -> None:
    client.queue("s", STREAM)
    client.qos(10)
    assert client.consume("s", prefetch=1) == 540
    assert client.error() == (
        "NOT_IMPLEMENTED - queue 's' in vhost '/' does not support global qos"
    )


@pytest.mark.parametrize(
    ("offset", "shown"),
    [
        ("frist", '{longstr,<<"frist">>}'), ("1d", '{longstr,<<"1d">>}'), (True, "true"),
        (None, "none"), ("@x", '{longstr,<<"@x">>}'),
    ],
)  # fmt: skip
def test_invalid_offsets_are_refused(client: Client, offset: c.Value, shown: str) -> None:
    client.queue("s", STREAM)
    assert client.consume("s", prefetch=1, arguments=begin(offset)) == 406
    assert client.error() == (
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 's' in vhost '/': "
        f"{{invalid_stream_offset_arg,{shown}}}"
    )


@pytest.mark.parametrize("argument", ["x-priority"])
def test_priorities_are_refused(client: Client, argument: str) -> None:
    client.queue("s", STREAM)
    assert client.consume("s", prefetch=1, arguments={argument: 1}) == 406
    assert argument in client.error()


def test_get_and_purge_are_refused(client: Client) -> None:
    client.queue("s", STREAM)
    other = client.rig.client()
    assert client.get("s") == 540
    assert client.error() == (
        "NOT_IMPLEMENTED - basic.get not supported by stream queues queue 's' in vhost '/'"
    )
    assert other.purge("s") == 540
    assert other.error() == (
        "NOT_IMPLEMENTED - queue.purge not supported by stream queues queue 's' in vhost '/'"
    )


# -- reading -------------------------------------------------------------------------------------


def test_a_stream_is_read_again_and_again(client: Client) -> None:
    fill(client, 5)
    for tag in "abc":
        assert client.consume("s", tag, 10, begin("first")) == c.OK
        assert offsets(client) == [0, 1, 2, 3, 4]
        client.ack(0, multiple=True)
        assert client.rig.depth("s") == 5


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        ("first", [0, 1, 2]), ("last", [2]), ("next", []), (1, [1, 2]), (0, [0, 1, 2]),
        (-5, [0, 1, 2]), (3, []), (9, []),
    ],
)  # fmt: skip
def test_the_offset_sets_where_reading_begins(
    client: Client, offset: c.Value, found: list[int]
) -> None:
    fill(client, 3)
    client.consume("s", "t", 10, begin(offset))
    assert offsets(client) == found


def test_reading_begins_with_the_next_message_by_default(client: Client) -> None:
    fill(client, 3)
    client.consume("s", "t", 10)
    assert offsets(client) == []
    client.publish("s", b"3")
    assert offsets(client) == [3]


@pytest.mark.parametrize("offset", [*ENDS, 0, 7])
def test_on_an_empty_stream_all_offsets_begin_with_the_first_message(
    client: Client, offset: c.Value
) -> None:
    client.queue("s", STREAM)
    client.consume("s", "t", 10, begin(offset))
    found = []
    for number in range(9):
        client.publish("s", b"%d" % number)
        found += offsets(client)
    assert found == list(range(7 if offset == 7 else 0, 9))


def test_settling_gives_credit_and_nothing_else(client: Client) -> None:
    fill(client, 12)
    client.consume("s", "t", 2, begin("first"))
    assert offsets(client) == [0, 1]
    client.ack(1)
    assert offsets(client) == [2]
    client.nack(2, requeue=True)
    assert offsets(client) == [3]
    client.nack(3, requeue=False)
    assert offsets(client) == [4]
    client.recover()
    assert offsets(client) == [5, 6], "recover redelivers nothing, as in RabbitMQ"
    client.ack(0, multiple=True)
    assert offsets(client) == [7, 8]
    client.commit([], [c.TxSettle(8, False, c.TX_REQUEUE), c.TxSettle(9, False, c.TX_ACK)])
    assert offsets(client) == [9, 10]
    assert client.rig.depth("s") == 12


def test_readers_are_independent(rig: Rig) -> None:
    one, two = rig.client("a"), rig.client("b")
    fill(one, 4)
    one.consume("s", "t", 1, begin("first"))
    two.consume("s", "t", 3, begin(1))
    assert offsets(two) == [1, 2, 3]
    one.ack(1)
    assert offsets(one) == [1]
    two.close()
    assert offsets(one) == []
    one.publish("s", b"4")
    assert offsets(one) == []
    one.ack(2)
    assert offsets(one) == [2]


def test_a_returning_reader_begins_at_the_offset_it_names(rig: Rig) -> None:
    client = rig.client()
    fill(client, 3)
    client.consume("s", "t", 10, begin(1))
    client.close()
    client = rig.client()
    client.consume("s", "t", 10, begin(1))
    assert offsets(client) == [1, 2]


def test_a_long_stream_is_sent_in_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position sends as much as it may cost; the rest follows at the next ones, whatever they
    order."""
    monkeypatch.setattr(streams, "READS_MAX", 50)
    client, readers = rig.client(), [rig.client("b") for _ in range(3)]
    fill(client, 100)
    client.queue("q")
    client.publish("q")
    found: list[list[int]] = [[], [], []]

    def collect() -> list[int]:
        now = [offsets(reader) for reader in readers]
        for mine, more in zip(found, now, strict=True):
            mine += more
        return [len(more) for more in now]

    for reader in readers:
        reader.consume("s", "t", 1000, begin("first"))
        collect()
    assert rig.machine.reading
    busy = c.Publish(c.PUBLISH, client.conn, 1, 0, "", "q", 0, b"\0\0", b"x")
    run = apply_publishes(rig.machine, rig.position + 1, client.session, 0, [busy, busy], 0)
    assert run == 0, "no run of publishes skips the positions at which sending continues"
    parts = []
    while rig.machine.reading:
        assert rig.machine.wants_tick, "nothing else might be ordered"
        rig.tick("a", rig.machine.now_us)
        parts.append(collect())
    assert found == [list(range(100))] * 3
    assert max(map(sum, parts)) <= 50 + READS_PER_TURN
    assert all(parts[0][1:]), "the readers take turns"


def test_a_channel_may_have_several_readers(client: Client) -> None:
    fill(client, 3)
    client.consume("s", "a", 2, begin("first"))
    client.consume("s", "b", 2, begin("last"))
    assert offsets(client) == [2]
    client.cancel("a")
    client.ack(0, multiple=True)
    assert offsets(client) == []
    client.publish("s", b"3")
    assert offsets(client) == [3]


def test_a_deleted_stream_is_gone_for_its_readers(client: Client) -> None:
    fill(client, 3)
    client.consume("s", "t", 2, begin("first"))
    other = client.rig.client("b")
    assert other.delete("s") == c.OK
    assert client.cancelled() == ["t"]
    assert client.ack(1) == c.OK
    assert client.nack(2) == c.OK
    fill(client, 1)
    client.consume("s", "t", 2, begin("first"))
    assert offsets(client) == [0]


def test_a_deleted_stream_settles_alike_after_a_snapshot(rig: Rig) -> None:
    client = rig.client()
    fill(client, 3)
    client.consume("s", "t", 3, begin("first"))
    client.cancel()
    rig.client("b").delete("s")
    rig.machines["c"] = Machine.restore("c", rig.machine.snapshot())
    client.ack(1)
    client.close()


def test_every_message_of_a_stream_is_durable(rig: Rig) -> None:
    client = rig.client()
    fill(client, 2)
    client.queue("q")
    client.bind("s", "amq.fanout")
    client.bind("q", "amq.fanout")
    client.publish("", b"2", "amq.fanout", flags=0, no=7)
    assert client.confirms() == [Confirm(client.conn, 1, 7, True, True)]
    client.consume("s", "t", 1, begin("first"))
    rig.activate("a", "b", "c", cold=True)
    assert rig.depth("s") == 3
    assert rig.depth("q") == 0
    client = rig.client()
    client.consume("s", "t", 10, begin("first"))
    assert offsets(client) == [0, 1, 2]
    client.publish("s", b"3")
    assert offsets(client) == [3], "offsets continue"


def test_a_snapshot_holds_the_whole_stream(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With readers that wait for a message, that wait for credit, and whose turn is to come."""
    monkeypatch.setattr(streams, "READS_MAX", 50)
    client = rig.client()
    fill(client, 100)
    clients = [rig.client(member) for member in "abc"]
    clients[0].consume("s", "t", 5, begin("next"))
    clients[1].consume("s", "t", 5, begin("first"))
    clients[2].consume("s", "t", 2000, begin("first"))
    assert rig.machine.reading
    rig.restore()
    client.publish("s", b"100")
    clients[1].ack(1)
    for one in clients:
        one.close()


def test_each_message_carries_its_headers(client: Client) -> None:
    """A message read from a stream and published again has the offset of its new place."""
    client.queue("s", STREAM)
    given: list[c.Table] = [{"a": 1, "b": "x"}, {"x-stream-offset": 77, "a": (1, 2)}, {}]
    for headers in given:
        sent = codec.encode_properties({"headers": headers, "message_id": "m", "priority": 3})
        client.publish("s", b"%d" % client.rig.depth("s"), properties=sent)
    client.consume("s", "t", 10, begin("first"))
    assert offsets(client) == [0, 1, 2]
    got = [
        codec.decode_properties(one.properties)
        for one in client.rig.effects
        if isinstance(one, DeliverEffect)
    ]
    assert got == [
        {"headers": {"a": 1, "b": "x", "x-stream-offset": 0}, "message_id": "m", "priority": 3},
        {"headers": {"a": (1, 2), "x-stream-offset": 1}, "message_id": "m", "priority": 3},
        {"headers": {"x-stream-offset": 2}, "message_id": "m", "priority": 3},
    ]


# -- retention -------------------------------------------------------------------------------------


def test_the_oldest_messages_go_when_it_is_too_large(client: Client) -> None:
    client.queue("s", {**STREAM, "x-max-length-bytes": 3})
    client.consume("s", "late", 1, begin("first"))
    found = []
    for number in range(10):
        client.publish("s", b"%d" % number)
        found += offsets(client)
    assert client.rig.depth("s") == 3
    assert found == [0]
    client.ack(1)
    assert offsets(client) == [7], "the first message that is kept"
    client.consume("s", "t", 10, begin(2))
    assert offsets(client) == [7, 8, 9]
    ops = [Op(what & 15) for what, *_ in MOVE.iter_unpack(client.rig.moves)]
    assert ops == [Op.READER, Op.READ, Op.READ, Op.READ]


def test_the_last_message_is_kept_however_large(client: Client) -> None:
    client.queue("s", {**STREAM, "x-max-length-bytes": 1})
    client.publish("s", b"large")
    assert client.rig.depth("s") == 1
    client.publish("s", b"1")
    assert client.rig.depth("s") == 1


def test_the_oldest_messages_go_when_they_are_too_old(client: Client) -> None:
    client.queue("s", {**STREAM, "x-max-age": "10s"})
    expiration = codec.encode_properties({"expiration": "1"})
    client.publish("s", b"0", properties=expiration)
    client.rig.pass_time(5_000_000)
    assert client.rig.depth("s") == 1, "an expiration of its own has no effect here"
    client.publish("s", b"1", properties=expiration)
    client.rig.pass_time(5_000_000)
    client.consume("s", "t", 10, begin("first"))
    assert offsets(client) == [1]
    client.rig.pass_time(6_000_000)
    assert client.rig.depth("s") == 0
    assert not client.rig.machine.wants_tick
    client.publish("s", b"2")
    assert offsets(client) == [2]


def test_policies_override_arguments(client: Client) -> None:
    client.queue("s", {**STREAM, "x-max-length-bytes": 2})
    for number in range(5):
        client.publish("s", b"%d" % number)
    assert client.rig.depth("s") == 2
    policy: c.Table = {
        "pattern": "", "apply-to": "streams",
        "definition": {
            "max-length-bytes": 4, "max-age": "1h", "max-length": 1, "overflow": "reject-publish",
        },
    }  # fmt: skip
    code, text = client.rig.define("policy", "/", "p", policy)
    assert (code, text) == (201, "")
    for number in range(5, 10):
        client.publish("s", b"%d" % number)
    assert client.rig.depth("s") == 4
    queue = client.rig.machine.vhosts["/"].queues["s"]
    assert queue.ttl_us == 3_600_000_000


def test_policies_have_ages(client: Client) -> None:
    for value in ("1x", 5):
        bad: c.Table = {"pattern": "", "definition": {"max-age": value}}
        code, text = client.rig.define("policy", "/", "p", bad)
        assert code == 400
        assert "is not a valid max age" in text


def at(seconds: int) -> c.Table:
    return begin(f"@{seconds}")


def test_reading_begins_at_a_timestamp(client: Client) -> None:
    rig = client.rig
    for number in range(6):  # two messages every ten seconds
        rig.time_us = (100 + 10 * (number // 2)) * 1_000_000 + number
        fill(client, 1)
    rig.time_us = 125_000_000
    for given, first in ((at(0), 0), (at(100), 0), (at(101), 2), (at(110), 2), (at(120), 4)):
        client.consume("s", str(given), 10, given)
        assert offsets(client) == list(range(first, 6))
    client.consume("s", "never", 10, at(121))
    assert offsets(client) == []
    client.consume("s", "back", 10, begin("15s"))
    assert offsets(client) == [2, 3, 4, 5]
    client.consume("s", "long ago", 10, begin("1Y"))
    assert offsets(client) == [0, 1, 2, 3, 4, 5]


def test_the_index_of_times_is_thinned_and_trimmed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAM_TIMES_MAX", 20)
    rig = client.rig
    client.queue("s", {**STREAM, "x-max-length-bytes": 60})
    for number in range(100):
        rig.time_us = number * 1_000_000
        client.publish("s", b"%d" % number)
    stream = rig.machine.vhosts["/"].queues["s"].stream
    assert stream is not None
    assert (stream.step_s, client.rig.depth("s")) == (2, 30)
    assert stream.times[0][1] <= 70, "the first time that still counts"
    client.consume("s", "t", 3, at(81))
    assert offsets(client) == [80, 81, 82], "not later, and earlier by less than one step"
