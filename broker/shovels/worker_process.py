"""One attempt of a shovel as a separate process, and its ends at this cluster.

The process gets one line of JSON on its standard input, which stays open for as long as it is to
run. It ends in order when that is closed, even because this member died. It answers with lines of
JSON, the events of `broker.shovels.supervisor`. An end at this cluster is one of a pair of sockets
that it inherits: the member serves the other one like any client, already logged in.

The member itself reads nothing of another broker's: a slow, hostile or silent peer costs only a
process.
Decision: docs/decisions/0068-a-shovel-is-a-process-that-one-member-runs.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from typing import cast

from broker.access.access import SYSTEM
from broker.access.backends import REFUSED
from broker.amqp.fields import Value, encode_table
from broker.frontend.connections import ClientLink, Connections
from broker.shovels.amqp_uri import AmqpUri
from broker.shovels.definition import Link, Shovel, ends
from broker.shovels.status import printable
from broker.shovels.supervisor import Event, Job
from broker.shovels.upstreams import EXCHANGE

log = logging.getLogger("qpidd.shovels")

LINE_BYTES_MAX = 64 * 1024
"""Size of an event; a longer line is not one of ours."""
POLL_S = 0.05
ORDERLY_S = 10.0
"""How long a process that is to end may take before it is killed."""
UNREAD_BYTES_MAX = 64 * 1024 * 1024
"""Unread input of the process: more than all possible bindings."""
LOCAL_PEER = "127.0.0.1:0"
"""The address that lists show for an end at this cluster."""


class LocalSocket(asyncio.Protocol):
    """The member's side of an end at this cluster."""

    def __init__(self, clients: Connections, user: str, shovel: Shovel, which: str) -> None:
        """`which`: source or destination."""
        self._clients, self._user, self._shovel, self._which = clients, user, shovel, which
        self._link: ClientLink | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pair is connected."""
        self.transport = cast("asyncio.Transport", transport)
        purpose = f"{self._shovel.title}, {self._which}"
        self._link = self._clients.attach(LOCAL_PEER, self._user, purpose, self.transport, REFUSED)
        # It begins with connection.open, so the rest of its announcements is given here.
        able: dict[str, Value] = {"consumer_cancel_notify": True, "connection.blocked": True}
        self._link.client.connection.client_properties = {
            "connection_name": self._shovel.connection_name, "capabilities": able,
        }  # fmt: skip
        self._link.client.stays = True
        self._link.client.keeps_copy = self._shovel.is_replica

    @property
    def is_gone(self) -> bool:
        """Whether all members have closed it, in the order."""
        return self._link is None or self._clients.gateway.is_gone(self._link.client.conn_was)

    def data_received(self, data: bytes) -> None:
        """Bytes from the process."""
        assert self._link is not None
        self._link.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, or was disconnected."""
        assert self._link is not None
        self._link.connection_lost()

    def pause_writing(self) -> None:
        """It reads too slowly."""
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        """It caught up."""
        if self._link is not None:
            self._link.resume_writing()


