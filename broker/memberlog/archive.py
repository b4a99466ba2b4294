"""The archiver of closed segments: compresses them, and drops those older than the policy keeps.

Runs as a separate process at the lowest priority, `python -m broker.memberlog.archive`, one at a
time for a directory, and writes what it did to its standard output, one JSON object per line. It
may be killed at any moment: a segment is compressed into a second file, and the plain one goes only
when the disk holds the compressed one under its name.

A segment is dropped only with all earlier segments of its incarnation. If the policy says so, it is
dropped only if a verified point names it: `VERIFIED` in the same directory, written by
`qpid-cluster-verify --save`. Drops are recorded beside the segments, in `DROPPED_NAME`, for readers
of the rest: no log is cut short silently.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.memberlog.reader import Ends, LogError
from broker.memberlog.records import SUFFIX
from broker.memberlog.segments import (
    PACKED,
    ends_of,
    is_segment,
    open_segment,
    pack,
    plain_name,
    segments_in,
    unpack,
)
from broker.options.retention import Policy
from store.files.durable_files import replace_file, sync_directory
from store.files.space import LAST_BYTES, UNFINISHED, discard_unfinished, has_room_for

VERIFIED = "verified"
DROPPED_NAME = "dropped"
COMPRESSED, DROPPED, DROPPED_UNVERIFIED = "compressed", "dropped", "dropped unverified"
KEPT_UNVERIFIED, FAILED = "kept unverified", "failed"
Dropped = dict[str, tuple[int, int]]
"""By MEMBER.INCARNATION: the last dropped segment, and how many were dropped unverified."""
Verified = frozenset[tuple[str, int, int, str]]  # member, incarnation, segment, last link in hex


class ArchiveResult(NamedTuple):
    """One step that was done, or failed."""

    what: str  # one of the constants above
    file: str
    before: int  # bytes
    after: int
    why: str = ""


def archive_segments(
    directory: Path, current: str, policy: Policy, now_s: float
) -> Iterator[ArchiveResult]:
    """Compress and drop due segments of a directory; `current` names the one being written.

    That one, and any that may have come after it, are left alone. Waits while another process is
    archiving. No exception is raised for a single file: its fault is yielded.
    """
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of a killed member may still be running
        yield from _compress_and_drop(directory, current, policy, now_s)
    finally:
        os.close(lock)


def is_due(directory: Path, current: str, policy: Policy) -> bool:
    """Whether there may be anything to do."""
    limited = policy.keep_s or policy.keep_bytes
    return any(
        path.name.endswith(UNFINISHED)
        or ((is_segment(path.name) and not _is_open(path, current))
        and (limited or not path.name.endswith(PACKED)))
        for path in directory.iterdir()
    )  # fmt: skip


def _is_open(path: Path, current: str) -> bool:
    """Whether this is the segment being written, or came after it in its incarnation."""
    incarnation, number = _incarnation_and_number(path.name)
    open_incarnation, open_number = _incarnation_and_number(current)
    return incarnation == open_incarnation and number >= open_number


def _incarnation_and_number(name: str) -> tuple[str, int]:
    """The segment's name up to its incarnation, and its number; -1: it has none."""
    incarnation, _, number = plain_name(name).removesuffix(SUFFIX).rpartition(".")
    return incarnation, int(number) if number.isdigit() else -1


def _compress_and_drop(
    directory: Path, current: str, policy: Policy, now_s: float
) -> Iterator[ArchiveResult]:
    discard_unfinished(directory)
    for path in directory.glob(f"*{PACKED}"):
        plain = path.with_name(plain_name(path.name))
        if plain.exists() and not _is_open(plain, current):
            yield from _attempt(path, _finish, plain, path)
    for path in segments_in(directory):
        if not _is_open(path, current) and not path.name.endswith(PACKED):
            yield from _attempt(path, _compress if policy.compress else _sync, path)
    if policy.keep_s or policy.keep_bytes:
        yield from _drop(directory, current, policy, now_s)


