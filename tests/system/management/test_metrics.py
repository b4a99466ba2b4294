"""Metrics of real members, read with the parser of Prometheus' own client."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pika
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from broker.options.addresses import Address
from broker.statistics.metric_names import DETAILED
from tests.support.promql import Query
from tests.system.management.http import Api
from tests.system.support.clusters import START_SECONDS, admitted, wait_until
from tools.demo.local_cluster import ClusterTrouble, LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow]

CONF = Path(__file__).resolve().parents[3] / "conf"

OF_A_BUSY_MACHINE = (
    "QpiddFramesLost",
    "QpiddSlowToken",
    "QpiddSlowDisk",
    "QpiddSlowConfirms",
)
"""Alerts that an overloaded machine may raise even if the cluster is at rest."""

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Scrape:
    """Every sample of a scrape; a repeated series is an error."""
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def page(address: Address, path: str = "/metrics") -> Scrape:
    connection = http.client.HTTPConnection(*address, timeout=100)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
    finally:
        connection.close()
    return parsed(text)


def total(scrapes: list[Scrape], name: str) -> float:
    """The sum over members, as a dashboard computes it."""
    return sum(value for scrape in scrapes for (found, _), value in scrape.items() if found == name)


@pytest.fixture(scope="module")
def metrics(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LocalCluster, list[Address]]]:
    root = tmp_path_factory.mktemp("metrics")
    with LocalCluster(root, 3, "metrics", extra={"prometheus-port": "0"}) as cluster:
        cluster.start(START_SECONDS)
        yield cluster, [metrics_address(member.log_path) for member in cluster.members]


def metrics_address(log: Path) -> Address:
    """The address of this member's metrics, from its log."""
    for line in log.read_text(encoding="utf-8").splitlines():
        if "metrics on http://" in line:
            host, _, port = line.rpartition("/metrics")[0].rpartition("//")[2].rpartition(":")
            return Address(host, int(port))
    raise AssertionError("no line about metrics")


def test_sums_over_the_members_equal_the_cluster(
    metrics: tuple[LocalCluster, list[Address]],
) -> None:
    cluster, addresses = metrics
    host, port = cluster[1].address
    connection = admitted(lambda: pika.BlockingConnection(pika.ConnectionParameters(host, port)))
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in range(7):
        channel.queue_declare(f"metrics {queue}")
        for _ in range(queue):
            channel.basic_publish("", f"metrics {queue}", b"x")
    channel.basic_get("metrics 6")

    def scrapes() -> list[Scrape]:
        return [page(address) for address in addresses]

    for name, value in (
        ("rabbitmq_queues", 7), ("rabbitmq_queue_messages_ready", 20),
        ("rabbitmq_queue_messages_unacked", 1), ("rabbitmq_connections", 1),
        ("rabbitmq_channels", 1), ("rabbitmq_global_publishers", 1),
        ("rabbitmq_global_messages_received_total", 21),
        ("rabbitmq_global_messages_routed_total", 21),
        ("rabbitmq_global_messages_confirmed_total", 21),
        ("rabbitmq_global_messages_delivered_get_manual_ack_total", 1),
        ("rabbitmq_queues_created_total", 7), ("rabbitmq_connections_opened_total", 1),
        ("qpidd_quorum_serving", 3), ("qpidd_ring_members", 9),
        ("rabbitmq_unreachable_cluster_peers_count", 0), ("rabbitmq_queue_messages", 21),
    ):  # fmt: skip
        # The other members apply later what a client was already told.
        wait_until(lambda: total(scrapes(), name) == value, 60, f"{name} {value}")  # noqa: B023
    found = scrapes()
    nodes = {dict(labels)["rabbitmq_node"] for scrape in found for (name, labels) in scrape
             if name == "rabbitmq_identity_info"}  # fmt: skip
    assert len(nodes) == 3
    each = [page(address, "/metrics/per-object") for address in addresses]
    depths = {dict(labels)["queue"]: value for scrape in each
              for (name, labels), value in scrape.items()
              if name == "rabbitmq_queue_messages"}  # fmt: skip
    assert depths == {f"metrics {queue}": queue for queue in range(7)}
    assert total(each, "rabbitmq_channel_messages_published_total") == 21
    assert total(each, "rabbitmq_connection_incoming_bytes_total") > 21
    connection.close()


def test_detailed_returns_the_requested_families(
    metrics: tuple[LocalCluster, list[Address]],
) -> None:
    _, addresses = metrics
    path = "/metrics/detailed?family=queue_coarse_metrics&vhost=%2F"
    names = {name for address in addresses for name, _ in page(address, path)}
    assert "rabbitmq_detailed_queue_messages_ready" in names
    assert not any("consumers" in name for name in names)
    nothing = page(addresses[0], "/metrics/detailed?family=queue_coarse_metrics&vhost=none")
    assert {name for name, _ in nothing} == {"rabbitmq_identity_info", "rabbitmq_build_info"}


