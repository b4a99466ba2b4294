"""Both ends of the demo's stream: the input, and the comparison of the output with it.

The input is available on every machine with Python: the sources of its standard library, one
message per line, `SEQ text`, with SEQ also as the message id. So each arrival can be checked by
itself, and the first arrivals of all ids can be compared with the whole input.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path


class Mixed(Exception):
    """The received messages, or those to be sent, are not as they should be."""


def library_lines() -> Iterator[bytes]:
    """Every line of the standard library's sources, in the order of their paths."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not {"site-packages", "dist-packages"} & set(path.relative_to(library).parts):
            yield from path.read_bytes().split(b"\n")


def write_input(path: Path, count: int) -> str:
    """Write `count` lines `SEQ text`; return their SHA-256.  A small library is read again."""
    digest = hashlib.sha256()
    written = 0
    with path.open("wb") as file:
        while written < count:
            before = written
            for text in library_lines():
                written += 1
                line = b"%d %s\n" % (written, text.rstrip(b"\r"))
                digest.update(line)
                file.write(line)
                if written == count:
                    break
            if written == before:
                raise Mixed("this interpreter has no standard library sources to send")
    return digest.hexdigest()


class Arrivals:
    """The output of `drain --format json`, read while it is being written."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self.first_digest = hashlib.sha256()
        self.flagged_repeats = 0
        self.unflagged_repeats = 0
        self._path = path
        self._seen: set[str] = set()
        self._offset = 0

    @property
    def different(self) -> int:
        """How many different ids arrived."""
        return len(self._seen)

    def read(self) -> None:
        """Read the lines completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        for line in data[:complete].splitlines():
            self._take(json.loads(line))

    def _take(self, message: dict[str, object]) -> None:
        self.count += 1
        body = str(message["body"]).encode("utf-8", "surrogateescape")
        sequence = str(message["message_id"])
        if body.partition(b" ")[0].decode() != sequence:
            raise Mixed(f"message {sequence} arrived with the body of another: {body[:60]!r}")
        if sequence not in self._seen:
            self._seen.add(sequence)
            self.first_digest.update(body + b"\n")
        elif message["redelivered"]:
            self.flagged_repeats += 1
        else:
            self.unflagged_repeats += 1
