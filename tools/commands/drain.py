"""`drain`: read a queue to stdout or a file, over any broker of a list.

A message is acked after it was written, so a drain that dies, or loses its broker, loses nothing:
the broker delivers unacked messages again, flagged. Repeats are written like all others and
counted; `--unique` keeps them from counting towards `--count`.

With `--offset` the queue is a stream: it is read from that offset on, and nothing is taken from it.
After a failover reading continues behind the last written message, so nothing comes twice (before
the first message it begins anew, with `next` behind messages that came meanwhile).

With `--browse` waiting messages are only looked at, and nothing is taken; after a failover they are
all read again.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import IO

import click

from broker.amqp.codec import decode_properties
from broker.amqp.fields import Timestamp, Value
from broker.exit_codes import Exit
from broker.memberlog.client_history import ClientHistory, Session
from broker.options.addresses import Address
from tools.cli.failures import ToolError, os_reason
from tools.cli.options import run_command
from tools.cli.progress import Progress
from tools.cli.shared_options import Seconds, with_version
from tools.cli.signals import held_back
from tools.client import history as histories
from tools.client.amqp_client import (
    AmqpConnection,
    BrokerRefused,
    ConnectionLost,
    Delivery,
    Login,
)
from tools.client.credentials import Credentials
from tools.client.failover import BrokerList, Reconnect
from tools.client.options import (
    QUEUE_NAME,
    client_errors,
    route,
    with_brokers,
    with_connection,
)

PUMP_SECONDS = 0.5
NOT_FOUND = 404
OFFSET = "x-stream-offset"
NO_CONSUME = "x-filter-no-consume"
_INTERVAL = re.compile("[0-9]{1,9}[YMDhms]")
EPILOG = """\b
Examples:
  All messages, until Ctrl-C:
    drain -q work

\b
  The messages that are there now, from a cluster, into a file:
    drain -b 10.0.0.1,10.0.0.2,10.0.0.3 -q work --timeout 2 --output work.txt

\b
  A thousand different messages, with ids and flags, for a program:
    drain -q work --count 1000 --unique --format json

\b
  The last hour of a stream, which keeps its messages:
    drain -q log --offset 1h --timeout 2 --format json

\b
  The messages waiting in a queue, without removing them:
    drain -q work --browse --timeout 1 --format json

Formats: text writes the body and a newline; json writes one object per line: body, message_id (or
null), redelivered, exchange, key, and for a stream the offset. Bytes of a body that are not UTF-8
appear as \\udc80 to \\udcff (Python: .encode('utf-8', 'surrogateescape')).

