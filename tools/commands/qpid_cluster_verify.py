"""`qpid-cluster-verify`: prove from the members' logs that a cluster kept its promises."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from tools.cli.options import Codes, run_command
from tools.cli.shared_options import with_version
from tools.cli.signals import ended_by
from tools.cli.streams import FULL
from tools.verify.fast import FastReport, compare_ends
from tools.verify.findings import BadInput, shown
from tools.verify.input.segments import find_segments, is_few
from tools.verify.live import checkpoint
from tools.verify.live.alert import alert
from tools.verify.live.metrics import FollowMetrics, serving
from tools.verify.live.notify import receiving
from tools.verify.report.progress_bar import progress
from tools.verify.spark_session import needs, spark_session

CONSISTENT, NOT_CONSISTENT, NO_VERDICT = 0, 1, 2
ALWAYS = ("pyarrow", "numpy", "duckdb")
"""Packages that every check but --fast needs besides the brokers' own."""
UNWRITTEN = {*FULL} - {errno.EIO}
"""How only writing fails: an I/O error may be that of a log that is read."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tools.verify.job import CheckOptions
    from tools.verify.report.result import Report


@click.command(name="qpid-cluster-verify", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("logdir", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs: local[N] for N cores here, or the master of a Spark cluster that can "
    "read the same directories.  Logs of less than 12 million rows (moves, commands and "
    "client operations: some 120 MB) are checked without Spark unless this is given.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the report as one page with pictures, for a browser or a printer.",
)
@click.option(
    "--fast",
    is_flag=True,
    help="Only compare the ends of closed segments: no Spark, no proof.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Keep checking what live members write, and report each finding at once, until Ctrl-C.",
)
@click.option(
    "--alert-command",
    metavar="COMMAND",
    help="With --follow: run this program for each finding, without a shell, with the finding "
    "as JSON on standard input.",
)
@click.option(
    "--alert-url", metavar="URL", help="With --follow: POST each finding as JSON to this URL."
)
@click.option(
    "--metrics-port",
    metavar="[HOST:]PORT",
    help="With --follow: serve Prometheus metrics at this address, path /metrics.  Without HOST: "
    "to this machine only.",
)
@click.option(
    "--since",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Start from the verified point in this file: skip the segments that it covers.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="If the logs are consistent, write the verified point to this file, for --since.",
)
@click.option(
    "--replay",
    type=click.Choice(("sources", "all")),
    default="sources",
    show_default=True,
    help="Check the moves of messages and replay them in a second model of queues: for each "
    "position from one member's log (sources), or from every member's log (all).",
)
@click.option(
    "--export",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the records as Parquet to this new directory, by Spark.",
)
@click.option("--verbose", is_flag=True, help="Show Spark's own messages.")
@with_version
def qpid_cluster_verify(
    logdir: tuple[Path, ...],
    as_json: bool,
    master: str,
    html: Path | None,
    fast: bool,
    follow: bool,
    since: Path | None,
    save: Path | None,
    replay: str,
    export: Path | None,
    verbose: bool,
    **outlets: str | None,
) -> None:
    """Check the member logs in and below LOGDIR... against the cluster's guarantees.

    Each member records what it applied, confirmed and saw of the others in DATA-DIR/memberlog.
    Give these directories of ALL members, including dead, ejected and running ones, and the
    directories of client histories (spout --history DIR).

    \b
    What is checked (numbers as in docs/GUARANTEES.md):
      LOG  the logs are whole: checksums, links, no record missing
      G1   all members applied the same commands at the same positions
      G2   members that moved from view to view together applied the same
      G6   views have the same members for all, and their numbers rise
      G7   one primary per epoch, each with a majority; nothing is applied
           or confirmed outside of it
      G8   nothing confirmed is missing in a later primary or on a member
      G9   what was confirmed is an accepted publish, durable at a majority
      G10  votes were about what was applied
      G11  no message is delivered again without a cause and the flag
      G12  messages leave a queue, and a channel's enter it, in their order
      G13  a message is held by one channel at a time
      G14  the same commands gave the same outcomes and the same state
      G20  a publish becomes one message, which ends once in each queue
      G25  a member becomes the active one only while none is

    \b
    Examples:
      qpid-cluster-verify /var/lib/qpidd/memberlog
      qpid-cluster-verify a/memberlog b/memberlog c/memberlog
      qpid-cluster-verify --json --master 'local[4]' collected/ | jq .findings
      qpid-cluster-verify --follow /srv/*/memberlog
      qpid-cluster-verify --follow --alert-url https://chat.example/hook \
          --metrics-port 9419 /srv/*/memberlog

    \b
    Exit status:
      0  consistent
      1  not consistent: each finding names the promise, member and position
      2  no verdict: logs are empty, unreadable, of another version or of several
         clusters; or pyspark is missing: pip install 'qpid-cluster-py[verify]'
      130, 143  ended by Ctrl-C or SIGTERM before there was a verdict

    \b
    With --follow, until Ctrl-C or SIGTERM (--json: one JSON document a line):
      0  consistent in all that every live member has shown
      1  not consistent: each finding was reported at once
      2  no verdict: as above, or no member of a primary view has shown a batch

    \b
    With --fast, which reads a few KiB of each segment and proves nothing about the rest:
      0  the ends agree; nothing in between was read
      1  the ends differ: they are named, with the command for the full check
      2  no verdict: as above, or no two members recorded the same position
    """
    _check_mixture(fast, follow, (html, save, export, fast and since), outlets)
    if fast:
        _fast(list(logdir), as_json)
    if follow:
        _follow(list(logdir), as_json, verbose, since, outlets)
    with _verdict_only(as_json, verbose):
        needs(*ALWAYS)
        # Imported late: --help, --fast and the sentence of `needs` work without the extra, too.
        from tools.verify.job import CheckOptions, verify

        options = CheckOptions(html is not None, since, save, export, replay == "all")
        started = time.monotonic()
        found = _look_ahead(list(logdir), options, html)
        with _spark(master, verbose, found, options) as spark:
            ready = time.monotonic()
            with progress(spark, wanted=not (as_json or verbose)):
                report = verify(spark, list(logdir), options)
            seconds = time.monotonic() - ready
        _print(report, ready - started, seconds, as_json=as_json, verbose=verbose)
        if html is not None:
            _write_page(html, report, "Consistency of " + ", ".join(map(str, logdir)), verbose)
        sys.exit(CONSISTENT if report.consistent else NOT_CONSISTENT)


def _print(report: Report, start_s: float, check_s: float, *, as_json: bool, verbose: bool) -> None:
    if not as_json:
        click.echo(render(report, check_s, verbose=verbose))
        return
    document = report.as_document()
    document["seconds"] = {"start": round(start_s, 3), "check": round(check_s, 3)}
    click.echo(json.dumps(document, indent=2))


def _check_mixture(
    fast: bool, follow: bool, of_full: Iterable[object], outlets: Mapping[str, str | None]
) -> None:
    """Refuse options that do not go together."""
    if (fast or follow) and any(of_full):
        raise click.UsageError("--html, --save and --export are of the full check, as is --since")
    if follow and _is_given("master"):
        raise click.UsageError("--follow compares in this process: leave out --master")
    if fast and follow:
        raise click.UsageError("--fast looks once: it does not go with --follow")
    if any(outlets.values()) and not follow:
        raise click.UsageError("--alert-command, --alert-url and --metrics-port need --follow")


@contextmanager
def _spark(
    master: str, verbose: bool, segments: list[Path], options: CheckOptions
) -> Iterator[SparkSession | None]:
    """Yield Spark, or None if starting it would take longer than the check without it."""
    if is_few(segments) and options.export is None and not _is_given("master"):
        yield None
        return
    with spark_session(master, verbose) as spark:
        yield spark


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def _look_ahead(places: list[Path], options: CheckOptions, html: Path | None) -> list[Path]:
    """Return the segments to read.

    Raises `BadInput` for an unusable path, before Spark starts and not after the check.
    """
    outputs = {"--html": html, "--save": options.save, "--export": options.export}
    for option, path in outputs.items():
        if path is None:
            continue
        parent = path.absolute().parent
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise BadInput(f"{option} {path}: {parent} cannot be written")
    if options.export is not None and options.export.exists():
        raise BadInput(f"{options.export} exists already: name a new directory to export to")
    if options.since is not None:
        checkpoint.load(options.since)
    return find_segments(places)


@contextmanager
def _verdict_only(as_json: bool, verbose: bool) -> Iterator[None]:
    """Anything that ends the check early must never read as a verdict, and leaves no files."""
    came: list[int] = []
    try:
        with ended_by(signal.SIGTERM) as came:
            yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if came:  # DuckDB says "Query interrupted"
            sys.exit(came[0])
        if isinstance(error, BrokenPipeError) or (
            isinstance(error, OSError) and error.errno in UNWRITTEN
        ):
            raise  # the report, not the check: `run_command` has the words
        _broke(error, as_json, verbose)


def _broke(error: Exception, as_json: bool, verbose: bool) -> NoReturn:
    """Print why there is no verdict."""
    if isinstance(error, BadInput):
        _no_verdict(str(error), as_json)
    if verbose:
        traceback.print_exception(error)
    reason = str(error).partition("\n")[0] or type(error).__name__
    _no_verdict(f"the check itself failed: {reason} (--verbose shows where)", as_json)


def _follow(
    places: list[Path],
    as_json: bool,
    verbose: bool,
    since: Path | None,
    outlets: Mapping[str, str | None],
) -> NoReturn:
    with _verdict_only(as_json, verbose):
        needs(*ALWAYS)
        saved = [] if since is None else checkpoint.load(since)
        with (
            receiving(outlets["alert_command"], outlets["alert_url"]) as receivers,
            serving(outlets["metrics_port"], metrics := FollowMetrics(receivers)),
        ):
            _demand_program(outlets["alert_command"])
            consistent = alert(places, as_json, saved, receivers, metrics)
        sys.exit(CONSISTENT if consistent else NOT_CONSISTENT)


def _demand_program(command: str | None) -> None:
    """Raises `BadInput` for a program that cannot be run; else only an alert would find it out."""
    if command is not None and shutil.which(program := shlex.split(command)[0]) is None:
        raise BadInput(f"--alert-command {command}: there is no program {program}")


def _no_verdict(why: str, as_json: bool, **verdict: object) -> NoReturn:
    if as_json:
        click.echo(json.dumps({**(verdict or {"consistent": None}), "error": why}))
    click.echo(f"qpid-cluster-verify: {why}", err=True)
    sys.exit(NO_VERDICT)


def _fast(places: list[Path], as_json: bool) -> NoReturn:
    began = time.monotonic()
    try:
        report = compare_ends(places)
    except BadInput as error:
        _no_verdict(str(error), as_json, fast=True, ends_agree=None)
    seconds = time.monotonic() - began
    if as_json:
        click.echo(json.dumps(report.as_document() | {"seconds": round(seconds, 3)}, indent=2))
    else:
        click.echo(render_fast(report, seconds))
    if not report.agree:
        sys.exit(NOT_CONSISTENT)
    sys.exit(CONSISTENT if report.positions_compared else NO_VERDICT)


def render_fast(report: FastReport, seconds: float) -> str:
    """Return the result of comparing the ends, for people."""
    lines = [
        f"fast: members {report.members}, segments {report.segments}, bytes {report.bytes:,}, "
        f"{report.records:,} records by their closing records, in {seconds:.2f} s",
        f"positions that more than one member wrote down: {report.positions_compared:,}, "
        f"agreed up to {report.agreed_to:,}",
    ]
    lines += [
        f"note: {path} is not closed; what is in it was not compared" for path in report.not_closed
    ]
    lines += [
        f"note: {name} shares no written position with another" for name in report.nothing_in_common
    ]
    if not report.agree:
        lines += ["fast: THE ENDS DIFFER", *(f"  {what}" for what in report.differences)]
        files = " ".join(shlex.quote(str(path)) for path in report.check_in_full)
        lines.append(f"check these in full: qpid-cluster-verify {files}")
    elif report.positions_compared:
        lines.append("fast: the ends agree; nothing in between was read")
    else:
        lines.append("fast: no verdict: nothing could be compared; run the full check")
    return "\n".join(lines)


def _write_page(path: Path, report: Report, title: str, verbose: bool) -> None:
    from tools.verify.report.html import page

    try:
        path.write_text(page(report, title), encoding="utf-8")
    except Exception as error:  # the verdict stands
        if verbose:
            traceback.print_exception(error)
        why = error.strerror if isinstance(error, OSError) else repr(error)
        click.echo(f"qpid-cluster-verify: cannot write {path}: {why}", err=True)
        return
    click.echo(f"the page is in {path}", err=True)


def render(report: Report, seconds: float, *, verbose: bool = False) -> str:
    """Return the report for people."""
    c = report.counts
    lines = [
        f"members {c.members}, incarnations {c.lives}, segments {c.segments}, bytes {c.bytes:,}",
        f"records {c.records:,}, batches {c.batches:,}, positions {c.positions:,}, "
        f"publishes {c.publishes:,}, confirms {c.confirms:,}, views {c.views}, epochs {c.epochs}",
        f"checked in {seconds:.1f} s, {c.records / max(seconds, 0.001):,.0f} records/s",
    ]
    if report.clients is not None:
        lines.append(str(report.clients))
    lines += [f"note: {note}" for note in report.notes]
    if verbose:
        lines += [f"{one.promise}: {one.check}: {one.rows:,} {one.of}" for one in report.checks]
    if report.consistent:
        return "\n".join([*lines, *report.verdict()])
    lines += [f"NOT CONSISTENT: {len(report.findings)} findings, the earliest first"]
    for finding in report.findings:
        lines += [f"  {finding}", *(f"      {shown(line)}" for line in finding.around)]
    return "\n".join(lines)


def main() -> None:
    """Entry point of the installed command."""
    # No failure to print may read as a verdict.
    run_command(qpid_cluster_verify, sys.argv[1:], Codes(NO_VERDICT, NO_VERDICT))


if __name__ == "__main__":
    main()
