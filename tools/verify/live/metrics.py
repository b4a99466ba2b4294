"""Metrics of --follow for Prometheus: what the check found, and how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from threading import Lock, Thread
from typing import NamedTuple
from urllib.parse import urlsplit

from tools.verify.findings import PROPERTIES, BadInput
from tools.verify.live.follow import FollowResult
from tools.verify.live.notify import Notifier
from tools.verify.live.progress import LogProgress

PREFIX = "qpid_cluster_verify_"
HOST = "127.0.0.1"
CLIENT_S = 10.0  # for one that connects and asks nothing
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Family(NamedTuple):
    """One metric and its samples: labels as they stand in a line, and the value."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    text: str
    rows: Iterable[tuple[str, float]]

    def lines(self) -> Iterator[str]:
        """Yield its lines, none where it has no sample."""
        for place, (found, value) in enumerate(self.rows):
            if not place:
                yield f"# TYPE {self.name} {self.kind}\n# HELP {self.name} {self.text}\n"
            yield f"{self.name}{found} {int(value) if value == int(value) else value!r}\n"


class FollowMetrics:
    """Figures of a check that follows; taken by its thread, read by those of scrapes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._findings: Counter[str] = Counter()
        self._records = self._unread = 0
        self._progress = LogProgress()

    def take(self, result: FollowResult) -> None:
        """Take a result."""
        with self._lock:
            self._findings.update(one.property for one in result.findings)
            self._records, self._unread = result.records, result.unread_bytes
            self._progress = result.progress

    def page(self, notifier: Notifier) -> str:
        """Return all families as text."""
        with self._lock:
            families = [*self._families(), *_alerts(notifier)]
        return "".join(line for one in families for line in one.lines())

    def _families(self) -> Iterator[Family]:
        p = self._progress
        yield _gauge("consistent", "1 while no finding was reported", not self._findings)
        found = [(_label(promise=name), float(self._findings[name])) for name in PROPERTIES]
        text = "Findings, by the promise that is broken"
        yield Family(f"{PREFIX}findings_total", "counter", text, found)
        read = [("", float(self._records))]
        yield Family(f"{PREFIX}records_total", "counter", "Records read of all logs", read)
        yield _gauge("unread_bytes", "Bytes in the files beyond what was read", self._unread)
        yield _gauge("newest_position", "Newest position of any member, -1 for none", p.newest)
        yield _gauge("verified_position", "Position up to which all was compared", p.verified)
        yield _gauge("unverified_positions", "Newest position less the verified one", p.unverified)
        text = "Members of the primary of which no log is here"
        yield _gauge("absent_logs", text, len(p.absent))
        live = [one for one in p.lags if one.live]
        behind = [(_label(member=one.member), float(one.behind)) for one in live]
        text = "Positions that a member's log is behind the newest"
        yield Family(f"{PREFIX}member_behind", "gauge", text, behind)
        late = [(_label(member=one.member), one.seconds) for one in live]
        text = "Seconds between the stamps of a member's last batch and of the newest"
        yield Family(f"{PREFIX}member_behind_seconds", "gauge", text, late)


def _label(**value: str) -> str:
    """Return a label as it stands in a line."""
    ((name, text),) = value.items()
    return f'{{{name}="{text.translate(_ESCAPES)}"}}'


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(f"{PREFIX}{name}", "gauge", text, [("", float(value))])


def _alerts(notifier: Notifier) -> Iterator[Family]:
    texts = {"told": "Alerts that a receiver took", "lost": "Alerts that a receiver did not take"}
    for what, text in texts.items():
        rows = [
            (_label(receiver=one.name.removeprefix("--alert-")), float(getattr(one, what)))
            for one in notifier.receivers
        ]
        yield Family(f"{PREFIX}alerts_{what}_total", "counter", text, rows)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /metrics."""

    timeout = CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with the page."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, explain="the metrics are at /metrics")
            return
        body = self.server.metrics.page(self.server.notifier).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: stderr is for the check."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, at: tuple[str, int], metrics: FollowMetrics, notifier: Notifier) -> None:
        self.metrics, self.notifier = metrics, notifier
        if ":" in at[0]:
            self.address_family = AF_INET6
        super().__init__(at, _Handler)

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that went away."""


@contextmanager
def serving(where: str | None, metrics: FollowMetrics, notifier: Notifier) -> Iterator[int | None]:
    """Serve the metrics at [HOST:]PORT while the block runs; yield the port.

    Raises `BadInput` where that cannot be.
    """
    if where is None:
        yield None
        return
    try:
        server = _Server(_address(where), metrics, notifier)
    except (UnicodeError, TypeError) as error:  # of its encoding for DNS; `bind` has a TypeError
        raise BadInput(f"--metrics-port {where}: that is no name of a host") from error
    except OSError as error:
        raise BadInput(f"--metrics-port {where}: {error.strerror or error}") from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _address(where: str) -> tuple[str, int]:
    """Return host and port of [HOST:]PORT; without a host only this machine can ask."""
    try:
        parts = urlsplit(f"//{where}" if ":" in where else f"//{HOST}:{where}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None:
        raise BadInput(f"--metrics-port {where}: give PORT or HOST:PORT, as 9419 or 0.0.0.0:9419")
    return host, port
