"""The record of an arbitrator: one small file, replaced as a whole, that an operator can read.

    {"format": 1, "cluster_name": ..., "member": ..., "incarnation": ..., "cluster_id": ...,
     "promised_epoch": ..., "epoch": ..., "holders": [...], "voters": [...]}

`epoch` and `holders` are the record on which its vote rests (`vsync.quorum.voter_set.EpochRecord`).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from store.errors import StoreUnreadable, failed
from store.files.directory_lock import DirectoryLock
from store.files.durable_files import explain, replace_file

FILE_NAME = "arbitrator.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ArbiterRecord:
    """The content. An epoch of 0: it has seen no activation, and has no vote."""

    cluster_name: str
    member: str
    incarnation: int = 0
    cluster_id: str = ""
    promised_epoch: int = 0
    epoch: int = 0
    holders: tuple[str, ...] = ()
    voters: tuple[str, ...] = ()


class RecordFile:
    """An arbitrator's data directory, held for one incarnation."""

    def __init__(self, directory: Path, cluster_name: str, member: str) -> None:
        self.data_dir = directory
        self._path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            has_store = (directory / "store").exists()
        except OSError as error:
            raise explain(error, directory) from error
        if has_store:
            raise StoreUnreadable(
                f"{directory} holds the store of a member with data; give the arbitrator a "
                "--data-dir of its own"
            )
        self._lock = DirectoryLock(directory)
        try:
            found = _read(self._path) or ArbiterRecord(cluster_name, member)
            for what, ours, theirs in (
                ("cluster", cluster_name, found.cluster_name), ("member", member, found.member)
            ):  # fmt: skip
                if ours != theirs:
                    raise StoreUnreadable(
                        f"{self._path} is of {what} {theirs}, this arbitrator was started for "
                        f"{ours}; change the option or --data-dir"
                    )
            # A clock that was set back must not make a new incarnation look like an old one.
            incarnation = max(time.time_ns() // 1_000_000, found.incarnation + 1)
            self.record = replace(found, incarnation=incarnation)
            self.write(self.record)
        except BaseException:
            self.close()
            raise

    def write(self, record: ArbiterRecord) -> None:
        """Make it durable; after an error the old or the new content is there."""
        content = json.dumps({"format": FORMAT, **asdict(record)}, indent=2)
        try:
            replace_file(self._path, f"{content}\n".encode())
        except OSError as error:
            raise failed(str(self._path), error) from error
        self.record = record

    def close(self) -> None:
        """Release the directory to other processes."""
        self._lock.release()


def _read(path: Path) -> ArbiterRecord | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, path) from error
    except ValueError as error:
        raise StoreUnreadable(f"{path} cannot be read: {error}; move it aside") from error
    try:
        if content.pop("format") != FORMAT:
            raise StoreUnreadable(f"{path} was written by another release; move it aside")
        for name in ("holders", "voters"):
            content[name] = tuple(str(one) for one in content[name])
        record = ArbiterRecord(**content)
    except (AttributeError, KeyError, TypeError) as error:
        raise StoreUnreadable(f"{path} is no arbitrator's record: {error}") from error
    numbers = (record.incarnation, record.promised_epoch, record.epoch)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise StoreUnreadable(f"{path} holds a number that cannot be")
    return record
