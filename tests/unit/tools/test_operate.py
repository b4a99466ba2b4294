"""qpidctl, qpid-stat and qpid-config against prepared answers: output, requests, exit codes."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast
from urllib.parse import quote

import click
import pytest
from click.shell_completion import BashComplete, ShellComplete, ZshComplete

from broker.access import passwords
from broker.exit_codes import Exit
from tests import verbs_page
from tests.support.dashboard.canned_api import CONNECTION, HOSTILE, CannedApi
from tests.support.generated_blocks import renewed
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.client.credentials import Credentials, typed_password
from tools.client.http_api import Api, Json, absent, parse_api
from tools.client.http_api import plain as plain_text
from tools.operate import states
from tools.operate.listings import LISTINGS
from tools.operate.output import FORMATS, aligned, plain
from tools.operate.qpid_config import qpid_config
from tools.operate.qpid_stat import TABLES, qpid_stat
from tools.operate.qpidctl import qpidctl
from tools.operate.refused import REFUSED
from tools.operate.settings import CHANGES


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def canned() -> Iterator[CannedApi]:
    """One API for all tests of this file."""
    found = CannedApi()
    yield found
    found.close()


@pytest.fixture
def api(canned: CannedApi) -> CannedApi:
    """The API, with nothing changed yet."""
    canned.changes.clear()
    canned.refusals.clear()
    return canned


@pytest.fixture
def run(api: CannedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as its user would, against the API."""
    monkeypatch.setenv("QPID_BROKER", f"127.0.0.1:{api.port}")
    monkeypatch.setenv("QPID_USER", "ada")
    monkeypatch.setenv("QPID_PASSWORD", "pw")

    def command(what: click.Command, *arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            run_command(what, arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    return command


def test_a_list_is_parted_by_tabs_for_a_filter(run: Run) -> None:
    ended = run(qpidctl, "list_queues", "name", "messages", "durable")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:2] == ["name\tmessages\tdurable", "orders\t120\ttrue"]
    assert ended.err == "Listing queues of virtual host / ...\n"


@pytest.mark.parametrize(
    "arguments",
    [("-q", "list_queues"), ("list_queues", "-q"), ("list_queues", "name", "messages", "--quiet")],
)
def test_options_stand_before_the_verb_or_behind_it(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(qpidctl, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("name\tmessages\norders\t120\n")


def test_silent_leaves_out_the_heads(run: Run) -> None:
    assert run(qpidctl, "-s", "list_users").out == (
        f"ada\t[administrator]\n{HOSTILE}\t[]\n"
    )  # fmt: skip


@pytest.mark.parametrize("how", [("--formatter", "json"), ("--json",)])
def test_json_is_one_document(run: Run, how: tuple[str, ...]) -> None:
    found = json.loads(run(qpidctl, "list_queues", "name,consumers", *how).out)
    assert found[1] == {"name": HOSTILE, "consumers": 0}


def test_a_frame_and_csv(run: Run) -> None:
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


def test_an_unknown_column_is_answered_by_those_there_are(run: Run) -> None:
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
        (
            ("set_vhost_limits", "-p", "v", '{"max-queues": 7}'),
            ("PUT", "vhost-limits/v/max-queues", {"value": 7}),
        ),
        (
            ("set_topic_permissions", "bob", "amq.topic", "^a", "^b"),
            ("PUT", "topic-permissions/%2F/bob",
             {"exchange": "amq.topic", "write": "^a", "read": "^b"}),
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
        (("drain", "--force"), ("PUT", "qpid/members/a/drain", {})),
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


def test_a_virtual_host_that_is_not_there_is_not_made_by_its_tags(run: Run, api: CannedApi) -> None:
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


def test_a_hash_lets_the_password_in_and_nobody_is_asked(run: Run) -> None:
    ended = run(qpidctl, "--broker", "127.0.0.1:1", "hash_password", "s3cret")
    assert (ended.code, ended.err) == (0, "")
    algorithm = passwords.DEFAULT_ALGORITHM
    assert passwords.matches("s3cret", ended.out.strip(), algorithm)
    assert not passwords.matches("other", ended.out.strip(), algorithm)


def test_options_of_the_connection_stand_behind_the_verb_as_well(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pw\n")
    secret.chmod(0o600)
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    monkeypatch.delenv("QPID_PASSWORD")
    login = ("--user", "ada", "--password-file", str(secret))
    ended = run(qpidctl, "--password", "wrong", "list_vhosts", "--broker",
                f"127.0.0.1:{api.port}", "-s", *login)  # fmt: skip
    assert (ended.code, ended.out) == (0, "/\nshop\n"), ended.err
    ended = run(qpidctl, "set_user_tags", "ada", "--ssl-ca", "no such file", *login)
    assert (ended.code, "would be asked in clear" in ended.err) == (Exit.USAGE, True)


def test_a_member_that_is_typed_counts_and_not_that_of_the_environment(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or `drain` goes to another member than the one that was named."""
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    named = f"qpid@127.0.0.1:{api.port}"
    assert run(qpidctl, "-n", named, "-s", "list_vhosts").out == "/\nshop\n"
    assert run(qpidctl, "-n", "127.0.0.1:1", "list_vhosts", "-n", named).code == 0


@pytest.mark.parametrize("where", [0, 1])
def test_two_passwords_are_one_too_many_wherever_they_stand(run: Run, where: int) -> None:
    words = ["list_vhosts"]
    words[where:where] = ["--password", "pw", "--password-file", "secret"]
    ended = run(qpidctl, *words)
    assert ended.code == Exit.USAGE
    assert ended.err.endswith("give --password or --password-file, not both\n")


@pytest.mark.parametrize("arguments", [("-t", "0", "ping"), ("ping", "-t", "0")])
def test_no_limit_of_time_may_stand_behind_the_verb_as_well(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    limits: list[float | None] = []

    def fields(api: Api, *_: str, **__: str) -> dict[str, str]:
        limits.append(api.timeout_seconds)
        return {"node": "a"}

    monkeypatch.setattr(Api, "fields", fields)
    assert run(qpidctl, *arguments).code == 0
    assert limits == [None]


def test_a_connection_that_leaves_by_itself_does_not_keep_the_others(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: Json = [{"name": name, "vhost": "/"} for name in ("one", "two")]
    monkeypatch.setitem(api.answers, "connections", there)
    api.refusals["connections/one"] = (404, "Not Found")
    ended = run(qpidctl, "-q", "close_all_connections", "maintenance")
    assert (ended.code, ended.out) == (0, "1 closed\n"), ended.err
    assert api.changes == [("DELETE", "connections/two", None)]


def test_a_password_is_asked_for_only_at_a_terminal(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QPID_PASSWORD")
    typed_password.cache_clear()
    for stdin in (io.StringIO("pw\n"), None):  # None: it is closed, as under cron
        monkeypatch.setattr("sys.stdin", stdin)
        ended = run(qpidctl, "list_vhosts", "-q")
        assert (ended.code, ended.err) == (
            Exit.USAGE,
            "qpidctl: there is no password of user 'ada', and no terminal to ask for it: give "
            "--password-file FILE, or set QPID_PASSWORD\n",
        )
    asked: list[tuple[str, bool]] = []

    def prompt(text: str, *, hide_input: bool, err: bool) -> str:
        asked.append((text, hide_input and err))
        return "pw"

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(click, "prompt", prompt)
    assert run(qpidctl, "-s", "list_vhosts").out == "/\nshop\n"
    assert asked == [("Password of ada", True)]
    typed_password.cache_clear()


def test_a_password_is_changed_and_the_tags_stay(run: Run, api: CannedApi) -> None:
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


def test_a_script_pipes_a_password_in(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    assert run(qpidctl, "add_user", "bob").code == 0
    assert api.changes == [("PUT", "users/bob", {"password": "s3cret", "tags": ""})]
    for stdin in (io.StringIO(""), None):
        monkeypatch.setattr("sys.stdin", stdin)
        ended = run(qpidctl, "add_user", "eve")
        assert ended.code == Exit.DATA
        assert ended.err.endswith("no password was given, neither as an argument nor on stdin\n")


def test_what_is_purged_is_named(run: Run) -> None:
    assert run(qpidctl, "purge_queue", "orders").err.startswith(
        "Deleting the messages of queue orders of virtual host / ..."
    )


def test_a_user_who_is_there_is_not_added_again(run: Run, api: CannedApi) -> None:
    ended = run(qpidctl, "add_user", "ada", "pw")
    assert (ended.code, api.changes) == (Exit.USAGE, [])
    assert "is there already; see change_password" in ended.err


@pytest.mark.parametrize("verb", REFUSED)
def test_what_cannot_be_is_refused_with_what_to_do_instead(
    run: Run, api: CannedApi, verb: str
) -> None:
    ended = run(qpidctl, verb, "whatever")
    assert ended.code == Exit.USAGE
    assert f"qpidctl: {verb} is refused: " in ended.err
    assert ended.err.rstrip("\n")[-1] not in ".; "
    assert api.changes == []


def test_the_page_of_verbs_and_columns_is_what_the_command_does() -> None:
    """Every verb of RabbitMQ's is known, or refused; making the table fails for another one."""
    text = verbs_page.PAGE.read_text(encoding="utf-8")
    assert renewed(text, verbs_page.BLOCKS) == text, "python -m tests.verbs_page --write"
    known = {verb for verbs in verbs_page.VERBS.values() for verb in verbs.split()}
    assert known >= REFUSED.keys()
    assert not REFUSED.keys() & qpidctl.commands.keys()


@pytest.mark.parametrize("verb", REFUSED)
def test_the_verb_to_use_instead_is_there(verb: str) -> None:
    for named in re.findall(r"qpidctl ([a-z_]{3,})", REFUSED[verb]):
        assert named in qpidctl.commands
    assert not REFUSED[verb].endswith(".")


def test_exit_codes_are_those_that_scripts_know(run: Run, api: CannedApi) -> None:
    api.refusals["policies/%2F/p"] = (400, "Validation failed: max-length must be a number")
    bad = run(qpidctl, "set_policy", "p", "^", '{"max-length": "x"}')
    assert (bad.code, bad.err.splitlines()[-1]) == (
        Exit.DATA, "qpidctl: Validation failed: max-length must be a number"
    )  # fmt: skip
    assert run(qpidctl, "set_policy", "p", "^", "{").code == Exit.DATA
    api.refusals["users/x"] = (404, "Not Found")
    ended = run(qpidctl, "delete_user", "x")
    assert (ended.code, "there is no user 'x'" in ended.err) == (Exit.USAGE, True)
    assert run(qpidctl, "--password", "wrong", "list_users").code == Exit.DATA
    api.answers["healthchecks/node"] = {"status": "failed", "reason": "not serving"}
    ill = run(qpidctl, "-q", "node_health_check")
    assert (ill.code, ill.err) == (Exit.UNAVAILABLE, "qpidctl: not serving\n")
    api.answers["health/checks/port-listener/5672"] = {"status": "ok", "port": 5672}
    assert run(qpidctl, "check_port_listener", "5672").out == "port-listener 5672: passed\n"
    api.answers["health/checks/certificate-expiration/2/days"] = {"status": "ok"}
    assert run(qpidctl, "check_certificate_expiration", "--within", "2", "--unit", "days").code == 0
    api.refusals["health/checks/alarms"] = (503, "b has an alarm")
    assert run(qpidctl, "check_alarms").code == Exit.UNAVAILABLE
    assert run(qpidctl, "check_local_alarms").code == Exit.OK
    away = run(qpidctl, "--broker", "127.0.0.1:1", "ping")
    assert away.code == Exit.UNAVAILABLE
    assert "is this its management port?" in away.err
    assert run(qpidctl, "no_such_verb").code == Exit.USAGE


def test_who_lacks_a_tag_is_told_which_and_how_to_get_it(run: Run, api: CannedApi) -> None:
    api.refusals["users"] = (401, "Not administrator user")
    ended = run(qpidctl, "-q", "list_users")
    assert (ended.code, ended.err) == (
        Exit.DATA,
        "qpidctl: user 'ada' may not do this: it takes the tag administrator, which an "
        "administrator gives by qpidctl set_user_tags\n",
    )


def test_a_tag_that_means_nothing_is_named(run: Run) -> None:
    assert "(the brokers know no tag amdin)" in run(
        qpidctl, "set_user_tags", "ada", "amdin", "monitoring"
    ).err  # fmt: skip
    assert "know no tag" not in run(qpidctl, "set_user_tags", "ada", "management").err


def test_where_json_is_wrong_is_said(run: Run) -> None:
    ended = run(qpidctl, "set_policy", "p", "^", '{"max-length": 5')
    assert "line 1 column 17" in ended.err


def test_a_question_ends_with_its_mark_alone(run: Run) -> None:
    ended = run(qpidctl, "list_queues", "--formater", "json")
    assert "'--formatter'? Try 'qpidctl list_queues --help'.\n" in ended.err


def test_wrong_usage_of_a_verb_leads_to_the_help_of_that_verb(run: Run) -> None:
    ended = run(qpidctl, "set_policy", "caps")
    assert ended.code == 64
    assert ended.err == ("qpidctl: Missing argument 'PATTERN'. Try 'qpidctl set_policy --help'.\n")


def test_a_command_without_a_verb_is_answered_by_its_help(run: Run) -> None:
    ended = run(qpidctl)
    assert ended.code == 64
    assert ended.err.startswith("Usage: qpidctl [OPTIONS] COMMAND")
    assert "Try 'qpidctl" not in ended.err


def test_every_verb_explains_itself(run: Run) -> None:
    assert CHANGES.keys() <= qpidctl.commands.keys()
    for verb in qpidctl.commands:
        ended = run(qpidctl, verb, "--help")
        assert ended.code == 0
        assert len(ended.out) > 200
    assert 'eval "$(_QPIDCTL_COMPLETE=bash_source qpidctl)"' in run(qpidctl, "--help").out


def test_the_state_of_the_cluster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(qpidctl, "cluster_status")
    assert ended.code == 0
    assert "Votes: 3 of 3\nQuorate: true\n" in ended.out
    assert "a (local)\tACTIVE\ttrue\t1\t4711" in ended.out
    assert "Cluster: shop\n" in run(qpidctl, "status").out
    assert run(qpidctl, "await_startup").code == 0
    looks = itertools.count(0, 20)  # at a clock of its own: an answer may take its time
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(states, "time", clock)
    late = run(qpidctl, "await_online_nodes", "4", "-t", "30")
    assert (late.code, "3 of 4 members serve" in late.err) == (Exit.UNAVAILABLE, True)


def test_who_waits_for_one_member_is_told_of_that_one() -> None:
    joining = {"status": "JOINING"}
    api = SimpleNamespace(rows=lambda _: [], fields=lambda *_: joining, timeout_seconds=0.0)
    with pytest.raises(ToolError, match=r": this member is JOINING$"):
        states.await_serving(cast("Api", api), members=1)


@pytest.mark.parametrize(
    ("verb", "check"),
    [
        ("await_online_quorum_plus_one", "node-is-quorum-critical"),
        ("await_online_synchronized_mirror", "node-is-mirror-sync-critical"),
    ],
)
def test_a_script_waits_until_a_member_may_be_stopped(
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


def test_qpid_stat_sorts_sifts_and_cuts(run: Run) -> None:
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
            ("add", "queue", "q", "--max-queue-size", "9", "--limit-policy", "flow-to-disk"),
            ("PUT", "queues/%2F/q", {"durable": False, "auto_delete": False, "arguments": {}}),
        ),
        (
            ("-V", "v", "add", "exchange", "topic", "e", "--alternate-exchange", "lost"),
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


def test_qpid_config_unbinds_by_the_key_of_the_properties(run: Run, api: CannedApi) -> None:
    api.answers["bindings/%2F/e/amq.topic/q/orders"] = api.answers["bindings"]
    assert run(qpid_config, "unbind", "amq.topic", "orders", "o.#").code == 0
    assert api.changes == [("DELETE", "bindings/%2F/e/amq.topic/q/orders/o.%2523", None)]
    assert run(qpid_config, "unbind", "amq.topic", "orders", "x").code == Exit.USAGE


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


def test_addresses_and_credentials() -> None:
    one = parse_api("bob/s3:c@[::1]:99", 5.0)
    assert (one.address, one.user, one.password, one.tls) == (("::1", 99), "bob", "s3:c", None)
    other = Credentials("of an option", "of an option")
    two = parse_api("https://bob@broker", None, other)
    assert (two.address, two.user, two.password) == (("broker", 15671), "bob", "of an option")
    assert two.tls is not None
    three = parse_api("bob/word@broker", None, other)
    assert (three.user, three.password) == ("bob", "word")


def test_a_name_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert aligned([["name", "n"], ["a", "5"], ["bb", "12"]], [["a", 5], ["bb", 12]]) == [
        "name   n", "a      5", "bb    12"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_line", "says"),
    [
        ("DELETE queues shop work", "no queue 'work' in virtual host 'shop'"),
        ("GET queues shop", "no virtual host 'shop'"),
        ("PUT policies shop short", "no virtual host 'shop'"),
        ("DELETE policies shop short", "no policy 'short' in virtual host 'shop'"),
        ("DELETE users ada", "no user 'ada'"),
        ("PUT user-limits ada max-channels", "no user 'ada'"),
        ("PUT permissions shop ghost", "no user 'ghost' or no virtual host 'shop'"),
        ("DELETE permissions shop ada", "user 'ada' has no permissions in virtual host 'shop'"),
        ("POST bindings shop e news q work", "no exchange 'news' or no queue 'work'"),
        ("DELETE bindings shop e news q work k", "binding of exchange 'news' to queue 'work'"),
        ("GET something else", "nothing at /api/something/else"),
    ],
)
def test_what_is_not_there_is_named(request_line: str, says: str) -> None:
    method, *names = request_line.split()
    assert says in absent(method, tuple(names))


def test_a_refusal_is_shown_without_erlangs_brackets() -> None:
    """The API keeps them: programs compare RabbitMQ's sentences."""
    given = 'Validation failed\n\n<<"x">> is not a valid ha-mode value, nor <<"a\\"b">>\n'
    assert plain_text(given) == ('Validation failed: "x" is not a valid ha-mode value, nor "a\\"b"')
    given = 'Validation failed\n\n[{<<"max-lenth">>,5}] are not recognised policy settings\n'
    assert plain_text(given) == (
        'Validation failed: ["max-lenth": 5] are not recognised policy settings'
    )


def test_a_list_asks_for_the_fields_of_its_columns_only(run: Run, api: CannedApi) -> None:
    """A hundred thousand queues with all that is known of each are a hundred megabytes."""
    api.queries.clear()
    assert run(qpidctl, "list_queues", "name", "pid", "publish_rate").code == 0
    assert api.queries == [
        ("queues/%2F", {"columns": "name,node,message_stats.publish_details.rate,vhost"})
    ]
    api.queries.clear()
    assert run(qpid_stat, "-u").code == 0
    (query,) = api.queries
    assert query[1]["columns"].startswith("consumer_tag,queue.name,queue.vhost,")


def test_one_virtual_host_of_a_table(run: Run, api: CannedApi) -> None:
    assert "orders" in run(qpid_stat, "-q").out
    assert "orders" in run(qpid_stat, "-q", "-V", "/").out
    assert "orders" not in run(qpid_stat, "-c", "--vhost", "none such").out
    ended = run(qpid_stat, "-m", "-V", "/")
    assert (ended.code, ended.err) == (
        Exit.USAGE,
        "qpid-stat: --vhost goes with -c, -e, -q or -u. Try 'qpid-stat --help'.\n",
    )


def test_the_member_may_be_named_behind_the_verb(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scripts for rabbitmqctl do."""
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    ended = run(qpidctl, "list_vhosts", "-q", "-n", f"rabbit@127.0.0.1:{api.port}")
    assert (ended.code, ended.out) == (0, "name\n/\nshop\n")


@pytest.mark.parametrize("command", [qpidctl, qpid_stat, qpid_config], ids=lambda one: one.name)
@pytest.mark.parametrize(("shell", "kind"), [("bash", BashComplete), ("zsh", ZshComplete)])
def test_the_shell_is_told_verbs_options_and_values(
    command: click.Command, shell: str, kind: type[ShellComplete]
) -> None:
    """What _NAME_COMPLETE=bash_source makes of these is click's; here is what it is given."""
    name = str(command.name)
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    told = kind(command, {}, name, variable)
    assert f"{variable}={shell}_complete" in told.source()
    assert f'eval "$({variable}={shell}_source {name})"' in str(command.epilog)

    def offered(words: list[str], begun: str) -> set[str]:
        return {str(one.value) for one in told.get_completions(words, begun)}

    assert {"--ssl-ca", "--ssl-cert", "--ssl-key", "--ssl-verify"} <= offered([], "--ssl")
    assert offered(["--ssl-verify"], "") == {"full", "ca", "none"}
    if command is qpidctl:
        assert offered([], "list_q") == {"list_queues"}
        assert offered(["list_queues", "--formatter"], "") == {*FORMATS}
        assert "messages_ready" in offered(["list_queues", "name"], "messages_r")
