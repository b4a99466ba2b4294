"""Metrics of --follow for Prometheus: the findings, and the progress of the check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tools.verify.findings import INSTALL, PROPERTIES, BadInput
from tools.verify.live.follow import FollowResult
from tools.verify.live.notify import Receiver
from tools.verify.live.progress import LogProgress

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HOST = "127.0.0.1"


class FollowMetrics:
    """Collector of the figures: the check's thread sets them, scrapes' threads collect them."""

    def __init__(self, receivers: Sequence[Receiver]) -> None:
        self._receivers = receivers
        # Replaced as a whole, so that no scrape finds half of a result.
        self._seen = Counter[str](), FollowResult(LogProgress())

    def take(self, result: FollowResult) -> None:
        found, _ = self._seen
        self._seen = found + Counter(one.property for one in result.findings), result

    def collect(self) -> Iterator[Metric]:
        """Yield all families, as the registry of prometheus_client asks for them."""
        found, result = self._seen
        p = result.progress
        promises = {name: found[name] for name in PROPERTIES}
        yield _gauge("consistent", "1 while no finding was reported", not found)
        text = "Findings, by the promise that is broken"
        yield _labelled("counter", "findings", text, "promise", promises)
        yield _labelled("counter", "records", "Records read of all logs", "", {"": result.records})
        text = "Bytes in the files beyond what was read"
        yield _gauge("unread_bytes", text, result.unread_bytes)
        yield _gauge("newest_position", "Newest position of any member, -1 for none", p.newest)
        yield _gauge("verified_position", "Position up to which all was compared", p.verified)
        yield _gauge("unverified_positions", "Newest position less the verified one", p.unverified)
        text = "Members of the primary of which no log is here"
        yield _gauge("absent_logs", text, len(p.absent))
        behind = {one.member: one.behind for one in p.lags if one.live}
        text = "Positions that a member's log is behind the newest"
        yield _labelled("gauge", "member_behind", text, "member", behind)
        late = {one.member: one.seconds for one in p.lags if one.live}
        text = "Seconds between the stamps of a member's last batch and of the newest"
        yield _labelled("gauge", "member_behind_seconds", text, "member", late)
        told = {one.name.removeprefix("--alert-"): one.told for one in self._receivers}
        text = "Alerts that a receiver took"
        yield _labelled("counter", "alerts_told", text, "receiver", told)
        lost = {one.name.removeprefix("--alert-"): one.lost for one in self._receivers}
        text = "Alerts that a receiver did not take"
        yield _labelled("counter", "alerts_lost", text, "receiver", lost)


def _gauge(name: str, text: str, value: float) -> Metric:
    return _labelled("gauge", name, text, "", {"": value})


def _labelled(kind: str, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a family with a sample for each value of its label; "": it has none."""
    from prometheus_client.core import Metric

    name = f"qpid_cluster_verify_{name}"
    family = Metric(name, text, kind)
    for of, value in values.items():
        labels = {label: of} if label else {}
        family.add_sample(f"{name}_total" if kind == "counter" else name, labels, value)
    return family


@contextmanager
def serving(where: str | None, metrics: FollowMetrics) -> Iterator[int | None]:
    """Serve the metrics at [HOST:]PORT while the block runs; yield the port.

    Raises `BadInput` if that is impossible.
    """
    if where is None:
        yield None
        return
    host, port = _address(where)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise BadInput(f"--metrics-port needs prometheus_client; {INSTALL}") from error
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, _ = start_http_server(port, host, registry)
    except (UnicodeError, TypeError) as error:  # of its encoding for DNS; `bind` has a TypeError
        raise BadInput(f"--metrics-port {where}: that is no name of a host") from error
    except OSError as error:
        raise BadInput(f"--metrics-port {where}: {error.strerror or error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _address(where: str) -> tuple[str, int]:
    """Parse host and port of [HOST:]PORT; without a host only this machine can ask."""
    try:
        parts = urlsplit(f"//{where}" if ":" in where else f"//{HOST}:{where}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise BadInput(f"--metrics-port {where}: give PORT or HOST:PORT, as 9419 or 0.0.0.0:9419")
    return host, port
