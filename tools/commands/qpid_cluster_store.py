"""`qpid-cluster-store`: show a member's store, declare it clean, and manage its backups.

A store is declared clean where no other is left; backups can be kept, compared and restored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from broker.incidents.incidents import Incidents
from broker.incidents.quarantine import Quarantine, QuarantineRecord
from store.api import Marker, Meta
from store.errors import StoreBusy, StoreError, StoreMissing, StoreUnreadable
from store.files.directory_lock import lock_holder
from store.lmdb_environment import inspect
from store.swap import find_store
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import agreed, with_version
from tools.stores.backups import backup_request, carry_out, with_backup_options
from tools.stores.declarations import StoreRefused, declare_clean, declare_quarantined
from vsync.quorum.voter_set import parse

FAILURE, USAGE, MISSING, UNREADABLE, BUSY = range(1, 6)

PROMPT_SOLE_VOTER = (
    "Warning: {others} will have no vote any more, and what only they confirmed is given up. "
    "If one of them still runs or is started again, there are two clusters. "
    "Are they gone for good? [N]: "
)
PROMPT_ONE_OF_PAIR = (
    "Warning: what only {others} confirmed is given up: if it is started again, its store is set "
    "aside and it takes the state from here. Is it gone for good? [N]: "
)
MEANING = {
    Marker.EMPTY: "never held a cluster's state; the member takes it from the others",
    Marker.DIRTY: "the member did not end in an ordered shutdown of the cluster, or runs now",
    Marker.CLEAN: "ended in an ordered shutdown, or was declared clean",
    Marker.JOINING: "a transfer was cut short; the member will take the state from the others",
    Marker.INCONSISTENT: "computed something else than the majority; kept as evidence",
    Marker.BACKUP: "a state of the past; no vote until -c declares it the one to keep",
}


EPILOG = """\b
What is shown:
  marker      empty, dirty, clean, joining, inconsistent or backup
  cluster id  stores with different ids belong to different clusters
  epoch       the last primary view that this state includes
  position    the last command that this state includes
  digest      hash of the history up to that position: the same in stores that agree
  voters      the members of which a majority must be present
  quarantine  commands that this member could not execute, and where the evidence is

After a power failure a cluster comes back by itself as soon as a majority of its voters is back,
whatever the markers say; -c is not needed for that. If a majority is lost FOR GOOD, inspect all
remaining stores, choose the one with the highest epoch and, within it, the highest position
(--compare tells which), run -c --sole-voter on it, and start its broker first; the others join
it. The command asks whether the others are gone for good, unless -f is given. Whatever only the
lost stores held is lost. Never do this to two stores of one cluster, or while the others may
still run: there would be two clusters.

-c raises the incarnation and records the declaration in the store's note for good. It is refused
while a broker uses the store, and for a store that is empty or only partly received.

A replaced store is kept as DIR/_cluster.bak.NNNN. --restore NNNN puts it back and keeps the
present one under the next number, so a restore can be undone. An old state may lack messages that
its member has confirmed since. So it has no vote, and other members bring it up to date, until -c
declares it the one to keep.

--backup copies the store at one position, even while the broker runs. --restore-as makes a new
cluster, with its own cluster id, from such a copy; its first member can start at once.

A command that crashes its member is quarantined: this store never executes it again, and the member
takes the state of a member that could execute it. Only if NO member can: stop all members and run
--skip-quarantined on every store. The command then has the outcome 541 and changes nothing, on all
members alike; the note records this for good. Once the cause is removed (by more memory, for
instance), --retry-quarantined executes it once more. A broker of another release retries by itself.

\b
Examples:
  qpid-cluster-store /var/lib/qpidd
  qpid-cluster-store --json /var/lib/qpidd | jq .position
  qpid-cluster-store -l /var/lib/qpidd
  qpid-cluster-store --compare 0001 /var/lib/qpidd
  qpid-cluster-store --restore 0001 /var/lib/qpidd
  qpid-cluster-store -c --sole-voter /var/lib/qpidd
  qpid-cluster-store --backup /backup/monday /var/lib/qpidd
  qpid-cluster-store --restore-as trial --member 10.0.0.9:25672 --into /var/lib/trial /backup/monday

\b
Exit status:
  0  done
  1  refused, canceled, or the directory cannot be written
  2  wrong usage
  3  no store, or no such backup
  4  the store is damaged, of another format, or not a store
  5  a broker uses the store