def verified_in(path: Path) -> Verified:
    """Return the segments that a verified point names; ValueError names the fault in it."""
    if not path.exists():
        return frozenset()
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["settled"]
        return frozenset((str(m), int(i), int(s), str(link)) for m, i, s, link in rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a verified point of --save: {error!r}") from error


def _attempt(
    path: Path, step: Callable[..., ArchiveResult | None], *arguments: Path
) -> Iterator[ArchiveResult]:
    try:
        done = step(*arguments)
    except (OSError, LogError) as error:
        done = ArchiveResult(FAILED, path.name, 0, 0, str(error))
    if done is not None:
        yield done


def _sync(path: Path) -> None:
    """Fsync a segment: the member did not wait for that."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(path.parent)


def _compress(path: Path) -> ArchiveResult | None:
    _sync(path)
    if ends_of(path).end is None:
        return None  # cut by a crash: the rest may be needed byte by byte
    data = path.read_bytes()
    packed = pack(data)
    if unpack(packed, str(path)) != data:
        raise OSError(f"{path.name} is not restored from its compressed form")
    if not has_room_for(path.parent, len(packed), LAST_BYTES):
        raise OSError(errno.ENOSPC, "what is left of the disk is for the member", path.name)
    target = path.with_name(path.name + PACKED)
    unfinished = path.with_name(target.name + UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        unfinished.unlink(missing_ok=True)  # a full disk must not be filled by it
        raise
    stat = path.stat()
    os.chmod(unfinished, stat.st_mode & 0o777)
    times = stat.st_atime_ns, stat.st_mtime_ns
    os.utime(unfinished, ns=times)  # its age is that of its content
    unfinished.replace(target)
    sync_directory(path.parent)
    path.unlink()
    sync_directory(path.parent)
    return ArchiveResult(COMPRESSED, path.name, len(data), len(packed))


def _finish(plain: Path, packed: Path) -> ArchiveResult | None:
    """Both forms exist: a process was killed before it removed the plain one."""
    data = plain.read_bytes()
    if open_segment(packed) != data:
        raise OSError(f"{packed.name} does not hold what {plain.name} does; remove one of the two")
    plain.unlink()
    sync_directory(plain.parent)
    return ArchiveResult(COMPRESSED, plain.name, len(data), packed.stat().st_size)


def _drop(directory: Path, current: str, policy: Policy, now_s: float) -> Iterator[ArchiveResult]:
    """Drop from the oldest on, and within an incarnation never one after one that stays."""
    paths = segments_in(directory)
    left = sum(path.stat().st_size for path in paths)
    allowed = _bytes_allowed(directory, policy.keep_bytes)
    try:
        dropped = dropped_in(directory / DROPPED_NAME)
    except ValueError as error:
        dropped = {}
        yield ArchiveResult(FAILED, DROPPED_NAME, 0, 0, str(error))
    try:
        verified = verified_in(directory / VERIFIED)
    except ValueError as error:
        verified = frozenset()
        yield ArchiveResult(FAILED, VERIFIED, 0, 0, str(error))
    stays: set[str] = set()  # incarnations with a segment that stays
    for written_s, path in _oldest_first(paths):
        stat, incarnation = path.stat(), _incarnation_and_number(path.name)[0]
        too_old = 0 < policy.keep_s < now_s - written_s
        if not too_old and not 0 < allowed < left:
            stays.add(incarnation)
            continue
        if _is_open(path, current) or incarnation in stays:
            stays.add(incarnation)
            continue
        try:
            is_verified = _key(ends_of(path)) in verified
        except (OSError, LogError) as error:
            is_verified = False
            yield ArchiveResult(FAILED, path.name, stat.st_size, stat.st_size, str(error))
        if not is_verified and not policy.drop_unverified:
            stays.add(incarnation)
            yield ArchiveResult(KEPT_UNVERIFIED, path.name, stat.st_size, stat.st_size)
            continue
        number = _incarnation_and_number(path.name)[1]
        unverified = dropped.get(incarnation, (0, 0))[1] + (not is_verified)
        dropped[incarnation] = number, unverified
        try:
            replace_file(directory / DROPPED_NAME, json.dumps(dropped).encode())
        except OSError as error:  # a full disk needs the space all the same
            yield ArchiveResult(FAILED, DROPPED_NAME, 0, 0, str(error))
        path.unlink()
        left -= stat.st_size
        what = DROPPED if is_verified else DROPPED_UNVERIFIED
        yield ArchiveResult(what, path.name, stat.st_size, 0)
    sync_directory(directory)


def _oldest_first(paths: Iterable[Path]) -> list[tuple[float, Path]]:
    """Return these segments, which are by incarnation and number, by the time of their last write.

    A clock may go back: none counts as written before the one that precedes it.
    """
    newest: dict[str, float] = {}
    aged: list[tuple[float, Path]] = []
    for path in paths:
        incarnation, _ = _incarnation_and_number(path.name)
        newest[incarnation] = max(newest.get(incarnation, 0.0), path.stat().st_mtime)
        aged.append((newest[incarnation], path))
    return sorted(aged, key=lambda one: one[0])


def _bytes_allowed(directory: Path, keep: int | float) -> int:
    if isinstance(keep, int):
        return keep
    disk = os.statvfs(directory)
    return int(keep * disk.f_blocks * disk.f_frsize)


def dropped_in(path: Path) -> Dropped:
    """Return what was dropped of a directory; ValueError names the fault in the record."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): (int(last), int(count)) for name, (last, count) in rows.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not say what was dropped: {error!r}") from error


def _key(ends: Ends) -> tuple[str, int, int, str]:
    header = ends.header
    return header.member, header.incarnation, header.segment, ends.link.hex()


def command_line(directory: Path, current: str, policy: Policy, now_s: float) -> list[str]:
    """Return the arguments of an interpreter that runs `archive_segments` in a separate process."""
    switches = int(policy.compress), policy.keep_s, int(policy.drop_unverified)
    share = policy.keep_bytes
    keep = f"{share:.9f}" if isinstance(share, float) else share
    return ["-m", __name__, *map(str, (directory, current, *switches, keep, now_s))]


def main(arguments: list[str]) -> int:
    """Archive a directory once."""
    parser = argparse.ArgumentParser(prog="broker.memberlog.archive", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("current", help="the segment that is being written")
    for name in ("compress", "keep_s", "drop_unverified"):
        parser.add_argument(name, type=int)
    parser.add_argument("keep_bytes", type=lambda text: float(text) if "." in text else int(text))
    parser.add_argument("now_s", type=float)
    given = parser.parse_args(arguments)
    os.nice(19)
    policy = Policy(
        bool(given.compress), given.keep_s, given.keep_bytes, bool(given.drop_unverified)
    )

    def tell(result: ArchiveResult) -> None:
        sys.stdout.write(json.dumps(result._asdict()) + "\n")
        sys.stdout.flush()

    try:
        for result in archive_segments(given.directory, given.current, policy, given.now_s):
            tell(result)
    except OSError as error:  # the disk's: it can sync no directory when it is full or broken
        tell(ArchiveResult(FAILED, given.directory.name, 0, 0, str(error)))
    return 0


if __name__ == "__main__":
    # Its member was killed and reads no more: end like it, without a traceback in its log.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
