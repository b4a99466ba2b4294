"""Options of a broker: precedence, refusals, and their messages."""

from __future__ import annotations

import errno
import io
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from broker.exit_codes import Exit
from broker.options.addresses import Address, parse_address
from broker.options.broker import BrokerOptions, broker_options
from broker.options.retention import BackupPolicy, Policy
from broker.options.values import OptionError
from tools.cli.answers import aligned
from tools.cli.failures import ToolError
from tools.cli.options import (
    Codes,
    collect,
    ignored,
    read_option_file,
    resolve,
    run_command,
)
from tools.cli.shared_options import Seconds, agreed
from tools.commands.drain import drain
from tools.commands.qpidd import qpidd as qpidd_command

ROOT = Path(__file__).resolve().parents[4]
CLUSTER = {"cluster-name": "shop", "cluster-size": "3", "data-dir": "/var/tmp/x"}


def test_the_default_is_a_stand_alone_broker_for_this_machine() -> None:
    options = broker_options({})
    assert not options.clustered
    assert options.listen == Address("127.0.0.1", 5672)
    assert options.cluster_size == 1
    assert options.data_dir is None
    assert options.cluster_url == "amqp:tcp:127.0.0.1:5672"


def test_a_second_ring_address_is_checked_for_being_public() -> None:
    """The first address is the member's name; whoever reaches the second could take part, too."""
    two = "127.0.0.1:7000, 127.0.0.2:7001"
    options = broker_options(CLUSTER | {"cluster-bind": two})
    assert options.cluster_bind == Address("127.0.0.1", 7000)
    assert options.cluster_bind_also == (Address("127.0.0.2", 7001),)
    with pytest.raises(OptionError, match=r"reaches the ring at 10\.1\.0\.1"):
        broker_options(CLUSTER | {"cluster-bind": "127.0.0.1:7000,10.1.0.1:7001"})
    keys = {"cluster-key": "/k", "cluster-allow": "/a"}
    with pytest.raises(OptionError, match="with CURVE a member has one address"):
        broker_options(CLUSTER | keys | {"cluster-bind": two})


def test_everything_set() -> None:
    options = broker_options(
        {
            "cluster-name": "shop",
            "cluster-size": "3",
            "cluster-bind": "127.0.0.1:7000",
            "cluster-nodes": "127.0.0.1:7000, [::1]:7001",
            "cluster-url": "amqp:tcp:a.example:5672,tcp:[::1]:5673",
            "port": "5680",
            "interface": "0.0.0.0",
            "data-dir": "/var/tmp/x",
            "log-level": "DEBUG",
        }
    )
    assert options.clustered
    assert options.cluster_nodes == (Address("127.0.0.1", 7000), Address("::1", 7001))
    assert str(options.cluster_nodes[1]) == "[::1]:7001"
    assert options.cluster_url == "amqp:tcp:a.example:5672,tcp:[::1]:5673"
    assert options.data_dir == Path("/var/tmp/x")
    assert options.log.level == "debug"


