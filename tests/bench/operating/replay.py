"""The cost of a long stream: memory, and the speed of a reread beside the drain of a usual queue.

    python -m tests.bench.operating.replay        # 300,000 messages of 256 bytes, one broker
    python -m tests.bench.operating.replay --messages 1000000 --page-memory 8MiB

Prints JSON.  The stream is filled first, and the broker killed and restarted; `rss_*` is its
resident memory in MiB: idle, with the stream, restarted, and while `--readers` read it at once,
each from the first message on.  Rates are messages a second that a client received with a prefetch
of 1,000, acknowledging every hundredth: `replay` by one reader, `replay_all` by all together,
`drain` of an ordinary queue with as many messages.  `cpu_us_*` is the broker's processor time per
message.  Compare ratios on one machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from broker.amqp.fields import Value
from tests.bench.million import WAIT_S, fill, processor_s, receive, resident
from tools.client.amqp_client import AmqpConnection, Login
from tools.demo.local_cluster import LocalCluster

STREAM, QUEUE = "log", "queue"
FIRST: dict[str, Value] = {"x-stream-offset": "first"}


def measure(
    root: Path, messages: int, body_bytes: int, readers: int, page_memory: str
) -> dict[str, float]:
    """One run, in order."""
    figures: dict[str, float] = {"messages": messages, "readers": readers}
    extra = {"page-memory": page_memory} if page_memory else {}
    with LocalCluster(root, 1, "replay", extra=extra) as cluster:
        cluster.start()
        figures["rss_idle"] = resident(cluster[0].pid)
        connection = AmqpConnection(cluster[0].address, Login(timeout_seconds=WAIT_S))
        connection.declare_queue(STREAM, {"x-queue-type": "stream"})
        connection.close()
        fill(cluster, messages, body_bytes, STREAM)
        figures["rss_full"] = resident(cluster[0].pid)
        cluster[0].kill()
        cluster.start(WAIT_S)
        figures["rss_restarted"] = resident(cluster[0].pid)
        for name, queue, count in (
            ("replay", STREAM, 1), ("replay_all", STREAM, readers), ("drain", QUEUE, 1),
        ):  # fmt: skip
            if queue == QUEUE:
                fill(cluster, messages, body_bytes, QUEUE)
            used = processor_s(cluster[0].pid)
            figures[name], figures[f"rss_{name}"] = receive(
                cluster, queue, messages, count, FIRST if queue == STREAM else {}
            )
            used = processor_s(cluster[0].pid) - used
            figures[f"cpu_us_{name}"] = round(used * 1e6 / (messages * count), 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--readers", type=int, default=5)
    parser.add_argument(
        "--page-memory", default="", help="page memory of the broker, if not the default"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replay-") as root:
        figures = measure(
            Path(root), given.messages, given.body_bytes, given.readers, given.page_memory
        )
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
