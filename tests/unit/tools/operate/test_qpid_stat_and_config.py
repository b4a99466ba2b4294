"""qpid-stat and qpid-config against canned answers: tables and changes."""

from __future__ import annotations

import json

import pytest

from broker.exit_codes import Exit
from tests.support.dashboard.canned_api import CannedApi
from tests.unit.tools.operate.commands import Run
from tools.operate.qpid_config import qpid_config
from tools.operate.qpid_stat import TABLES, qpid_stat


@pytest.mark.parametrize("option", TABLES)
def test_qpid_stat_shows_each_table(run: Run, option: str) -> None:
    ended = run(qpid_stat, f"--{option}")
    assert ended.code == 0, ended.err
    title, heads, rule, *rows = ended.out.splitlines()
    assert title == TABLES[option].title
    assert heads.split() == list(TABLES[option].columns)
    assert set(rule.strip()) == {"="}
    assert rows
    found = json.loads(run(qpid_stat, f"--{option}", "--json").out)
    assert [*found[0]] == list(TABLES[option].columns)


def test_qpid_stat_sorts_filters_and_limits(run: Run) -> None:
    ended = run(qpid_stat, "-q", "-S", "msg", "-L", "2", "-F", "bulk", "--json")
    assert [row["queue"] for row in json.loads(ended.out)] == ["bulk.119", "bulk.118"]
    assert run(qpid_stat, "-q", "-S", "nothing").code == Exit.USAGE


@pytest.mark.parametrize(
    ("typed", "change"),
    [
        (
            ("add", "queue", "q", "--durable", "--max-queue-count", "9", "--limit-policy", "ring",
             "--argument", "x-expires=60000"),
            ("PUT", "queues/%2F/q",
             {"durable": True, "auto_delete": False,
              "arguments": {"x-max-length": 9, "x-overflow": "drop-head", "x-expires": 60000}}),
        ),
        (
            ("add", "queue", "q", "--max-queue-size", "9"),
            ("PUT", "queues/%2F/q",
             {"durable": False, "auto_delete": False,
              "arguments": {"x-max-length-bytes": 9, "x-overflow": "reject-publish"}}),
        ),
        (
            ("add", "queue", "q", "--max-queue-size", "9", "--limit-policy", "flow-to-disk",
             "--replicate", "none"),
            ("PUT", "queues/%2F/q", {"durable": False, "auto_delete": False, "arguments": {}}),
        ),
        (
            ("add", "queue", "log", "--durable", "--argument", "x-queue-type=stream",
             "--max-queue-size", "9"),
            ("PUT", "queues/%2F/log",
             {"durable": True, "auto_delete": False,
              "arguments": {"x-max-length-bytes": 9, "x-queue-type": "stream"}}),
        ),
        (
            ("-V", "v", "add", "exchange", "topic", "e", "--alternate-exchange", "lost",
             "--replicate", "all"),
            ("PUT", "exchanges/v/e",
             {"type": "topic", "durable": False, "auto_delete": False,
              "arguments": {"alternate-exchange": "lost"}}),
        ),
        (
            ("add", "queue", "prices", "--durable", "--lvq-key", "ticker"),
            ("PUT", "queues/%2F/prices",
             {"durable": True, "auto_delete": False,
              "arguments": {"qpid.last_value_queue_key": "ticker"}}),
        ),
        (
            ("add", "queue", "orders", "--group-header", "customer", "--shared-groups"),
            ("PUT", "queues/%2F/orders",
             {"durable": False, "auto_delete": False,
              "arguments": {"qpid.group_header_key": "customer", "qpid.shared_msg_group": True}}),
        ),
        (
            ("add", "queue", "orders", "--group-header", "customer"),
            ("PUT", "queues/%2F/orders",
             {"durable": False, "auto_delete": False,
              "arguments": {"qpid.group_header_key": "customer"}}),
        ),
        (("del", "queue", "q"), ("DELETE", "queues/%2F/q?if-unused=true&if-empty=true", None)),
        (("del", "queue", "q", "--force-if-used"), ("DELETE", "queues/%2F/q?if-empty=true", None)),
        (
            ("del", "queue", "q", "--force-if-not-empty"),
            ("DELETE", "queues/%2F/q?if-unused=true", None),
        ),
        (("del", "queue", "q", "--force"), ("DELETE", "queues/%2F/q", None)),
        (("del", "exchange", "e"), ("DELETE", "exchanges/%2F/e", None)),
        (
            ("bind", "e", "orders", "k.#"),
            ("POST", "bindings/%2F/e/e/q/orders", {"routing_key": "k.#", "arguments": {}}),
        ),
        (
            ("bind", "h", "elsewhere", "", "all", "format=pdf", "pages=3"),
            ("POST", "bindings/%2F/e/h/e/elsewhere",
             {"routing_key": "",
              "arguments": {"x-match": "all", "format": "pdf", "pages": 3}}),
        ),
    ],
)  # fmt: skip
def test_qpid_config_changes(
    run: Run, api: CannedApi, typed: tuple[str, ...], change: tuple[str, str, object]
) -> None:
    ended = run(qpid_config, *typed)
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert api.changes == [change]