def jobs() -> dict[str, str]:
    """The jobs of the Prometheus example, and the path that each scrapes."""
    text = (CONF / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    return {
        job["job_name"]: f"{job['metrics_path']}?{urlencode(job.get('params', {}), doseq=True)}"
        for job in yaml.safe_load(text)["scrape_configs"]
    }


def labelled(addresses: list[Address]) -> Scrape:
    """One scrape of all members by all jobs, with the labels that Prometheus adds."""
    found: Scrape = {}
    for job, path in jobs().items():
        for address in addresses:
            added = ("instance", str(address)), ("job", job)
            for (name, labels), value in page(address, path).items():
                found[name, tuple(sorted((*labels, *added)))] = value
    return found


def expressions() -> dict[str, str]:
    """Each expression of the alerts and of the dashboard, by its place."""
    rules = (CONF / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)\n +expr: (.+)\n", rules)
    assert len(alerts) == rules.count("- alert:") >= 10
    found = dict(alerts)
    dashboard = json.loads((CONF / "grafana" / "qpidd-overview.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            name = f"{panel['title']} {target['refId']}"
            found[name] = target["expr"].replace("$rabbitmq_cluster", "metrics")
    return found


def test_every_alert_and_dashboard_expression_finds_its_series(
    metrics: tuple[LocalCluster, list[Address]],
) -> None:
    cluster, addresses = metrics
    host, port = cluster[0].address
    connection = admitted(lambda: pika.BlockingConnection(pika.ConnectionParameters(host, port)))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("watched")
    before = labelled(addresses)
    for _ in range(10):
        channel.basic_publish("", "watched", b"x")
    now = labelled(addresses)
    up = {("up", (("instance", str(one)), ("job", "qpidd"))): 1.0 for one in addresses}
    alerts = 0
    for place, text in expressions().items():
        is_alert = place.startswith("Qpidd")
        alerts += is_alert
        busy = place in OF_A_BUSY_MACHINE  # then only its series matter, not whether it is raised
        value = Query(
            text.rpartition(" > ")[0] if busy else text, before | up, now | up, 15.0
        ).value()
        if is_alert and not busy:
            assert value == {}, f"{place} is raised in a cluster at rest: {value}"
        elif place != "QpiddSlowDisk" and "Commits" not in place:  # this interval may have none
            assert value, place
    assert alerts > 10
    published = Query(expressions()["Incoming / s A"], before, now, 10.0).value()
    assert published == {(): 1.0}
    connection.close()


def test_the_example_scrapes_existing_paths() -> None:
    text = (CONF / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    (families,) = re.findall(r"family: \[(.*)\]", text)
    assert set(families.split(", ")) <= set(DETAILED)
    assert set(re.findall(r"metrics_path: (\S+)", text)) == {"/metrics", "/metrics/detailed"}
    (rules,) = re.findall(r"rule_files:\n  - (\S+)", text)
    assert (CONF / "prometheus" / rules).exists()


def test_other_pages_and_methods_are_refused(metrics: tuple[LocalCluster, list[Address]]) -> None:
    _, (address, *_) = metrics
    for method, path, status in (
        ("GET", "/", 404), ("GET", "/api/overview", 404), ("GET", "/metrics/../x", 404),
        ("POST", "/metrics", 405), ("HEAD", "/metrics", 200),
    ):  # fmt: skip
        connection = http.client.HTTPConnection(*address, timeout=100)
        connection.request(method, path)
        assert connection.getresponse().status == status, (method, path)
        connection.close()


def test_a_taken_port_is_reported_at_start(
    tmp_path: Path, metrics: tuple[LocalCluster, list[Address]]
) -> None:
    _, (address, *_) = metrics
    taken = {"prometheus-port": str(address.port)}
    with (
        LocalCluster(tmp_path, 1, "other", extra=taken) as other,
        pytest.raises(ClusterTrouble, match="--prometheus-port"),
    ):
        other.start(START_SECONDS)


def test_the_management_port_serves_the_metrics_behind_a_login(api: Api) -> None:
    for path in ("/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics"):
        answered = api.ask("GET", path)
        assert (answered.status, isinstance(answered.body, bytes)) == (200, True)
        assert isinstance(answered.body, bytes)
        names = {name for name, _ in parsed(answered.body.decode())}
        assert "rabbitmq_identity_info" in names
    wrong = Api(api.address, "guest", "wrong")
    assert wrong.ask("GET", "/metrics").status == 401
    assert api.ask("GET", "/metrics/other").status == 404
