"""spout and drain as commands, against a toy cluster that loses members at the worst moment."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import click
import pytest

from broker.amqp.codec import encode_properties
from broker.amqp.fields import Timestamp, Value
from broker.amqp.handshake import CAPABILITIES
from broker.machine.requests.properties import headers_of
from broker.memberlog.client_history import ClusterName
from tests.support.toy_broker import Stored, ToyCluster
from tests.system.support.clusters import wait_until
from tools.cli.options import run_command
from tools.cli.progress import Progress
from tools.client import failover
from tools.client.amqp_client import (
    AmqpConnection,
    ConnectionLost,
    Delivery,
    Login,
    PublisherConfirm,
)
from tools.client.broker_url import Address, brokers
from tools.client.failover import BrokerList, Reconnect
from tools.commands.drain import FORMATS, Drain, Offset, drain
from tools.commands.spout import Destination, Lines, Spout, spout

ROOT = Path(__file__).resolve().parents[3]


def start(name: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start one of the two commands as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tools.commands.{name}", *arguments],
        cwd=ROOT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(name: str, *arguments: str, typed: bytes = b"") -> tuple[int, bytes, str]:
    """Run one command to its end: code, output, errors."""
    process = start(name, *arguments, stdin=subprocess.PIPE)
    out, err = process.communicate(typed, timeout=60)
    return process.returncode, out, err.decode()


def lines(count: int) -> bytes:
    """`count` numbered lines of different length."""
    return b"".join(b"%d %s\n" % (number, b"x" * (number % 50)) for number in range(1, count + 1))


def bodies(toy: ToyCluster, queue: str = "q") -> list[bytes]:
    """The bodies in the queue."""
    return [message.body for message in toy.queues[queue]]


def test_lines_become_messages_with_ids() -> None:
    with ToyCluster() as toy:
        code, out, err = run(
            "spout", "-b", toy.brokers, "-q", "q", "--sequence", "--json", typed=b"a\n\nc"
        )
        assert (code, err) == (0, "")
        assert bodies(toy) == [b"a", b"", b"c"]
        assert [m.properties for m in toy.queues["q"]][2] == b"\x10\x80\x02\x013"
        told = json.loads(out)
        assert (told["confirmed"], told["resent"], told["failovers"]) == (3, 0, 0)


def test_files_prefix_count_and_transient(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c\nd\n")
    with ToyCluster() as toy:
        arguments = ("--file", str(one), "--file", str(two), "--id-prefix", "p", "--count", "3")
        code, _, err = run("spout", "-b", toy.brokers, "-q", "q", "--transient", *arguments)
        assert (code, err) == (0, "")
        assert bodies(toy) == [b"a", b"b", b"c"]
        assert toy.queues["q"][2].properties == b"\x10\x80\x01\x02p3"


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_failover_sends_unconfirmed_messages_again_in_order(window: int) -> None:
    sent = lines(3000)
    with ToyCluster(2) as toy:
        toy.kill_at = 1234
        code, out, err = run(
            "spout", "-b", toy.brokers, "-q", "q", "--window", str(window), "--json", typed=sent
        )
        assert code == 0, err
        assert "closed the connection" in err or "reset" in err
        arrived = bodies(toy)
        told = json.loads(out)
        assert told["confirmed"] == 3000
        assert told["failovers"] == 1
        assert 1 <= told["resent"] <= window
        assert list(dict.fromkeys(arrived)) == sent.splitlines(), "first occurrences, in order"
        assert len(arrived) - 3000 <= window


def test_refused_and_unroutable_messages_are_failures() -> None:
    with ToyCluster() as toy:
        toy.nack = {2}
        code, out, err = run("spout", "-b", toy.brokers, "-q", "q", "--json", typed=lines(3))
        assert code == 1
        assert err == "spout: 1 messages refused, 0 unroutable\n"
        assert json.loads(out)["confirmed"] == 2


def test_a_queue_that_goes_away_under_a_publisher_is_reported() -> None:
    """A confirm alone says nothing about a queue: only `mandatory` brings the message back."""
    with ToyCluster() as toy:
        process = start("spout", "-b", toy.brokers, "-q", "q", "--json", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_until(lambda: bool(toy.queues.get("q")), 60, "the first line")
        toy.do(toy.queues.clear)
        out, err = process.communicate(b"two\n", timeout=100)
        assert process.returncode == 1
        assert json.loads(out)["unroutable"] == 1
        assert b"unroutable: 312 NO_ROUTE: exchange '', key 'q'" in err


def test_a_message_to_an_exchange_may_find_no_queue() -> None:
    with ToyCluster() as toy:
        arguments = ("-e", "amq.direct", "-k", "nowhere", "--json")
        code, out, err = run("spout", "-b", toy.brokers, *arguments, typed=b"one")
        assert (code, err) == (0, "")
        assert json.loads(out)["unroutable"] == 0


def test_a_blocked_publisher_reports_the_reason_and_goes_on() -> None:
    with ToyCluster() as toy:
        toy.alarm = "low on disk at a"
        process = start("spout", "-b", toy.brokers, "-q", "q", stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        said = process.stderr.readline().decode()
        assert said == "spout: the broker takes no messages now: low on disk at a; waiting\n"
        assert bodies(toy) == []
        toy.do(toy.unblock)
        _, err = process.communicate(timeout=100)
        assert (process.returncode, err) == (0, b"spout: it takes them again\n")
        assert bodies(toy) == [b"one"]


def test_a_reason_for_retrying_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty attempts with the same refusal print it once."""
    reasons = iter(["a: refused", "b: refused"] * 3 + ["a: not part of it", "b: refused"] * 2)
    there = object()

    def connected(*_: object, **__: object) -> object:
        if (reason := next(reasons, None)) is not None:
            raise ConnectionLost(reason)
        return there

    monkeypatch.setattr(failover, "AmqpConnection", connected)
    monkeypatch.setattr("tools.client.failover.time.sleep", lambda _: None)
    told: list[str] = []
    found, place = failover.connect_any(
        [brokers("a")[0].address] * 2, Login(), Reconnect(60.0), 0, told.append
    )
    assert (found, place) == (there, 0)
    assert told == [
        "a: refused", "b: refused", "trying again for 60 s (--patience)", "a: not part of it"
    ]  # fmt: skip