@pytest.mark.parametrize(
    "typed", [("add", "queue", ""), ("del", "queue", ""), ("bind", "amq.topic", "", "k")]
)
def test_an_empty_name_is_refused(run: Run, api: CannedApi, typed: tuple[str, ...]) -> None:
    """The path of the API would be that of the list."""
    ended = run(qpid_config, *typed)
    assert (ended.code, ended.out, api.changes) == (Exit.USAGE, "", [])
    assert ended.err == "qpid-config: a name is empty\n"


def test_a_queue_that_may_not_be_deleted_is_answered_with_the_way_out(
    run: Run, api: CannedApi
) -> None:
    api.refusals["queues/%2F/q"] = 400, "queue 'q' in vhost '/' not empty"
    for force, hint in (((), True), (("--force",), False)):
        ended = run(qpid_config, "del", "queue", "q", *force)
        assert ended.code == Exit.DATA
        assert "not empty" in ended.err
        assert ("--force deletes it all the same" in ended.err) is hint


def test_qpid_config_unbinds_by_the_properties_key(run: Run, api: CannedApi) -> None:
    api.answers["bindings/%2F/e/amq.topic/q/orders"] = api.answers["bindings"]
    assert run(qpid_config, "unbind", "amq.topic", "orders", "o.#").code == 0
    assert api.changes == [("DELETE", "bindings/%2F/e/amq.topic/q/orders/o.%2523", None)]
    assert run(qpid_config, "unbind", "amq.topic", "orders", "x").code == Exit.USAGE


def test_an_endless_answer_is_read_to_a_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.client.http_api.ANSWER_BYTES_MAX", 1000)
    ended = run(qpid_config, "queues")
    assert (ended.code, ended.out) == (Exit.UNAVAILABLE, "")
    assert "did not answer in JSON" in ended.err


def test_qpid_config_lists(run: Run) -> None:
    assert "Total Queues: 122" in run(qpid_config).out
    assert run(qpid_config, "queues", "ord*").out == "Name\tAttributes\norders\t--durable\n"
    assert "    bind [o.#] => amq.topic" in run(qpid_config, "-b", "queues", "orders").out


def test_an_option_without_a_counterpart_is_refused(run: Run, api: CannedApi) -> None:
    for option in (
        ("--start-replica", "b"),
        ("--flow-stop-size", "9"),
        ("--file-size", "8"),
    ):
        ended = run(qpid_config, "add", "queue", "q", *option)
        assert ended.code == Exit.USAGE
        assert "has no counterpart here: " in ended.err
    ended = run(qpid_config, "add", "queue", "q", "--shared-groups")
    assert ended.code == Exit.USAGE
    assert "--shared-groups needs --group-header" in ended.err
    assert api.changes == []


def test_a_table_of_one_virtual_host(run: Run, api: CannedApi) -> None:
    assert "orders" in run(qpid_stat, "-q").out
    assert "orders" in run(qpid_stat, "-q", "-V", "/").out
    assert "orders" not in run(qpid_stat, "-c", "--vhost", "none such").out
    ended = run(qpid_stat, "-m", "-V", "/")
    assert (ended.code, ended.err) == (
        Exit.USAGE,
        "qpid-stat: --vhost goes with -c, -e, -q or -u. Try 'qpid-stat --help'.\n",
    )
