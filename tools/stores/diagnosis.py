"""`qpid-cluster --diagnose`: one archive with the data needed to find the cause of a fault.

It contains the members' own reports (status, quorum, groups, counters) and, from the named
directories and files on this machine: headers of stores, ends of member logs and of logs, options
without their secrets, and a list of all files with their sizes. It contains no message. Missing
items are listed in `problems.txt`; an archive is made in any case.
"""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from broker.exit_codes import Exit
from broker.memberlog.records import SUFFIX
from broker.release import version
from store.errors import StoreError
from store.lmdb_environment import inspect
from store.swap import find_store
from tools.cli.failures import ToolError
from tools.cli.shared_options import together
from tools.client.management import Askable, Json, ManagementError
from vsync.types import record

LOG_END_BYTES = 4 << 20
MEMBER_LOG_END_BYTES = 256 << 10
FILES_MAX = 20_000
QUESTIONS = ("status", "quorum", "groups", "counters")
HIDDEN = "(hidden)"
_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)|\b[\w.+-]+/[^/\s@]+(?=@[\w.-]+:\d)")
_IN_LOG = re.compile(rb"(?<=with the password )[\w-]+")
"""The password of a new cluster's administrator, in an older broker's log of its first start."""


@record
class Sought:
    """The content of an archive beside the members' own reports."""

    file: Path
    data_dirs: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()
    configs: tuple[Path, ...] = ()


_PATH = click.Path(path_type=Path)
with_diagnosis_options = together(
    click.option(
        "--diagnose", metavar="FILE", type=_PATH,
        help="Write FILE (.tar.gz) with everything that a bug report needs, and no messages.",
    ),
    click.option("--data-dir", "data_dirs", multiple=True, metavar="DIR", type=_PATH,
                 help="With --diagnose: include facts about this data directory of a member here."),
    click.option("--log-file", "logs", multiple=True, metavar="FILE", type=_PATH,
                 help="With --diagnose: include the end of this broker log."),
    click.option("--config", "configs", multiple=True, metavar="FILE", type=_PATH,
                 help="With --diagnose: include this option file, without secrets."),
)  # fmt: skip
"""Add --diagnose and its arguments, as `sought`."""


def sought(given: Mapping[str, Any]) -> Sought | None:
    """Take the options of `with_diagnosis_options`; None if no archive is requested."""
    if given["diagnose"] is None:
        if any(given[name] for name in ("data_dirs", "logs", "configs")):
            raise click.UsageError("--data-dir, --log-file and --config go with --diagnose")
        return None
    return Sought(given["diagnose"], given["data_dirs"], given["logs"], given["configs"])


class _Archive:
    """Collects files in memory, so that a full disk leaves no partial archive."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []

    def document(self, name: str, content: Json) -> None:
        self.files[name] = json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    def end_of(self, name: str, path: Path, limit: int) -> None:
        """The last bytes of a file; of a text from the first whole line on."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - limit))
                self.files[name] = file.read(limit)
        except OSError as problem:
            self.problems.append(f"{path}: {problem.strerror}")

    def write(self, path: Path) -> None:
        """Write it under another name and rename it, readable by its owner only. A device or a
        pipe of that name would be gone, so it is left alone."""
        self.files["problems.txt"] = "".join(f"{one}\n" for one in self.problems).encode()
        unfinished = path.parent / f"{path.name}.part"
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise FileExistsError(errno.EEXIST, "it is there already, and is no file")
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with (
                os.fdopen(descriptor, "wb") as out,
                tarfile.open(fileobj=out, mode="w:gz") as archive,
            ):
                for name, content in sorted(self.files.items()):
                    entry = tarfile.TarInfo(f"diagnosis/{name}")
                    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(content))
            unfinished.replace(path)
        except OSError as problem:
            with suppress(OSError):
                unfinished.unlink()
            reason = f"{path} cannot be written: {problem.strerror}"
            raise ToolError(reason, Exit.CANNOT_CREATE) from None


