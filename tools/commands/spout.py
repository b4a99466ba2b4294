"""`spout`: publish lines, each confirmed, over any broker of a list.

Lines leave in order, with at most a window of them unconfirmed. When the broker is lost, the next
one gets all unconfirmed lines again, in order, before anything new. The exit code is 0 only when
every line was confirmed.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import click

from broker.amqp.codec import encode_properties
from broker.amqp.fields import Value
from broker.exit_codes import Exit
from broker.machine.limits import NUMBERS_MAX
from broker.memberlog.client_history import ClientHistory, Session
from broker.options.addresses import Address
from tools.cli.failures import ToolError, os_reason
from tools.cli.options import run_command
from tools.cli.progress import Progress
from tools.cli.shared_options import with_version
from tools.client import history as histories
from tools.client.amqp_client import AmqpConnection, ConnectionLost, Login, PublisherConfirm
from tools.client.credentials import Credentials
from tools.client.failover import BrokerList, Reconnect
from tools.client.options import (
    QUEUE_NAME,
    Name,
    client_errors,
    route,
    with_brokers,
    with_connection,
)
from vsync.types import record

READ_BYTES = 256 * 1024
PUMP_SECONDS = 0.5
PREFIX_BYTES = 235
"""The longest --id-prefix: a message id has 255 bytes, and a line number up to 20 of them."""
DELIVERY_MODES = {True: 2, False: 1}
EPILOG = """\b
Examples:
  Three lines typed by hand, to the broker on this machine:
    printf 'one\\ntwo\\nthree\\n' | spout -q work

\b
  A file over a cluster; each message carries its line number as message id:
    spout -b 10.0.0.1,10.0.0.2,10.0.0.3 -q work --file access.log --sequence

\b
  Over TLS, as another user, with the password in a file that only its owner can read:
    spout -b amqps://10.0.0.1,10.0.0.2 --user ada --password-file ~/.ada --ssl-ca ca.pem -q work

\b
  Each line is in the queue exactly once, whatever brokers fail on the way:
    spout -b 10.0.0.1,10.0.0.2,10.0.0.3 -q work --file access.log --once

\b
  To an exchange, as transient messages, with a summary for a script:
    tail -f app.log | spout -e logs -k web.info --transient --json

When the broker is lost, spout connects to the next one in the list and sends the unconfirmed
messages again, in order. A message that the lost broker had stored but not confirmed is then in the
queue twice, unless --once lets the brokers recognize it.

Exit codes: 0 every line confirmed, 1 some refused or unroutable, 64 wrong usage,
66 input not readable, 69 no broker reachable, 73 history not writable, 130 interrupted.
"""


class InputLine(NamedTuple):
    """One line of the input, numbered from 1 over all inputs."""

    line_no: int
    body: bytes


@record
class Destination:
    """Where the lines go and how they are marked."""

    exchange: str
    key: str
    queue: str
    """Not empty: declared before publishing, and a message that misses it is an error."""
    durable: bool
    id_prefix: str | None
    """None: messages carry no id. Otherwise the id is the prefix and the line number."""
    producer: str = ""
    """Not empty: brokers take each line number of this producer once."""

    def properties(self, line_no: int) -> bytes:
        """The encoded properties of one line."""
        values: dict[str, Value] = {"delivery_mode": DELIVERY_MODES[self.durable]}
        if self.id_prefix is not None:
            values["message_id"] = f"{self.id_prefix}{line_no}"
        if self.producer:
            values["headers"] = {"x-producer-id": self.producer, "x-sequence": line_no}
        return encode_properties(values)


class Lines:
    """The input, cut into lines as it becomes readable. Never blocks when its descriptor is ready,
    so that heartbeats continue while a slow writer is at the other end of a pipe."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.ready: deque[bytes] = deque()
        self._rest = b""
        self._descriptors = self._opened(paths)
        self._descriptor = next(self._descriptors, None)

    @property
    def descriptor(self) -> int | None:
        """The descriptor to wait on for more input; None when there will be no more."""
        return self._descriptor

    def read(self) -> None:
        """Read the available input; call it when the descriptor is readable."""
        assert self._descriptor is not None
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except OSError as problem:
            raise ToolError(f"input: {os_reason(problem)}", Exit.NO_INPUT) from None
        if not data:
            if self._rest:
                self.ready.append(self._rest)
                self._rest = b""
            self._descriptor = next(self._descriptors, None)
            return
        *whole, self._rest = (self._rest + data).split(b"\n")
        self.ready.extend(whole)

    @staticmethod
    def _opened(paths: Sequence[str]) -> Iterator[int]:
        for path in paths:
            if path == "-":
                if sys.stdin is None:
                    # Number 0 would later be a socket of ours.
                    raise ToolError("the standard input is closed", Exit.NO_INPUT)
                yield sys.stdin.fileno()
                continue
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError as problem:
                raise ToolError(f"{path}: {os_reason(problem)}", Exit.NO_INPUT) from None
            try:
                yield descriptor
            finally:
                os.close(descriptor)


