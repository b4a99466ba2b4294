"""Members' traces and their viewer: what is written, bounded, merged, drawn and followed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from tests.sim.run.campaign import Options, run_seed
from tests.support.ring.virtual_network import Net
from tests.unit.tools.test_ring import tool
from tests.unit.vsync.api.test_cluster import CONFIG, kill, run, together
from tools.cli.failures import ToolError
from tools.commands.ringtrace import Tail, Views, parsed, ringtrace
from vsync import Cluster
from vsync.io.traced_driver import TraceError, TraceFile, Tracer, trace_op
from vsync.totem.context import TRACED
from vsync.totem.events import Deliver, Marks, Note, Send
from vsync.totem.phases import Phase
from vsync.totem.trace import KINDS, Fact, Fields, TraceDigest, fact
from vsync.types import Guarantee, Member, RingId

ROOT = Path(__file__).resolve().parents[4]
ME = Member("a", 1, "a:1")


class Shown(NamedTuple):
    code: int
    out: str


def show(*arguments: str) -> Shown:
    """Run the viewer; let its errors through."""
    result = CliRunner().invoke(ringtrace, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return Shown(int(result.return_value), result.output)


def write(path: Path, member: str, *facts: Fact) -> None:
    """Write a trace as a member does, with given times."""
    now = [0.0]
    file = TraceFile(path, Member(member, 1, ""), "test", lambda: now[0])
    file.open()
    for at, kind, fields in facts:
        now[0] = at
        file.add(kind, fields)
    file.flush()
    file.close()


def notes(net: Net, name: str) -> list[Note]:
    return [o for o in net.seen[name] if isinstance(o, Note)]


def test_only_rare_facts_are_noted_while_off_and_all_while_on() -> None:
    net = Net("abc")
    net.settle("abc")
    quiet = {n.code for n in notes(net, "a")}
    assert quiet <= KINDS.keys()
    assert not quiet & ({"drop", "join_sent", "join_heard"} | TRACED)
    net.nodes["a"].context.tracing = True
    net.drop = lambda _from, to, frame: to == "a" and frame[1] == 2 and net.rng.random() < 0.3
    for number in range(200):
        net.submit("b", b"%d" % number * 50)
        net.run(0.001)
    net.drop = lambda *_: False
    net.push(net.now, "a", b"garbage")
    net.crash("c")
    net.settle("ab")
    found = notes(net, "a")
    assert {"drop", "asked", "join_sent", "join_heard", "closing"} <= {n.code for n in found}
    assert {n.code for n in found} <= KINDS.keys()
    reasons = {(n.fields["why"], n.fields["from"]) for n in found if n.code == "drop"}
    assert ("frame_short", "") in reasons
    assert any(n.code == "phase" and n.fields["now"] == Phase.OPERATIONAL.value for n in found)


def test_repeated_facts_are_one_record() -> None:
    digest = TraceDigest()
    for at in range(3):
        digest.add(at, "drop", {"why": "data_again", "times": 1, "from": "b"})
        digest.add(at, "drop", {"why": "data_again", "times": 1, "from": "c"})
        digest.add(at, "marks", {"a": at})
        digest.add(at, "view", {"ring": "1.a"})
    assert digest.take() == [
        (0, "drop", {"why": "data_again", "times": 3, "from": "b"}),
        (0, "drop", {"why": "data_again", "times": 3, "from": "c"}),
        (0, "marks", {"a": 2}),
        (0, "view", {"ring": "1.a"}), (1, "view", {"ring": "1.a"}), (2, "view", {"ring": "1.a"}),
    ]  # fmt: skip
    digest.add(4, "drop", {"why": "data_again", "times": 2, "from": "b"})
    assert digest.take() == [(4, "drop", {"why": "data_again", "times": 2, "from": "b"})]


def test_how_outputs_appear_in_the_trace() -> None:
    ring = RingId(1, "a", 1)
    assert fact(Marks({"a": 1})) == ("marks", {"a": 1})
    assert fact(Deliver(ring, 1, ME, [], Guarantee.SAFE, False)) is None
    assert fact(Send(ME, b"")) is None


def test_the_file_is_bounded_and_a_bad_disk_ends_only_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    file = TraceFile(path, ME, "test", lambda: 1.0, bytes_max=2000)
    file.open()
    for number in range(100):
        file.add("view", {"ring": f"{number}.a"})
        file.flush()
    older = tmp_path / "a.trace.1"
    assert path.stat().st_size <= 2000
    assert older.stat().st_size <= 2000
    assert {p.name for p in tmp_path.iterdir()} == {"a.trace", "a.trace.1"}
    shown = show("--json", "-k", "view", str(path)).out.splitlines()
    rings = [json.loads(line)["ring"] for line in shown]
    assert rings[-1] == "99.a"
    assert rings == [f"{n}.a" for n in range(100 - len(rings), 100)]
    older.unlink()
    older.mkdir()
    (older / "in the way").touch()
    for _ in range(40):
        file.add("view", {})
        file.flush()
    assert "a.trace" in file.error
    file.add("view", {})
    file.flush()
    file.close()


def test_files_are_merged_filtered_and_drawn(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both: Fields = {"ring": "1.a", "members": "{a,b}"}
    alone: Fields = {"ring": "2.a", "members": "{a}", "left": "{b}"}
    gather: Fields = {"was": "operational", "now": "gather", "why": "token lost", "ring": "1.a"}
    gone: Fields = {"now": "left", "why": "leave"}
    write(tmp_path / "a", "a", (1.0, "view", both), (3.0, "phase", gather), (5.0, "view", alone))
    write(tmp_path / "b", "b", (2.0, "view", both), (4.0, "phase", gone))
    lines = show(a, b).out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [f"{n}.000000" for n in range(1, 6)]
    assert lines[4].split()[1:3] == ["a", "phase"]
    assert lines[4].endswith("was=operational now=gather why=token lost ring=1.a")
    assert len(show("-m", "b", "-k", "view,phase", a, b).out.splitlines()) == 2
    assert len(show("-r", "2.a", a, b).out.splitlines()) == 1
    drawn = [line.split(maxsplit=3)[1:] for line in show("--views", a, b).out.splitlines()]
    assert drawn[-5:] == [
        ["1", ".", "a: ring 1.a {a,b}"],
        ["1", "1", "b: ring 1.a {a,b}"],
        ["?", "1", "a: token lost"],
        ["?", ".", "b: leave"],
        ["2", ".", "a: ring 2.a {a} without {b}"],
    ]


def test_wide_names_keep_their_columns() -> None:
    said: list[str] = []
    views = Views(said.append)
    for member in ("127.0.0.1:25672", "b"):
        row = parsed(b'{"at":1,"member":"%s","kind":"trace"}' % member.encode())
        assert row is not None
        views.row(row)
    assert said[-2].index(" b", 20) == said[-1].index(" .", 32)


def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="no kind of record is called 'nothing'"):
        show("-k", "nothing", "x")
    with pytest.raises(click.UsageError, match="Missing argument"):
        show()
    with pytest.raises(ToolError, match="no such file"):
        show(str(tmp_path / "none"))
    wrong = tmp_path / "wrong"
    wrong.write_text('{"at": 1}\n')
    with pytest.raises(ToolError, match="line 1: this is no trace"):
        show(str(wrong))
    assert parsed(b"[]") is None
    assert parsed(b'{"at":"x","member":"a","kind":"b"}') is None
    assert "retransmitted" in show("--kinds").out
    told = [json.loads(line) for line in show("--kinds", "--json").out.splitlines()]
    assert {one["kind"]: one["meaning"] for one in told} == KINDS


def test_a_clusters_trace_is_switched_on_and_off(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"

    async def main() -> None:
        async with Cluster("test", "a", config=CONFIG, trace=path, manage="127.0.0.1:0") as a:
            done = await tool(ringtrace, "--off", a.manage)
            assert done.out == f"{a.manage}: off, was in {path}\n"
            size = path.stat().st_size
            async with Cluster("test", "b", peers=[a.address], config=CONFIG) as b:
                await a.until(lambda: len(a.members) == 2)
                await b.until(lambda: len(b.members) == 2)
                assert path.stat().st_size == size
                await tool(ringtrace, "--on", a.manage)
                await kill(b)
            await a.until(lambda: len(a.members) == 1)
            assert (await tool(ringtrace, "--on", a.manage)).code == 0  # it is on already
        with pytest.raises(ToolError, match="cannot connect"):
            await tool(ringtrace, "--on", a.manage)

    run(main)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["kind"] for r in rows].count("trace") == 2
    views = [r for r in rows if r["kind"] == "view"]
    assert [r["members"] for r in views] == ["{a}", "{a,b}", "{a}"]
    assert views[1]["since"] == "before"
    assert rows[-1] == {**rows[-1], "kind": "phase", "now": "left"}


@pytest.mark.parametrize("option", ["--broker", "--brokers"])
def test_members_are_named_with_the_option_of_all_commands(tmp_path: Path, option: str) -> None:
    """Each member of a list is switched: every member has a trace of its own."""

    async def main() -> None:
        places = [tmp_path / "a.trace", tmp_path / "b.trace"]
        async with (
            Cluster("test", "a", config=CONFIG, trace=places[0], manage="127.0.0.1:0") as a,
            Cluster("test", "b", config=CONFIG, trace=places[1], manage="127.0.0.1:0") as b,
        ):
            done = await tool(ringtrace, "--off", option, f"{a.manage},{b.manage}")
            said = zip((a.manage, b.manage), places, strict=True)
            assert done.out == "".join(f"{one}: off, was in {file}\n" for one, file in said)

    run(main)
    with pytest.raises(click.UsageError, match="--broker is for --on and --off"):
        show(option, "127.0.0.1:1", str(tmp_path / "a.trace"))
    with pytest.raises(click.UsageError, match="named twice"):
        show("--on", option, "127.0.0.1:1", "127.0.0.1:2")


def test_an_impossible_trace_file_is_refused_at_once() -> None:
    async def main() -> None:
        with pytest.raises(TraceError, match="cannot write /no/where"):
            await Cluster("test", "a", trace="/no/where").start()
        async with together("a") as (alone,):
            tracer = Tracer(alone._node, "test", None, asyncio.get_running_loop())
            op = trace_op(tracer)
            assert op({}) == {"trace": {"on": False}}
            with pytest.raises(Exception, match="started without a file"):
                op({"on": True})
            with pytest.raises(Exception, match="true or false"):
                op({"on": "yes"})

    run(main)


def test_following_a_trace_over_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    file = TraceFile(path, ME, "test", lambda: 1.0, bytes_max=4000)
    file.open()
    file.flush()
    command = [
        sys.executable,
        "-m",
        "tools.commands.ringtrace",
        "-f",
        "--json",
        "-k",
        "view",
        str(path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for start in range(0, 120, 30):  # about three files
            for number in range(start, start + 30):
                file.add("view", {"ring": f"{number}.a"})
            file.flush()
            for number in range(start, start + 30):
                assert json.loads(child.stdout.readline())["ring"] == f"{number}.a"
        child.terminate()
    file.close()


def test_the_simulator_writes_the_same_trace(tmp_path: Path) -> None:
    """Tracing does not change the run."""
    quiet = run_seed(3, Options(ring_only=True))
    traced = run_seed(3, Options(ring_only=True, ringtrace=str(tmp_path)))
    assert traced.trace.hash() == quiet.trace.hash()
    files = [str(path) for path in sorted(tmp_path.glob("*.trace"))]
    assert len(files) == len(traced.plan.names)
    views = show("-k", "view", *files).out.splitlines()
    assert len(views) == traced.views
    kinds = {line.split()[2] for line in show(*files).out.splitlines()}
    assert {"phase", "drop", "join_sent", "commit", "recovery", "closing", "marks"} <= kinds
    assert "without" in show("--views", *files).out


@pytest.mark.parametrize("at", ["NaN", "1e300", "-1", "1e11"])
def test_a_record_of_no_moment_is_none(at: str) -> None:
    assert parsed(b'{"at": %s, "member": "a", "kind": "view"}' % at.encode()) is None
    assert parsed(b"[" * 100_000) is None


@pytest.mark.parametrize("since", ["9:00", "noon", "12:0"])
def test_a_time_of_day_of_another_form_is_refused(tmp_path: Path, since: str) -> None:
    """Compared as it is, it would select nothing, or everything."""
    file = tmp_path / "a.trace"
    file.write_text("")
    with pytest.raises(click.UsageError, match="write HH:MM:SS"):
        CliRunner().invoke(
            ringtrace, ["--since", since, str(file)], standalone_mode=False, catch_exceptions=False
        )


def test_a_half_written_record_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.trace"
    record = b'{"at": %d, "member": "a", "kind": "view"}\n'
    (tmp_path / "a.trace.1").write_bytes(record % 1)
    file.write_bytes(record % 2 + (record % 3)[:20])
    tail = Tail(file)
    assert [row.at for row in tail.rows()] == [1, 2]
    with file.open("ab") as more:
        more.write((record % 3)[20:])
    assert [row.at for row in tail.rows()] == [3]
    tail.close()
