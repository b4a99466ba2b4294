"""The evidence of a member's own failures: one directory each, durable before the member stops.

    DIR/evidence/NNNN-KIND/facts.json    what happened, for people and for the next start
    DIR/evidence/NNNN-KIND/*             what the facts refer to, as bytes

Only an operator's tool ever changes anything here, and nothing is sent anywhere. Only the newest of
each kind are kept, so that a member that fails again and again does not fill its disk.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from store.files.durable_files import replace_file, sync_directory, sync_file

log = logging.getLogger("qpidd.evidence")

EVIDENCE_DIR = "evidence"
FACTS_NAME = "facts.json"
KEPT_MAX = 16
"""Per kind; the oldest goes first."""
FILE_BYTES_MAX = 16 << 20
_NAME = re.compile(r"(\d{4,})-([a-z]+)")

Facts = dict[str, object]


class Incidents:
    """The evidence of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / EVIDENCE_DIR
        self.do: Callable[[Callable[[], None]], object] = lambda work: work()
        """Runs the writing. In a running member it uses a thread: the loop waits for no disk."""
        self._next = 1 + max((number for number, _, _ in self._found()), default=-1)

    def keep(self, kind: str, facts: Facts, files: Mapping[str, bytes] | None = None) -> Path:
        """Have one piece of evidence written and fsynced; return its directory.

        A failing disk must not keep a member from stopping: evidence that cannot be written goes to
        the log as one line instead.
        """
        path = self.directory / f"{self._next:04d}-{kind}"
        self._next += 1
        facts = {"kind": kind, "when": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        text = json.dumps(facts, indent=2, default=repr)
        self.do(lambda: self._write(path, kind, text, dict(files or {})))
        return path

    def _write(self, path: Path, kind: str, text: str, files: Mapping[str, bytes]) -> None:
        try:
            self.directory.mkdir(mode=0o750, exist_ok=True)
            path.mkdir(mode=0o750)
            for name, data in files.items():
                _write(path / name, data[:FILE_BYTES_MAX])
            _write(path / FACTS_NAME, text.encode())
            for directory in (path, self.directory, self.directory.parent):
                sync_directory(directory)
            self._bound(kind)
        except OSError as error:
            log.critical("evidence could not be kept in %s (%s); it is: %s", path, error, text)

    def all(self, kind: str) -> list[tuple[Path, Facts]]:
        """Return the evidence of one kind, oldest first; unreadable pieces are skipped."""
        found = []
        for _, named, path in self._found():
            if named != kind:
                continue
            try:
                facts = json.loads((path / FACTS_NAME).read_text("utf-8"))
            except (OSError, ValueError) as error:
                log.warning("%s cannot be read: %s", path / FACTS_NAME, error)
                continue
            if isinstance(facts, dict):
                found.append((path, facts))
        return found

    def amend(self, path: Path, facts: Facts) -> None:
        """Replace the facts of one piece, durably: an operator declared something about it."""
        replace_file(path / FACTS_NAME, json.dumps(facts, indent=2, default=repr).encode())

    def _found(self) -> list[tuple[int, str, Path]]:
        if not self.directory.is_dir():
            return []
        return sorted(
            (int(match[1]), match[2], path)
            for path in self.directory.iterdir()
            if (match := _NAME.fullmatch(path.name))
        )

    def _bound(self, kind: str) -> None:
        paths = [path for _, named, path in self._found() if named == kind]
        for path in paths[:-KEPT_MAX]:
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    """As private as the store, because items hold clients' data."""
    path.touch(mode=0o640)
    path.write_bytes(data)
    sync_file(path)
