"""Usage of the commands: options, passwords, refusals, exit codes, help."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import BashComplete, ShellComplete, ZshComplete

from broker import release
from broker.access import passwords
from broker.exit_codes import Exit
from tests import verbs_page
from tests.support.dashboard.canned_api import CannedApi
from tests.support.generated_blocks import renewed
from tests.unit.tools.operate.commands import Run
from tools.cli.sections import VerbsInSections
from tools.client import failover
from tools.client.credentials import Credentials, typed_password
from tools.client.http_api import Api, Json, absent, parse_api
from tools.client.http_api import plain as plain_text
from tools.client.management import RING
from tools.commands.cpgtool import cpgtool
from tools.commands.drain import drain
from tools.commands.qpid_cluster import qpid_cluster
from tools.commands.qpid_ha import qpid_ha
from tools.commands.qpidd import InSections, qpidd
from tools.commands.quorumtool import quorumtool
from tools.commands.ringtrace import ringtrace
from tools.commands.spout import spout
from tools.operate import states
from tools.operate.output import FORMATS
from tools.operate.qpid_config import qpid_config
from tools.operate.qpid_route import qpid_route
from tools.operate.qpid_stat import qpid_stat
from tools.operate.qpidctl import qpidctl
from tools.operate.refused import ELSEWHERE, REFUSED
from tools.operate.settings import CHANGES

ROOT = Path(__file__).resolve().parents[4]


def test_hash_password_asks_no_broker(run: Run) -> None:
    ended = run(qpidctl, "--broker", "127.0.0.1:1", "hash_password", "s3cret")
    assert (ended.code, ended.err) == (0, "")
    algorithm = passwords.DEFAULT_ALGORITHM
    assert passwords.matches("s3cret", ended.out.strip(), algorithm)
    assert not passwords.matches("other", ended.out.strip(), algorithm)


def test_a_single_value_is_a_json_document(run: Run) -> None:
    ended = run(qpidctl, "version", "--json")
    assert json.loads(ended.out) == {"version": release.version()}
    found = json.loads(run(qpidctl, "--formatter", "json", "hash_password", "s3cret").out)
    assert passwords.matches("s3cret", found["hash"], passwords.DEFAULT_ALGORITHM)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("version",), 0), (("--help",), 0), (("list_vhosts",), 0), (("check_cluster",), 69),
        (("export_definitions", "-"), 0), (("cluster_status", "--json"), 0),
    ],
)  # fmt: skip
def test_a_closed_pipe_ends_every_verb_alike(
    api: CannedApi, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int,
    *, buffered: bool,
) -> None:  # fmt: skip
    """`qpidctl ... | head -1` ends with a code and without a message, whether or not Python
    buffers."""
    monkeypatch.setitem(api.answers, "definitions", {"queues": [{"name": "q" * 100_000}]})
    login = ("--broker", f"127.0.0.1:{api.port}", "--user", "ada", "--password", "pw", "-q")
    command = [sys.executable, "-m", "tools.operate.qpidctl", *login, *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}

    def ended(output: int) -> tuple[int, str]:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env=environment, cwd=ROOT,
        )  # fmt: skip
        return done.returncode, done.stderr

    assert ended(subprocess.DEVNULL)[0] == code
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(writer) == (Exit.FAILURE, "")
    finally:
        os.close(writer)


def test_exported_definitions_are_readable_only_by_their_owner(
    api: CannedApi, run: Run, tmp_path: Path
) -> None:
    """They contain hashes of passwords, and passwords of other brokers."""
    api.answers["definitions"] = {"users": []}
    login = ("--broker", f"127.0.0.1:{api.port}", "--user", "ada", "--password", "pw")
    file = tmp_path / "definitions.json"
    assert run(qpidctl, *login, "export_definitions", str(file)).code == 0
    assert json.loads(file.read_text()) == {"users": []}
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is full is Linux's")
@pytest.mark.parametrize("asked", ["version", "--help"])  # click writes help at once
def test_unwritable_output_is_reported_in_one_sentence(asked: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tools.operate.qpidctl", asked], stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert done.stderr == "qpidctl: output: no space left on device\n"
    assert done.returncode == Exit.CANNOT_CREATE


def test_connection_options_may_follow_the_verb(
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


@pytest.mark.parametrize("form", ["{0},{1}", "failover:(tcp://{0},tcp://{1})?randomize=false"])
@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        (qpidctl, ("--broker", "LIST", "-s", "list_vhosts")),
        (qpid_config, ("--broker", "LIST", "queues")),
        (qpid_stat, ("-q", "LIST")),
        (qpid_route, ("route", "list", "LIST")),
    ],
)
def test_of_a_list_the_first_running_member_is_asked(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch,
    form: str, what: click.Command, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    for component in ("federation-upstream-set", "shovel"):
        monkeypatch.setitem(api.answers, f"parameters/{component}", [])
    listed = form.format("127.0.0.1:1", f"127.0.0.1:{api.port}")
    ended = run(what, *(listed if one == "LIST" else one for one in arguments))
    assert ended.code == 0, ended.err


def test_a_hanging_member_of_a_list_is_skipped_with_one_notice(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel still accepts connections for a stopped process."""
    monkeypatch.setattr(failover, "NEXT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        silent = f"127.0.0.1:{hangs.getsockname()[1]}"
        ended = run(qpid_config, "--broker", f"{silent},127.0.0.1:{api.port}", "queues")
        assert ended.code == 0, ended.err
        assert ended.err == f"{silent} says nothing for 0.05 s: 127.0.0.1:{api.port} is asked\n"


@pytest.mark.parametrize("option", ["--broker", "--brokers"])
@pytest.mark.parametrize(
    ("what", "before", "behind"),
    [
        (qpidctl, (), ("list_vhosts",)),
        (qpidctl, ("list_vhosts",), ()),
        (qpid_config, (), ("queues",)),
        (qpid_stat, ("-q",), ()),
        (qpid_route, ("link", "list"), ()),
    ],
)
def test_the_broker_option_has_the_same_name_at_every_command(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch,
    option: str, what: click.Command, before: tuple[str, ...], behind: tuple[str, ...],
) -> None:  # fmt: skip
    if what is qpid_stat and option == "--brokers":
        return  # there --brokers lists brokers, as in Qpid's
    for component in ("federation-upstream", "federation-upstream-set", "shovel"):
        monkeypatch.setitem(api.answers, f"parameters/{component}", [])
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    ended = run(what, *before, option, f"127.0.0.1:{api.port}", *behind)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("what", [qpidctl, qpid_config, qpid_stat])
def test_help_shows_one_name_of_the_broker_option(run: Run, what: click.Command) -> None:
    said = run(what, "--help").out
    assert "--broker BROKER" in said
    assert ("--brokers" in said) is (what is qpid_stat)


def test_an_unreachable_member_is_reported_with_advice(run: Run) -> None:
    ended = run(qpidctl, "--broker", "127.0.0.1:1,127.0.0.1:2", "list_vhosts")
    assert ended.code == Exit.UNAVAILABLE
    assert "127.0.0.1:1: connection refused; 127.0.0.1:2: connection refused" in ended.err
    assert "Any other member answers as well: name one, or several" in ended.err


@pytest.mark.parametrize("verb", ["set_policy", "set_operator_policy"])
def test_a_policy_that_nobody_takes_ends_like_any_other_change(run: Run, verb: str) -> None:
    """Scripts try again at this code, and not at that of a fault of ours."""
    ended = run(qpidctl, "--broker", "127.0.0.1:1", verb, "caps", "^o", '{"max-length": 5}')
    assert ended.code == Exit.UNAVAILABLE
    assert "Any other member answers as well" in ended.err


@pytest.mark.parametrize(
    ("verb", "doubtful"), [(("add_vhost", "shop"), True), (("list_vhosts",), False)]
)
def test_a_change_whose_member_dies_before_it_answers_may_have_taken_effect(
    run: Run, verb: tuple[str, ...], *, doubtful: bool
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def die() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(65536)

    served = threading.Thread(target=die)
    served.start()
    ended = run(qpidctl, "--broker", f"127.0.0.1:{listener.getsockname()[1]}", *verb)
    served.join()
    listener.close()
    assert ended.code == Exit.UNAVAILABLE
    assert ("without an answer; look whether it took effect" in ended.err) is doubtful, ended.err


@pytest.mark.parametrize(
    ("greeting", "advice"),
    [
        (b"AMQP\0\0\x09\x01", "does not speak HTTP: give the management port"),
        (b"\x15\x03\x03\0\x02\x02\x46", "speaks TLS at this port"),
        (b"\xff\0\0\0\0\0\0\0\1\x7f", "is the port of a ring"),
    ],
)
def test_waiting_on_a_port_of_another_protocol_fails_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, greeting: bytes, advice: str
) -> None:
    """No time makes another protocol of it; it was asked five times a second until -t was over."""
    never = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: pytest.fail("it waits"))
    monkeypatch.setattr(states, "time", never)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        link, _ = listener.accept()
        with link:
            link.recv(4096)
            link.sendall(greeting)
            if greeting.startswith(RING):  # which waits for more; the others close
                with suppress(ConnectionResetError):
                    link.recv(1)

    served = threading.Thread(target=answer)
    served.start()
    ended = run(qpidctl, "--broker", f"127.0.0.1:{listener.getsockname()[1]}", "await_startup")
    served.join()
    listener.close()
    assert (ended.code, advice in ended.err) == (Exit.UNAVAILABLE, True), ended.err