@pytest.mark.parametrize(
    ("port", "ring"), [("5672", 25672), ("45535", 65535), ("50000", 30000), ("0", 0)]
)
def test_the_ring_port_follows_the_client_port(port: str, ring: int) -> None:
    assert broker_options(CLUSTER | {"port": port}).cluster_bind.port == ring


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("port", "x"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "5672.0"),
        ("cluster-size", "0"),
        ("cluster-size", "17"),
        ("cluster-bind", "nohost"),
        ("cluster-bind", ":25672"),
        ("cluster-bind", "\0:25672"),
        ("cluster-bind", "::1:25672"),
        ("cluster-bind", "[::1:25672"),
        ("cluster-nodes", "a:1,b"),
        ("cluster-nodes", "a:1,a:1"),
        ("cluster-nodes", "a:0"),
        ("cluster-url", "http://a:1"),
        ("cluster-url", "amqp:"),
        ("cluster-url", "amqp:/word@a:1"),
        ("cluster-url", "amqp:rdma:a:1"),
        ("cluster-url", "amqp:tcp:a:1,,tcp:b:1"),
        ("cluster-mcastaddr", "10.0.0.1"),
        ("cluster-mcastaddr", "ff02::1"),
        ("cluster-mcastport", "0"),
        ("watchdog-interval", "soon"),
        ("no-data-dir", "perhaps"),
        ("no-data-dir", "yes"),  # because --data-dir is given
        ("interface", "a b"),
        ("log-level", "loud"),
        ("cluster-name", "a\x00b"),
        ("cluster-name", "n" * 129),
        ("memberlog-segment-size", "0"),
        ("memberlog-segment-time", "1.5"),
        ("memberlog-keep-days", "-1"),
        ("memberlog-keep-size", "lots"),
        ("memberlog-compress", "maybe"),
        ("memberlog-keep-size", "64"),  # in bytes
        ("memberlog-drop-unverified", "maybe"),
        ("backups-keep", "-1"),
        ("backups-keep-days", "some"),
        ("backups-keep-size", "2.5"),
        ("colour", "red"),
    ],
)
def test_a_bad_value_is_reported_with_its_option(option: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        broker_options(CLUSTER | {option: text})
    assert caught.value.option == option
    assert "\n" not in caught.value.reason


def test_logs_and_backups_are_bounded_by_default() -> None:
    options = broker_options({})
    memberlog = options.memberlog
    assert (memberlog.segment_bytes, memberlog.segment_us) == (64 << 20, 3_600_000_000)
    assert memberlog.policy == Policy(True, 30 * 86_400, 0.1, True)
    assert options.backups == BackupPolicy(3, 7 * 86_400, 0.2)
    given = {"memberlog-keep-days": "2", "memberlog-drop-unverified": "no"}
    more = {"memberlog-keep-size": "3MiB", "memberlog-compress": "no"}
    assert broker_options(given | more).memberlog.policy == Policy(False, 172_800, 3 << 20, False)


def test_options_of_a_cluster_need_a_name() -> None:
    with pytest.raises(OptionError, match="needs --cluster-name"):
        broker_options({"cluster-size": "3"})


def test_a_listed_member_has_a_fixed_ring_port() -> None:
    with pytest.raises(OptionError, match="must be fixed"):
        broker_options(CLUSTER | {"port": "0", "cluster-nodes": "a:1"})


def test_a_member_without_a_data_directory_is_refused() -> None:
    """What it voted for would be lost with its process."""
    given = {"cluster-name": "shop", "cluster-size": "3"}
    with pytest.raises(OptionError, match=r"would forget its votes.*--no-data-dir") as caught:
        broker_options(given)
    assert caught.value.option == "data-dir"
    assert broker_options(given | {"no-data-dir": "yes"}).data_dir is None
    assert broker_options({}).data_dir is None


def test_a_member_with_others_must_know_the_number_of_voters() -> None:
    """By the default, 1, it would form a cluster of its own."""
    given = {"cluster-name": "shop", "no-data-dir": "yes", "cluster-bind": "127.0.0.1:7001"}
    nodes = {"cluster-nodes": "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"}
    with pytest.raises(OptionError, match="--cluster-size 3 if each of the 3 votes") as caught:
        broker_options(given | nodes)
    assert caught.value.option == "cluster-size"
    assert broker_options(given | nodes | {"cluster-size": "1"}).cluster_size == 1
    assert broker_options(given | {"cluster-nodes": "127.0.0.1:7001"}).cluster_size == 1


@pytest.mark.parametrize(
    ("text", "advertised"),
    [
        ("amqp:tcp:a:1,tcp:b:2", "amqp:tcp:a:1,tcp:b:2"),
        ("amqp:ann/secret@a:1,b", "amqp:tcp:a:1,tcp:b:5672"),
        ("ann@tcp:a:1", "amqp:tcp:a:1"),
        ("amqp://a:1/", "amqp:tcp:a:1"),
        ("a", "amqp:tcp:a:5672"),
        ("amqp:ssl:a,tcp:b", "amqp:ssl:a:5671,tcp:b:5672"),
    ],
)
def test_a_url_in_the_form_of_the_original(text: str, advertised: str) -> None:
    """`[amqp:][USER[/PASSWORD]@]ADDRESS,...`: the password is shown to nobody."""
    assert broker_options(CLUSTER | {"cluster-url": text}).cluster_url == advertised


def test_the_url_names_all_ports_and_for_all_interfaces_the_rings() -> None:
    """Otherwise a command that asks all members over TLS, or a client of the other network, finds
    none."""
    tls = {"tls-cert": "c", "tls-key": "k", "tls-port": "5671"}
    both = "amqp:tcp:127.0.0.1:5672,ssl:127.0.0.1:5671"
    assert broker_options(CLUSTER | tls).cluster_url == both
    assert broker_options(CLUSTER | tls | {"port": "none"}).cluster_url == "amqp:ssl:127.0.0.1:5671"
    every = {"interface": "0.0.0.0", "cluster-bind": "10.0.0.1:25672,10.1.0.1:25672"}
    keys = {"cluster-mechanism": "ANONYMOUS"}
    url = broker_options(CLUSTER | every | keys).cluster_url
    assert url == "amqp:tcp:10.0.0.1:5672,tcp:10.1.0.1:5672"


def test_a_bad_url_does_not_show_its_password() -> None:
    with pytest.raises(OptionError) as caught:
        broker_options(CLUSTER | {"cluster-url": "amqp:ann/secret@a:1,http://b"})
    assert "secret" not in caught.value.reason


def test_beacons_are_sent_as_the_options_say_and_not_with_a_list() -> None:
    given = {"cluster-mcastaddr": "239.1.2.3", "cluster-mcastport": "5405"}
    options = broker_options(CLUSTER | given)
    assert (options.beacon_group, options.beacon_port) == ("239.1.2.3", 5405)
    for name, value in given.items():
        with pytest.raises(OptionError, match="--cluster-nodes lists the members") as caught:
            broker_options(CLUSTER | {"cluster-nodes": "127.0.0.1:1", name: value})
        assert caught.value.option == name


def test_default_port_of_an_address() -> None:
    assert parse_address("h", 5672) == Address("h", 5672)
    assert parse_address("[::1]", 5672) == Address("::1", 5672)


def test_a_mistyped_option_is_reported(tmp_path: Path) -> None:
    assert ignored({"QPIDD_PORT": "1", "QPIDD_CONFIG": "f", "HOME": "/"}) == ""
    assert ignored({"QPIDD_CLUSTERNAME": "x"}) == (
        "of the environment QPIDD_CLUSTERNAME is no option and ignored; is --cluster-name meant?"
    )
    several = {"QPIDD_SERVICE_HOST": "10.0.0.1", "QPIDD_PORT_5672_TCP": "x"}
    assert "QPIDD_PORT_5672_TCP, QPIDD_SERVICE_HOST are no options" in ignored(several)
    file = tmp_path / "qpidd.conf"
    file.write_text("data_dir = /tmp\n")
    with pytest.raises(ToolError, match="there is no option 'data_dir'; is --data-dir meant"):
        read_option_file(file)


def test_command_line_beats_environment_beats_file(tmp_path: Path) -> None:
    config = tmp_path / "b.conf"
    config.write_text(
        "# four\nport = 1\ninterface=10.0.0.1\ncluster-name = file\ncluster-mechanism=anonymous\n"
        "no-data-dir = yes\n"
    )
    environment = {"QPIDD_PORT": "2", "QPIDD_INTERFACE": "10.0.0.2", "OTHER": "x"}
    options = resolve(collect({"port": "3"}, environment, config))
    assert options.port == 3
    assert options.interface == "10.0.0.2"
    assert options.cluster_name == "file"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port\n", "line 1: 'port' is not of the form name = value"),
        ("\nprot = 1\n", "line 2: there is no option 'prot'"),
        ("port = 1\nport = 2\n", "line 2: 'port' is already set above"),
        ("port = many\n", "line 1: port: 'many' is not a whole number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "b.conf"
    config.write_text(text)
    with pytest.raises(ToolError, match=says) as caught:
        resolve(collect({}, {}, config))
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize("written", ['"my_cluster"', "'my_cluster'", "my_cluster"])
def test_a_value_may_be_quoted(tmp_path: Path, written: str) -> None:
    """As the manual of the original writes it: cluster-name="my_cluster"."""
    config = tmp_path / "qpidd.conf"
    config.write_text(f"cluster-name={written}\n", encoding="utf-8")
    assert read_option_file(config)["cluster-name"].text == "my_cluster"


@pytest.mark.parametrize("written", ['"my_cluster', '"', "'my_cluster\""])
def test_an_unclosed_quote_is_refused_with_its_line(tmp_path: Path, written: str) -> None:
    config = tmp_path / "qpidd.conf"
    config.write_text(f"# name\ncluster-name={written}\n", encoding="utf-8")
    with pytest.raises(
        ToolError, match="line 2: the value of 'cluster-name' begins with a quote"
    ) as caught:
        read_option_file(config)
    assert caught.value.code == Exit.CONFIG


def test_a_comment_after_a_value_is_refused(tmp_path: Path) -> None:
    """Otherwise a broker would keep its store in a directory called `/data # ours`."""
    config = tmp_path / "qpidd.conf"
    for between in (" ", "\t"):
        config.write_text(f"# ours\ndata-dir = /data{between}# ours\n", encoding="utf-8")
        with pytest.raises(ToolError, match="line 2: a comment stands on a line of its") as caught:
            read_option_file(config)
        assert caught.value.code == Exit.CONFIG
    config.write_text("data-dir = '/data # ours'\ncluster-name = a#b\n", encoding="utf-8")
    given = read_option_file(config)
    assert (given["data-dir"].text, given["cluster-name"].text) == ("/data # ours", "a#b")


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("port = 1\n", encoding="utf-8-sig")
    assert read_option_file(config)["port"].text == "1"


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="No such file") as caught:
        read_option_file(tmp_path / "none")
    assert caught.value.code == Exit.CONFIG
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ToolError, match="not UTF-8"):
        read_option_file(binary)


