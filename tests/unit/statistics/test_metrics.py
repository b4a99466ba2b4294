"""The metrics pages, read by the parser of Prometheus' own client."""

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.amqp import codec
from broker.histogram import BOUNDS_S, Histogram
from broker.machine.commands import Table
from broker.machine.handlers.alarms import DISK, FULL
from broker.statistics.exposition import histogram_lines, labels, lines
from broker.statistics.metric_names import DETAILED
from tests.metrics_page import BLOCKS, PAGE, busy_member
from tests.support.generated_blocks import renewed
from tests.support.observed import Observed

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Series:
    """Every sample; a duplicate series, or a counter with another name, is an error."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
            assert (family.type == "counter") == sample.name.endswith("_total"), sample
    return found


def value(series: Series, name: str) -> float:
    """The one sample of that name."""
    (found,) = [number for (one, _), number in series.items() if one == name]
    return found


def test_the_metrics_page_lists_what_a_member_reports() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text, BLOCKS) == text, "python -m tests.metrics_page --write"


HOSTILE = ('"}', "back\\slash", "new\nline", "käse", "{queue=", "# HELP", " ", 'a,b="c"')


def test_no_queue_name_breaks_a_line() -> None:
    ours = Observed("a")
    members = [ours, Observed("b", ours.rig), Observed("c", ours.rig)]
    client = ours.rig.client()
    for name in HOSTILE:
        client.queue(name)
    found = []
    for seen in members:
        seen.sweep()
        for name, found_labels in parsed("".join(seen.metrics().per_object())):
            if name == "rabbitmq_queue_messages":
                found.append(dict(found_labels)["queue"])
    assert sorted(found) == sorted(HOSTILE)


def test_each_channel_and_each_exchange_is_reported_by_one_member() -> None:
    """A collector sums over the members."""
    ours = Observed("a")
    members = [ours, Observed("b", ours.rig), Observed("c", ours.rig)]
    for name in "abc":
        ours.rig.client(name)
    found: Counter[str] = Counter()
    for seen in members:
        seen.sweep()
        found.update(name for name, _ in parsed("".join(seen.metrics().per_object())))
    assert found["rabbitmq_channel_consumers"] == 3
    exchanges = sum(len(vhost.exchanges) for vhost in ours.machine.vhosts.values())
    assert found["rabbitmq_exchange_messages_in_total"] == exchanges


def test_a_histograms_buckets_add_up() -> None:
    seconds = Histogram()
    for _ in range(3):
        seconds.observe(BOUNDS_S[0])
    seconds.observe(BOUNDS_S[-1] + 1)
    counts = [int(line.split()[-1]) for line in histogram_lines("x", "text", seconds)
              if "_bucket" in line]  # fmt: skip
    assert counts == [3] * len(BOUNDS_S) + [4]


def test_labels_are_escaped() -> None:
    assert labels(a='x"\\\n') == '{a="x\\"\\\\\\n"}'


def test_each_finding_is_a_series_whether_true_or_not() -> None:
    seen = Observed()
    seen.sweep()
    series = parsed("".join(seen.metrics().aggregated()))
    found = {labels: number for (name, labels), number in series.items() if name == "qpidd_finding"}
    assert {(dict(one)["name"], dict(one)["severity"]): count for one, count in found.items()} == {
        ("member-down", "warning"): 1, ("no-quorum", "critical"): 0
    }  # fmt: skip


def test_a_family_without_a_sample_is_left_out() -> None:
    assert list(lines("some_total", "counter", "text", [])) == []


def test_a_member_that_does_not_serve_reports_no_queues_but_itself() -> None:
    seen = Observed()
    seen.rig.client().queue("q")
    seen.fake.serving = False
    seen.sweep()
    series = parsed("".join(seen.metrics().aggregated()))
    assert value(series, "rabbitmq_queues") == 0
    assert not any(name == "rabbitmq_queue_messages" for name, _ in series)
    assert value(series, "rabbitmq_identity_info") == 1


def test_objects_without_a_member_are_reported_by_the_first_member() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    ours.rig.client().queue("q")
    ours.sweep()
    theirs.sweep()
    assert value(parsed("".join(ours.metrics().aggregated())), "rabbitmq_queues_created_total") == 1
    of_theirs = parsed("".join(theirs.metrics().aggregated()))
    assert not any(name == "rabbitmq_queues_created_total" for name, _ in of_theirs)


def test_counters_cover_own_clients_and_stay_when_these_leave() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client("b")
    client.queue("q")
    client.publish("q")
    client.close()
    for seen, expected in ((ours, 0), (theirs, 1)):
        seen.sweep()
        series = parsed("".join(seen.metrics().aggregated()))
        assert value(series, "rabbitmq_global_messages_received_total") == expected
        assert value(series, "rabbitmq_connections_closed_total") == expected


def test_dead_letters_are_counted_by_reason_and_outcome() -> None:
    ours = Observed("a")
    theirs = Observed("b", ours.rig)
    client = ours.rig.client()
    to_q: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    client.queue("q", {"x-delivery-limit": 0})
    client.queue("full", {"x-max-length": 1, **to_q})
    kept = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    client.queue("brief", {"x-message-ttl": 0, **to_q, **kept})
    for name in ("full", "full", "full", "brief"):
        client.publish(name)
    for requeue in (False, True):
        client.get("q")
        client.nack(1 + requeue, requeue=requeue)
    name, died = "rabbitmq_global_messages_dead_lettered_", {}
    ours.sweep()
    theirs.sweep()
    for (one, found), count in parsed("".join(ours.metrics().aggregated())).items():
        if one.startswith(name) and count:
            died[one.removeprefix(name), dict(found)["dead_letter_strategy"]] = count
    assert died == {
        ("maxlen_total", "at_most_once"): 2, ("expired_total", "at_least_once"): 1,
        ("rejected_total", "disabled"): 1, ("delivery_limit_total", "disabled"): 1,
    }  # fmt: skip
    of_theirs = parsed("".join(theirs.metrics().aggregated()))
    assert not any("dead_lettered" in one for one, _ in of_theirs), "they would be counted twice"


def test_logins_are_counted_by_protocol_as_in_rabbitmq() -> None:
    seen = Observed()
    seen.sweep()
    figures = seen.figures
    for number, who in enumerate(("clients", "operators")):
        figures |= {f"logins_{who}_total": 10 + number, f"logins_{who}_refused_total": 5 - number}
    for page in (seen.metrics().aggregated(), seen.metrics().per_object()):
        series = parsed("".join(page))
        for protocol, who in (("amqp091", "clients"), ("http", "operators")):
            good, bad = figures[f"logins_{who}_total"], figures[f"logins_{who}_refused_total"]
            for name, count in (("", good + bad), ("_succeeded", good), ("_failed", bad)):
                found = f"rabbitmq_auth_attempts{name}_total", (("protocol", protocol),)
                assert series[found] == count


def test_unconfirmed_messages_are_those_of_all_local_channels() -> None:
    seen = Observed()
    for _ in range(2):
        seen.rig.client().queue("q")
    seen.sweep()
    series = parsed("".join(seen.metrics().aggregated()))
    channels = value(series, "rabbitmq_channels")
    assert channels >= 2
    assert value(series, "rabbitmq_channel_messages_unconfirmed") == channels  # one of each


def test_alarms_are_those_of_this_member() -> None:
    seen = Observed()
    seen.sweep()
    seen.machine.alarms["b", DISK] = "low"
    name = "rabbitmq_alarms_free_disk_space_watermark"
    assert value(parsed("".join(seen.metrics().aggregated())), name) == 0
    for kind in (DISK, FULL):
        seen.machine.alarms.clear()
        seen.machine.alarms["a", kind] = "low"
        assert value(parsed("".join(seen.metrics().aggregated())), name) == 1


@pytest.mark.parametrize("family", DETAILED)
def test_each_family_can_be_requested_alone(family: str) -> None:
    seen = Observed()
    client = seen.rig.client()
    for name in ("one", "two", "three"):
        client.queue(name)
        client.queue(f"stream of {name}", {"x-queue-type": "stream"})
    seen.sweep()
    series = parsed("".join(seen.metrics().detailed([family], ["/"])))
    assert len(series) > 2
    elsewhere = parsed("".join(seen.metrics().detailed([family], ["elsewhere"])))
    objects = ("queue", "stream", "channel", "exchange", "connection_c", "connection_m")
    of_objects = family.startswith(objects)
    of_objects = of_objects and family != "connection_churn_metrics"
    assert (len(elsewhere) == 2) == of_objects


def test_messages_waiting_in_a_delaying_exchange_are_counted() -> None:
    seen = Observed()
    client = seen.rig.client()
    client.exchange("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    delayed = codec.encode_properties({"headers": {"x-delay": 60_000}})
    for _ in range(3):
        client.publish("", exchange="late", properties=delayed)
    seen.sweep()
    series = parsed("".join(seen.metrics().detailed(["exchange_metrics"], ["/"])))
    late = {name: figure for (name, found), figure in series.items() if "late" in str(found)}
    prefix = "rabbitmq_detailed_exchange_messages_"
    assert late == {f"{prefix}in_total": 3, f"{prefix}out_total": 3, f"{prefix}delayed": 3}


OVERVIEW = [
    "rabbitmq_build_info",
    "rabbitmq_channels",
    "rabbitmq_channels_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_connections",
    "rabbitmq_connections_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_consumers",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_global_consumers",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_identity_info",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_max_tcp_sockets",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_resident_memory_limit_bytes",
]
"""What RabbitMQ's dashboard Overview of 3.10 queries (Grafana 10991)."""
OVERVIEW_BEFORE = [
    "rabbitmq_channel_consumers",
    "rabbitmq_channel_get_ack_total",
    "rabbitmq_channel_get_empty_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_messages_confirmed_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_messages_delivered_total",
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_channel_messages_redelivered_total",
    "rabbitmq_channel_messages_unconfirmed",
    "rabbitmq_channel_messages_unroutable_dropped_total",
    "rabbitmq_channel_messages_unroutable_returned_total",
    "rabbitmq_queue_messages_published_total",
]
"""What that of 3.8 queries instead of the global ones."""


def test_every_query_of_rabbitmqs_overview_dashboard_has_samples() -> None:
    """Each has a sample that joins on `rabbitmq_identity_info` by the labels it is grouped by."""
    series = parsed("".join(busy_member().metrics().aggregated()))
    names = {name for name, _ in series}
    assert [one for one in (*OVERVIEW, *OVERVIEW_BEFORE) if one not in names] == []
    (identity,) = [dict(found) for name, found in series if name == "rabbitmq_identity_info"]
    assert identity.keys() >= {"rabbitmq_node", "rabbitmq_cluster"}
    (build,) = [dict(found) for name, found in series if name == "rabbitmq_build_info"]
    assert build.keys() >= {"rabbitmq_version", "erlang_version", "product_name", "product_version"}
    counted = [
        dict(found) for name, found in series
        if name.startswith("rabbitmq_global_messages_") and "dead_lettered" not in name
    ]  # fmt: skip
    assert all("protocol" in found for found in counted)
