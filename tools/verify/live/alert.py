"""Output of --follow: findings, one per line as they appear, and how far all members are."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import click

from tools.verify.findings import ERASE, BadInput
from tools.verify.input.rows import Row
from tools.verify.input.segments import find_segments
from tools.verify.live import checkpoint
from tools.verify.live.follow import FollowResult, follow
from tools.verify.live.metrics import FollowMetrics
from tools.verify.live.notify import Receiver, as_document, tell
from tools.verify.live.progress import LogProgress


def alert(
    places: list[Path],
    as_json: bool,
    saved: list[Row],
    receivers: list[Receiver],
    metrics: FollowMetrics,
) -> bool:
    """Follow until SIGINT or SIGTERM; return whether everything verified is consistent.

    `saved`: the verified point to begin from, if any. Raises `BadInput` also when nothing was
    verified.
    """
    if saved:
        checkpoint.unread(find_segments(places), saved)  # are they the logs that were verified?
    consistent, last = True, None
    with stop_signals() as stop:
        for result in follow(places, stop.is_set, saved):
            metrics.take(result)
            for finding in result.findings:
                tell(receivers, finding)
            for line in result_lines(result, last, as_json):
                click.echo(line)
            _show_status(result)
            consistent = consistent and not result.findings
            last = result
    if sys.stderr.isatty():
        click.echo(ERASE, err=True, nl=False)
    if last is None or (consistent and last.progress.verified < 0):
        raise BadInput("nothing was verified: no member of a primary view has shown a batch")
    click.echo(final_line(last, consistent, as_json))
    return consistent


def result_lines(result: FollowResult, before: FollowResult | None, as_json: bool) -> Iterator[str]:
    """Yield the lines that a result adds to the output."""
    for finding in result.findings:
        yield json.dumps(as_document(finding)) if as_json else f"ALERT {finding}"
    if as_json:
        yield json.dumps(result.as_document())
        return
    known = set() if before is None else set(_notes(before.progress))
    yield from (note for note in _notes(result.progress) if note not in known)


def _notes(progress: LogProgress) -> Iterator[str]:
    for name in progress.absent:
        yield f"note: {name} is in the primary view, but no log of it is here"
    for what in progress.unknown:
        yield f"note: {what}"


def status(result: FollowResult) -> str:
    """Return how far all members are, in one line."""
    p = result.progress
    lags = ", ".join(
        f"{lag.member} -{lag.behind:,} ({lag.seconds:.1f} s)" if lag.behind else f"{lag.member} ="
        for lag in p.lags
        if lag.live
    )
    unread = f", {result.unread_bytes:,} bytes to read" if result.unread_bytes else ""
    where = f"verified {max(p.verified, 0):,}, {p.unverified:,} behind {max(p.newest, 0):,}"
    return f"{where}{unread}: {lags}"


def final_line(result: FollowResult, consistent: bool, as_json: bool) -> str:
    p = result.progress
    if as_json:
        document = {"event": "end", "consistent": consistent, "verified": p.verified}
        return json.dumps(document | {"unverified": p.unverified, "records": result.records})
    verdict = "consistent so far" if consistent else "NOT CONSISTENT"
    return (
        f"{verdict}: {result.records:,} records, verified up to position {p.verified:,}; "
        f"{p.unverified:,} positions after it are not verified"
    )


def _show_status(result: FollowResult) -> None:
    """Redraw the line at the bottom of a terminal; never in a file."""
    if sys.stderr.isatty():
        click.echo(f"{ERASE}{status(result)}", err=True, nl=False)


@contextmanager
def stop_signals() -> Iterator[Event]:
    """Yield an event that Ctrl-C and SIGTERM set: a look is never interrupted."""
    stop = Event()
    both = signal.SIGINT, signal.SIGTERM
    kept = {one: signal.signal(one, lambda *_: stop.set()) for one in both}
    try:
        yield stop
    finally:
        for one, handler in kept.items():
            signal.signal(one, handler)