@pytest.mark.parametrize("verb", ["drain", "revive"])
def test_a_command_about_one_member_takes_no_list(run: Run, api: CannedApi, verb: str) -> None:
    """Otherwise maintenance would begin on whichever member of the list runs."""
    ended = run(qpidctl, "--broker", f"127.0.0.1:1,127.0.0.1:{api.port}", verb)
    assert (ended.code, api.changes) == (Exit.USAGE, [])
    assert "give one with --broker, not a list" in ended.err


def test_a_member_on_the_command_line_overrides_the_environment(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `drain` would go to another member than the one named."""
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    named = f"qpid@127.0.0.1:{api.port}"
    assert run(qpidctl, "-n", named, "-s", "list_vhosts").out == "/\nshop\n"
    assert run(qpidctl, "-n", "127.0.0.1:1", "list_vhosts", "-n", named).code == 0


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        (qpidctl, ("list_vhosts",)), (qpid_stat, ("-q",)), (qpid_config, ("queues",)),
        (qpid_route, ("link", "list")), (qpid_cluster, ()), (quorumtool, ()), (cpgtool, ()),
        (qpid_ha, ("status",)), (ringtrace, ("--on",)),
    ],
)  # fmt: skip
def test_every_command_uses_the_member_of_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, what: click.Command, arguments: tuple[str, ...]
) -> None:
    """Otherwise an operator could look at one cluster by `qpidctl` and stop another by
    `qpid-cluster`."""
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    ended = run(what, *arguments)
    assert ended.code != 0
    assert "127.0.0.1:1" in ended.err


@pytest.mark.parametrize("what", [spout, drain])
def test_commands_that_publish_and_read_use_it_too(
    monkeypatch: pytest.MonkeyPatch, what: click.Command
) -> None:
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    assert what.make_context("", ["-q", "q"]).params["broker"] == "127.0.0.1:1"
    assert what.make_context("", ["-q", "q", "-b", "b"]).params["broker"] == "b"


@pytest.mark.parametrize("where", [0, 1])
def test_two_passwords_are_refused_wherever_they_stand(run: Run, where: int) -> None:
    words = ["list_vhosts"]
    words[where:where] = ["--password", "pw", "--password-file", "secret"]
    ended = run(qpidctl, *words)
    assert ended.code == Exit.USAGE
    assert ended.err.endswith("give --password or --password-file, not both\n")


@pytest.mark.parametrize("arguments", [("-t", "0", "ping"), ("ping", "-t", "0")])
def test_the_lack_of_a_time_limit_may_be_given_after_the_verb(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    limits: list[float | None] = []

    def fields(api: Api, *_: str, **__: str) -> dict[str, str]:
        limits.append(api.timeout_seconds)
        return {"node": "a"}

    monkeypatch.setattr(Api, "fields", fields)
    assert run(qpidctl, *arguments).code == 0
    assert limits == [None]


def test_a_connection_that_has_gone_does_not_protect_the_others(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: Json = [{"name": name, "vhost": "/"} for name in ("one", "two")]
    monkeypatch.setitem(api.answers, "connections", there)
    api.refusals["connections/one"] = (404, "Not Found")
    ended = run(qpidctl, "-q", "close_all_connections", "maintenance")
    assert (ended.code, ended.out) == (0, "1 closed\n"), ended.err
    assert api.changes == [("DELETE", "connections/two", None)]


def test_a_password_is_asked_for_only_on_a_terminal(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QPID_PASSWORD")
    typed_password.cache_clear()
    for stdin in (io.StringIO("pw\n"), None):  # None: stdin is closed, as under cron
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


def test_a_script_can_pipe_a_password(
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


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("list_queus", "is list_queues or list_users meant?"),
        ("zzz", "'qpidctl --help' has them all"),
        *ELSEWHERE.items(),
    ],
)
def test_an_unknown_verb_gets_the_nearest_one_or_the_command_to_use(
    run: Run, verb: str, said: str
) -> None:
    ended = run(qpidctl, verb, "x")
    assert ended.code == Exit.USAGE
    assert ended.err == f"qpidctl: there is no verb '{verb}'; {said}\n"
    assert verb not in qpidctl.commands.keys() | REFUSED.keys()


@pytest.mark.parametrize(
    ("command", "option", "verb"),
    [
        (qpid_config, "--json", "queues"), (qpid_config, "--broker", "add queue"),
        (qpid_route, "--json", "link list"),
    ],
)  # fmt: skip
def test_an_option_of_the_whole_command_is_sent_before_the_verb(
    run: Run, command: click.Command, option: str, verb: str
) -> None:
    ended = run(command, *verb.split(), option, "x")
    assert ended.code == Exit.USAGE
    assert f"{option} stands before the verb: {command.name} {option} ... {verb} ..." in ended.err


def test_help_is_a_verb_too(run: Run) -> None:
    assert run(qpidctl, "help").out == run(qpidctl, "--help").out
    assert run(qpidctl, "help", "list_queues").out == run(qpidctl, "list_queues", "--help").out
    assert "is list_queues or list_users meant?" in run(qpidctl, "help", "list_queus").err


@pytest.mark.parametrize("verb", ["set_policy", "set_operator_policy"])
def test_a_mistyped_policy_key_gets_a_suggestion(run: Run, api: CannedApi, verb: str) -> None:
    kind = {"set_policy": "policies", "set_operator_policy": "operator-policies"}[verb]
    api.refusals[f"{kind}/%2F/caps"] = (400, '["max-lenght": 5] are not recognised policy settings')
    ended = run(qpidctl, verb, "caps", "^orders", '{"max-lenght": 5, "overflow": "drop-head"}')
    assert ended.code == Exit.DATA
    assert "are not recognised policy settings; is max-length meant?" in ended.err


def test_a_mistyped_component_is_refused(run: Run, api: CannedApi) -> None:
    for name, right in (("shovle", "shovel"), ("federation_upstream", "federation-upstream")):
        ended = run(qpidctl, "set_parameter", name, "far", "{}")
        assert (ended.code, api.changes) == (Exit.USAGE, [])
        assert f"{name}: no component that has an effect; is {right} meant?" in ended.err
    assert run(qpidctl, "set_parameter", "of-a-program", "far", "{}").code == 0


def test_a_mistyped_queue_argument_is_refused(run: Run, api: CannedApi) -> None:
    for name in ("x-max-lenght", "max-length"):
        ended = run(qpid_config, "add", "queue", "orders", "--argument", f"{name}=5")
        assert (ended.code, api.changes) == (Exit.USAGE, [])
        assert f"--argument {name}: " in ended.err
        assert "is x-max-length meant?" in ended.err
    for name in ("x-max-length", "qpid.max_count", "x-of-a-plugin"):
        assert run(qpid_config, "add", "queue", "orders", "--argument", f"{name}=5").code == 0


@pytest.mark.parametrize("verb", REFUSED)
def test_an_impossible_verb_is_refused_with_an_alternative(
    run: Run, api: CannedApi, verb: str
) -> None:
    ended = run(qpidctl, verb, "whatever")
    assert ended.code == Exit.USAGE
    assert f"qpidctl: {verb} is refused: " in ended.err
    assert ended.err.rstrip("\n")[-1] not in ".; "
    assert api.changes == []


def test_the_page_of_verbs_and_columns_is_current() -> None:
    """Every verb of RabbitMQ's is supported or refused; a new one makes building the table fail."""
    text = verbs_page.PAGE.read_text(encoding="utf-8")
    assert renewed(text, verbs_page.BLOCKS) == text, "python -m tests.verbs_page --write"
    known = {verb for verbs in verbs_page.VERBS.values() for verb in verbs.split()}
    assert known >= REFUSED.keys()
    assert not REFUSED.keys() & qpidctl.commands.keys()


@pytest.mark.parametrize("verb", REFUSED)
def test_the_verb_to_use_instead_exists(verb: str) -> None:
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
    told = json.loads(run(qpidctl, "check_port_listener", "5672", "--json").out)
    assert told == {"result": "ok", "message": "port-listener 5672: passed"}
    api.answers["health/checks/certificate-expiration/2/days"] = {"status": "ok"}
    assert run(qpidctl, "check_certificate_expiration", "--within", "2", "--unit", "days").code == 0
    api.refusals["health/checks/alarms"] = (503, "b has an alarm")
    assert run(qpidctl, "check_alarms").code == Exit.UNAVAILABLE
    assert run(qpidctl, "check_local_alarms").code == Exit.OK
    away = run(qpidctl, "--broker", "127.0.0.1:1", "ping")
    assert away.code == Exit.UNAVAILABLE
    assert "is this its management port?" in away.err
    assert run(qpidctl, "no_such_verb").code == Exit.USAGE


def test_a_user_without_a_tag_is_told_which_and_how_to_get_it(run: Run, api: CannedApi) -> None:
    api.refusals["users"] = (401, "Not administrator user")
    ended = run(qpidctl, "-q", "list_users")
    assert (ended.code, ended.err) == (
        Exit.DATA,
        "qpidctl: user 'ada' may not do this: it takes the tag administrator, which an "
        "administrator gives by qpidctl set_user_tags\n",
    )


def test_a_password_can_be_right_without_a_tag(run: Run, api: CannedApi) -> None:
    """Most users are for programs, which may ask nothing of the management API."""
    api.refusals["whoami"] = (401, "Not management user")
    ended = run(qpidctl, "-q", "authenticate_user", "ada", "pw")
    assert (ended.code, ended.out) == (0, "user ada and this password are good\n")
    api.refusals["whoami"] = (401, "Login failed")
    assert run(qpidctl, "authenticate_user", "ada", "pw").code == Exit.DATA


def test_a_tag_without_meaning_is_named(run: Run) -> None:
    assert "(the brokers know no tag amdin)" in run(
        qpidctl, "set_user_tags", "ada", "amdin", "monitoring"
    ).err  # fmt: skip
    assert "know no tag" not in run(qpidctl, "set_user_tags", "ada", "management").err


def test_a_json_error_is_located(run: Run) -> None:
    ended = run(qpidctl, "set_policy", "p", "^", '{"max-length": 5')
    assert "line 1 column 17" in ended.err


def test_a_question_is_not_followed_by_a_full_stop(run: Run) -> None:
    ended = run(qpidctl, "list_queues", "--formater", "json")
    assert "'--formatter'? Try 'qpidctl list_queues --help'.\n" in ended.err


def test_wrong_usage_of_a_verb_points_to_the_help_of_that_verb(run: Run) -> None:
    ended = run(qpidctl, "set_policy", "caps")
    assert ended.code == 64
    assert ended.err == ("qpidctl: Missing argument 'PATTERN'. Try 'qpidctl set_policy --help'.\n")


def test_a_command_without_a_verb_prints_its_help(run: Run) -> None:
    ended = run(qpidctl)
    assert ended.code == 64
    assert ended.err.startswith("Usage: qpidctl [OPTIONS] COMMAND")
    assert "Try 'qpidctl" not in ended.err


def test_every_verb_has_help(run: Run) -> None:
    assert CHANGES.keys() <= qpidctl.commands.keys()
    for verb in qpidctl.commands:
        ended = run(qpidctl, verb, "--help")
        assert ended.code == 0
        assert len(ended.out) > 200
    assert 'eval "$(_QPIDCTL_COMPLETE=bash_source qpidctl)"' in run(qpidctl, "--help").out


def test_addresses_and_credentials() -> None:
    one = parse_api("bob/s3:c@[::1]:99", 5.0)
    assert (one.address, one.user, one.password, one.tls) == (("::1", 99), "bob", "s3:c", None)
    other = Credentials("of an option", "of an option")
    two = parse_api("https://bob@broker", None, other)
    assert (two.address, two.user, two.password) == (("broker", 15671), "bob", "of an option")
    assert two.tls is not None
    three = parse_api("bob/word@broker", None, other)
    assert (three.user, three.password) == ("bob", "word")


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
        (
            "DELETE federation-links vhost shop 7f restart",
            "no federation link '7f' in virtual host",
        ),
        ("DELETE shovels vhost shop move restart", "no shovel 'move' in virtual host 'shop'"),
        ("DELETE shovels vhost shop move", "no shovel 'move' in virtual host 'shop'"),
        (
            "DELETE parameters shovel shop move",
            "no parameter 'move' of shovel in virtual host 'shop'",
        ),
        ("PUT parameters shovel shop move", "no virtual host 'shop'"),
        ("GET something else", "nothing at /api/something/else"),
    ],
)
def test_a_missing_object_is_named(request_line: str, says: str) -> None:
    method, *names = request_line.split()
    assert says in absent(method, tuple(names))


