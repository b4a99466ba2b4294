"""The backup commands of `qpid-cluster-store`: list, compare, restore, copy, and start afresh.

Each refuses while a broker uses a store that it would change, and reports what it did.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

import click

from broker.durability.backup_pruning import Stays, judge_backups
from broker.durability.comparison import Relation, compare
from broker.durability.data_directory import filled
from broker.options.retention import BackupPolicy
from store.api import Marker, Meta
from store.backups import Backup, copy_store, find_backup, list_backups
from store.errors import StoreError, StoreMissing
from store.files.directory_lock import DirectoryLock
from store.lmdb_environment import inspect
from store.lmdb_store import LmdbStore
from store.swap import STORE_NAME, find_store, put_in_force, restore
from tools.cli.answers import aligned
from tools.cli.shared_options import agreed, together
from tools.client.broker_url import parse_address
from vsync.types import record

Document = dict[str, object]

PROMPT = "Warning: This command will replace the present store of {0}. Are you sure? [N]: "


@record
class BackupRequest:
    """One of these commands, as given."""

    word: str
    value: str
    force: bool
    member: str
    into: str


with_backup_options = together(
    click.option(
        "-l", "--list", "list_", is_flag=True,
        help="List the backups in DIR, and which of them the broker will remove.",
    ),
    click.option(
        "--compare", metavar="OTHER",
        help="Compare the store in DIR with OTHER, a backup's number or another directory: which "
        "is newer, and whether one continues the other.",
    ),
    click.option("--restore", metavar="NNNN", help="Put this backup of DIR back in place."),
    click.option("--backup", metavar="TO", help="Copy the store to TO; the broker may run."),
    click.option(
        "--restore-as", metavar="NAME",
        help="Make a new cluster NAME from the copy in DIR, with one member; needs --member and "
        "--into.",
    ),
    click.option("--member", metavar="HOST:PORT", help="The --cluster-bind of that member."),
    click.option("--into", metavar="NEWDIR", help="The --data-dir of that member."),
    click.option("-f", "--force", is_flag=True, help="Do not ask for confirmation."),
)  # fmt: skip


def backup_request(typed: Mapping[str, str | bool | None]) -> BackupRequest | None:
    """Return the request; None if it was none of these commands."""
    words = ("list_", "compare", "restore", "backup", "restore_as")
    given = [word for word in words if typed[word] not in (None, False)]
    if len(given) > 1:
        raise click.UsageError("Only one command option may be supplied")
    if given and not typed[given[0]]:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is given nothing")
    member, into = str(typed["member"] or ""), str(typed["into"] or "")
    if (given == ["restore_as"]) != bool(member and into) or bool(member) != bool(into):
        raise click.UsageError("--restore-as, --member and --into go together")
    if member:
        try:
            member = str(parse_address(member))
        except ValueError as problem:
            raise click.UsageError(f"--member: {problem}") from None
    if not given:
        return None
    return BackupRequest(given[0], str(typed[given[0]]), bool(typed["force"]), member, into)


def carry_out(asked: BackupRequest, directory: Path, as_json: bool) -> str:
    """Do it; return the text to print."""
    match asked.word:
        case "list_":
            text, document = _list(directory)
        case "compare":
            text, document = _compare(directory, asked.value)
        case "restore":
            text, document = _restore(directory, asked.value, asked.force)
        case "backup":
            text, document = _copy(directory, _typed_path(asked.value))
        case _:
            text, document = _begin_anew(directory, asked)
    return json.dumps(document, indent=2) if as_json else text


def _list(directory: Path) -> tuple[str, Document]:
    if not directory.is_dir():
        raise StoreMissing(f"{directory}: there is no such directory")
    found = list_backups(directory)
    stay = _judged(directory, found)
    document: Document = {
        "backups": [_document(one, stays) for one, stays in zip(found, stay, strict=True)]
    }
    if not found:
        return f"{directory} has no backups", document
    head = ("number", "epoch", "position", "marker", "written (UTC)", "size", "stays", "cluster id")
    rows = [head, *(_row(one, stays) for one, stays in zip(found, stay, strict=True))]
    return "\n".join(aligned(rows)), document


def _judged(directory: Path, found: list[Backup]) -> list[Stays]:
    """What a broker with the default limits would do if the present store were level."""
    try:
        present = inspect(directory / STORE_NAME)
    except StoreError:
        present = None
    if present is not None and not filled(present):
        present = None
    total = shutil.disk_usage(directory).total
    return judge_backups(found, present, BackupPolicy(), time.time(), total)


def _row(one: Backup, stays: Stays) -> tuple[str, ...]:
    size = f"{one.size_bytes / (1 << 20):.1f} MB"
    if one.meta is None:
        return one.name, "-", "-", "unreadable", _written(one), size, stays.value, one.trouble
    meta = one.meta
    numbers = str(meta.state_epoch), str(meta.position)
    return one.name, *numbers, meta.marker.value, _written(one), size, stays.value, meta.cluster_id


def _written(one: Backup) -> str:
    return datetime.fromtimestamp(one.changed_at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _document(one: Backup, stays: Stays) -> Document:
    meta = one.meta
    return {
        "number": one.name,
        "path": str(one.path),
        "epoch": None if meta is None else meta.state_epoch,
        "position": None if meta is None else meta.position,
        "marker": None if meta is None else meta.marker.value,
        "cluster_id": None if meta is None else meta.cluster_id,
        "written": datetime.fromtimestamp(one.changed_at, UTC).isoformat(),
        "size_bytes": one.size_bytes,
        "stays": stays is not Stays.DUE,
        "why": stays.value,
        "trouble": one.trouble,
    }


def _compare(directory: Path, other: str) -> tuple[str, Document]:
    paths = find_store(directory), _other(directory, other)
    if paths[0].resolve() == paths[1].resolve():
        raise StoreError(f"{paths[0]} and {paths[1]} are one store")
    with ExitStack() as opened:
        stores = LmdbStore(paths[0]), LmdbStore(paths[1])
        for store in stores:
            opened.callback(store.close)
        result = compare(stores)
        metas = [store.meta for store in stores]
    lines = [f"{p}: {_point(m)}" for p, m in zip(paths, metas, strict=True)]
    if result.newer >= 0:
        lines.append(f"newer: {paths[result.newer]}")
    lines.append(result.relation.value)
    document: Document = {
        "stores": [
            {"store": str(p), "epoch": m.state_epoch, "position": m.position,
             "digest": m.chain.hex(), "cluster_id": m.cluster_id, "marker": m.marker.value}
            for p, m in zip(paths, metas, strict=True)
        ],
        "newer": str(paths[result.newer]) if result.newer >= 0 else None,
        "relation": result.relation.name.lower(),
        "newer_holds_all": result.relation in (Relation.SAME, Relation.CONTINUES),
    }  # fmt: skip
    return "\n".join(lines), document


def _other(directory: Path, other: str) -> Path:
    """OTHER is a directory, or the number of a backup beside the store in DIR."""
    if Path(other).is_dir():
        return find_store(Path(other))
    return find_backup(_data_dir(directory), other)


def _data_dir(directory: Path) -> Path:
    return directory.parent if directory.name == STORE_NAME else directory


def _restore(directory: Path, number: str, force: bool) -> tuple[str, Document]:
    data_dir = _data_dir(directory)
    if Path(number).is_dir() and not re.fullmatch(r"(_cluster\.bak\.)?[0-9a-fA-F]{1,4}", number):
        raise StoreMissing(
            f"--restore takes the number of a backup that a broker left in {data_dir} (-l lists "
            f"them); of a copy as {number} a new cluster is made: qpid-cluster-store "
            f"--restore-as NAME --member HOST:PORT --into NEWDIR {number}"
        )
    if not data_dir.is_dir():
        raise StoreMissing(f"{data_dir}: there is no such directory")
    backup = find_backup(data_dir, number)
    if not (force or agreed(PROMPT.format(data_dir), to_stderr=True)):
        raise StoreError("Operation canceled")
    meta, aside = restore(data_dir, backup)
    lines = [f"{backup.name} is the store of {data_dir} now: {_point(meta)}"]
    if aside is not None:
        lines.append(f"the store that was there is kept as {aside}")
    if meta.marker is Marker.BACKUP:
        lines.append(
            "It has no vote: among members that have newer states this one is filled by them. "
            "Where it is all that is left: qpid-cluster-store -c --sole-voter "
            f"{data_dir}"
        )
    document: Document = {
        "restored": backup.name, "marker": meta.marker.value, "epoch": meta.state_epoch,
        "position": meta.position, "set_aside": None if aside is None else str(aside),
    }  # fmt: skip
    return "\n".join(lines), document


def _copy(directory: Path, target: Path) -> tuple[str, Document]:
    source = find_store(directory)
    meta = copy_store(source, target.absolute())
    document: Document = {
        "backup": str(target), "of": str(source), "cluster_id": meta.cluster_id,
        "epoch": meta.state_epoch, "position": meta.position, "digest": meta.chain.hex(),
    }  # fmt: skip
    return f"{target} is a backup of {source}: {_point(meta)}", document


def _typed_path(text: str) -> Path:
    """The shell leaves the ~ of `--into=~/new` as it is."""
    return Path(os.path.expanduser(text))


def _begin_anew(directory: Path, asked: BackupRequest) -> tuple[str, Document]:
    """Copy a store, as the store of the only voter of a new cluster."""
    source, into = find_store(directory), _typed_path(asked.into).absolute()
    into.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(into)  # a broker may be started there during a long copy
    try:
        if (into / STORE_NAME).exists():
            raise StoreError(f"{into} has a store; give the name of an empty or new directory")
        meta = _put_copy(source, into, asked)
    finally:
        lock.release()
    document: Document = {
        "data_dir": str(into), "cluster_name": meta.cluster_name, "cluster_id": meta.cluster_id,
        "member": meta.member, "epoch": meta.state_epoch, "position": meta.position,
    }  # fmt: skip
    text = (
        f"{into} is the data directory of {meta.member}, the first member of cluster "
        f"{meta.cluster_name} ({meta.cluster_id}): {_point(meta)}\n"
        f"start it: qpidd --cluster-name {quote(meta.cluster_name)} --cluster-bind {meta.member} "
        f"--data-dir {quote(str(into))}"
    )
    return text, document


def _put_copy(source: Path, into: Path, asked: BackupRequest) -> Meta:
    copied = into / f"{STORE_NAME}.restoring"
    shutil.rmtree(copied, ignore_errors=True)  # of an attempt that was cut short
    old = copy_store(source, copied)
    store = LmdbStore(copied)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    meta = replace(
        old,
        cluster_name=asked.value,
        cluster_id=secrets.token_hex(16),
        member=asked.member,
        store_id=secrets.token_hex(16),
        voters=(asked.member,),
        marker=Marker.CLEAN,
        shutdown_id=secrets.token_hex(16),
        note=f"{at}: made of {source}, cluster {old.cluster_name} {old.cluster_id}, "
        f"position {old.position} of epoch {old.state_epoch}",
    )
    store.put_meta(meta)
    store.close()
    put_in_force(into, copied)
    return meta


def _point(meta: Meta) -> str:
    return f"position {meta.position} of epoch {meta.state_epoch}, digest {meta.chain.hex()[:12]}"