class Spout:
    """The publisher: a window of unconfirmed lines that survives the loss of connections."""

    def __init__(
        self,
        addresses: Sequence[Address],
        login: Login,
        lines: Lines,
        destination: Destination,
        window: int,
        limit: int | None,
        reconnect: Reconnect,
        progress: Progress,
        history: ClientHistory | None,
    ) -> None:
        self.published = self.confirmed = self.resent = 0
        self.refused = self.unroutable = 0
        self.route = BrokerList(addresses, login, reconnect, progress.note)
        self._lines, self._destination = lines, destination
        self._window, self._limit = window, limit
        self._progress = progress
        self._history = history
        self._session: Session | None = None
        self._waits_for = ""
        self._pending: dict[int, InputLine] = {}
        """Unconfirmed lines, by the number that their confirm will carry, ascending."""

    def run(self) -> None:
        """Run until the input has ended and nothing is unconfirmed."""
        while True:
            connection = self.route.connect()
            if self._history is not None:
                self._session = self._history.session(self._destination.queue, connection.cluster)
            try:
                self._prepare(connection)
                self._stream(connection)
                connection.close()
                return
            except ConnectionLost as lost:
                if self._session is not None:
                    self._session.lost()
                self.route.lost(connection, f"{lost}; {len(self._pending)} unconfirmed")

    def _prepare(self, connection: AmqpConnection) -> None:
        """Declare, request confirms, and send again what the last broker did not confirm."""
        if self._destination.producer and not connection.takes_numbers:
            raise ToolError(
                f"{connection.broker} does not take numbered messages once: leave --once out"
            )
        if self._destination.queue:
            connection.declare_queue(self._destination.queue)
        connection.select_confirms()
        again = list(self._pending.values())
        self._pending.clear()
        for line in again:
            self._publish(connection, line)
        self.resent += len(again)

    def _stream(self, connection: AmqpConnection) -> None:
        while True:
            while (
                self._lines.ready
                and len(self._pending) < self._window
                and not connection.blocked
                and not connection.congested
                and not self._at_limit()
            ):
                self.published += 1
                self._publish(connection, InputLine(self.published, self._lines.ready.popleft()))
            if not self._pending and self._finished():
                return
            source = None if self._lines.ready or self._at_limit() else self._lines.descriptor
            if self._history is not None:
                self._history.flush()  # before it records anything as published
            if connection.pump(PUMP_SECONDS, source):
                self._lines.read()
            self._tell_blocked(connection.blocked)
            for confirm in connection.acks:
                self._confirm(confirm)
            connection.acks.clear()
            self._give_up_returned(connection)
            self._progress.show(self.confirmed, f"{len(self._pending)} unconfirmed")

    def _tell_blocked(self, reason: str) -> None:
        """Report once why nothing is sent, and when sending resumes: else it looks like a hang."""
        if reason == self._waits_for:
            return
        self._waits_for = reason
        said = (
            f"the broker takes no messages now: {reason}; waiting"
            if reason
            else "it takes them again"
        )
        self._progress.note(said)

    def _publish(self, connection: AmqpConnection, line: InputLine) -> None:
        destination = self._destination
        number = connection.publish(
            destination.exchange,
            destination.key,
            destination.properties(line.line_no),
            line.body,
            mandatory=bool(destination.queue),
        )
        self._pending[number] = line
        if self._session is not None:
            self._session.published(number, line.body)

    def _confirm(self, confirm: PublisherConfirm) -> None:
        """Settle the confirmed lines; multiple means all up to that number."""
        numbers = [confirm.number]
        if confirm.multiple:
            numbers = list(takewhile(lambda number: number <= confirm.number, self._pending))
        settled = sum(self._pending.pop(number, None) is not None for number in numbers)
        if confirm.accepted:
            self.confirmed += settled
        else:
            # A nack means not stored, without a reason; the line is not tried again.
            self.refused += settled
        if self._session is not None:
            record = self._session.confirmed if confirm.accepted else self._session.refused
            record(confirm.number, multiple=confirm.multiple)

    def _give_up_returned(self, connection: AmqpConnection) -> None:
        """Count lines that found no queue; they were confirmed as well."""
        self.unroutable += len(connection.returns)
        for returned in connection.returns[:1]:
            self._progress.note(f"unroutable: {returned.text}")
        if self._session is not None:
            for returned in connection.returns:
                self._session.unroutable(returned.body)
        connection.returns.clear()

    def _at_limit(self) -> bool:
        return self._limit is not None and self.published >= self._limit

    def _finished(self) -> bool:
        return self._at_limit() or (not self._lines.ready and self._lines.descriptor is None)


