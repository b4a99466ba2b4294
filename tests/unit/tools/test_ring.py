"""cpgtool and quorumtool against real members, over both kinds of address, and their output."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import stat
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests.unit.vsync.api.test_cluster import CONFIG, run
from tools.cli.failures import ToolError
from tools.commands.cpgtool import cpgtool
from tools.commands.quorumtool import drawn, membership, quorumtool
from tools.commands.ringtrace import ringtrace
from vsync import Cluster, ConfigError, TransportError
from vsync.admin.protocol import LINE_BYTES_MAX, Json, NotYet, QueryRefused, QuerySession
from vsync.admin.views import quorum_reply
from vsync.quorum.voter_set import parse
from vsync.types import RingId


class Done(NamedTuple):
    code: int
    out: str


async def tool(command: click.Command, *arguments: str) -> Done:
    """Run a command in a thread as in a process of its own; errors are returned as they are."""

    def invoke() -> Done:
        result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
        if isinstance(result.exception, ToolError):
            raise result.exception
        return Done(int(result.return_value), result.output)

    return await asyncio.to_thread(invoke)


def test_a_password_in_the_address_is_not_shown() -> None:
    with pytest.raises(ToolError, match=r"Failed: 127\.0\.0\.1:1: cannot connect"):
        asyncio.run(tool(ringtrace, "--on", "amqp://ada:secret@127.0.0.1:1"))


@pytest.mark.parametrize("form", ["--json", "--list"])
def test_a_watch_has_one_form(form: str) -> None:
    """A program that asks for JSON would get lines."""
    done = CliRunner().invoke(quorumtool, ["-m", form, "127.0.0.1:1"])
    assert (done.exit_code, "--monitor prints lines of its own" in done.output) == (2, True)


def test_groups_and_quorum_of_library_programs(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix:{tmp_path}/a.sock"
        async with Cluster("shop", "a", config=CONFIG, manage=place, voters=["a", "b", "c"]) as a:
            assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o600
            done = await tool(quorumtool, place)
            assert done.code == 2
            assert "Quorate:          No" in done.out
            assert "1 of 3 voters here, 2 needed; missing: b, c" in done.out
            async with Cluster(
                "shop", "b", peers=[a.address], config=CONFIG, manage="127.0.0.1:0"
            ) as b:
                await a.until(lambda: len(a.members) == 2)
                await (await b.join("locks")).mcast(b"")
                orders = await b.join("orders")
                await a.join("orders")
                await b.until(lambda: len(orders.members) == 2)
                done = await tool(cpgtool, place)
                lines = done.out.splitlines()
                assert lines[0] == f"Cluster shop, ring {a.ring} of a b"
                assert lines[1] == "Position 4"
                assert [line.split()[:3] for line in lines[3:]] == [
                    ["Group", "Rank", "Member"], ["locks", "1", "b"],
                    ["orders", "1", "b"], ["2", "a", "(local)"],
                ]  # fmt: skip
                assert (await tool(cpgtool, "-n", b.manage)).out == "locks\norders\n"
                assert (await tool(cpgtool, "-d", "|", b.manage)).out == (
                    f"locks|1|b|{b.address}\norders|1|b|{b.address}\norders|2|a|{a.address}\n"
                )
                answer = json.loads((await tool(cpgtool, "--json", place)).out)
                assert [g["name"] for g in answer["groups"]] == ["locks", "orders"]
                done = await tool(quorumtool, place)
                assert done.code == 0
                assert "Total votes:      2\nQuorum:           2\n" in done.out
                assert "1      away   voter  c" in (await tool(quorumtool, "-l", place)).out
                done = await tool(quorumtool, "--json", b.manage)
                assert done.code == 0
                assert json.loads(done.out)["flags"] == ["Quorate", "NoVoters"]
            watching = asyncio.ensure_future(
                tool(quorumtool, "-m", "-i", "0.01", "-c", "50", place)
            )
            await asyncio.sleep(0)
            async with Cluster("shop", "c", peers=[a.address], config=CONFIG):
                await a.until(lambda: a.quorate)
                done = await watching
            assert done.code in (0, 2)
            columns, *lines = done.out.splitlines()
            assert columns == "voters: a, b, c"
            assert all(line[10:] != again[10:] for line, again in itertools.pairwise(lines))
        assert not (tmp_path / "a.sock").exists()
        with pytest.raises(ToolError, match=r"cannot connect to .*a\.sock"):
            await tool(cpgtool, place)
        done = await tool(quorumtool, "-m", "-c", "1", place)
        assert done.code == 1
        assert "no answer: cannot connect" in done.out

    run(main)


def test_unusable_management_addresses(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="address of this machine only"):
            Cluster("shop", "a", manage="0.0.0.0:5409")
        place = f"unix:{tmp_path}/a.sock"
        async with Cluster("shop", "a", config=CONFIG, manage=place):
            with pytest.raises(TransportError, match="another program does"):
                await Cluster("shop", "b", config=CONFIG, manage=place).start()
        with pytest.raises(TransportError, match="cannot answer questions on unix:/no/where"):
            await Cluster("shop", "b", config=CONFIG, manage="unix:/no/where").start()
        # The socket left by a killed process does no harm.
        async with Cluster("shop", "a", config=CONFIG, manage=place) as a:
            assert a._endpoint is not None
            assert a._endpoint._server is not None
            a._endpoint._server.close()
            async with Cluster("shop", "b", config=CONFIG, manage=place):
                pass

    run(main)


def test_another_protocol_is_disconnected() -> None:
    async def main() -> None:
        async with Cluster("shop", "a", config=CONFIG, manage="127.0.0.1:0") as a:
            host, _, port = a.manage.partition(":")
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"QPIDMGT1 not json\n"):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(said)
                answer = b""
                with contextlib.suppress(ConnectionError):
                    answer = await reader.read()
                assert (b"not JSON" in answer) == said.startswith(b"QPID")
                writer.close()

    run(main)


def test_a_session_answers_in_order_and_refuses_with_a_reason() -> None:
    def no(_: Json) -> Json:
        raise QueryRefused("not-now", "not now")

    session = QuerySession({"a": lambda r: {"got": r.get("x")}, "no": no})
    said = session.data_received(b'{"op": "a", "x": 1}\n{"op": "no"}\n{"op": []}\n{"op"')
    assert [json.loads(line) for line in said.splitlines()] == [
        {"ok": True, "got": 1},
        {"ok": False, "code": "not-now", "error": "not now"},
        {"ok": False, "code": "unknown-op", "error": "this member knows no operation []"},
    ]
    assert session.data_received(b': "a"}\n') == b'{"ok": true, "got": null}\n'
    assert b"bad-request" in session.data_received(b"[1]\n")
    assert session.closing
    greedy = QuerySession({})
    assert b"more than" in greedy.data_received(bytes(LINE_BYTES_MAX + 1))


def test_a_request_waits_until_its_admission_is_decided() -> None:
    known: list[object] = []

    def admit(request: Json) -> None:
        if request.get("user") not in known:
            raise NotYet

    session = QuerySession({"a": lambda r: {"got": r.get("x")}}, admit)
    assert session.data_received(b'{"op": "a", "x": 1}\n{"op": "a", "user": "u"}\n{"op": ') == b""
    assert session.is_waiting
    assert session.data_received(b'"b"}\n' + bytes(LINE_BYTES_MAX + 1)) == b"", (
        "the request is not looked at"
    )
    known.append(None)
    assert session.go_on() == b'{"ok": true, "got": 1}\n'
    assert session.is_waiting
    known.append("u")
    *replies, last = session.go_on().splitlines()
    assert [json.loads(line)["ok"] for line in replies] == [True, False]
    assert not session.is_waiting
    assert session.closing
    assert b"a line of more than" in last


def test_roles_and_flags_of_every_rule() -> None:
    terms = ("a=2", "b", "@arbitrator=z", "@wait_for_all", "->", "a", "b", "c", "@away=c")
    shown = quorum_reply(
        "shop", "a", RingId(3, "a", 1), {"a", "g"}, parse(terms), acting=False, reason="why"
    )
    assert shown["flags"] == ["Changing"]
    assert shown["reason"] == "why"
    assert shown["highest_expected"] == 4
    nodes = shown["nodes"]
    assert isinstance(nodes, list)
    assert [(n["name"], n["role"], n["present"]) for n in nodes] == [
        ("a", "voter", True), ("b", "voter", False), ("c", "away", False), ("g", "guest", True),
    ]  # fmt: skip
    shown = quorum_reply("", "a", RingId(3, "a", 1), {"a", "z"}, parse(terms[:4]), acting=True)
    assert shown["flags"] == ["Quorate", "WaitForAll", "Arbitrator"]
    assert (shown["total"], shown["quorum"], shown["expected"]) == (3, 3, 4)


def test_a_voter_that_still_receives_the_state_is_shown_but_not_counted() -> None:
    shown = quorum_reply(
        "shop", "a", RingId(3, "a", 1), "abc", parse(("a", "b", "c")), acting=True, joining={"c"}
    )
    assert (shown["total"], shown["quorum"], shown["expected"]) == (2, 2, 3)
    told = json.loads(json.dumps(shown))
    assert [line.split()[:2] for line in membership(told)[3:]] == [
        ["1", "here"], ["1", "here"], ["1", "joins"],
    ]  # fmt: skip
    assert drawn(told).startswith("quorate        2/2  # # +  ring 3.a")