def test_an_unreachable_broker_and_wrong_usage(tmp_path: Path) -> None:
    with ToyCluster() as toy:
        gone = toy.brokers
    code, _, err = run("spout", "-b", gone, "-q", "q", "--patience", "0.3", "--quiet", typed=b"a\n")
    assert code == 69
    assert err == f"spout: no broker can be reached: {gone}: connection refused\n"
    assert run("spout", "-b", gone)[0] == 64
    code, _, err = run("spout", "-b", gone, "-q", "q", "hello")
    assert (code, err.partition(": ")[2][:10]) == (64, "'hello' is")
    assert "as in: echo hello | spout -q work" in err
    assert run("spout", "-b", gone, "-q", "q", "-e", "e")[0] == 64
    assert run("spout", "-b", "a:b", "-q", "q")[0] == 64
    assert run("drain", "-b", gone)[0] == 64
    with ToyCluster() as toy:
        assert run("spout", "-b", toy.brokers, "-q", "q", "--file", str(tmp_path / "no"))[0] == 66
        missing = str(tmp_path / "none" / "f")
        assert run("drain", "-b", toy.brokers, "-q", "q", "--output", missing)[0] == 73


def test_a_wrong_password_is_reported_once() -> None:
    with ToyCluster(2) as toy:
        code, _, err = run("drain", "-b", toy.brokers, "-q", "q", "--password", "wrong")
        assert code == 1
        assert err.count("\n") == 1
        assert "ACCESS_REFUSED" in err


def test_drain_writes_then_acks() -> None:
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(2500))
        code, out, err = run("drain", "-b", toy.brokers, "-q", "q", "--count", "2500")
        assert code == 0
        assert out == lines(2500)
        assert "2500 messages, 0 flagged redelivered, 0 failovers" in err
        assert not toy.queues["q"]
        assert toy.acks < 1250, "acks are batched"


