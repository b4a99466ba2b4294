"""What operators see of streams and of their readers."""

from __future__ import annotations

import asyncio
import json

from broker.amqp import codec
from broker.machine import commands as c
from broker.statistics.metric_names import DETAILED
from tests.support.gateway_loop import PERMISSIONS
from tests.support.management.member import ApiMember, Http
from tests.support.observed import Observed

STREAM: c.Table = {"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": 8}


def member() -> ApiMember:
    made = ApiMember()
    made.define("user", "", "root", made.hashed("pw", "administrator"))
    made.define("permission", "/", "root", dict.fromkeys(PERMISSIONS, ".*"))
    client = made.client("root", "/")
    client.queue("log", STREAM)
    client.queue("plain")
    value = codec.encode_properties({"headers": {"x-stream-filter-value": "eu"}})
    for _ in range(10):
        client.publish("log", b"m", properties=value)
    readers: list[tuple[str, c.Table]] = [
        ("far", {"x-stream-offset": "first"}),
        ("near", {"x-stream-offset": "last"}),
        ("eu", {"x-stream-offset": 9, "x-stream-filter": "us"}),
    ]
    for tag, arguments in readers:
        client.consume("log", tag, 1, arguments)
    client.consume("plain", "plain")
    return made


def test_a_stream_is_shown_with_offsets_retention_and_readers() -> None:
    async def run() -> None:
        async with Http() as http:
            await http.serve(member())

            async def ask(path: str) -> object:
                answered = await http.ask("GET", path, login="root:pw")
                assert answered.status == 200, answered
                return json.loads(answered.body)

            wanted = "type,first_offset,next_offset,max_offset_lag,retention,messages"
            row = {
                "type": "stream", "first_offset": 2, "next_offset": 10, "max_offset_lag": 7,
                "retention": {"bytes": 8, "seconds": 3600}, "messages": 8,
            }  # fmt: skip
            assert await ask(f"/api/queues/%2F/log?columns={wanted}") == row
            plain = {"type": "classic", "messages": 0}
            assert await ask(f"/api/queues?columns={wanted}") == [row, plain]
            readers = [
                {"consumer_tag": "eu", "offset": 10, "offset_lag": 0, "filtered": True},
                {"consumer_tag": "far", "offset": 3, "offset_lag": 7, "filtered": False},
                {"consumer_tag": "near", "offset": 10, "offset_lag": 0, "filtered": False},
            ]
            columns = "consumer_tag,offset,offset_lag,filtered"
            found = await ask(f"/api/consumers/%2F?columns={columns}&sort=consumer_tag")
            assert found == [*readers, {"consumer_tag": "plain"}]
            shown = await ask("/api/queues/%2F/log?columns=consumer_details")
            assert isinstance(shown, dict)
            details = [
                {name: one[name] for name in columns.split(",")}
                for one in shown["consumer_details"]
            ]
            assert sorted(details, key=lambda one: str(one["consumer_tag"])) == readers

    asyncio.run(run())


