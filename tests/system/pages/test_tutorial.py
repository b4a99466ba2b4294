"""docs/TUTORIAL.md, followed word by word, with a browser where the machine has one."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.dashboard.chromium import browser, executable
from tests.system.pages.page_shell import Shell, blocks_of, shell_in

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(240)]

PAGE = "TUTORIAL.md"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PORTS = ("5671", "5672", "15672", "25672")


def ports_free_on_all() -> list[str]:
    """So many ports as the page uses, each free at all of its addresses."""
    found: list[str] = []
    with ExitStack() as held:
        while len(found) < len(PORTS):
            port = 0
            try:
                for host in HOSTS:
                    taken = held.enter_context(socket.socket())
                    taken.bind((host, port))
                    port = taken.getsockname()[1]
            except OSError:
                continue
            found.append(str(port))
    return found


def in_the_dashboard(profile: Path, port: str) -> None:
    """Set the policy as the page tells."""
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


def follow(shell: Shell, profile: Path, management: str, ring: str) -> None:
    certificate, start = blocks_of("Start three members", PAGE)
    shell.run(certificate)
    shown = shell.run(start)
    assert "Cluster Status: ACTIVE" in shown
    assert shown.count("URL=") == 3
    [users] = blocks_of("Make a virtual host and a user", PAGE)
    assert ["shop", ".*", ".*", ".*"] in rows(shell.run(users))
    [publish] = blocks_of("Publish over TLS, to another member", PAGE)
    published = shell.run(publish)
    assert "over TLSv1." in published
    assert ["incoming", "20"] in rows(published)
    by_command, look = blocks_of("Set a policy in the dashboard", PAGE)
    if executable() is None:
        shell.run(by_command)
    else:
        in_the_dashboard(profile, management)
    assert ["incoming", "5", "short"] in rows(shell.run(look))
    kill, again = blocks_of("Kill a member, and read why the view changed", PAGE)
    killed = shell.run(kill)
    assert "Cluster Status: ACTIVE" in killed
    [cause] = [line for line in killed.splitlines() if "out of the view" in line]
    assert f" 127.0.0.2:{ring} " in cause, cause
    assert "its process ended" in cause or "silent for" in cause, cause
    assert ["incoming", "5", "short"] in rows(shell.run(again))
    [stop] = blocks_of("Stop", PAGE)
    shell.run(stop)


def test_the_tutorial_word_by_word(tmp_path: Path) -> None:
    """G8, G12 as a first user sees them, over TLS, with a policy and a member that dies."""
    ports = ports_free_on_all()
    with shell_in(tmp_path, dict(zip(PORTS, ports, strict=True))) as shell:
        follow(shell, tmp_path / "profile", *ports[2:])
