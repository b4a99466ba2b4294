"""The aligned trace of a run and its hash.

A trace record is a tuple, rendered only when it is read.  The hash covers every record and every
frame that arrived, so two runs with one hash did the same.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import NamedTuple

from vsync.errors import FrameError
from vsync.types import Member
from vsync.wire.codec import WIRE_VERSION, Codec, Versions
from vsync.wire.messages import Data

CLUSTER = "simulated"
ALL_VERSIONS = Versions(WIRE_VERSION, WIRE_VERSION + 1)
KEPT_RECORDS = 400


class Record(NamedTuple):
    at: float
    who: str
    code: str
    text: str


class Trace:
    """Keeps the last records, or all of them."""

    def __init__(self, keep_all: bool, frames: bool) -> None:
        self.records: deque[Record] = deque(maxlen=None if keep_all else KEPT_RECORDS)
        self.frames = frames
        self.views = 0
        self._codec = Codec(Member("trace", 0, ""), CLUSTER, 1 << 20, None, ALL_VERSIONS)
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, at: float, who: str, code: str, text: str) -> None:
        record = Record(at, who, code, text)
        self.records.append(record)
        self._hash.update(f"{at!r} {who} {code} {text}\n".encode())

    def frame(self, at: float, source: str, target: str, frame: bytes) -> None:
        """An arrival: part of the hash, and of the trace if frames were requested."""
        self._hash.update(frame)
        if self.frames:
            text = f"from {source} {self._describe(frame)} {len(frame)} bytes"
            self.records.append(Record(at, target, "frame", text))

    def _describe(self, frame: bytes) -> str:
        """A frame's description for readers; undecodable ones are called garbage."""
        try:
            message = self._codec.decode(frame, self._codec.open(frame))
        except FrameError as error:
            return f"garbage ({error})"
        if isinstance(message, Data):
            message = message._replace(body=b"", items=[item[:24] for item in message.items])
        return str(message)

    def hash(self) -> str:
        return self._hash.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        chosen = list(self.records)
        if last is not None:
            chosen = chosen[-last:]
        return [f"{r.at:12.6f} {r.who:>3} {r.code:<16} {r.text}" for r in chosen]
