"""Samples of the cluster, of objects and of members, in the shape RabbitMQ's tools read."""

from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from broker.machine.machine import Machine
from broker.management.call import Call, Problem
from broker.statistics.sampler import SUMMED_MAX, WATCHED_MAX, WATCHED_S
from broker.statistics.samples import NO_SPANS, Span, Spans
from tests.support.observed import MEMBERS, Observed
from tests.support.three_machines import Client
from tests.unit.statistics.test_members import FakeLink
from tests.unit.statistics.test_statistics import channel_of, publishing, queue_of

Json: TypeAlias = Any

SECOND = Span(60, 1)
SECONDS = Spans(*[SECOND] * 4)


def samples(details: Json) -> list[int]:
    return [one["sample"] for one in details["samples"]]


def seconds(details: Json) -> list[int]:
    """How long before the newest sample each one was taken."""
    times = [one["timestamp"] for one in details["samples"]]
    return [round((times[0] - at) / 1000) for at in times]


def lengths(seen: Observed, name: str = "q", span: Span = SECOND) -> Json:
    """The `messages_details` of a queue."""
    return seen.statistics.queue(queue_of(seen, name), Spans(lengths=span))["messages_details"]


def test_the_overview_has_samples_if_requested() -> None:
    seen = Observed()
    client = publishing(seen)
    for _ in range(20):
        client.publish("q")
        seen.sweep()
    found: Json = seen.statistics.overview(Spans(lengths=Span(10, 5)))
    messages = found["queue_totals"]["messages_details"]
    assert (samples(messages), seconds(messages)) == ([20, 15, 10], [0, 5, 10])
    assert (messages["avg"], messages["avg_rate"]) == (15, 1)
    assert samples(found["churn_rates"]["queue_declared_details"]) == [1, 1, 1]
    assert "samples" not in found["message_stats"]["publish_details"]
    found = seen.statistics.overview(Spans(msg_rates=Span(10, 5)))
    assert samples(found["message_stats"]["publish_details"]) == [20, 15, 10]
    assert "samples" not in found["queue_totals"]["messages_details"]


def test_the_overview_has_samples_of_an_hour() -> None:
    seen = Observed()
    for _ in range(3700):
        seen.sweep()
    found: Json = seen.statistics.overview(Spans(lengths=Span(3600, 10)))
    assert seconds(found["queue_totals"]["messages_details"]) == [*range(0, 3600, 10)]


def test_an_unwatched_queue_has_a_minute_in_ten_second_steps() -> None:
    seen = Observed()
    client = publishing(seen)
    for _ in range(100):
        client.publish("q", no=0)
        seen.sweep()
    found = lengths(seen)
    ago = seconds(found)
    assert ago[0] == 0
    assert [later - one for one, later in pairwise(ago[1:])] == [10] * 5
    assert ago[-1] <= 60
    assert samples(found) == [100 - one for one in ago]
    assert found["avg_rate"] == 1


def test_a_watched_queue_keeps_every_sweep() -> None:
    seen = Observed()
    client = publishing(seen)
    lengths(seen)
    for _ in range(70):
        client.publish("q", no=0)
        seen.sweep()
    found = lengths(seen)
    assert seconds(found) == [*range(61)]
    assert samples(found) == [*range(70, 9, -1)]
    assert samples(lengths(seen, span=Span(20, 5))) == [70, 65, 60, 55, 50]
    assert seen.statistics.queue(queue_of(seen))["messages_details"] == {"rate": 1.0}


def test_an_idle_object_was_constant_and_a_new_one_was_zero() -> None:
    seen = Observed()
    client = publishing(seen)
    client.publish("q")
    for _ in range(90):
        seen.sweep()
    assert samples(lengths(seen)) == [1] * 7
    client.queue("late")
    client.publish("late")
    assert lengths(seen, "late")["samples"] == []  # no sweep has seen it
    seen.sweep()
    assert samples(lengths(seen, "late")) == [1, 0, 0, 0, 0, 0, 0]
    client.publish("q")
    seen.sweep()
    assert samples(lengths(seen)) == [2, 1, 1, 1, 1, 1, 1, 1]


