"""`ringtrace`: read the members' traces of the ring protocol, or switch a trace on and off."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

import click

from broker.exit_codes import Exit
from tools.cli.answers import Json, fields
from tools.cli.failures import ToolError, os_reason
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import BROKER_VARIABLE, BrokerOption, with_version
from tools.client.credentials import Credentials, with_credentials
from tools.client.target_options import answered
from tools.commands.qpid_cluster import parse_target
from vsync.totem.trace import KINDS

EPILOG = """\
FILE is the trace of a member: qpidd --trace FILE, or Cluster(..., trace=FILE). The files of several
members are merged by time. FILE.1, the older half of a trace, is read first.

\b
--views draws a column for each member instead of the records:
  a number  in the ring with this number      ?  looking for a ring
  !         forming one                       .  left, or not started yet

\b
Examples:
  ringtrace a.trace b.trace c.trace           all records of three members, by time
  ringtrace --views *.trace                   who was in which ring, and why it changed
  ringtrace -k view,drop -m a *.trace         only some kinds, of one member
  ringtrace -r 4.a --since 12:00:05 *.trace   records that name this ring, from then on
  ringtrace -f /var/lib/shop/ring.trace       follow what is being written
  ringtrace --on otherhost:5673               start the trace of a running member (--off: stop)
  ringtrace --off --broker host1,host2        the same for several members
  ringtrace --kinds                           explain the kinds of records

Exit codes: 0 done, 1 unreadable, or refused, 2 wrong usage.
"""
POLL_S = 0.2
TIME_OF_DAY = re.compile(r"\d\d(:\d\d){0,2}(\.\d+)?", re.ASCII)
AT_MAX = 1e11
"""A moment in seconds since 1970 is below; a day further on has no name in the calendar."""
MARKS = {"gather": "?", "commit": "!", "recovery": "!", "left": ".", "idle": "."}


class TraceRow(NamedTuple):
    """One record."""

    at: float
    member: str
    kind: str
    fields: dict[str, Json]

    def text(self) -> str:
        """The fields as `name=value`, in the order in which they were written."""
        return " ".join(f"{name}={value}" for name, value in self.fields.items())


class Chosen(NamedTuple):
    """Which records to show."""

    kinds: frozenset[str]
    members: frozenset[str]
    ring: str
    since: str

    def has(self, row: TraceRow) -> bool:
        """Whether this is one of them."""
        return (
            (not self.kinds or row.kind in self.kinds)
            and (not self.members or row.member in self.members)
            and (not self.ring or self.ring in (row.fields.get("ring"), row.fields.get("old")))
            and (not self.since or clock(row.at) >= self.since)
        )


@click.command(
    name="ringtrace", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("-k", "--kind", default="", metavar="KIND,...", help="Only records of these kinds.")
@click.option("-m", "--member", default="", metavar="NAME,...", help="Only of these members.")
@click.option("-r", "--ring", default="", metavar="RING", help="Only records that name this ring.")
@click.option("--since", default="", metavar="HH:MM:SS", help="Only from this time of day on.")
@click.option("--views", is_flag=True, help="Draw who was in which ring over time.")
@click.option("-f", "--follow", is_flag=True, help="Keep showing what is written from now on.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the records, or kinds, as JSON, one a line."
)
@click.option("--kinds", is_flag=True, help="Explain the kinds of records, and exit.")
@click.option("--on", "switch", flag_value="on", help="Switch the trace of a running member on.")
@click.option("--off", "switch", flag_value="off", help="Switch it off.")
@click.option(
    "--broker", metavar="MEMBER,...", cls=BrokerOption,
    help="With --on and --off: the same as MEMBER; may be a list. Default localhost, or "
    "$QPID_BROKER.",
)  # fmt: skip
@with_credentials
@click.argument("files", nargs=-1, metavar="FILE... | MEMBER")
@with_version
def ringtrace(
    kind: str,
    member: str,
    ring: str,
    since: str,
    views: bool,
    follow: bool,
    as_json: bool,
    kinds: bool,
    switch: str | None,
    broker: str | None,
    credentials: Credentials,
    files: tuple[str, ...],
) -> int:
    """Show traces of the ring protocol in aligned columns."""
    if kinds:
        explain(as_json)
        return Exit.OK
    if switch is not None:
        if broker is not None and files:
            raise click.UsageError(f"the member is named twice: {files[0]}, and --broker {broker}")
        return switched(
            files or (broker or os.environ.get(BROKER_VARIABLE) or "localhost",),
            switch == "on",
            credentials,
        )
    if broker is not None:
        raise click.UsageError("--broker is for --on and --off; a trace is read from FILE")
    if not files:
        raise click.UsageError("Missing argument 'FILE...'")
    if since and not TIME_OF_DAY.fullmatch(since):
        raise click.UsageError(f"--since: '{since}' is no time of day: write HH:MM:SS")
    unknown = [name for name in parts(kind) if name not in KINDS]
    if unknown:
        raise click.UsageError(f"no kind of record is called {unknown[0]!r}: see --kinds")
    chosen = Chosen(frozenset(parts(kind)), frozenset(parts(member)), ring, since)
    tails = [Tail(Path(name)) for name in files]
    drawn = Views() if views else None
    try:
        while True:
            rows = sorted((row for tail in tails for row in tail.rows()), key=by_time)
            show(rows, chosen, drawn, as_json=as_json)
            if not follow:
                return Exit.OK
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return Exit.OK
    finally:
        for tail in tails:
            tail.close()


def explain(as_json: bool) -> None:
    """Print the kinds of records, each with its meaning."""
    for name, words in KINDS.items():
        meaning = json.dumps({"kind": name, "meaning": words})
        print(meaning if as_json else f"{name:<21} {words}")


def by_time(row: TraceRow) -> float:
    """The sort key of records of several members."""
    return row.at


def parts(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def clock(at: float) -> str:
    """A time of day with microseconds, in the local zone; small ones are a simulator's seconds."""
    if at < 1e6:
        return f"{at:15.6f}"
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1e6):06d}"


