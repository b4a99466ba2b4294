"""The dashboard and the commands against a real broker, as the fake of the other tests replies.

One broker, one browser: log in, declare a queue by a command, publish and move in the browser, see
it in a list of the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.dashboard.chromium import Browser, browser, executable
from tests.system.support.clusters import START_SECONDS
from tools.demo.local_cluster import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.slow]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One member with its management API."""
    with LocalCluster(tmp_path_factory.mktemp("live"), 1, "live", management=True) as started:
        started.start(START_SECONDS)
        yield started


@pytest.fixture
def command(broker: LocalCluster) -> Command:
    """Run one of the commands as an operator does."""

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"tools.operate.{name}", "--broker", where(broker), *arguments]
            if name != "qpid_stat"
            else [sys.executable, "-m", "tools.operate.qpid_stat", *arguments, where(broker)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def where(broker: LocalCluster) -> str:
    """The address of the management API."""
    address = broker[0].management
    assert address is not None
    return str(address)


def test_settings_by_the_commands_take_effect(command: Command) -> None:
    def done(*arguments: str) -> str:
        ended = command("qpidctl", "-q", *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    done("await_startup", "-t", "30")
    done("add_vhost", "shop")
    done("add_user", "ada", "secret")
    done("set_user_tags", "ada", "monitoring")
    done("set_permissions", "-p", "shop", "ada", "^a", ".*", ".*")
    assert "ada\t[monitoring]" in done("list_users")
    permissions = ["ada\t^a\t.*\t.*", "guest\t.*\t.*\t.*"]  # guest created the virtual host
    assert done("list_permissions", "-p", "shop").splitlines()[1:] == permissions
    assert "good" in done("authenticate_user", "ada", "secret")
    assert command("qpidctl", "authenticate_user", "ada", "wrong").returncode == 65
    for one in ("queues", "bindings", "exchanges", "connections", "channels", "consumers"):
        assert isinstance(json.loads(done(f"list_{one}", "--json")), list)
    assert "State: ACTIVE" in done("cluster_status")
    assert "Cluster: live" in done("status")
    done("check_alarms")


def test_qpid_config_and_qpid_stat_agree(command: Command) -> None:
    for arguments in (
        ("add", "queue", "q1", "--durable", "--max-queue-count", "7", "--limit-policy", "ring"),
        ("add", "exchange", "topic", "t1", "--durable"),
        ("bind", "t1", "q1", "a.#"),
    ):
        ended = command("qpid_config", *arguments)
        assert ended.returncode == 0, ended.stderr
    assert "bind [a.#] => t1" in command("qpid_config", "-b", "queues", "q1").stdout
    for option in ("-g", "-b", "-c", "-e", "-q", "-u", "-m"):
        ended = command("qpid_stat", option)
        assert ended.returncode == 0, ended.stderr
    assert "q1" in command("qpid_stat", "-q").stdout
    assert command("qpid_config", "unbind", "t1", "q1", "a.#").returncode == 0
    assert command("qpid_config", "del", "exchange", "t1").returncode == 0
    assert command("qpid_config", "del", "queue", "q1").returncode == 0
    assert command("qpid_config", "del", "queue", "q1").returncode == 64


@pytest.fixture
def page(broker: LocalCluster, tmp_path: Path) -> Iterator[Browser]:
    """The dashboard of the broker, logged in."""
    if executable() is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    with browser(tmp_path / "profile") as found:
        found.screen()
        found.open(f"http://{where(broker)}/")
        found.fill("User", "guest")
        found.fill("Password", "guest")
        found.press("Enter")
        found.wait_text("Messages in queues")
        yield found


def test_every_page_shows_a_real_broker_and_messages_move(page: Browser, command: Command) -> None:
    for name in ("from", "to"):
        assert command("qpid_config", "add", "queue", name, "--durable").returncode == 0
    for place, text in (
        ("members", "primary view of epoch"), ("queues", "from"), ("exchanges", "amq.topic"),
        ("connections", "in all"), ("channels", "in all"), ("policies", "None is set."),
        ("users", "administrator"), ("vhosts", "/"), ("health", "No alarm is set"),
        ("overview", "quorate"),
    ):  # fmt: skip
        page.evaluate(f"location.hash = '#/{place}'")
        page.wait_text(text)
        assert page.evaluate("document.querySelector('main > .problem').hidden"), place
    page.evaluate("location.hash = '#/queue/%2F/from'")
    page.wait_text("Effective policy")
    page.click("summary", "Publish a message")
    page.fill("Payload", "moved by hand")
    page.click("button", "Publish")
    page.wait_text("The message is in the queue.")
    page.click("summary", "Move messages")
    page.fill("To queue", "to")
    page.click("button", "Move")
    page.wait_text("1 message moved to to.")
    page.evaluate("location.hash = '#/queue/%2F/to'")
    page.wait("document.querySelector('h1').textContent === 'Queue to'")
    page.wait_text("Effective policy")
    page.click("button", "Get")
    page.wait_text("moved by hand")
    counted = command("qpidctl", "list_queues", "name", "messages", "--json").stdout
    depths = {row["name"]: row["messages"] for row in json.loads(counted)}
    assert depths == {"from": 0, "to": 1}
    assert page.complaints == []
