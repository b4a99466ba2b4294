"""G23: producers that number their messages lose their broker, and no queue holds a message
twice."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.clients.test_clients_python import pika_connection
from tests.system.support.clusters import running_cluster, wait_until
from tools.demo.local_cluster import ROOT, command

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLE = ROOT / "docs" / "examples" / "publish_once.py"
LINES = {"spouted": 20_000, "exampled": 600}
KILL_AT = {"spouted": 3_000, "exampled": 100}


def test_the_example_stays_small() -> None:
    """What it says at an error is worth ten lines more than a bare minimum."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 70


def test_no_message_is_there_twice_when_a_broker_dies(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        urls = [f"amqp://guest:guest@{host}:{port}" for host, port in
                (member.address for member in cluster.members)]  # fmt: skip
        programs = {
            "spouted": [*command("spout"), "-b", cluster.brokers(0), "-q", "spouted", "--once",
                        "--quiet"],
            "exampled": [sys.executable, str(EXAMPLE), "exampled", *urls],
        }  # fmt: skip

        def waiting(queue: str) -> int:
            with closing(pika_connection(cluster[2])) as reader:
                declared = reader.channel().queue_declare(queue, durable=True)
                return int(declared.method.message_count)

        running = {}
        for queue, program in programs.items():
            typed = tmp_path / queue
            typed.write_text("".join(f"{n}\n" for n in range(LINES[queue])))
            with typed.open("rb") as file:
                running[queue] = subprocess.Popen(program, cwd=ROOT, stdin=file)
        try:
            wait_until(
                lambda: all(waiting(one) >= KILL_AT[one] for one in running), 240, "the streams"
            )
            cluster[0].kill()
            codes = {queue: process.wait(240) for queue, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
                process.wait()
        assert codes == dict.fromkeys(programs, 0)
        for queue in programs:
            # A client that lost its member may be told to reconnect while the others form a view.
            channel = pika_connection(cluster[1]).channel()
            found = []
            for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
                if body is None:
                    break
                found.append(int(body))
                if len(found) == LINES[queue]:
                    break
            channel.cancel()
            assert found == list(range(LINES[queue]))
            assert channel.queue_declare(queue, passive=True).method.message_count == 0
        refused = subprocess.run(
            [sys.executable, str(EXAMPLE), "q", urls[1].replace(":guest@", ":wrong@")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert refused.returncode == 1
        assert "ACCESS_REFUSED" in refused.stderr
        assert "Traceback" not in refused.stderr
