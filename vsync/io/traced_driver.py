"""A driver that writes its member's trace to a file, one JSON object per line.

Each line has `at`, `member`, `kind` and the fields of that kind. The trace is off until it is
switched on. Records are collected and written about ten times a second. The file is bounded: when
it is full it is renamed to FILE.1, replacing the previous one. A disk error ends the trace, not the
member.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from vsync.admin.protocol import Json, Op, QueryRefused
from vsync.errors import VsyncError
from vsync.io.driver import Driver
from vsync.io.transport import Transport
from vsync.totem.context import names
from vsync.totem.events import Deliver, Output
from vsync.totem.node import Node
from vsync.totem.phases import Phase
from vsync.totem.trace import Fields, TraceDigest, fact
from vsync.types import Member

VERSION: Final = 1
FILE_BYTES_MAX: Final = 16 << 20
FLUSH_S: Final = 0.1

Watch = Callable[[], Fields]


class TraceFile:
    """The trace file of one member. `clock`: seconds since 1970."""

    def __init__(
        self,
        path: Path,
        me: Member,
        cluster: str,
        clock: Callable[[], float],
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self.path, self.me, self.cluster = path, me, cluster
        self.error = ""
        self.digest = TraceDigest()
        self._clock, self._bytes_max = clock, bytes_max
        self._file: IO[bytes] | None = None
        self._bytes = 0

    def open(self) -> None:
        """Open for appending.  Raises OSError.  Idempotent."""
        if self._file is None:
            self._file = self.path.open("ab")
            self._bytes = self._file.tell()
            self.error = ""
            self._begin()

    def _begin(self) -> None:
        first: Fields = {"version": VERSION, "cluster": self.cluster, "pid": os.getpid()}
        first |= {"incarnation": self.me.incarnation, "address": self.me.address}
        self._write(self._clock(), "trace", first)

    def add(self, kind: str, fields: Fields) -> None:
        """Add a record with the present time."""
        self.digest.add(self._clock(), kind, fields)

    def flush(self) -> None:
        """Write the collected records."""
        facts = self.digest.take()
        if self._file is None:
            return
        try:
            for at, kind, fields in facts:
                self._write(at, kind, fields)
            self._file.flush()
        except OSError as error:
            self.error = f"{self.path}: {error.strerror or error}"
            self.close()

    def _write(self, at: float, kind: str, fields: Fields) -> None:
        assert self._file is not None
        record = {"at": round(at, 6), "member": self.me.name, "kind": kind, **fields}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self._bytes + len(line) > self._bytes_max:
            self._bytes = 0
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._file = self.path.open("ab")
            self._begin()
        self._file.write(line)
        self._bytes += len(line)

    def close(self) -> None:
        """Close the file.  Idempotent."""
        if self._file is not None:
            held, self._file = self._file, None
            try:
                held.close()
            except OSError as error:
                self.error = f"{self.path}: {error.strerror or error}"


class TraceError(VsyncError):
    """The trace cannot be written, or has no file."""


class Tracer:
    """Records the events between a node and its application while the trace is on."""

    def __init__(
        self, node: Node, cluster: str, path: Path | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.on = False
        self._node, self._loop = node, loop
        # Wall clock time that does not jump: one offset for the whole lifetime.
        offset = time.time() - time.monotonic()
        self._file = (
            TraceFile(path, node.me, cluster, lambda: offset + time.monotonic())
            if path is not None
            else None
        )
        self._flush: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None
        self._watched: Fields = {}

    def switch(self, on: bool) -> None:
        """Switch on or off.  Raises TraceError when the file cannot be written."""
        if on == self.on:
            return
        if self._file is None:
            raise TraceError("this member was started without a file for its trace")
        if on:
            try:
                self._file.open()
            except OSError as error:
                reason = error.strerror or error
                raise TraceError(f"cannot write {self._file.path}: {reason}") from None
        self.on = on
        self._node.context.trace(on)
        if not on:
            self.close()
        elif self._node.members:  # started within a view: record the present one
            ring, members = str(self._node.ring), names(self._node.members)
            self._add("view", {"ring": ring, "members": members, "since": "before"})

    def watch(self, watch: Watch) -> None:
        """Record the result of `watch`, as kind `primary`, whenever it has changed."""
        self._watch = watch

    def tap(self, on_event: Callable[[Output], None]) -> Callable[[Output], None]:
        """Wrap the driver's `on_event`."""

        def tapped(output: Output) -> None:
            if not self.on:
                on_event(output)
                return
            if output.__class__ is not Deliver:
                self._on_output(output)
            on_event(output)
            if self._watch is not None and (seen := self._watch()) != self._watched:
                self._watched = seen
                self._add("primary", seen)

        return tapped

    def status(self) -> Fields:
        """Return the status for operators."""
        found: Fields = {"on": self.on}
        if self._file is not None:
            found |= {"file": str(self._file.path), "trouble": self._file.error}
        return found

    def _on_output(self, output: Output) -> None:
        found = fact(output)
        if found is not None:
            self._add(*found)

    def _add(self, kind: str, fields: Fields) -> None:
        assert self._file is not None
        self._file.add(kind, fields)
        if self._flush is None:
            self._flush = self._loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the collected records now."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._file is not None:
            self._file.flush()
            if self._file.error:
                self.on = False
                self._node.context.trace(False)

    def close(self) -> None:
        """Write the collected records and end the trace.  Idempotent."""
        if self.on and self._node.phase is Phase.LEFT:
            # The last phase change: the driver is closed and hands over no events any more.
            self._add("phase", {"now": Phase.LEFT.value, "why": "leave"})
        self.on = False
        self._node.context.trace(False)
        self.flush()
        if self._file is not None:
            self._file.close()


def trace_op(tracer: Tracer) -> Op:
    """Answer the operation `trace`: whether it is on, and where; with `on`, also switches it."""

    def op(request: Json) -> Json:
        wanted = request.get("on")
        if not isinstance(wanted, bool | None):
            raise QueryRefused("bad-request", "on must be true or false")
        if wanted is not None:
            try:
                tracer.switch(wanted)
            except TraceError as error:
                raise QueryRefused("no-trace", str(error)) from None
        return {"trace": dict(tracer.status())}

    return op


class TracedDriver(Driver):
    """A driver whose member can be traced; closes the file at its end."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        on_event: Callable[[Output], None],
        tracer: Tracer,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(node, transport, tracer.tap(on_event), loop=loop)
        self.tracer = tracer
        self.closed.add_done_callback(lambda _: tracer.close())
