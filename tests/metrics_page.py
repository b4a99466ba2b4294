"""Makes the table of docs/reference/metrics.md from what a member reports.

python -m tests.metrics_page --write
"""

from __future__ import annotations

import re
from pathlib import Path

from broker.statistics.metric_names import DETAILED
from tests.support.generated_blocks import Blocks, run
from tests.support.observed import Observed
from tools.verify.live.follow import FollowResult
from tools.verify.live.metrics import FollowMetrics
from tools.verify.live.notify import Receiver
from tools.verify.live.progress import LogProgress, MemberLag

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md"


def busy_member() -> Observed:
    """A member with one of everything that has its own series."""
    seen = Observed()
    client = seen.rig.client()
    seen.sweep()
    for queue in ("one", "two", "three"):  # this member reports one of them
        client.queue(queue)
        client.publish(queue, no=1)
        client.consume(queue, queue)
        client.consume(queue, f"{queue} shown", 1, {"x-filter-no-consume": True})
    for stream in ("first", "second", "third"):
        client.queue(stream, {"x-queue-type": "stream"})
        client.consume(stream, stream, 1)
    client.exchange("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    seen.sweep()
    return seen


def families(text: str) -> dict[str, tuple[str, str, str]]:
    """The metric names of a scrape, each with its kind, the names of its labels, and its
    meaning."""
    found: dict[str, tuple[str, str, str]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            meaning = next(lines).partition(f"# HELP {name} ")[2]
            sample = next(lines)
            labels = ", ".join(re.findall(r'(\w+)="', sample)) if kind != "histogram" else "le"
            found[name] = kind, labels, meaning
    return found


def _aggregated(_old: str) -> str:
    return _table(families("".join(busy_member().metrics().aggregated())))


def _objects(_old: str) -> str:
    metrics = busy_member().metrics()
    whole = families("".join(metrics.aggregated()))
    each = families("".join(metrics.per_object()))
    return _table({name: each[name] for name in each if each[name] != whole.get(name)})


def _followed(_old: str) -> str:
    """The check's metrics while it is behind the logs."""
    receiver = Receiver("--alert-url", lambda _: None)
    receiver.close(0.0)
    metrics = FollowMetrics([receiver])
    lag = MemberLag("a", 1, 9, 1, 0.5, live=True)
    metrics.take(FollowResult(LogProgress(10, 9, [lag], []), [], 10))
    found = {}
    for one in metrics.collect():
        sample = one.samples[0]
        found[sample.name] = one.type, ", ".join(sample.labels), one.documentation
    return _table(found)


def _table(found: dict[str, tuple[str, str, str]]) -> str:
    rows = [
        f"| `{name}` | {kind} | {labels} | {text} |"
        for name, (kind, labels, text) in sorted(found.items())
    ]
    return "\n".join(
        ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    )


def _detailed(_old: str) -> str:
    metrics = busy_member().metrics()
    rows = []
    for family in sorted(DETAILED):
        names = families("".join(metrics.detailed([family], [])))
        named = [name for name in names if not name.endswith("_info")]
        rows.append(f"| `{family}` | {', '.join(f'`{name}`' for name in named)} |")
    return "\n".join(["| family | metrics |", "| --- | --- |", *rows, ""])


BLOCKS: Blocks = {
    "aggregated": _aggregated,
    "objects": _objects,
    "detailed": _detailed,
    "verify": _followed,
}

if __name__ == "__main__":
    run({PAGE: BLOCKS}, "tests.metrics_page", __doc__.partition("\n")[0])