def diagnose(wanted: Sought, members: Mapping[str, Askable]) -> dict[str, Json]:
    """Write the archive; return its content, and the items that were unavailable."""
    archive = _Archive()
    archive.document("machine.json", _machine())
    for name, member in members.items():
        for question in QUESTIONS:
            try:
                archive.document(f"members/{_plain(name)}/{question}.json", member.ask(op=question))
            except ManagementError as problem:
                archive.problems.append(f"{name}: {question}: {problem}")
    for number, directory in enumerate(wanted.data_dirs):
        _of_directory(archive, f"data-dirs/{number}-{_plain(directory.name)}", directory)
    for number, log in enumerate(wanted.logs):
        name = f"logs/{number}-{_plain(log.name)}"
        archive.end_of(name, log, LOG_END_BYTES)
        if name in archive.files:
            archive.files[name] = _IN_LOG.sub(HIDDEN.encode(), archive.files[name])
    for number, config in enumerate(wanted.configs):
        try:
            text = config.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            archive.problems.append(f"{config}: {problem.strerror}")
        else:
            name = f"options/{number}-{_plain(config.name)}"
            archive.files[name] = without_secrets(text).encode()
    archive.write(wanted.file)
    problems: list[Json] = [*archive.problems]
    files: list[Json] = [*sorted(archive.files)]
    return {"file": str(wanted.file), "files": files, "problems": problems}


def without_secrets(text: str) -> str:
    """An option file with passwords hidden, including those in addresses."""
    lines = []
    for line in text.splitlines():
        name, equals, _ = line.partition("=")
        if equals and _SECRET.search(name):
            lines.append(f"{name}= {HIDDEN}")
        else:
            lines.append(_IN_URL.sub(HIDDEN, line))
    return "\n".join(lines) + "\n"


def _machine() -> dict[str, Json]:
    """The release, the machine, and the options of the environment."""
    environment: dict[str, Json] = {
        name: HIDDEN if _SECRET.search(name) else _IN_URL.sub(HIDDEN, value)
        for name, value in sorted(os.environ.items())
        if name.startswith("QPIDD_")
    }
    return {
        "release": version(), "python": sys.version, "system": platform.platform(),
        "processors": os.cpu_count(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": environment,
    }  # fmt: skip


def _of_directory(archive: _Archive, name: str, directory: Path) -> None:
    """One member's data directory: its store's header, its logs' ends, its files."""
    try:
        if not directory.is_dir():
            archive.problems.append(f"{directory}: there is no such directory")
            return
        meta = inspect(find_store(directory))
    except OSError as problem:
        archive.problems.append(f"{directory}: {problem.strerror}")
    except StoreError as problem:
        archive.problems.append(f"{directory}: {problem}")
    else:
        fields = ((field, getattr(meta, field)) for field in meta.__slots__)
        archive.document(
            f"{name}/store.json",
            {field: value.hex() if isinstance(value, bytes) else str(value)
             for field, value in fields},
        )  # fmt: skip
    listed: list[Json] = []
    newest: dict[Path, tuple[float, Path]] = {}
    for path, status in _files(directory):
        listed.append(f"{status.st_size:>14} {status.st_mtime:.0f} {path.relative_to(directory)}")
        if path.name.endswith(SUFFIX):
            newest[path.parent] = max(newest.get(path.parent, (0.0, path)), (status.st_mtime, path))
    archive.document(f"{name}/files.json", listed)
    for number, (_, path) in enumerate(newest.values()):
        archive.end_of(
            f"{name}/member-log-{number}/{_plain(path.name)}.end", path, MEMBER_LOG_END_BYTES
        )


def _files(directory: Path) -> Iterable[tuple[Path, os.stat_result]]:
    """Regular files below, in order; a file that disappears meanwhile is left out."""
    count = 0
    for root, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(root, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue
            count += 1
            if count == FILES_MAX:
                return


def _plain(name: str) -> str:
    """A name without path separators."""
    return re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "_"
