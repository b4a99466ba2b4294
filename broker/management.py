"""What operators and tools ask: newline-delimited JSON on the client port.

The protocol (requests, answers, codes) is stated in `tools/qpid_cluster`.  This half is pure: bytes
in, bytes out, and four questions to the member.  Fixed verbs only; nothing from a request is ever
looked up as a name of code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

PREAMBLE = b"QPIDMGT1"
LINE_BYTES_MAX = 1 << 20

Json = dict[str, object]


class Refusal(Exception):
    """A request that is answered with `ok: false`; `code` is one of the protocol's."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Managed(Protocol):
    """What a member answers.  Each may raise `Refusal`."""

    def login(self, user: str, password: str, peer: str) -> bool:
        """Whether these credentials let `peer` manage this broker."""

    def status(self) -> Json:
        """Return the answer to `status`."""

    def stop_member(self, name: str) -> None:
        """Make the member `name` leave."""

    def shutdown(self) -> str:
        """Order the clean stop of all; return its id."""

    def all_counters(self) -> dict[str, int]:
        """Return this member's counters."""


class ManagementSession:
    """One management connection, after its preamble."""

    def __init__(self, member: Managed, peer: str) -> None:
        self.closing = False
        self._member, self._peer = member, peer
        self._buffer = b""
        self._ops: dict[str, Callable[[Json], Json]] = {
            "status": lambda _: self._member.status(),
            "stop": self._stop,
            "shutdown": lambda _: {"shutdown_id": self._member.shutdown()},
            "counters": lambda _: {"counters": self._member.all_counters()},
        }

    def data_received(self, data: bytes) -> bytes:
        """Take bytes of the client, return the bytes to answer."""
        self._buffer += data
        answers = []
        while not self.closing and b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            answers.append(self._answer(line))
        if len(self._buffer) > LINE_BYTES_MAX:
            answers.append(self._bad(f"a line of more than {LINE_BYTES_MAX} bytes"))
        return b"".join(json.dumps(answer).encode() + b"\n" for answer in answers)

    def _answer(self, line: bytes) -> Json:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return self._bad("a request that is not JSON")
        if not isinstance(request, dict):
            return self._bad("a request that is not a JSON object")
        try:
            return {"ok": True, **self._carry_out(request)}
        except Refusal as refusal:
            return {"ok": False, "code": refusal.code, "error": refusal.reason}

    def _carry_out(self, request: Json) -> Json:
        op = request.get("op")
        user, password = request.get("user", "guest"), request.get("password", "guest")
        if not isinstance(user, str) or not isinstance(password, str):
            raise Refusal("bad-request", "user and password must be text")
        if not self._member.login(user, password, self._peer):
            raise Refusal("access-refused", f"user '{user}' may not manage this broker")
        handler = self._ops.get(op) if isinstance(op, str) else None
        if handler is None:
            raise Refusal("unknown-op", f"this broker knows no operation {op!r}")
        return handler(request)

    def _stop(self, request: Json) -> Json:
        name = request.get("id")
        if not isinstance(name, str):
            raise Refusal("bad-request", "stop needs the id of a member")
        self._member.stop_member(name)
        return {"id": name}

    def _bad(self, what: str) -> Json:
        self.closing = True
        return {"ok": False, "code": "bad-request", "error": f"{what}; closing"}