def test_refusals_are_shown_without_erlang_brackets() -> None:
    """The API keeps the brackets, because programs compare RabbitMQ's sentences."""
    given = 'Validation failed\n\n<<"x">> is not a valid ha-mode value, nor <<"a\\"b">>\n'
    assert plain_text(given) == ('Validation failed: "x" is not a valid ha-mode value, nor "a\\"b"')
    given = 'Validation failed\n\n[{<<"max-lenth">>,5}] are not recognised policy settings\n'
    assert plain_text(given) == (
        'Validation failed: ["max-lenth": 5] are not recognised policy settings'
    )


def test_the_member_may_follow_the_verb(
    run: Run, api: CannedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scripts for rabbitmqctl write it."""
    monkeypatch.setenv("QPID_BROKER", "127.0.0.1:1")
    ended = run(qpidctl, "list_vhosts", "-q", "-n", f"rabbit@127.0.0.1:{api.port}")
    assert (ended.code, ended.out) == (0, "name\n/\nshop\n")


@pytest.mark.parametrize("command", [qpidctl, qpid_stat, qpid_config], ids=lambda one: one.name)
@pytest.mark.parametrize(("shell", "kind"), [("bash", BashComplete), ("zsh", ZshComplete)])
def test_the_shell_completes_verbs_options_and_values(
    command: click.Command, shell: str, kind: type[ShellComplete]
) -> None:
    """click does what _NAME_COMPLETE=bash_source asks for; this tests what we give to it."""
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


def test_every_verb_has_a_heading(run: Run) -> None:
    assert isinstance(qpidctl, VerbsInSections)
    listed = [name for name, one in qpidctl.commands.items() if not one.hidden]
    assert [name for name in listed if not qpidctl.section_of(name)] == []
    shown = run(qpidctl, "--help").out
    assert shown.index("begin here:\n  check_cluster") < shown.index(
        "Queues, exchanges, consumers:"
    )
    assert "..." not in shown.partition("begin here:")[2].partition("Examples:")[0]


def test_every_broker_option_has_a_heading(run: Run) -> None:
    assert {one.name for one in qpidd.params} >= set(InSections.sections)
    shown = run(qpidd, "--help").out
    assert "\nOptions:" not in shown
    assert shown.index("\nTLS:\n  --tls-cert FILE") < shown.index("\nLimits of clients:\n")


def test_a_name_that_the_terminal_cannot_encode_is_still_shown(api: CannedApi) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.operate.qpidctl", "list_queues", "name"],
        env={"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "QPID_USER": "ada",
             "QPID_PASSWORD": "pw", "QPID_BROKER": f"127.0.0.1:{api.port}"},
        capture_output=True, check=False, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert (ended.returncode, b"\\xfc" in ended.stdout) == (0, True), ended.stderr


def test_bytes_that_are_not_text_are_refused_in_a_sentence(run: Run) -> None:
    ended = run(qpid_config, "add", "queue", "gr\udcfcn")
    assert ended.code == Exit.USAGE
    assert ended.err.startswith(r"qpid-config: 'gr\udcfcn' is no text in this locale's encoding")


def test_a_failed_check_reports_what_it_saw(run: Run, api: CannedApi) -> None:
    api.failures["health/checks/virtual-hosts"] = {"detail": "1 of 3 voters here"}
    api.failures["health/checks/alarms"] = {"alarms": [{"node": "b", "resource": "disk"}]}
    assert run(qpidctl, "check_running").err.endswith(": 1 of 3 voters here\n")
    assert run(qpidctl, "check_alarms").err.endswith(": b disk\n")
