"""docs/TUTORIAL.md, followed word by word, with a browser where the machine has one."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.dashboard.chromium import browser, executable
from tests.system.pages.page_shell import Shell, blocks_of, shell_in
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import PORTS as PORTS_TO_TAKE
from tools.demo.local_cluster import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(240)]

PAGE = ROOT / "docs" / "TUTORIAL.md"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PORTS = ("5671", "5672", "15672", "25672")


def ports_free_on_all() -> list[str]:
    """Return as many ports as the page uses, each free at all of its addresses.

    They are outside the range of outgoing connections, which could take one before a member binds
    it.
    """
    found: list[str] = []
    for port in random.sample(PORTS_TO_TAKE, len(PORTS_TO_TAKE)):
        with ExitStack() as held:
            try:
                for host in HOSTS:
                    held.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
        found.append(str(port))
        if len(found) == len(PORTS):
            return found
    raise AssertionError(f"no {len(PORTS)} free ports at {HOSTS}")


def in_the_dashboard(profile: Path, port: str) -> None:
    """Set the policy as the page says."""
    with browser(profile) as page:
        page.open(f"http://127.0.0.3:{port}/")
        page.wait("document.querySelector('form.login')")
        page.fill("User", "guest")
        page.fill("Password", "guest")
        page.press("Enter")
        page.wait_text("Messages in queues")
        page.evaluate("location.hash = '#/policies'")
        page.click("summary", "Set a policy")
        page.fill("Name", "short")
        page.wait("[...document.querySelectorAll('option')].some((one) => one.value === 'orders')")
        page.evaluate(
            "[...document.querySelectorAll('select')].find((one) => one.checkVisibility()"
            " && [...one.options].some((o) => o.value === 'orders')).value = 'orders'"
        )
        page.fill("Pattern", "^incoming$")
        page.fill("Definition", '{"max-length": 5}')
        page.click("button", "Set")
        page.wait_text("Policy short is set.")
        page.evaluate("location.hash = '#/overview'")
        page.wait_text("Messages in queues")
        assert page.complaints == []


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.strip()]


def shown_in(shell: Shell, block: str, row: list[str]) -> str:
    """Run a block until its last command shows the row; return the block's first output.

    That command asks another member than the one that made the change, and each applies it when it
    receives it.
    """
    printed = shell.run(block)
    last = block.splitlines()[-1]
    if row not in rows(printed):
        wait_until(lambda: row in rows(shell.run(last)), 30, f"{row} of: {last}")
    return printed


def follow(shell: Shell, profile: Path, management: str, ring: str) -> None:
    certificate, start = blocks_of("Start three members", PAGE)
    shell.run(certificate)
    shown = shell.run(start)
    assert "Cluster Status: ACTIVE" in shown
    assert shown.count("URL=") == 3
    [users] = blocks_of("Make a virtual host and a user", PAGE)
    shown_in(shell, users, ["shop", ".*", ".*", ".*"])
    [publish] = blocks_of("Publish over TLS, to another member", PAGE)
    assert "over TLSv1." in shown_in(shell, publish, ["incoming", "20"])
    by_command, look = blocks_of("Set a policy in the dashboard", PAGE)
    if executable() is None:
        shell.run(by_command)
    else:
        in_the_dashboard(profile, management)
    shown_in(shell, look, ["incoming", "5", "short"])
    kill, again = blocks_of("Kill a member, and read why the view changed", PAGE)
    killed = shell.run(kill)
    assert "Cluster Status: ACTIVE" in killed
    *_, cause = [line for line in killed.splitlines() if "out of the view" in line]
    assert f" 127.0.0.2:{ring} " in cause, cause
    assert "its process ended" in cause or "silent for" in cause, cause
    shown_in(shell, again, ["incoming", "5", "short"])
    [stop] = blocks_of("Stop", PAGE)
    shell.run(stop)


def test_the_tutorial_word_by_word(tmp_path: Path) -> None:
    """G8, G12 as a first user sees them, over TLS, with a policy and a member that dies."""
    ports = ports_free_on_all()
    with shell_in(tmp_path, dict(zip(PORTS, ports, strict=True))) as shell:
        follow(shell, tmp_path / "profile", *ports[2:])
