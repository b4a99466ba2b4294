"""Operators' pages, followed word by word: a shell runs the blocks of a page.

Only addresses and directories are replaced, as others may use those of the page.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.manual_pages import FOLDER
from tests.system.pages.page_shell import blocks_of, serves, shell_in
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import HOST, ROOT, command, free_ports
from tools.demo.stream import Arrivals, write_input

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_pages_rolling_restart(tmp_path: Path) -> None:
    """G8, G11, G12: under a confirmed stream; every confirmed message is there, in order."""
    count = 30_000
    source, output = tmp_path / "input.txt", tmp_path / "output.jsonl"
    digest = write_input(source, count)
    ports = free_ports(6)
    words = ("25672", "25673", "25674", "5672", "5673", "5674")
    start, restarts, draining = blocks_of("Maintenance and rolling restarts")
    brokers = ",".join(f"{HOST}:{port}" for port in ports[3:])
    with shell_in(tmp_path, dict(zip(words, map(str, ports), strict=True))) as shell:
        shell.run(start)
        before = {name: (tmp_path / f"{name}.pid").read_text() for name in "abc"}
        drain = subprocess.Popen(
            [*command("drain"), "-b", brokers, "-q", "q", "--create", "--format", "json",
             "--output", str(output), "--count", str(count), "--unique", "--timeout", "60"],
            cwd=ROOT,
        )  # fmt: skip
        spout = subprocess.Popen(
            [*command("spout"), "-b", brokers, "-q", "q", "--file", str(source), "--sequence",
             "--window", "20"],
            cwd=ROOT,
        )  # fmt: skip
        try:
            arrivals = Arrivals(output)

            def flows() -> bool:
                arrivals.read()
                return arrivals.count > 100

            wait_until(flows, 60, "the stream")
            shell.run(restarts)
            after = {name: (tmp_path / f"{name}.pid").read_text() for name in "abc"}
            assert all(before[name] != after[name] for name in "abc")
            assert spout.wait(120) == 0
            assert drain.wait(120) == 0
        finally:
            spout.kill()
            drain.kill()
        arrivals.read()
        assert arrivals.different == count
        assert arrivals.first_digest.hexdigest() == digest
        shell.run(draining)


def test_the_commands_of_the_page_on_queues(tmp_path: Path) -> None:
    """Each kind of queue can be declared, listed and read as the page says, one after the other."""
    page = (FOLDER / "queues.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    \$ ((?:qpid-config|qpidctl|drain) .*)$", page, re.MULTILINE)
    client, api = free_ports(2)
    with shell_in(tmp_path, {}) as shell:
        shell.run(
            f"qpidd --port {client} --management-port {api} --data-dir {tmp_path}/a"
            f" 2> {tmp_path}/a.log &\necho $! > {tmp_path}/a.pid"
        )
        wait_until(lambda: serves(client), 60, "the broker to serve")
        for name, port in (("qpid-config", api), ("qpidctl", api), ("drain", client)):
            shell.run(f'{name}() {{ command {name} --broker {HOST}:{port} "$@"; }}')
        printed = "".join(map(shell.run, commands))
    for queue in ("log", "prices", "orders", "carts", "rates"):
        assert re.search(rf"^{queue}\t", printed, re.MULTILINE), f"{queue} in {printed}"


def test_the_page_on_clients_with_certificates(tmp_path: Path) -> None:
    """From the authority to a client that its certificate logs in."""
    plain, tls, api = free_ports(3)
    make, client = blocks_of("Clients with certificates")
    with shell_in(tmp_path, {"5671": str(tls)}) as shell:
        shell.run(
            f"qpidd() {{ exec qpidd --port {plain} --tls-port {tls} --management-port {api}"
            f' "$@"; }}\nqpidctl() {{ command qpidctl --broker {HOST}:{api} "$@"; }}'
        )
        starting, asking = make.split("qpidctl await_startup")
        shell.run(f"{starting}\njobs -p > {tmp_path}/a.pid")
        wait_until(lambda: serves(plain), 60, "the broker to serve")
        shell.run(asking)
        shell.run(client)
    assert "certificate CN=app: user 'app'" in (tmp_path / "tls" / "a.log").read_text()