class WorkerProcess:
    """An attempt: its process, as far as it was started."""

    def __init__(
        self,
        command: Sequence[str],
        cluster: str,
        clients: Connections,
        job: Job,
        on_event: Callable[[Event], None],
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
    ) -> None:
        self._threads = threads
        self._command, self._cluster, self._clients, self._job = command, cluster, clients, job
        self._on_event, self._loop = on_event, loop
        self._process: subprocess.Popen[bytes] | None = None
        self._input: asyncio.WriteTransport | None = None
        self._untold: list[bytes] = []  # until it is there
        self._locals: list[LocalSocket] = []
        self._stopped = self._ended = self._at_once = False
        self._tidies = False  # a link that is gone removes what it created at its upstream
        self.task = loop.create_task(self._run())
        """Its creator keeps this until it is done."""

    @property
    def _title(self) -> str:
        return self._job.shovel.title

    @property
    def ended(self) -> bool:
        """Whether the process is gone, and the messages it held here are back in their queues."""
        return self.task.done() and all(one.is_gone for one in self._locals)

    def stop(self, *, at_once: bool) -> None:
        """End it; no event follows."""
        self._stopped, self._at_once = True, self._at_once or at_once
        if at_once:
            for one in self._locals:
                if one.transport is not None:
                    one.transport.abort()
        self._end_process()

    def tell(self, change: Mapping[str, object]) -> None:
        """Write a line to its input; a process that does not read moves no messages either."""
        self._tidies = self._tidies or change.get("ends") is True
        line = json.dumps(change).encode() + b"\n"
        if self._input is None:
            self._untold.append(line)
        elif not self._stopped and not self._input.is_closing():
            self._input.write(line)
            if self._input.get_write_buffer_size() > UNREAD_BYTES_MAX:
                log.warning("%s: its process hangs, and is ended", printable(self._title))
                self._kill()

    def _end_process(self) -> None:
        """Ask it to end, or force it; one that is not started yet is ended once it is."""
        process = self._process
        if process is None or self._ended:
            return
        if self._at_once:
            process.kill()
            return
        assert self._input is not None
        self._input.close()  # earlier lines come first
        self._loop.call_later(ORDERLY_S, self._kill_late)

    def _kill_late(self) -> None:
        if self._ended:
            return
        shovel, left = self._job.shovel, ""
        link = shovel.link if self._tidies else None
        if link is not None and link.kind == EXCHANGE and link.cleans_up:
            left = f"; its queue '{shovel.source_queue}' may be left at the upstream"
        log.warning("%s: its process does not end, and is killed%s",
                    *map(printable, (self._title, left)))  # fmt: skip
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and not self._ended:
            self._process.kill()

    async def _run(self) -> None:
        why = "its process could not be started"
        try:
            why = await self._work()
        except OSError as error:
            why = f"its process could not be started: {error.strerror or error}"
        except Exception:
            log.exception("%s: this is a fault of the broker", printable(self._title))
        finally:
            for one in self._locals:
                if one.transport is not None:
                    one.transport.abort()
        self._tell({"event": "ended", "why": why})

    def _tell(self, event: Event) -> None:
        """An attempt that has reported its end, or was stopped, reports nothing more."""
        if self._stopped:
            return
        self._stopped = event.get("event") == "ended"
        self._on_event(event)

    async def _work(self) -> str:
        """Run the process to its end; return how it ended, unless it said so itself."""
        if not self._command:
            return "this process has no program for shovels"
        theirs: list[socket.socket] = []
        try:
            given = await self._given(theirs)
            process, line = await self._loop.run_in_executor(
                self._threads, self._start, given, theirs
            )
        finally:
            for one in theirs:
                one.close()
        try:
            self._input, _ = await self._loop.connect_write_pipe(
                asyncio.BaseProtocol, process.stdin
            )
            self._process = process
            self._input.writelines((line, *self._untold))
            if self._stopped:
                self._end_process()
            await self._listen(process)
        finally:
            process.kill()  # if it closed its output and continues; one that ended takes no harm
            while (code := process.poll()) is None:  # noqa: ASYNC110 - it may never end: no thread
                await asyncio.sleep(POLL_S)
            self._ended = True
            if self._input is not None and not self._input.is_closing():
                self._input.abort()
        return f"its process ended with code {code}"

    async def _listen(self, process: subprocess.Popen[bytes]) -> None:
        reader = asyncio.StreamReader(LINE_BYTES_MAX)
        assert process.stdout is not None
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                event = json.loads(line)
                if not isinstance(event, dict):
                    continue
                if event.get("event") == "note":  # also of one that was stopped
                    log.warning("%s: %s", *map(printable, (self._title, str(event.get("text")))))
                else:
                    self._tell(event)
        except ValueError:
            log.warning("%s: its process wrote what is no event", printable(self._title))
        finally:
            transport.close()

    async def _given(self, theirs: list[socket.socket]) -> dict[str, object]:
        """The input of the process; its ends of pairs of sockets are added to `theirs`."""
        shovel, number = self._job.shovel, self._job.number
        source, destination = [
            await self._end(uri, which, theirs)
            for uri, which in zip(ends(shovel, number), ("source", "destination"), strict=True)
        ]
        return {
            "vhost": shovel.vhost, "name": shovel.name, "value": shovel.value,
            "number": number, "doubtful": self._job.doubtful, "cluster": self._cluster,
            "cluster_id": self._clients.gateway.identity.cluster_id,
            "source": source, "destination": destination,
            "link": _as_json(shovel.link) if shovel.link is not None else None,
            "here": self._job.here, "replica": shovel.is_replica,
        }  # fmt: skip

    async def _end(
        self, uri: AmqpUri, which: str, theirs: list[socket.socket]
    ) -> dict[str, object]:
        if uri.address is not None:
            return {"descriptor": None}
        ours, other = socket.socketpair()
        theirs.append(other)
        ours.setblocking(False)
        link = LocalSocket(self._clients, uri.user or SYSTEM, self._job.shovel, which)
        self._locals.append(link)
        await self._loop.create_unix_connection(lambda: link, sock=ours)
        return {"descriptor": other.fileno()}

    def _start(
        self, given: dict[str, object], theirs: Sequence[socket.socket]
    ) -> tuple[subprocess.Popen[bytes], bytes]:
        """On a thread, as it takes some milliseconds: start it; return the first line for it, too,
        because a process that hangs may not read it."""
        line = json.dumps(given).encode() + b"\n"
        process = subprocess.Popen(
            list(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            pass_fds=[one.fileno() for one in theirs], start_new_session=True, bufsize=0,
        )  # fmt: skip
        return process, line


def _as_json(link: Link) -> dict[str, object]:
    """With the arguments of the exchange in AMQP's encoding, because JSON has fewer types."""
    return asdict(link) | {"arguments": b64encode(encode_table(link.arguments)).decode()}