def qpidd(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    return subprocess.run(
        [sys.executable, *flags, "-m", "tools.commands.qpidd", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--port", "x"), 64, "qpidd: --port: 'x' is not a whole number from 0 to 65535\n"),
        (("--xyzzy",), 64, "qpidd: No such option '--xyzzy'. Try 'qpidd --help'.\n"),
        (("extra",), 64, "qpidd: Got unexpected extra argument (extra). Try 'qpidd --help'.\n"),
        (("--config", "/none/x"), 78, "qpidd: option file /none/x: No such file or directory\n"),
    ],
)
def test_a_refusal_is_one_sentence_and_an_exit_code(
    arguments: tuple[str, ...], code: int, says: str
) -> None:
    ended = qpidd(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", says)


def test_an_option_that_is_a_choice_of_another_is_named_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its spelling alone, the nearest to --json is --count."""
    with pytest.raises(SystemExit) as ended:
        run_command(drain, ["-q", "work", "--json"])
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err == (
        "drain: No such option '--json': write --format json. Try 'drain --help'.\n"
    )


def test_refuses_to_run_without_assertions() -> None:
    ended = qpidd("--port", "0", flags=("-O",))
    assert ended.returncode == Exit.USAGE
    assert "python -O" in ended.stderr


def test_an_unexpected_exception_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: BrokerOptions) -> int:
        raise ZeroDivisionError(options.port)

    monkeypatch.setattr("broker.process.server.run", broken)
    with pytest.raises(SystemExit) as ended:
        run_command(qpidd_command, ["--port", "0"])
    assert ended.value.code == Exit.INTERNAL


def test_a_readable_option_file_with_a_password_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "b.conf"
    config.write_text("cluster-username = shop\ncluster-password = word\n")
    config.chmod(0o644)
    with pytest.raises(ToolError, match=r"run: chmod o= .*b\.conf") as caught:
        read_option_file(config)
    assert caught.value.code is Exit.CONFIG
    config.chmod(0o640)
    assert read_option_file(config)["cluster-password"].text == "word"


def in_shell(program: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a shell with this redirection does."""
    script = shlex.join([sys.executable, "-c", program]) + " " + redirection
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


OPENS_A_FILE = """
import click, os
from tools.cli.options import Codes, run_command

@click.command(name="opens")
@click.option("--print", "shown", is_flag=True)
def opens(shown):
    held = os.open(os.devnull, os.O_RDONLY)
    if shown:
        click.echo("text")
    return held

run_command(opens, [%s], Codes(2, 7))
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_output(closed: str) -> None:
    """Whoever prints, as the watchdog of a broker does, would write into the store."""
    held = in_shell(OPENS_A_FILE % "", closed).returncode
    assert held == 0 if closed == "<&-" else held not in (1, 2)


def test_output_that_nobody_can_get_is_a_failure() -> None:
    """The second: the command's own code, which 1 may contradict (`qpid-cluster-verify | true`)."""
    ended = in_shell(OPENS_A_FILE % "'--print'", ">&-")
    assert (ended.returncode, ended.stderr) == (7, "opens: output: bad file descriptor\n")
    ended = in_shell(OPENS_A_FILE % "'--print'", "| true; exit ${PIPESTATUS[0]}")
    assert (ended.returncode, ended.stderr) in ((7, ""), (3, ""))
    loud = OPENS_A_FILE.replace("    return held", "    [click.echo('text') for _ in range(99999)]")
    ended = in_shell(loud % "", "| true; exit ${PIPESTATUS[0]}")
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.parametrize(
    ("problem", "usual", "own", "said"),
    [
        (ToolError("no key", Exit.CONFIG), Exit.CONFIG, 7, "x: no key\n"),
        (ToolError("no word", Exit.USAGE), Exit.USAGE, 2, "x: no word\n"),
        (click.UsageError("no\n\tword"), Exit.USAGE, 2, "x: no word. Try 'x --help'.\n"),
        (OSError(errno.ENAMETOOLONG, "Too long", "/a"), 1, 7, "x: /a: too long\n"),
    ],
)
def test_a_command_with_its_own_codes_ends_with_no_other(
    problem: Exception, usual: int, own: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command(name="x")
    def fails() -> None:
        raise problem

    for codes, code in ((None, usual), (Codes(2, 7), own)):
        with pytest.raises(SystemExit) as ended:
            run_command(fails, [], codes)
        assert (ended.value.code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "1e300", "-1", "soon"])
def test_a_time_that_no_timer_takes_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds()(given)
    with pytest.raises(click.BadParameter):
        Seconds(0.1)("0.05")
    assert Seconds()("0") == 0


@pytest.mark.parametrize(
    ("typed", "yes"), [(b"Yes\n", True), (b" y", True), (b"no\n", False), (b"", False),
                       (b"\xff\n", False), (None, False)],
)  # fmt: skip
def test_only_a_yes_is_a_yes(
    typed: bytes | None, yes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = None if typed is None else io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert agreed("Are you sure? ") is yes


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "\u00fc" * 64])
def test_a_name_that_cannot_be_looked_up_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is not of the form HOST:PORT"):
        parse_address(f"{host}:5672")
    for good in ("a.b.", "my_host", "gr\u00fc\u00dfe.example", "a" * 63):
        assert parse_address(f"{good}:1").host == good


def test_only_columns_of_numbers_are_aligned_to_the_right() -> None:
    cells = [("1", "1", "a"), ("10", "none", "b"), ("5", "7", "")]
    values = [(1, 1, "a"), (10, None, "b"), (5, 7, "")]
    assert aligned(cells, values) == [" 1  1     a", "10  none  b", " 5  7"]
    assert aligned(cells)[0] == "1   1     a"
