"""qpid-ha against a small fake of the management protocol: words, codes, layout."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.tools.test_qpid_cluster import STATUS, FakeBroker
from tools.cli.failures import ToolError
from tools.client.management import Json
from tools.commands.qpid_cluster import overview, parse_target
from tools.commands.qpid_ha import qpid_ha

ROLES: dict[str, Json] = {
    "status": "ready", "primary": False, "settled": True, "active": "b", "id": "a",
    "active_url": "amqp:tcp:127.0.0.1:5673", "public_url": "", "promotion": "manual",
    "replicate": "all",
    "members": [
        {"id": "a", "url": "amqp:tcp:127.0.0.1:5672", "status": "ready"},
        {"id": "b", "url": "amqp:tcp:127.0.0.1:5673", "status": "active"},
    ],
}  # fmt: skip


def answer(**roles: Json) -> bytes:
    return json.dumps(STATUS | {"ha": ROLES | roles}).encode() + b"\n"


class Broker(FakeBroker):
    """A fake broker with roles."""

    def __init__(self) -> None:
        super().__init__()
        self.answers["status"] = answer()

    def ha(self, *words: str) -> Result:
        return ha("-b", f"127.0.0.1:{self.port}", "-t", "5", *words)


def ha(*words: str) -> Result:
    return CliRunner().invoke(qpid_ha, list(words), standalone_mode=False)


@pytest.fixture
def broker() -> Iterator[Broker]:
    fake = Broker()
    yield fake
    fake.close()


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [
        (("status",), 0, "ready\n"),
        (("status", "--expect", "ready"), 0, ""),
        (("status", "--expect", "active"), 1, ""),
        (("status", "--is-primary"), 1, ""),
        (("ready",), 0, ""),
        (("ping",), 0, ""),
    ],
)
def test_the_status_is_a_word_or_an_exit_code(
    broker: Broker, words: tuple[str, ...], code: int, out: str
) -> None:
    done = broker.ha(*words)
    assert (done.return_value, done.output) == (code, out)


def test_the_layout_of_a_query(broker: Broker) -> None:
    assert broker.ha("query").output.splitlines() == [
        "Status:             ready",
        "Broker ID:          a",
        "Brokers URL:        tcp:127.0.0.1:5672,tcp:127.0.0.1:5673",
        "Public URL:         ",
        "Replicate:          all",
        "Promotion:          manual",
        "Active:             b",
    ]
    assert json.loads(broker.ha("query", "--json").output) == ROLES


def test_it_waits_while_a_view_changes(broker: Broker) -> None:
    broker.answers["status"] = answer(status="recovering", settled=False)
    broker.after["status"] = {"status": answer(status="active", primary=True)}
    assert broker.ha("status", "--is-primary").return_value == 0
    assert broker.ops() == ["status", "status"]


def test_promote_waits_for_the_promotion(broker: Broker) -> None:
    broker.answers["promote"] = answer(active="")
    broker.after["promote"] = {"status": answer(status="active", active="a")}
    done = broker.ha("promote")
    assert (done.return_value, done.output) == (0, "")
    assert broker.ops() == ["status", "promote", "status"]


@pytest.mark.parametrize(
    "arguments", [("promote",), ("passive",), ("ping",), ("ready",), ("status", "--is-primary")]
)
def test_a_command_about_one_broker_takes_no_list(arguments: tuple[str, ...]) -> None:
    """Otherwise another broker might be promoted."""
    ended = ha("-b", "127.0.0.1:1,127.0.0.1:2", *arguments)
    assert isinstance(ended.exception, click.UsageError)
    assert "is about one broker" in str(ended.exception)


def test_another_broker_may_be_promoted_at_the_same_time(broker: Broker) -> None:
    broker.answers["promote"] = answer(active="")
    with pytest.raises(ToolError, match="Failed: b was promoted at the same time"):
        raise broker.ha("promote").exception or AssertionError


REPLICA: dict[str, Json] = {
    "vhost": "/", "queue": "orders", "src_queue": "orders", "src_uri": "amqp://far", "node": "a",
    "state": "running", "level": True, "behind": "",
}  # fmt: skip


def test_replicas_are_defined_and_listed(broker: Broker) -> None:
    broker.answers["replicate"] = b'{"ok": true}\n'
    broker.answers["replicas"] = json.dumps({"ok": True, "replicas": [REPLICA]}).encode() + b"\n"
    assert broker.ha("replicate").output == "/ orders: 'orders' of amqp://far, at a: level\n"
    done = broker.ha(
        "replicate", "orders", "u/p@ss@far", "--source", "o", "--arguments", '{"a": 1}'
    )
    assert (done.return_value, done.output) == (0, "")
    asked = next(one for one in broker.requests if one["op"] == "replicate")
    assert asked["value"] == {
        "src-uri": "amqp://u:p%40ss@far:5672",
        "src-queue": "o",
        "queue-args": {"a": 1},
    }
    broker.answers["replicas"] = b'{"ok": true, "replicas": []}\n'
    assert broker.ha("replicate", "orders", "--stop").return_value == 0
    assert broker.requests[-2]["value"] is None
    assert "No queue is a replica" in broker.ha("replicate").output


@pytest.mark.parametrize("stop", [False, True])
def test_a_replica_is_waited_for_by_its_name_and_virtual_host(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    monkeypatch.setattr("tools.commands.qpid_ha.PROMOTED_S", 0.0)
    broker.answers["replicate"] = b'{"ok": true}\n'
    there = [{**REPLICA, "vhost": "other"}, *([REPLICA] if stop else [])]
    broker.answers["replicas"] = json.dumps({"ok": True, "replicas": [*there]}).encode() + b"\n"
    words = ("orders", "--stop") if stop else ("orders", "far")
    late = broker.ha("-t", "0", "replicate", *words).exception
    assert isinstance(late, ToolError)
    assert "is not in force yet" in str(late)


def test_a_member_that_does_not_answer_is_shown_and_fails(broker: Broker) -> None:
    status = json.loads(broker.answers["status"])
    there = [*status["members"], {**status["members"][0], "id": "z", "local": False, "url": ""}]
    broker.answers["status"] = json.dumps({**status, "members": there}).encode() + b"\n"
    done = broker.ha("status", "--all")
    assert (done.return_value, "z its URL (none) has no address" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("replicate", "q"), "Wrong number of arguments: replicate QUEUE URL"),
        (("replicate", "q", "there", "--stop"), "Wrong number of arguments"),
        (("replicate", "q", "there", "--arguments", "{"), "--arguments is no JSON"),
        (("status", "--stop"), "go with replicate"),
        (("status", "extra"), "Wrong number of arguments"),
        (("ping", "--all"), "--all goes with status and query"),
        (("ping", "--is-primary"), "go with status"),
        (("status", "--all", "--is-primary"), "about one broker"),
        (("status", "--expect", "primary"), "primary"),
        (("rule",), "rule"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], says: str) -> None:
    error = ha(*words).exception
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert says in said


def test_a_broker_may_report_no_role(broker: Broker) -> None:
    broker.answers["status"] = json.dumps(STATUS).encode() + b"\n"
    with pytest.raises(ToolError, match="no role"):
        raise broker.ha("status").exception or AssertionError


def test_qpid_cluster_marks_the_roles(broker: Broker) -> None:
    shown = overview(parse_target(f"127.0.0.1:{broker.port}", 5.0).status())
    assert "ID=a URL=amqp:tcp:127.0.0.1:5672 (backup, local)" in shown
    assert "ID=b URL=amqp:tcp:127.0.0.1:5673 (the active one)" in shown
    assert "ID=c URL=amqp:tcp:127.0.0.1:5674\n" in shown + "\n"