@click.command(
    name="spout", epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "allow_extra_args": True},
)  # fmt: skip
@with_brokers
@click.option(
    "-q",
    "--queue",
    type=QUEUE_NAME,
    help="Publish to this queue; create it, durable, if it does not exist.",
)
@click.option("-e", "--exchange", type=Name(), help="Publish to this exchange, which must exist.")
@click.option("-k", "--key", default="", type=Name(), help="The routing key for --exchange.")
@click.option(
    "--file", "files", multiple=True, metavar="F", help="Read F, not stdin; may be repeated."
)
@click.option(
    "--durable/--transient",
    default=True,
    help="Whether messages survive a cold start. Default yes.",
)
@click.option(
    "--window",
    default=1000,
    type=click.IntRange(1, 65_535),
    metavar="N",
    help="How many messages may be unconfirmed. Default 1000.",
)
@click.option("--sequence", is_flag=True, help="Give each message its line number as message id.")
@click.option(
    "--id-prefix",
    metavar="TEXT",
    type=Name(most=PREFIX_BYTES),
    help="The same, with TEXT before the number.",
)
@click.option(
    "--once",
    is_flag=True,
    help=f"Number the lines, so that brokers take none twice. At most --window {NUMBERS_MAX}.",
)
@click.option("--count", type=click.IntRange(min=0), metavar="N", help="Stop after N lines.")
@with_connection
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
@click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")
@with_version
def spout(
    broker: str,
    queue: str | None,
    exchange: str | None,
    key: str,
    files: tuple[str, ...],
    durable: bool,
    window: int,
    sequence: bool,
    id_prefix: str | None,
    once: bool,
    count: int | None,
    patience: float,
    credentials: Credentials,
    history: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Publish each line of the input as one message, and wait until all are confirmed."""
    if words := click.get_current_context().args:
        raise ToolError(
            f"'{words[0]}' is too much: the queue is named with -q, and messages are the lines of "
            "--file or of standard input, as in: echo hello | spout -q work", Exit.USAGE,
        )  # fmt: skip
    if (queue is None) == (exchange is None):
        raise ToolError("give either --queue or --exchange", Exit.USAGE)
    if once and window > NUMBERS_MAX:
        why = f"brokers know {NUMBERS_MAX} numbers of a producer again"
        raise ToolError(f"--once takes a --window of {NUMBERS_MAX} at most: {why}", Exit.USAGE)
    destination = Destination(
        exchange=exchange or "",
        key=queue or key,
        queue=queue or "",
        durable=durable,
        id_prefix=id_prefix if id_prefix is not None else "" if sequence else None,
        producer=f"spout-{uuid.uuid4()}" if once else "",
    )
    addresses, login, reconnect = route(broker, credentials, patience)
    progress = Progress("spout", quiet=quiet)
    lines = Lines(files or ("-",))
    with client_errors(progress), histories.client_history(history, "spout") as kept:
        job = Spout(
            addresses, login, lines, destination, window, count, reconnect,
            progress, kept,
        )  # fmt: skip
        job.run()
    if as_json:
        print(json.dumps(summary(job, progress.seconds())))
    if job.refused or job.unroutable:
        raise ToolError(f"{job.refused} messages refused, {job.unroutable} unroutable")
    return Exit.OK


def summary(job: Spout, seconds: float) -> dict[str, int | float]:
    """The result, for --json; the keys are stable."""
    return {
        "published": job.published,
        "confirmed": job.confirmed,
        "refused": job.refused,
        "unroutable": job.unroutable,
        "resent": job.resent,
        "failovers": job.route.failovers,
        "seconds": round(seconds, 3),
    }


def main() -> None:
    """Entry point of the installed command."""
    run_command(spout, sys.argv[1:])


if __name__ == "__main__":
    main()