def test_a_queues_rates_are_those_of_its_samples() -> None:
    seen = Observed()
    client = publishing(seen)
    asked = Spans(msg_rates=Span(4, 2))
    seen.statistics.queue(queue_of(seen), asked)
    for _ in range(10):
        client.publish("q", no=0)
        client.publish("q", no=0)
        client.get("q", no_ack=True)
        seen.sweep()
    found: Json = seen.statistics.queue(queue_of(seen), asked)
    stats = found["message_stats"]
    assert samples(stats["publish_details"]) == [20, 16, 12]
    assert samples(stats["deliver_get_details"]) == [10, 8, 6]
    assert samples(stats["ack_details"]) == [0, 0, 0]
    assert stats["publish_details"]["avg_rate"] == 2
    assert "samples" not in found["messages_details"]


def test_a_streams_messages_held_by_readers_count_once() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.queue("log", {"x-queue-type": "stream"})
    for _ in range(4):
        client.publish("log")
    client.consume("log", prefetch=3, arguments={"x-stream-offset": "first"})
    seen.sweep()
    seen.sweep()
    assert queue_of(seen, "log").unacked == 3
    assert samples(lengths(seen, "log"))[0] == 4


def test_exchanges_channels_and_connections_have_samples_of_their_work() -> None:
    seen = Observed()
    client = publishing(seen)
    other = client.channel(2)
    client.bind("q", "amq.fanout")
    exchange = seen.machine.vhosts["/"].exchanges["amq.fanout"]
    channel = channel_of(seen, client)

    def found() -> list[Json]:
        statistics = seen.statistics
        return [
            statistics.exchange(exchange, SECONDS), statistics.channel(channel, SECONDS),
            statistics.connection(channel.connection, SECONDS),
        ]  # fmt: skip

    found()
    for _ in range(3):
        client.publish("", exchange="amq.fanout", no=0)
        other.publish("", exchange="amq.fanout", no=0)
        seen.sweep()
    through, alone, both = [one["message_stats"] for one in found()]
    assert samples(through["publish_in_details"]) == [6, 4, 2, 0]
    assert samples(through["publish_out_details"]) == [6, 4, 2, 0]
    assert samples(alone["publish_details"]) == [3, 2, 1, 0]
    assert samples(both["publish_details"]) == [6, 4, 2, 0]


def test_a_virtual_host_has_samples_of_its_own_queues() -> None:
    seen = Observed()
    client = publishing(seen)
    other = seen.rig.client(vhost="other")
    other.queue("theirs")
    seen.statistics.vhost("/", SECONDS)
    for _ in range(3):
        client.publish("q", no=0)
        other.publish("theirs", no=0)
        other.publish("theirs", no=0)
        seen.sweep()
    found: Json = seen.statistics.vhost("/", SECONDS)
    assert samples(found["messages_details"]) == [3, 2, 1, 0]
    assert samples(found["message_stats"]["publish_details"]) == [3, 2, 1, 0]
    assert found["messages_details"]["rate"] == 1
    there: Json = seen.statistics.vhost("other", NO_SPANS)
    assert there["messages_ready_details"] == {"rate": 2.0}


def test_a_connections_bytes_are_sampled_from_the_first_request_on() -> None:
    seen = Observed()
    connection = channel_of(seen, publishing(seen, "a")).connection
    link = FakeLink(connection.key[1], 100, 10)
    seen.links = [link]
    for _ in range(5):
        seen.sweep()
    found: Json = seen.statistics.connection(connection, SECONDS)
    assert samples(found["recv_oct_details"]) == [100]
    link.received = 300
    for _ in range(5):
        seen.sweep()
    found = seen.statistics.connection(connection, SECONDS)
    assert samples(found["recv_oct_details"])[0] == 300
    assert samples(found["recv_oct_details"])[-1] == 100
    assert samples(found["send_oct_details"]) == [10] * 6
    assert "samples" not in seen.statistics.connection(connection)["recv_oct_details"]  # type: ignore[operator]


def test_a_member_has_samples_of_its_resources_and_clients() -> None:
    seen = Observed()
    for connected in range(8):
        seen.figures["client_sockets"] = connected
        seen.rig.client()
        seen.sweep()
    found: Json = seen.statistics.node("a", SECONDS)
    assert samples(found["sockets_used_details"]) == [6, 4, 2, 0]
    assert seconds(found["sockets_used_details"]) == [0, 2, 4, 6]
    assert (found["sockets_used_details"]["rate"], found["mem_used_details"]["rate"]) == (1, 0)
    created = found["connection_created_details"]
    assert (found["connection_created"], samples(created)[0], created["rate"]) == (8, 8, 1)
    assert "mem_used_details" not in seen.statistics.node("b", SECONDS)  # nothing was heard