@pytest.mark.parametrize("how", [(), ("--browse",), ("--offset", "first"), ("--no-ack",)])
def test_drain_of_a_mistyped_name_leaves_no_queue(how: tuple[str, ...]) -> None:
    with ToyCluster() as toy:
        code, out, err = run("drain", "-b", toy.brokers, "-q", "wrok", "--timeout", "9", *how)
        assert (code, out, [*toy.queues]) == (66, b"", [])
        assert err == (
            "drain: there is no queue 'wrok': qpid-stat -q lists the queues; --create "
            "makes it, durable, and waits for what comes\n"
        )


def test_drain_reports_that_it_created_a_queue() -> None:
    """A mistyped name looks like an empty queue."""
    with ToyCluster() as toy:
        arguments = ("-q", "wrok", "--create", "--timeout", "0.1")
        for told in (True, False):
            code, _, err = run("drain", "-b", toy.brokers, *arguments)
            assert code == 0
            assert ("there was no queue 'wrok'" in err) is told


def test_count_returns_the_rest_to_the_queue() -> None:
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(100))
        code, out, _ = run("drain", "-b", toy.brokers, "-q", "q", "--count", "30")
        assert (code, out) == (0, lines(30))
        assert len(toy.queues["q"]) == 70
        code, _, err = run("drain", "-b", toy.brokers, "-q", "q", "--count", "71", "--timeout", "2")
        assert code == 1
        assert "70 of 71 messages came before the timeout" in err


def test_json_has_every_figure(tmp_path: Path) -> None:
    output = tmp_path / "out"
    body = b"caf\xe9\r\n\xe2\x82\xac"
    with ToyCluster() as toy:
        toy.queues["q"] = deque([Stored(b"\x00\x80\x017", body, redelivered=True)])
        arguments = ("-q", "q", "--count", "1", "--format", "json", "--output", str(output))
        assert run("drain", "-b", toy.brokers, *arguments)[0] == 0
    message = json.loads(output.read_text())
    assert message["body"].encode("utf-8", "surrogateescape") == body
    assert (message["message_id"], message["redelivered"]) == ("7", True)


def test_large_bodies_are_split_and_joined() -> None:
    big = b"z" * 300_000 + b"\n" + b"y" * 131_065 + b"\n"
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=big)
        code, out, _ = run("drain", "-b", toy.brokers, "-q", "q", "--count", "2")
        assert (code, out) == (0, big)


def test_drain_fails_over_and_counts_each_id_once() -> None:
    with ToyCluster(2) as toy:
        run("spout", "-b", toy.brokers, "-q", "q", "--sequence", typed=lines(2000))
        process = start(
            "drain", "-b", toy.brokers, "-q", "q", "--count", "3000", "--unique", "--format", "json"
        )
        while not toy.acks:
            time.sleep(0.005)
        toy.do(lambda: toy.kill(0))
        code, _, err = run(
            "spout", "-b", toy.brokers, "-q", "q", "--id-prefix", "more", typed=lines(1000)
        )
        assert code == 0, err
        out, err_bytes = process.communicate(timeout=60)
        assert process.returncode == 0, err_bytes
        arrived = [json.loads(line) for line in out.splitlines()]
        seen: set[str] = set()
        for message in arrived:
            if message["message_id"] in seen:
                assert message["redelivered"], "a repeat without the redelivered flag"
            seen.add(message["message_id"])
        assert len(seen) == 3000
        assert b"1 failovers" in err_bytes


def test_a_stopped_drain_has_acked_what_it_wrote(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(50))
        process = start("drain", "-b", toy.brokers, "-q", "q", "--output", str(output))
        while not output.exists() or len(output.read_bytes().splitlines()) < 50:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        assert process.returncode == 130
        wait_until(lambda: not toy.links, 30, "the ends of the connections")
        assert not toy.queues["q"], "no message came back"


class Terminal(io.StringIO):
    """A terminal on which errors are shown."""

    is_one = True

    def isatty(self) -> bool:
        return self.is_one

    def fileno(self) -> int:
        return 2