def show(rows: list[TraceRow], chosen: Chosen, views: Views | None, *, as_json: bool) -> None:
    """Print the selected records."""
    wide = max((len(row.member) for row in rows), default=0)
    for row in rows:
        if views is not None:
            views.row(row)
        elif chosen.has(row):
            if as_json:
                record = {"at": row.at, "member": row.member, "kind": row.kind, **row.fields}
                print(json.dumps(record))
            else:
                print(f"{clock(row.at)}  {row.member:<{wide}}  {row.kind:<14}  {row.text()}")
    sys.stdout.flush()


class Tail:
    """One file, read as far as it is written; and its older half, once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._number = 0
        older = path.with_name(path.name + ".1")
        self._older = older if older.is_file() else None

    def rows(self) -> Iterator[TraceRow]:
        """The records written since the last call."""
        if self._older is not None:
            older, self._older = self._older, None
            yield from self._parsed(older.read_bytes())
        try:
            if self._file is None:
                self._file = self._path.open("rb")
            yield from self._parsed(self._file.read())
            if not self._same():
                # It became FILE.1: the rest written to it is read, then the new one follows.
                self._file.close()
                self._file = self._path.open("rb")
                yield from self._parsed(self._file.read())
        except IsADirectoryError:
            raise ToolError(
                f"{self._path} is a directory: give the trace in it, {self._path / 'ring.trace'}, "
                "which is there once it was switched on (--on)"
            ) from None
        except OSError as problem:
            raise ToolError(f"{self._path}: {os_reason(problem)}") from None

    def close(self) -> None:
        """Stop reading."""
        if self._file is not None:
            self._file.close()

    def _same(self) -> bool:
        assert self._file is not None
        try:
            return self._path.stat().st_ino == os.fstat(self._file.fileno()).st_ino
        except OSError:
            return True

    def _parsed(self, data: bytes) -> Iterator[TraceRow]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._number += 1
            row = parsed(line)
            if row is None:
                raise ToolError(f"{self._path}, line {self._number}: this is no trace of a member")
            yield row


def parsed(line: bytes) -> TraceRow | None:
    """Parse one line; None if it is not a record."""
    try:
        record = json.loads(line)
        at, member, kind = record.pop("at"), record.pop("member"), record.pop("kind")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    if not (isinstance(at, int | float) and isinstance(member, str) and isinstance(kind, str)):
        return None
    return TraceRow(float(at), member, kind, record) if 0 <= at < AT_MAX else None


class Views:
    """The picture: a column for each member, a line for each change."""

    def __init__(self, write: Callable[[str], None] = print) -> None:
        self._write = write
        self._marks: dict[str, str] = {}

    def row(self, row: TraceRow) -> None:
        """Take one record; return a line if it changes the picture."""
        if row.member not in self._marks:
            self._marks[row.member] = "."
            self._write(" " * 17 + " ".join(f"{name:>5}" for name in self._marks))
        if row.kind == "phase" and row.fields.get("now") != "operational":
            self._draw(row, MARKS.get(str(row.fields.get("now")), "?"), row.fields.get("why"))
        elif row.kind == "view":
            seq = str(row.fields.get("ring")).partition(".")[0]
            gone = row.fields.get("left")
            text = f"ring {row.fields.get('ring')} {row.fields.get('members')}"
            self._draw(row, seq, text if gone in ("{}", None) else f"{text} without {gone}")
        elif row.kind == "trace":
            self._draw(row, ".", "begins")

    def _draw(self, row: TraceRow, mark: str, text: Json) -> None:
        self._marks[row.member] = mark
        columns = " ".join(f"{one:>{max(5, len(name))}}" for name, one in self._marks.items())
        self._write(f"{clock(row.at)}  {columns}  {row.member}: {text}")


def switched(members: tuple[str, ...], on: bool, credentials: Credentials) -> int:
    """Switch the traces of running members, several of which each word may name."""
    for named in members:
        target = parse_target(named, 10.0, credentials)
        for place in (target.address, *target.others):
            with answered(str(place)):
                answer = replace(target, address=place, others=()).ask(op="trace", on=on)
            file = fields(answer.get("trace")).get("file")
            print(f"{place}: {'on, in' if on else 'off, was in'} {file}")
    return Exit.OK


def main() -> None:
    """Entry point of the installed command."""
    run_command(ringtrace, sys.argv[1:], Codes(usage=2, failure=1))


if __name__ == "__main__":
    main()