def test_no_samples_of_an_absent_member_are_kept() -> None:
    """Otherwise every name that was ever in the cluster would stay in all members' memory."""
    seen = Observed()
    seen.sweep()
    seen.fake.primary.members = MEMBERS[1:]
    seen.sweep()
    assert [*seen.statistics._figures] == ["b", "c"]
    assert "mem_used_details" not in seen.statistics.node("b", SECONDS)


def test_only_the_last_requested_queues_are_sampled_closely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.statistics.sampler.WATCHED_MAX", 3)
    seen = Observed()
    client = seen.rig.client()
    names = ["q0", "q1", "q2", "q3"]
    for name in names:
        client.queue(name)
    seen.sweep()
    for name in names:
        lengths(seen, name)
    for _ in range(5):
        seen.sweep()
    assert [len(lengths(seen, name)["samples"]) for name in names[::-1]] == [6, 6, 6, 2]
    for _ in range(round(WATCHED_S) + 2):
        seen.sweep()
    assert len(seen.statistics.sampler._watched) == 0


def test_a_queue_no_longer_watched_keeps_samples_ten_seconds_apart() -> None:
    seen = Observed()
    client = publishing(seen)
    lengths(seen)
    for _ in range(round(WATCHED_S) + 70):
        client.publish("q", no=0)
        seen.sweep()
    assert len(seen.statistics.sampler._tracks[queue_of(seen).tally].older) <= 8


def test_a_connection_with_very_many_channels_has_no_samples() -> None:
    seen = Observed()
    client = publishing(seen)
    for number in range(2, SUMMED_MAX + 2):
        client.channel(number)
    client.publish("q", no=0)
    seen.sweep()
    connection = channel_of(seen, client).connection
    stats: Json = seen.statistics.connection(connection, SECONDS)["message_stats"]
    assert stats["publish_details"] == {"rate": 1.0, "avg_rate": 1.0, "samples": []}


def test_another_machine_starts_new_samples() -> None:
    seen = Observed()
    client = publishing(seen)
    client.publish("q")
    seen.sweep()
    seen.fake.replica.machine = Machine.restore("a", seen.machine.snapshot())
    seen.sweep()
    assert samples(lengths(seen)) == [1]


def call(**query: str) -> Call:
    return Call(None, None, None, {}, query, ())  # type: ignore[arg-type]


def test_a_requests_sampling_parameters() -> None:
    asked = call(lengths_age="60", lengths_incr="5", node_stats_age="600", node_stats_incr="60")
    assert asked.spans() == Spans(lengths=Span(60, 5), node_stats=Span(600, 60))
    assert call(lengths_age="60", msg_rates_incr="5").spans() == NO_SPANS  # as in RabbitMQ


def test_only_so_many_connections_have_samples_of_their_bytes() -> None:
    seen = Observed()
    clients = [seen.rig.client("a") for _ in range(WATCHED_MAX + 1)]
    seen.links = [FakeLink(one.conn, 1, 1) for one in clients]

    def sampled(client: Client) -> int:
        record = seen.machine.connections[client.session, client.conn]
        found: Json = seen.statistics.connection(record, SECONDS)
        return len(found["recv_oct_details"]["samples"])

    for _ in range(30):
        seen.sweep()
    assert sampled(clients[0]) == 1
    for _ in range(3):
        seen.sweep()
    assert sampled(clients[0]) == 4
    assert [sampled(one) for one in clients[1:]] == [1] * WATCHED_MAX
    assert sampled(clients[0]) == 1  # it was dropped for the last of them


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "soon", "٣", "31536001", "9" * 30])
@pytest.mark.parametrize("name", ["lengths_age", "msg_rates_incr", "data_rates_age"])
def test_an_invalid_time_is_refused(name: str, value: str) -> None:
    with pytest.raises(Problem) as refused:
        call(**{name: value}).spans()
    wanted = f"{name} is not a whole number from 1 to 31536000"
    assert (refused.value.status, refused.value.reason) == (400, wanted)