"""


@click.command(
    name="qpid-cluster-store",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-c",
    "--mark-clean",
    is_flag=True,
    help="Declare this store to be the one to keep (mark it clean).",
)
@click.option("--sole-voter", is_flag=True, help="With -c: make its member the only voter.")
@with_backup_options
@click.option(
    "--skip-quarantined",
    "word",
    flag_value="skip",
    help="Skip commands that no member can execute, as if they changed nothing.",
)
@click.option(
    "--retry-quarantined",
    "word",
    flag_value="retry",
    help="Let the next start try such commands once more.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@with_version
def qpid_cluster_store(
    directory: Path, mark_clean: bool, sole_voter: bool, word: str | None, as_json: bool,
    **backup: str | bool | None,
) -> None:  # fmt: skip
    """Show the store in DIR: a member's data directory, or a store directory in it.

    Reading changes nothing and is safe while the broker runs.
    """
    asked = backup_request(backup)
    if (word is not None) + mark_clean + (asked is not None) > 1:
        raise click.UsageError("Only one command option may be supplied")
    if sole_voter and not mark_clean:
        raise click.UsageError("--sole-voter goes with -c")
    try:
        if asked is not None:
            click.echo(carry_out(asked, directory, as_json))
        else:
            if sole_voter and not backup["force"]:
                _confirm_sole_voter(find_store(directory))
            _show_or_declare(directory, mark_clean, sole_voter, word, as_json)
    except StoreError as error:
        click.echo(f"qpid-cluster-store: {error}", err=True)
        sys.exit(_exit_code(error))


def _confirm_sole_voter(path: Path) -> None:
    """Continue only with an answer that starts with y: two such stores make two clusters."""
    meta = inspect(path)
    voters = parse(meta.voters)
    others = [voter for voter in voters.names if voter != meta.member]
    if not others:
        return
    prompt = PROMPT_ONE_OF_PAIR if voters.latest.pair else PROMPT_SOLE_VOTER
    if not agreed(prompt.format(others=", ".join(others)), to_stderr=True):
        raise StoreRefused("Operation canceled")


def _show_or_declare(
    directory: Path, mark_clean: bool, sole_voter: bool, word: str | None, as_json: bool
) -> None:
    path = find_store(directory)
    evidence = Incidents(path.parent)
    declared: list[QuarantineRecord] = []
    if word is not None:
        meta, declared = declare_quarantined(path, evidence, word)
        changed = True
    elif mark_clean:
        meta, changed = declare_clean(path, sole_voter)
    else:
        meta, changed = inspect(path), False
    holder = lock_holder(path)
    held = Quarantine(evidence, "").records
    if as_json:
        click.echo(json.dumps(as_document(path, meta, holder, changed, held), indent=2))
    else:
        click.echo(render(path, meta, holder, held))
        for record in declared:
            done = "will be skipped" if word == "skip" else "will be executed once more"
            click.echo(f"{record} {done} at the next start")
        if mark_clean:
            click.echo("marked clean" if changed else "was clean already, nothing changed")


def as_document(
    path: Path, meta: Meta, holder: StoreBusy | None, changed: bool, held: list[QuarantineRecord]
) -> dict[str, object]:
    """Return everything as plain values for JSON."""
    return {
        "store": str(path),
        "marker": meta.marker.value,
        "cluster_name": meta.cluster_name,
        "cluster_id": meta.cluster_id,
        "member": meta.member,
        "store_id": meta.store_id,
        "incarnation": meta.incarnation,
        "epoch": meta.state_epoch,
        "promised_epoch": meta.promised_epoch,
        "position": meta.position,
        "digest": meta.chain.hex(),
        "voters": list(meta.voters),
        "shutdown_id": meta.shutdown_id,
        "note": meta.note,
        "in_use": holder is not None,
        "pid": None if holder is None else holder.pid,
        "changed": changed,
        "quarantine": [
            {
                "position": one.position,
                "command": one.command,
                "during": one.during,
                "release": one.release,
                "skip": one.skip,
                "evidence": str(one.path),
            }
            for one in held
        ],
    }


def render(path: Path, meta: Meta, holder: StoreBusy | None, held: list[QuarantineRecord]) -> str:
    """Return everything for people."""
    rows = [
        ("store", str(path)),
        ("marker", f"{meta.marker.value}: {MEANING[meta.marker]}"),
        ("cluster", meta.cluster_name or "(stand-alone)"),
        ("cluster id", meta.cluster_id or "(none yet)"),
        ("member", f"{meta.member}, incarnation {meta.incarnation}"),
        ("epoch", f"{meta.state_epoch}, promised {meta.promised_epoch}"),
        ("position", str(meta.position)),
        ("digest", meta.chain.hex() or "(none yet)"),
        ("voters", ", ".join(meta.voters) or "(none yet)"),
    ]
    if meta.shutdown_id:
        rows.append(("shutdown id", meta.shutdown_id))
    if holder is not None:
        who = f"process {holder.pid}" if holder.pid is not None else "a broker"
        rows.append(("in use by", who))
    rows += [("quarantine", f"{one}, evidence in {one.path}") for one in held]
    if meta.note:
        rows.append(("note", meta.note.replace("\n", "\n" + " " * 13)))
    return "\n".join(f"{name + ':':<12} {value}" for name, value in rows)


def _exit_code(error: StoreError) -> int:
    if isinstance(error, StoreMissing):
        return MISSING
    if isinstance(error, StoreBusy):
        return BUSY
    return UNREADABLE if isinstance(error, StoreUnreadable) else FAILURE


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_cluster_store, sys.argv[1:], Codes(USAGE, FAILURE))


if __name__ == "__main__":
    main()
