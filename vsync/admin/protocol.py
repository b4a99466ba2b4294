"""The query protocol of a running member: newline-delimited JSON. Pure: bytes in, bytes out.

A client sends the eight bytes `QPIDMGT1`, then requests. Each request and each reply is one JSON
object on one line; replies come in the order of the requests. A request has `op`. A reply has `ok`;
when that is false it also has `code` and `error`, a sentence for people. Unknown fields are
ignored.

The set of verbs is fixed: nothing in a request is ever looked up as a name in the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

PREAMBLE = b"QPIDMGT1"
LINE_BYTES_MAX = 64 * 1024

Json = dict[str, object]
Op = Callable[[Json], Json]


class QueryRefused(Exception):
    """Makes the reply `ok: false`; `code` is one of the protocol's codes."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class NotYet(Exception):
    """The verdict on a request is still open: the request waits until `QuerySession.go_on`."""


class QuerySession:
    """One connection after its preamble. An op may raise `QueryRefused`. `admit` may, too; it may
    also raise `NotYet`, after which it is called again for the same request."""

    def __init__(self, ops: Mapping[str, Op], admit: Callable[[Json], None] | None = None) -> None:
        self.closing = False
        self.is_waiting = False
        """A request waits to be admitted; the owner reads no more meanwhile."""
        self._ops, self._admit = ops, admit
        self._buffer = b""

    def data_received(self, data: bytes) -> bytes:
        """Take bytes from the client; return the bytes to send."""
        self._buffer += data
        return b"" if self.is_waiting else self.go_on()

    def go_on(self) -> bytes:
        """Process the requests already here; return the bytes to send."""
        self.is_waiting = False
        replies = []
        while not self.closing and b"\n" in self._buffer:
            line, rest = self._buffer.split(b"\n", 1)
            try:
                replies.append(self._reply(line))
            except NotYet:
                self.is_waiting = True
                break
            self._buffer = rest
        if not self.is_waiting and len(self._buffer) > LINE_BYTES_MAX:
            replies.append(self._bad(f"a line of more than {LINE_BYTES_MAX} bytes"))
        return b"".join(json.dumps(reply).encode() + b"\n" for reply in replies)

    def _reply(self, line: bytes) -> Json:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return self._bad("a request that is not JSON")
        if not isinstance(request, dict):
            return self._bad("a request that is not a JSON object")
        try:
            return {"ok": True, **self._carry_out(request)}
        except QueryRefused as refusal:
            return {"ok": False, "code": refusal.code, "error": refusal.reason}

    def _carry_out(self, request: Json) -> Json:
        if self._admit is not None:
            self._admit(request)
        op = request.get("op")
        handler = self._ops.get(op) if isinstance(op, str) else None
        if handler is None:
            raise QueryRefused("unknown-op", f"this member knows no operation {op!r}")
        return handler(request)

    def _bad(self, what: str) -> Json:
        self.closing = True
        return {"ok": False, "code": "bad-request", "error": f"{what}; closing"}