@pytest.mark.parametrize(("wide", "shown"), [(40, 39), (0, 80), (120, 80)])
def test_the_running_line_does_not_wrap(
    monkeypatch: pytest.MonkeyPatch, wide: int, shown: int
) -> None:
    """A wrapped line is not overwritten by the next one; a terminal may not know its width."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((wide, 24)))
    monkeypatch.setattr("tools.cli.progress.REFRESH_SECONDS", -1.0)
    monkeypatch.setattr("time.monotonic", iter([0.0, 0.0, 1000.0]).__next__)
    monkeypatch.setattr(terminal, "is_one", False)
    Progress("spout", quiet=False).show(12_345_678, "1000 unconfirmed")
    assert not terminal.getvalue(), "a file gets no running line"
    monkeypatch.setattr(terminal, "is_one", True)
    Progress("spout", quiet=False).show(12_345_678, "1000 unconfirmed")
    assert (
        terminal.getvalue()
        == "\rspout: 12,345,678 messages, 12,346/s  1000 unconfirmed"[: shown + 1]
    )


class StoppedAtTheFlush(io.BytesIO):
    """An output whose flush sends the process a signal to end."""

    def flush(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, even if this process was started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_drain_stopped_between_write_and_ack_acks_before_it_ends() -> None:
    output = StoppedAtTheFlush()
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(50))
        job = Drain(
            [one.address for one in brokers(toy.brokers)],
            Login(),
            "q",
            output,
            FORMATS["text"],
            count=None,
            unique=False,
            idle_seconds=None,
            prefetch=500,
            acks=True,
            reconnect=Reconnect(100),
            progress=Progress("drain", quiet=True),
            history=None,
        )
        with pytest.raises(KeyboardInterrupt):
            job.run()
        wait_until(lambda: not toy.links, 100, "the ends of the connections")
        written = output.getvalue().splitlines()
        assert written
        assert len(toy.queues["q"]) == 50 - len(written)


def test_no_ack() -> None:
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(10))
        code, out, _ = run("drain", "-b", toy.brokers, "-q", "q", "--no-ack", "--count", "10")
        assert (code, out) == (0, lines(10))
        assert toy.acks == 0


def test_a_closed_pipe_and_a_closed_input() -> None:
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(50_000))
        drain = f"{sys.executable} -m tools.commands.drain -b {toy.brokers} -q q"
        spout = f"{sys.executable} -m tools.commands.spout -b {toy.brokers} -q q"
        for script, code, said in (
            (f"set -o pipefail; {drain} --quiet | head -1", 1, ""),
            (f"{spout} <&-", 66, "spout: the standard input is closed\n"),
        ):
            ended = subprocess.run(
                ["bash", "-c", script],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (ended.returncode, ended.stderr) == (code, said)


def test_a_slow_writer_does_not_stop_the_heartbeats() -> None:
    with ToyCluster() as toy:
        process = start("spout", "-b", toy.brokers, "-q", "q", stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"first\nsec")
        process.stdin.flush()
        wait_until(lambda: bool(toy.queues.get("q")), 60, "the first line")
        assert bodies(toy) == [b"first"], "a whole line leaves at once, half a line waits"
        process.communicate(b"ond\n", timeout=100)
        assert process.returncode == 0
        assert bodies(toy) == [b"first", b"second"]


def test_once_is_used_only_with_brokers_that_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with ToyCluster() as toy:
        with monkeypatch.context() as other:
            other.delitem(CAPABILITIES, "numbered_publishes")
            code, _, err = run("spout", "-b", toy.brokers, "-q", "q", "--once", typed=b"a")
        assert code == 1
        assert "does not take numbered messages once: leave --once out" in err
        assert not toy.queues
        code, _, err = run("spout", "-b", toy.brokers, "-q", "q", "--once", typed=b"a\nb")
        assert (code, err) == (0, "")
        sent = [headers_of(one.properties) for one in toy.queues["q"]]
    producer = sent[0]["x-producer-id"]
    assert str(producer).startswith("spout-")
    assert sent == [{"x-producer-id": producer, "x-sequence": n} for n in (1, 2)]


def test_the_window_of_once_is_bounded_by_what_brokers_remember() -> None:
    code, _, err = run("spout", "-q", "q", "--once", "--window", "4097")
    assert code == 64
    assert "--once takes a --window of 4096 at most" in err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("first", "first"), ("next", "next"), ("17", 17), ("1h", "1h"), ("90s", "90s"),
        ("1970-01-01T01:00:10+01:00", Timestamp(10)),
        ("0001-01-01T00:00:00+00:00", Timestamp(0)), (f"{(1 << 63) - 1}", (1 << 63) - 1),
    ],
)  # fmt: skip
def test_offsets_are_those_of_a_consumer(given: str, meant: object) -> None:
    found = Offset().convert(given, None, None)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    "given", ["", "middle", "-1", "1w", "2026-11-26T09:00:00", f"{1 << 63}", "9" * 5000]
)
def test_invalid_offsets_are_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        Offset().convert(given, None, None)


def test_a_stream_is_read_with_acks() -> None:
    code, _, err = run("drain", "-b", "127.0.0.1", "-q", "s", "--offset", "first", "--no-ack")
    assert code == 64
    assert "--offset needs acks" in err


@pytest.mark.parametrize("other", [["--offset", "first"], ["--browse"]])
def test_a_queue_that_is_only_browsed_is_not_created(other: list[str]) -> None:
    code, _, err = run("drain", "-b", "127.0.0.1", "-q", "s", "--create", *other)
    assert (code, "--create makes a queue to take from" in err) == (64, True)


@pytest.mark.parametrize("other", [["--offset", "first"], ["--no-ack"], ["--history", "h"]])
def test_browsed_messages_are_not_taken(other: list[str]) -> None:
    code, _, err = run("drain", "-b", "127.0.0.1", "-q", "s", "--browse", *other)
    assert code == 64
    assert "--browse takes nothing" in err


@pytest.mark.parametrize(
    "given",
    [
        ("-q", ""), ("-q", "q" * 256), ("-e", "\u00fc" * 128), ("-e", "", "-k", "k" * 256),
        ("-q", "q", "--id-prefix", "p" * 236), ("-q", "q", "-b", "localhost/" + "v" * 256),
    ],
)  # fmt: skip
def test_names_that_amqp_cannot_carry_are_refused(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With an empty name lines would be confirmed, and be in no queue."""
    with pytest.raises(SystemExit) as ended:
        run_command(spout, given)
    said = capsys.readouterr().err
    assert ended.value.code == 64
    assert any(why in said for why in ("is empty", "255", "235 fit"))
    with pytest.raises(SystemExit) as ended:
        run_command(drain, ["-q", "", "--create"])
    assert ended.value.code == 64


