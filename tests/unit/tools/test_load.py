"""The load generator measures what it should, and notices faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from broker.amqp import codec
from broker.memberlog.reader import read_segment
from broker.memberlog.records import CLIENT_ROW, Client, ClientOp
from tests.bench.load import Run, quantiles, run_load
from tests.bench.support.load_clients import STAMP, Load
from tests.support.toy_broker import Stored, ToyCluster
from tools.cli.failures import ToolError
from tools.client.broker_url import brokers


def small(toy: ToyCluster) -> Load:
    """A load of a fraction of a second."""
    return Load(
        addresses=tuple(one.address for one in brokers(toy.brokers)),
        producers=2,
        consumers=2,
        window=20,
        prefetch=10,
        body_bytes=64,
        persistent=True,
        rate=0.0,
        backlog=0,
        seconds=0.3,
        warmup_seconds=0.1,
        queue="load",
    )


@pytest.mark.parametrize(("producers", "consumers"), [(1, 1), (2, 2), (3, 1), (1, 3)])
def test_everything_sent_arrives_once_and_in_order(producers: int, consumers: int) -> None:
    with ToyCluster(2) as toy:
        report = run_load(replace(small(toy), producers=producers, consumers=consumers))
        assert isinstance(report["messages"], int)
        assert report["messages"] > 100
        if consumers <= producers:
            assert report["out_of_order"] == 0
        assert (report["missing"], report["redelivered"]) == (0, 0)
        assert report["confirm_ms"]
        assert report["end_to_end_ms"]
        assert not toy.queues, "the generator deletes its queues"


def test_a_load_without_consumers_ends_when_all_is_confirmed() -> None:
    with ToyCluster() as toy:
        report = run_load(replace(small(toy), consumers=0))
        assert isinstance(report["messages"], int)
        assert report["messages"] > 0
        assert (report["missing"], report["queues"]) == (0, 2)
        assert report["end_to_end_ms"] == {}
        assert not toy.queues


def test_bodies_of_several_frames_are_traced_like_others() -> None:
    with ToyCluster() as toy:
        report = run_load(replace(small(toy), body_bytes=300_000, window=4))
        assert isinstance(report["messages"], int)
        assert report["messages"] > 0
        assert (report["missing"], report["out_of_order"], report["redelivered"]) == (0, 0, 0)


def test_resource_use_during_the_load_is_reported() -> None:
    counts = iter([{"cpu": 3.0}, {"cpu": 5.0}])
    with ToyCluster() as toy:
        assert run_load(small(toy), used=lambda: next(counts))["cpu"] == 2.0


def test_a_history_has_every_operation(tmp_path: Path) -> None:
    with ToyCluster(2) as toy:
        report = run_load(small(toy), str(tmp_path))
    (path,) = tmp_path.iterdir()
    records = [entry.record for entry in read_segment(path.read_bytes(), path.name)]
    counts: Counter[int] = Counter()
    bodies: dict[int, set[int]] = {}
    for record in records:
        if isinstance(record, Client):
            for what, body, _ in CLIENT_ROW.iter_unpack(record.ops):
                counts[what] += 1
                bodies.setdefault(what, set()).add(body)
    total = report["total_messages"]
    assert counts == dict.fromkeys(
        (ClientOp.PUBLISHED, ClientOp.CONFIRMED, ClientOp.RECEIVED, ClientOp.ACKED), total
    )
    assert bodies[ClientOp.PUBLISHED] == bodies[ClientOp.RECEIVED]
    assert len(bodies[ClientOp.PUBLISHED]) == total


def test_a_rate_is_kept() -> None:
    """It is not exceeded. A loaded machine may reach less, so there is no lower bound."""
    with ToyCluster() as toy:
        report = run_load(replace(small(toy), rate=500.0, seconds=1.0))
        assert isinstance(report["messages_per_s"], float)
        assert 0 < report["messages_per_s"] < 600


def test_a_repeat_is_noticed() -> None:
    with ToyCluster() as toy:
        run = Run(replace(small(toy), producers=1, consumers=1))
        body = STAMP.pack(0.0, 0, 0).ljust(64, b"\0")
        again = Stored(b"\x10\x00\x02", body, redelivered=True)
        toy.do(lambda: toy.queues["load-0"].extend([again, again]))
        run.measure()
        run.close()
        assert run.consumers[0].redelivered == 2
        assert run.consumers[0].disorder >= 1


def test_an_unreachable_broker_is_one_sentence() -> None:
    with ToyCluster() as toy:
        gone = toy.brokers
        load = small(toy)
    with pytest.raises(ToolError, match=f"{gone}: connection refused"):
        run_load(load)


def test_quantiles() -> None:
    assert quantiles([]) == {}
    assert quantiles([0.001] * 99 + [0.5]) == {"p50": 1.0, "p99": 500.0, "max": 500.0}


def test_a_message_has_the_length_in_its_header() -> None:
    with ToyCluster() as toy:
        load = small(toy)
        run = Run(load)
        run.producers[0].fill(2, 1.0)
        frames, used = codec.split_frames(run.producers[0].out)
        assert used == len(run.producers[0].out)
        assert [end - start for kind, _, start, end in frames if kind == codec.BODY] == [64, 64]
        run.close()
