"""qpidctl against canned answers: lists, changes, the state of the cluster."""

from __future__ import annotations

import itertools
import json
import math
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest

from broker.exit_codes import Exit
from broker.machine.policies.settings import APPLY_TO
from tests.support.dashboard.canned_api import CONNECTION, HOSTILE, CannedApi, Json
from tests.unit.tools.operate.commands import Run
from tools.cli.answers import aligned
from tools.cli.failures import ToolError
from tools.client.http_api import Api, ApiError, Object
from tools.operate import states
from tools.operate.listings import LISTINGS
from tools.operate.output import plain
from tools.operate.qpid_stat import qpid_stat
from tools.operate.qpidctl import qpidctl


def test_a_list_is_tab_separated(run: Run) -> None:
    ended = run(qpidctl, "list_queues", "name", "messages", "durable")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:2] == ["name\tmessages\tdurable", "orders\t120\ttrue"]
    assert ended.err == "Listing queues of virtual host / ...\n"


@pytest.mark.parametrize(
    "arguments",
    [("-q", "list_queues"), ("list_queues", "-q"), ("list_queues", "name", "messages", "--quiet")],
)
def test_options_may_stand_before_or_after_the_verb(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(qpidctl, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("name\tmessages\norders\t120\n")


def test_silent_leaves_out_the_headings(run: Run) -> None:
    assert run(qpidctl, "-s", "list_users").out == (
        f"ada\t[administrator]\n{HOSTILE}\t[]\n"
    )  # fmt: skip


@pytest.mark.parametrize("how", [("--formatter", "json"), ("--json",)])
def test_json_is_one_document(run: Run, how: tuple[str, ...]) -> None:
    found = json.loads(run(qpidctl, "list_queues", "name,consumers", *how).out)
    assert found[1] == {"name": HOSTILE, "consumers": 0}


def test_framed_and_csv_output(run: Run) -> None:
    framed = run(qpidctl, "list_vhosts", "name", "--formatter", "pretty_table").out
    assert framed == "+------+\n| name |\n+------+\n| /    |\n| shop |\n+------+\n"
    assert run(qpidctl, "list_vhosts", "--formatter", "csv").out == "name\n/\nshop\n"


@pytest.mark.parametrize("verb", [verb for verb in LISTINGS if verb.startswith("list_")])
def test_every_list_has_all_its_columns(run: Run, api: CannedApi, verb: str) -> None:
    listing = LISTINGS[verb]
    user = ("ada",) if listing.of_user else ()
    api.answers.setdefault(
        "/".join(("users", *user, listing.path) if user else (listing.path,)), []
    )
    ended = run(qpidctl, verb, *user, *listing.columns, "--json")
    assert ended.code == 0, ended.err
    assert isinstance(json.loads(ended.out), list)


def test_an_unknown_column_is_answered_by_the_known_ones(run: Run) -> None:
    ended = run(qpidctl, "list_queues", "nmae")
    assert ended.code == Exit.USAGE
    assert "there is no column 'nmae'; there are: ack_rate, arguments" in ended.err


@pytest.mark.parametrize(
    ("typed", "change"),
    [
        (("add_user", "bob", "pw2"), ("PUT", "users/bob", {"password": "pw2", "tags": ""})),
        (("delete_user", "bob"), ("DELETE", "users/bob", None)),
        (
            ("set_permissions", "-p", "a/b", "bob", "^c", "^w", ""),
            ("PUT", "permissions/a%2Fb/bob", {"configure": "^c", "write": "^w", "read": ""}),
        ),
        (("clear_permissions", "bob"), ("DELETE", "permissions/%2F/bob", None)),
        (("add_vhost", "v"), ("PUT", "vhosts/v", {})),
        (
            ("add_vhost", "v", "--default-queue-type", "quorum"),
            ("PUT", "vhosts/v", {"default_queue_type": "quorum"}),
        ),
        (("delete_vhost", "v"), ("DELETE", "vhosts/v", None)),
        (
            ("set_policy", "caps", "^o", '{"max-length": 5}', "--priority", "2"),
            (
                "PUT", "policies/%2F/caps",
                {"pattern": "^o", "definition": {"max-length": 5}, "priority": 2,
                 "apply-to": "all"},
            ),
        ),
        (("-p", "v", "clear_policy", "caps"), ("DELETE", "policies/v/caps", None)),
        (
            ("close_connection", CONNECTION, "go", "away"),
            ("DELETE", f"connections/{quote(CONNECTION, safe='')}", None),
        ),
        (("purge_queue", ".."), ("DELETE", "queues/%2F/../contents", None)),
        (("delete_queue", "q"), ("DELETE", "queues/%2F/q", None)),
        (("delete_queue", "q", "-e"), ("DELETE", "queues/%2F/q?if-empty=true", None)),
        (("delete_queue", "q", "--if-unused"), ("DELETE", "queues/%2F/q?if-unused=true", None)),
        (
            ("delete_queue", "q", "-e", "-u"),
            ("DELETE", "queues/%2F/q?if-empty=true&if-unused=true", None),
        ),
        (
            ("set_vhost_limits", "-p", "v", '{"max-queues": 7}'),
            ("PUT", "vhost-limits/v/max-queues", {"value": 7}),
        ),
        (
            ("set_topic_permissions", "bob", "amq.topic", "^a", "^b"),
            ("PUT", "topic-permissions/%2F/bob",
             {"exchange": "amq.topic", "write": "^a", "read": "^b"}),
        ),
        (("clear_topic_permissions", "bob"), ("DELETE", "topic-permissions/%2F/bob", None)),
        (
            ("clear_topic_permissions", "bob", "amq.topic"),
            ("DELETE", "topic-permissions/%2F/bob/amq.topic", None),
        ),
        (
            ("set_parameter", "federation", "up", "3"),
            ("PUT", "parameters/federation/%2F/up",
             {"component": "federation", "name": "up", "value": 3}),
        ),
        (("sync_queue", "q"), ("POST", "queues/%2F/q/actions", {"action": "sync"})),
        (
            ("close_all_user_connections", "bob", "go", "away"),
            ("DELETE", "connections/username/bob", None),
        ),
        (("rebalance", "all"), ("POST", "rebalance/queues", {})),
        (("restart_vhost", "-p", "shop"), ("POST", "vhosts/shop/start/a", {})),
        (("drain",), ("PUT", "qpid/members/a/drain", {})),
        (("drain", "--force"), ("PUT", "qpid/members/a/drain?force=true", {})),
        (("revive",), ("DELETE", "qpid/members/a/drain", None)),
        (("set_vhost_tags", "shop", "a", "b"), ("PUT", "vhosts/shop", {"tags": "a,b"})),
        (
            ("update_vhost_metadata", "shop", "--description", "sold"),
            ("PUT", "vhosts/shop", {"description": "sold"}),
        ),
    ],
)  # fmt: skip
def test_each_change_is_one_request(
    run: Run, api: CannedApi, typed: tuple[str, ...], change: tuple[str, str, object]
) -> None:
    api.answers["vhosts/shop"] = {"name": "shop"}
    ended = run(qpidctl, *typed)
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert api.changes == [change]


def test_permissions_in_all_virtual_hosts(run: Run, api: CannedApi) -> None:
    assert run(qpidctl, "set_permissions_globally", "bob", "^c", "^w", "").code == 0
    body = {"configure": "^c", "write": "^w", "read": ""}
    assert api.changes == [
        ("PUT", "permissions/%2F/bob", body), ("PUT", "permissions/shop/bob", body)
    ]  # fmt: skip


def test_tags_do_not_create_a_missing_virtual_host(run: Run, api: CannedApi) -> None:
    ended = run(qpidctl, "set_vhost_tags", "absent", "a")
    assert (ended.code, api.changes) == (Exit.USAGE, [])
    assert "there is no virtual host 'absent'" in ended.err


def test_lists_of_one_user_and_of_all_virtual_hosts(run: Run, api: CannedApi) -> None:
    api.answers["users/ada/permissions"] = [
        {"user": "ada", "vhost": "shop", "configure": "", "write": "^w", "read": ".*"}
    ]
    assert run(qpidctl, "-q", "list_user_permissions", "ada").out == (
        "vhost\tconfigure\twrite\tread\nshop\t\t^w\t.*\n"
    )
    api.answers["vhost-limits"] = [{"vhost": "shop", "value": {"max-queues": 7}}]
    shown = 'vhost\tlimits\nshop\t{"max-queues": 7}\n'
    assert run(qpidctl, "-q", "list_vhost_limits").out == "vhost\tlimits\n"
    assert run(qpidctl, "-q", "list_vhost_limits", "--global").out == shown
    api.answers["user-limits/ada"] = [{"user": "ada", "value": {"max-channels": 7}}]
    ended = run(qpidctl, "-q", "list_user_limits", "--user", "ada", "--json")
    assert json.loads(ended.out) == [{"user": "ada", "limits": {"max-channels": 7}}]


def test_every_queue_is_on_every_member(run: Run) -> None:
    every = run(qpidctl, "-q", "list_queues", "name").out
    for where in ("--online", "--local"):
        assert run(qpidctl, "-q", "list_queues", where, "name").out == every
    assert run(qpidctl, "-q", "list_queues", "--offline", "name").out == "name\n"


def test_changing_a_password_keeps_the_tags(run: Run, api: CannedApi) -> None:
    api.answers["users/ada"] = {
        "name": "ada", "tags": ["administrator", "monitoring"], "password_hash": "h",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
    }  # fmt: skip
    assert run(qpidctl, "change_password", "ada", "new").code == 0
    assert run(qpidctl, "set_user_tags", "ada", "management").code == 0
    assert api.changes == [
        ("PUT", "users/ada", {"password": "new", "tags": "administrator,monitoring"}),
        (
            "PUT", "users/ada",
            {"password_hash": "h", "hashing_algorithm": "rabbit_password_hashing_sha256",
             "tags": "management"},
        ),
    ]  # fmt: skip


def test_a_reason_is_passed_on_whatever_its_letters(run: Run, api: CannedApi) -> None:
    api.reasons.clear()
    assert run(qpidctl, "close_connection", CONNECTION, "обновление\n", "now").code == 0
    assert api.reasons == ["обновление now"]


def test_a_password_is_checked_at_the_first_member_of_a_list_that_answers(
    run: Run, api: CannedApi
) -> None:
    with socket.socket() as bound:  # and nobody listens there
        bound.bind(("127.0.0.1", 0))
        brokers = f"127.0.0.1:{bound.getsockname()[1]},127.0.0.1:{api.port}"
        ended = run(qpidctl, "--broker", brokers, "authenticate_user", "ada", "pw")
    assert (ended.code, ended.out) == (0, "user ada and this password are good\n"), ended.err


def test_only_connections_of_the_virtual_host_are_closed(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Json] = [{"name": name, "vhost": name[0]} for name in ("s1", "s2", "t1")]
    monkeypatch.setitem(api.answers, "connections", rows)
    api.refusals["connections/s1"] = (404, "Not Found")  # it left by itself
    ended = run(qpidctl, "-p", "s", "close_all_connections", "bye")
    assert (ended.code, ended.out) == (0, "1 closed\n"), ended.err
    assert api.changes == [("DELETE", "connections/s2", None)]
    api.changes.clear()
    assert run(qpidctl, "close_all_connections", "--global", "bye").out == "2 closed\n"
    api.refusals["connections/s1"] = (500, "it failed")
    assert run(qpidctl, "close_all_connections", "--global", "bye").code == Exit.INTERNAL


def test_one_limit_is_cleared_or_all_are(run: Run, api: CannedApi) -> None:
    limits: Json = {"max-connections": 5, "max-channels": 7}
    api.answers["user-limits/ada"] = [{"user": "ada", "value": limits}]
    assert run(qpidctl, "clear_user_limits", "ada", "max-channels").code == 0
    assert api.changes == [("DELETE", "user-limits/ada/max-channels", None)]
    for every in ([], ["all"]):
        api.changes.clear()
        assert run(qpidctl, "clear_user_limits", "ada", *every).code == 0
        assert [path for _, path, _ in api.changes] == [
            "user-limits/ada/max-connections", "user-limits/ada/max-channels"
        ]  # fmt: skip


def test_the_purged_queue_is_named(run: Run) -> None:
    assert run(qpidctl, "purge_queue", "orders").err.startswith(
        "Deleting the messages of queue orders of virtual host / ..."
    )


def test_an_existing_user_is_not_added_again(run: Run, api: CannedApi) -> None:
    ended = run(qpidctl, "add_user", "ada", "pw")
    assert (ended.code, api.changes) == (Exit.USAGE, [])
    assert "is there already; see change_password" in ended.err


def test_the_state_of_the_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(qpidctl, "cluster_status")
    assert ended.code == 0
    assert "Votes: 3 of 3\nQuorate: true\n" in ended.out
    assert "a (local)\tACTIVE\ttrue\t1\t4711" in ended.out
    assert "Cluster: shop\n" in run(qpidctl, "status").out
    assert run(qpidctl, "await_startup").code == 0
    for verb in (("ping",), ("await_startup",), ("await_online_nodes", "3")):
        assert json.loads(run(qpidctl, *verb, "--json").out)["result"] == "ok"
    looks = itertools.count(0, 20)  # with a clock of its own: an answer may take its time
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(states, "time", clock)
    late = run(qpidctl, "await_online_nodes", "4", "-t", "30")
    assert (late.code, "3 of 4 members serve" in late.err) == (Exit.UNAVAILABLE, True)


def test_a_size_of_the_status_may_have_a_unit(run: Run, api: CannedApi) -> None:
    del api
    assert "Memory used: 91000000\n" in run(qpidctl, "status").out
    assert "Memory used: 91.0 mb\n" in run(qpidctl, "status", "--unit", "MB").out
    assert "Disk free: 70.0 gb\n" in run(qpidctl, "status", "--unit", "gb").out
    wrong = run(qpidctl, "status", "--unit", "barrels")
    assert (wrong.code, "'barrels' is not one of 'bytes'" in wrong.err) == (Exit.USAGE, True)


@pytest.mark.parametrize("apply_to", APPLY_TO)
def test_a_policy_may_be_for_queues_of_one_type(run: Run, api: CannedApi, apply_to: str) -> None:
    """RabbitMQ takes all of them, and the state knows a queue's type."""
    asked = ("caps", "^o", '{"max-length": 5}', "--apply-to", apply_to)
    assert run(qpidctl, "set_policy", *asked).code == 0
    (_, _, body), *_ = api.changes
    assert isinstance(body, dict)
    assert body["apply-to"] == apply_to
    of_operator = run(qpidctl, "set_operator_policy", *asked).code
    assert of_operator == (Exit.USAGE if apply_to in ("all", "exchanges") else 0)


def test_waiting_for_one_member_reports_the_state_of_that_member() -> None:
    joining = {"status": "JOINING"}
    api = SimpleNamespace(rows=lambda _: [], fields=lambda *_: joining, timeout_seconds=0.0)
    with pytest.raises(ToolError, match=r": this member is JOINING$"):
        states.await_serving(cast("Api", api), members=1)


@pytest.mark.parametrize("comes_at", [2.0, math.inf])
def test_a_user_may_wait_for_the_definitions_that_create_it(
    monkeypatch: pytest.MonkeyPatch, comes_at: float
) -> None:
    """A member serves, and knows the definitions a moment later. A wrong password is still reported
    soon, after a few attempts only: the broker slows down users that fail more often."""
    now, asked = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def rows(_: str) -> list[Object]:
        asked[0] += 1
        if now[0] < comes_at:
            raise ApiError("user 'ada' and this password are refused", 401)
        return [{"running": True}]

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(states, "time", clock)
    api = SimpleNamespace(rows=rows, fields=lambda *_: {"status": "ACTIVE"}, timeout_seconds=60.0)
    if comes_at < math.inf:
        states.await_serving(cast("Api", api), members=1)
    else:
        with pytest.raises(ToolError, match="are refused") as refused:
            states.await_serving(cast("Api", api), members=1)
        assert (refused.value.code, asked[0]) == (Exit.DATA, 4)


@pytest.mark.parametrize(
    ("verb", "check"),
    [
        ("await_online_quorum_plus_one", "node-is-quorum-critical"),
        ("await_online_synchronized_mirror", "node-is-mirror-sync-critical"),
    ],
)
def test_a_script_can_wait_until_a_member_may_be_stopped(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch, verb: str, check: str
) -> None:
    api.answers[f"health/checks/{check}"] = {"status": "ok"}
    assert run(qpidctl, verb).code == 0
    api.refusals[f"health/checks/{check}"] = (503, "too few are there")
    looks = itertools.count(0, 20)
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(states, "time", clock)
    late = run(qpidctl, verb, "-t", "30")
    assert (late.code, late.err) == (
        Exit.UNAVAILABLE, "qpidctl: not in 30 s: too few are there\n"
    )  # fmt: skip


def test_an_import_lists_each_refused_entry_with_its_reason(
    run: Run, api: CannedApi, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text("{}")
    refused = ["queues[3]: no such type", "policies[0]: pattern '(' is none"]
    reason = "\n".join(["2 entries are refused, everything else is defined:", *refused])
    api.refusals["definitions"] = (400, reason)
    api.failures["definitions"] = {"refused": [*refused]}
    found = run(qpidctl, "import_definitions", str(file))
    assert found.code == Exit.DATA
    assert found.err.splitlines() == [
        "qpidctl: 2 entries are refused, everything else is defined:",
        "  queues[3]: no such type",
        "  policies[0]: pattern '(' is none",
    ]


def test_a_name_cannot_control_the_terminal() -> None:
    assert plain("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert aligned([["name", "n"], ["a", "5"], ["bb", "12"]], [["a", 5], ["bb", 12]]) == [
        "name   n", "a      5", "bb    12"
    ]  # fmt: skip


def test_a_list_requests_only_the_fields_of_its_columns(run: Run, api: CannedApi) -> None:
    """All fields of a hundred thousand queues are a hundred megabytes."""
    api.queries.clear()
    assert run(qpidctl, "list_queues", "name", "pid", "publish_rate").code == 0
    assert api.queries == [
        ("queues/%2F", {"columns": "name,node,message_stats.publish_details.rate,vhost"})
    ]
    api.queries.clear()
    assert run(qpidctl, "list_queues", "name", "memory", "messages_ram", "leader").code == 0
    assert api.queries == [("queues/%2F", {"columns": "name,memory,messages_ram,leader,vhost"})]
    api.queries.clear()
    assert run(qpid_stat, "-u").code == 0
    (query,) = api.queries
    assert query[1]["columns"].startswith("consumer_tag,queue.name,queue.vhost,")