class Scripted:
    """A connection that does at each pump what the next step of its script says, and keeps the
    time that it was asked to wait. The clock stands still but for those waits."""

    blocked, congested, takes_numbers = "", False, True
    cluster = ClusterName()

    def __init__(self, *script: Callable[[Scripted], None]) -> None:
        self.script = [*script]
        self.now = 0.0
        self.waits: list[float] = []
        self.published: list[bytes] = []
        self.consumed: list[dict[str, Value]] = []
        self.acks: list[PublisherConfirm] = []
        self.returns: list[object] = []
        self.deliveries: list[Delivery] = []

    def pump(self, wait: float, source: int | None = None) -> bool:
        """Do the next step; the last is repeated."""
        self.now += wait
        self.waits.append(wait)
        self.script[0](self)
        self.script = self.script[1:] or self.script
        return source is not None

    def publish(self, _exchange: str, _key: str, _properties: bytes, body: bytes, **_: bool) -> int:
        """Confirm it at once."""
        self.published.append(body)
        self.acks.append(PublisherConfirm(len(self.published), False, True))
        return len(self.published)

    def consume(
        self, _queue: str, _prefetch: int, *, no_ack: bool, arguments: dict[str, Value]
    ) -> None:
        """Begin to consume."""
        assert not no_ack
        self.consumed.append(arguments)

    def ack(self, _tag: int) -> None:
        """Take them out of the queue."""

    def close(self) -> None:
        """Close."""

    def deliver(self, *offsets: int) -> None:
        """Messages of a stream arrive."""
        for offset in offsets:
            properties = encode_properties({"headers": {"x-stream-offset": offset}})
            self.deliveries.append(Delivery(offset + 1, False, "", "q", properties, b"%d" % offset))

    def lose(self) -> None:
        """The broker dies."""
        raise ConnectionLost("gone")