def test_a_queue_is_shown_with_its_browsers_and_groups() -> None:
    async def run() -> None:
        made = member()
        client = made.client("root", "/", conn=1001)
        for _ in range(3):
            client.publish("plain", b"m")  # the consumer takes them
        client.queue("browsed")
        for _ in range(3):
            client.publish("browsed", b"m")
        client.consume("browsed", "looks", 1, {"x-filter-no-consume": True})
        client.queue("grouped", {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1})
        for group in ("a", "b", "b"):
            properties = codec.encode_properties({"headers": {"g": group}})
            client.publish("grouped", properties=properties)
        client.get("grouped")
        client.queue("kept", {"qpid.group_header_key": "g"})
        keeper = client.channel(2)
        keeper.consume("kept", "keeps", 1)
        client.publish("kept", properties=codec.encode_properties({"headers": {"g": "a"}}))
        keeper.ack(1)
        async with Http() as http:
            await http.serve(made)

            async def ask(path: str) -> object:
                answered = await http.ask("GET", path, login="root:pw")
                assert answered.status == 200, answered
                return json.loads(answered.body)

            wanted = "name,messages_unacknowledged,browsers,max_offset_lag,consumers"
            queues = await ask(f"/api/queues?columns={wanted}&sort=name")
            assert isinstance(queues, list)
            assert queues[0] == {
                "name": "browsed", "messages_unacknowledged": 0, "browsers": 1,
                "max_offset_lag": 2, "consumers": 1,
            }  # fmt: skip
            assert queues[4] == {"name": "plain", "messages_unacknowledged": 3, "consumers": 1}
            of_groups = await ask("/api/queues/%2F/grouped?columns=groups,groups_held")
            assert of_groups == {"groups": 2, "groups_held": 1}
            of_kept = await ask("/api/queues/%2F/kept?columns=groups,groups_held,groups_kept")
            assert of_kept == {"groups": 1, "groups_held": 0, "groups_kept": 1}
            asked = "/api/consumers/%2F?columns=consumer_tag,groups_kept"
            consumers = await ask(asked)
            assert {"consumer_tag": "keeps", "groups_kept": 1} in consumers  # type: ignore[operator]
            shown = await ask("/api/queues/%2F/browsed?columns=consumer_details")
            assert isinstance(shown, dict)
            (one,) = shown["consumer_details"]
            assert (one["browses"], one["offset_lag"]) == (True, 2)
            assert one["arguments"] == {"x-filter-no-consume": True}
            assert "offset" not in one

    asyncio.run(run())


def test_a_scrape_counts_browsers() -> None:
    seen = Observed()
    client = seen.rig.client()
    for queue in ("q", "q2", "q3"):  # this member reports one of them
        client.queue(queue)
        client.consume(queue, queue, 1, {"x-filter-no-consume": True})
        client.consume(queue, f"{queue} too", 1)
    client.queue("plain")
    seen.sweep()
    lines = [line for line in "".join(seen.metrics().per_object()).splitlines() if line[0] != "#"]
    found = [line for line in lines if line.startswith("rabbitmq_queue_browsers")]
    assert found
    assert all(line.endswith(" 1") and "plain" not in line for line in found)


def test_a_scrape_counts_groups() -> None:
    seen = Observed()
    client = seen.rig.client()
    for queue in ("q", "q2", "q3"):  # this member reports one of them
        client.queue(queue, {"qpid.group_header_key": "g"})
        for group in "abc":
            properties = codec.encode_properties({"headers": {"g": group}})
            client.publish(queue, properties=properties)
        client.consume(queue, queue, 1)
    client.queue("plain")
    seen.sweep()
    lines = [line for line in "".join(seen.metrics().per_object()).splitlines() if line[0] != "#"]
    found = [line for line in lines if line.startswith("rabbitmq_queue_groups")]
    assert {line.partition("{")[0]: line.rsplit(" ", 1)[1] for line in found} == {
        "rabbitmq_queue_groups": "3", "rabbitmq_queue_groups_held": "1",
        "rabbitmq_queue_groups_kept": "1",
    }  # fmt: skip
    assert all("plain" not in line for line in found)


def test_only_streams_have_offsets_in_a_scrape() -> None:
    seen = Observed()
    client = seen.rig.client()
    for queue in ("log", "log2", "log3"):  # this member reports one of them
        client.queue(queue, {"x-queue-type": "stream"})
        for _ in range(5):
            client.publish(queue)
        client.consume(queue, queue, 2, {"x-stream-offset": "first"})
    client.queue("plain")
    seen.sweep()
    page = "".join(seen.metrics().per_object())
    lines = [line for line in page.splitlines() if "_stream_" in line and line[0] != "#"]
    of = {line.partition("{")[2].partition("}")[0] for line in lines}
    assert of
    assert not any("plain" in labels for labels in of)
    assert {"stream_consumer_metrics", "stream_metrics"} <= set(DETAILED)
    for labels in of:
        mine = sorted(line for line in lines if labels in line)
        assert mine == [
            f"rabbitmq_stream_consumer_max_offset_lag{{{labels}}} 3",
            f"rabbitmq_stream_first_offset{{{labels}}} 0",
            f"rabbitmq_stream_next_offset{{{labels}}} 5",
        ]