Exit codes: 0 done, 1 --count not reached before --timeout, 64 wrong usage, 66 no such queue,
69 no broker reachable, 73 output or history not writable, 130 interrupted (written messages
are acked).
"""


def as_text(delivery: Delivery) -> bytes:
    """The body and a newline."""
    return delivery.body + b"\n"


def as_json(delivery: Delivery) -> bytes:
    """One JSON object on one line, ASCII only."""
    found: dict[str, object] = {
        "body": delivery.body.decode("utf-8", "surrogateescape"),
        "message_id": message_id(delivery),
        "redelivered": delivery.redelivered,
        "exchange": delivery.exchange,
        "key": delivery.key,
    }
    offset = offset_of(delivery)
    if offset is not None:
        found["offset"] = offset
    return json.dumps(found).encode() + b"\n"


def offset_of(delivery: Delivery) -> int | None:
    """Its offset in its stream; None: it did not come from a stream."""
    headers = decode_properties(delivery.properties).get("headers")
    offset = headers.get(OFFSET) if isinstance(headers, dict) else None
    return offset if isinstance(offset, int) else None


def message_id(delivery: Delivery) -> str | None:
    """The id set by the publisher, if any."""
    value = decode_properties(delivery.properties).get("message_id")
    return None if value is None else str(value)


FORMATS: dict[str, Callable[[Delivery], bytes]] = {"text": as_text, "json": as_json}


class Offset(click.ParamType[Value]):
    """`first`, `last`, `next`, a number, an interval such as `1h`, or an instant with its zone."""

    name = "OFFSET"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Value:
        """Return it as the argument of a consumer."""
        if value.isascii() and value.isdigit():
            high = len(value) > 19 or int(value) >= 1 << 63
            return self.fail("the number is too high") if high else int(value)
        if value in ("first", "last", "next") or _INTERVAL.fullmatch(value):
            return value
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            instant = None
        if instant is None or instant.tzinfo is None:
            self.fail(f"'{value}' is none of first, last, next, N, 1h, 2026-11-26T09:00:00+00:00")
        return Timestamp(max(0, int(instant.timestamp())))


class Drain:
    """The consumer: writes, flushes, acks, in batches as they arrive."""

    def __init__(
        self,
        addresses: Sequence[Address],
        login: Login,
        queue: str,
        output: IO[bytes],
        form: Callable[[Delivery], bytes],
        *,
        count: int | None,
        unique: bool,
        idle_seconds: float | None,
        prefetch: int,
        acks: bool,
        reconnect: Reconnect,
        progress: Progress,
        history: ClientHistory | None,
        offset: Value = None,
        browses: bool = False,
        creates: bool = False,
    ) -> None:
        """`offset`: the queue is a stream, read from there on. `browses`: take nothing. `creates`:
        create the queue if it does not exist."""
        self._offset, self._browses, self._creates = offset, browses, creates
        self.received = self.redelivered = self.repeated = 0
        self.route = BrokerList(addresses, login, reconnect, progress.note)
        self._queue = queue
        self._output, self._form = output, form
        self._count, self._idle_seconds = count, idle_seconds
        self._prefetch, self._acks = prefetch, acks
        self._progress = progress
        self._history = history
        self._session: Session | None = None
        self._seen: set[str] | None = set() if unique else None
        self._received_at = time.monotonic()

    @property
    def counted(self) -> int:
        """How many messages count towards --count."""
        return self.received - self.repeated

    @property
    def complete(self) -> bool:
        """Whether the requested number of messages came."""
        return self._count is not None and self.counted >= self._count

    def _note_new(self) -> None:
        """Tell a user who waits for messages that the queue did not exist."""
        self._progress.note(f"there was no queue '{self._queue}': it is declared, and empty")

    def _begin(self, connection: AmqpConnection) -> None:
        """Consume, as the options say. Raises ToolError if there is no such queue."""
        looks: dict[str, Value] = {}
        if self._offset is not None:
            looks = {OFFSET: self._offset}
        elif self._browses:
            looks = {NO_CONSUME: True}
        try:
            if self._creates:
                connection.declare_queue(self._queue, on_new=self._note_new)
            connection.consume(self._queue, self._prefetch, no_ack=not self._acks, arguments=looks)
        except BrokerRefused as refusal:
            if refusal.code != NOT_FOUND:
                raise
            # Usually the name was mistyped, and a queue of that name would stay for good.
            raise ToolError(
                f"there is no queue '{self._queue}': qpid-stat -q lists the queues; "
                "--create makes it, durable, and waits for what comes",
                Exit.NO_INPUT,
            ) from None

    def run(self) -> None:
        """Run until the count is reached or nothing has come for the idle time."""
        while not self.complete:
            connection = self.route.connect()
            if self._history is not None:
                self._session = self._history.session(self._queue, connection.cluster)
            try:
                self._begin(connection)
                self._received_at = time.monotonic()
                self._read(connection)
                connection.close()
                return
            except ConnectionLost as lost:
                if self._session is not None:
                    self._session.lost()
                self.route.lost(connection, str(lost))
            except KeyboardInterrupt:
                connection.close()
                raise

    def _read(self, connection: AmqpConnection) -> None:
        while not self.complete:
            if connection.deliveries:
                # A drain stopped between the write and the ack would write everything again; one
                # that writes to a reader that hangs must still be able to stop.
                with held_back(signal.SIGINT, signal.SIGTERM, insisting=True):
                    self._write(connection)
                continue
            wait = PUMP_SECONDS
            if self._idle_seconds is not None:
                left = self._received_at + self._idle_seconds - time.monotonic()
                if left <= 0:
                    return
                wait = min(wait, left)
            connection.pump(wait)
            self._progress.show(self.received, f"{self.redelivered} redelivered")

    def _write(self, connection: AmqpConnection) -> None:
        """Write all received messages, make sure that they are out, and only then ack them."""
        batch, connection.deliveries = connection.deliveries, []
        self._received_at = time.monotonic()
        tag = 0
        try:
            for delivery in batch:
                if self.complete:
                    break
                self._output.write(self._form(delivery))
                self._note(delivery)
                tag = delivery.tag
            self._output.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise ToolError(f"output: {os_reason(problem)}", Exit.CANNOT_CREATE) from None
        if self._session is not None and self._history is not None:
            if self._acks:
                self._session.acked(tag, multiple=True)
            self._history.flush()
        if self._acks and tag:
            connection.ack(tag)

    def _note(self, delivery: Delivery) -> None:
        self.received += 1
        if self._offset is not None:
            offset = offset_of(delivery)
            self._offset = self._offset if offset is None else offset + 1
        self.redelivered += delivery.redelivered
        if self._session is not None:
            self._session.received(
                delivery.tag, delivery.body, redelivered=delivery.redelivered, acks=self._acks
            )
        if self._seen is None:
            return
        identity = message_id(delivery)
        if identity is None:
            raise ToolError("--unique needs message ids, and a message has none", Exit.FAILURE)
        if identity in self._seen:
            self.repeated += 1
        self._seen.add(identity)


@click.command(
    name="drain", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@with_brokers
@click.option(
    "-q",
    "--queue",
    required=True,
    type=QUEUE_NAME,
    help="The queue, which must exist; see --create.",
)
@click.option("--create", is_flag=True, help="Create the queue, durable, if it does not exist.")
@click.option(
    "--offset",
    type=Offset(),
    help="The queue is a stream: read it from this offset on, without removing anything: first, "
    "last, next, a number, 1h (an hour ago), or a time, 2026-11-26T09:00:00+00:00.",
)
@click.option(
    "--browse",
    is_flag=True,
    help="Show waiting and arriving messages without removing any.",
)
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="Stop after N messages.")
@click.option(
    "--unique", is_flag=True, help="Count each message id only once; write every message."
)
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECS",
    help="Stop after this long without a message. Default: wait for ever.",
)
@click.option("--output", metavar="F", help="Write to F, which is overwritten, instead of stdout.")
@click.option("--format", "form", type=click.Choice(sorted(FORMATS)), default="text")
@click.option(
    "--ack/--no-ack",
    "acks",
    default=True,
    help="--no-ack: the broker deletes a message when it sends it, so a message lost on the way is "
    "gone.",
)
@click.option(
    "--prefetch",
    default=500,
    type=click.IntRange(1, 65_535),
    metavar="N",
    help="How many messages may be unacked. Default 500.",
)
@with_connection
@click.option("--quiet", is_flag=True, help="No progress, notes or summary on stderr.")
@with_version
def drain(
    broker: str,
    queue: str,
    create: bool,
    offset: Value,
    browse: bool,
    count: int | None,
    unique: bool,
    timeout: float | None,
    output: str | None,
    form: str,
    acks: bool,
    prefetch: int,
    patience: float,
    credentials: Credentials,
    history: str | None,
    quiet: bool,
) -> int:
    """Read messages from a queue and write them down, acking what is written."""
    reads_offset, has_history = offset is not None, history is not None
    refuse(acks, offset=reads_offset, browse=browse, history=has_history, create=create)
    addresses, login, reconnect = route(broker, credentials, patience)
    progress = Progress("drain", quiet=quiet)
    # A stop by `kill` should end like one by Ctrl-C: written messages acked, the rest returned.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        open_output(output) as out,
        histories.client_history(history, "drain") as kept,
        client_errors(progress),
    ):
        job = Drain(
            addresses,
            login,
            queue,
            out,
            FORMATS[form],
            count=count,
            unique=unique,
            idle_seconds=timeout,
            prefetch=prefetch if count is None else max(1, min(prefetch, count)),
            acks=acks,
            reconnect=reconnect,
            progress=progress,
            history=kept,
            offset=offset,
            browses=browse,
            creates=create,
        )
        job.run()
    progress.note(
        f"{job.received} messages, {job.redelivered} flagged redelivered, "
        f"{job.route.failovers} failovers, {progress.seconds():.1f} s"
    )
    if count is not None and not job.complete:
        raise ToolError(f"{job.counted} of {count} messages came before the timeout")
    return Exit.OK


def refuse(acks: bool, *, offset: bool, browse: bool, history: bool, create: bool) -> None:
    """Refuse options that contradict each other. Raises UsageError."""
    if offset and not acks:
        raise click.UsageError("--offset needs acks: they give credit, and take nothing away")
    if browse and (offset or not acks or history):
        raise click.UsageError(
            "--browse takes nothing: it goes with none of --offset, --no-ack and --history"
        )
    if create and (offset or browse):
        raise click.UsageError("--create makes a queue to take from: not with --offset or --browse")


def open_output(path: str | None) -> IO[bytes]:
    """The file to write, or a buffer over stdout that leaves stdout open."""
    if path is None or path == "-":
        return io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False))
    try:
        return open(path, "wb")
    except OSError as problem:
        raise ToolError(f"{path}: {os_reason(problem)}", Exit.CANNOT_CREATE) from None


def main() -> None:
    """Entry point of the installed command."""
    run_command(drain, sys.argv[1:])


if __name__ == "__main__":
    main()