class ScriptedRoute:
    """Connects to one scripted broker after the other."""

    failovers = 0

    def __init__(self, *connections: Scripted) -> None:
        self.connections = [*connections]

    def connect(self) -> Scripted:
        """The next one."""
        return self.connections.pop(0)

    def lost(self, _connection: Scripted, _why: str) -> None:
        """Go on."""


def scripted_drain(
    output: io.BytesIO, route: ScriptedRoute, *, count: int | None = None,
    idle_seconds: float | None = None, offset: Value = None, browses: bool = False,
) -> Drain:  # fmt: skip
    """A drain of the queue `q` over these brokers."""
    job = Drain(
        [Address("a", 1)], Login(), "q", output, FORMATS["text"], count=count, unique=False,
        idle_seconds=idle_seconds, prefetch=500, acks=True, reconnect=Reconnect(100),
        progress=Progress("drain", quiet=True), history=None, offset=offset, browses=browses,
    )  # fmt: skip
    job.route = cast("BrokerList", route)
    return job


def test_nothing_is_published_while_the_broker_is_blocked(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"one\ntwo\n")

    def read(one: Scripted) -> None:
        one.blocked = "low on disk"

    def waiting(one: Scripted) -> None:
        assert one.published == []

    def unblock(one: Scripted) -> None:
        one.blocked = ""

    def nothing(_: Scripted) -> None:
        pass

    connection = Scripted(read, waiting, waiting, unblock, nothing)
    job = Spout(
        [Address("a", 1)], Login(), Lines([str(tmp_path / "input")]),
        Destination("", "q", "q", True, None), 1000, None, Reconnect(100),
        Progress("spout", quiet=True), None,
    )  # fmt: skip
    job._stream(cast("AmqpConnection", connection))
    assert (connection.published, job.confirmed) == ([b"one", b"two"], 2)


def test_a_stream_is_read_on_behind_the_last_written_message() -> None:
    output = io.BytesIO()
    first = Scripted(lambda one: one.deliver(5, 6), Scripted.lose)
    second = Scripted(Scripted.lose)
    third = Scripted(lambda one: one.deliver(7))
    job = scripted_drain(output, ScriptedRoute(first, second, third), offset="first", count=3)
    job.run()
    assert output.getvalue() == b"5\n6\n7\n"
    assert first.consumed == [{"x-stream-offset": "first"}]
    assert second.consumed == third.consumed == [{"x-stream-offset": 7}]


def test_a_browser_tells_the_broker_to_keep_what_it_shows() -> None:
    connection = Scripted(lambda one: one.deliver(1))
    scripted_drain(io.BytesIO(), ScriptedRoute(connection), browses=True, count=1).run()
    assert connection.consumed == [{"x-filter-no-consume": True}]
    connection = Scripted(lambda one: one.deliver(1))
    scripted_drain(io.BytesIO(), ScriptedRoute(connection), count=1).run()
    assert connection.consumed == [{}]


def test_the_idle_time_begins_again_with_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: Scripted) -> None:
        pass

    quiet = [nothing] * 3
    connection = Scripted(*quiet, lambda one: one.deliver(1), *quiet, nothing)
    monkeypatch.setattr("time.monotonic", lambda: connection.now)
    output = io.BytesIO()
    scripted_drain(output, ScriptedRoute(connection), idle_seconds=2.25).run()
    assert output.getvalue() == b"1\n"
    assert connection.waits == [0.5] * 8 + [0.25], "not once more, and not past its end"


@pytest.mark.parametrize(("given", "asked"), [((), 500), (("--count", "3"), 3)])
def test_no_more_is_fetched_than_is_counted(given: tuple[str, ...], asked: int) -> None:
    """What is fetched and not wanted would come back to others late, and flagged."""
    with ToyCluster() as toy:
        run("spout", "-b", toy.brokers, "-q", "q", typed=lines(10))
        run("drain", "-b", toy.brokers, "-q", "q", "--timeout", "0.1", *given)
        assert [args for name, args in toy.calls if name == "basic.qos"] == [(0, asked, False)]
