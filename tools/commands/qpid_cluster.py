"""`qpid-cluster`: show a cluster and its clients, send clients away, stop one member or all.

The management protocol, both sides (the broker's is `broker/frontend/management.py`):

- A client connects to the broker's ordinary client port and sends the 8 bytes `QPIDMGT1`, then
  requests. Each request and each answer is one JSON object on one line, UTF-8, ended by a newline;
  answers come in the order of the requests. A request line above 64 KiB, or one that is not an
  object, gets an answer with code `bad-request`; then the connection is closed.
- Every request has `op`, `user` and `password` (defaults `guest`, `guest`). Both sides ignore
  unknown fields.
- Every answer has `ok`. If it is false the answer has `code` (below) and `error`, one sentence for
  people.

| op | request fields | answer fields when ok |
| --- | --- | --- |
| `status` | | `cluster` name ("" = stand-alone), `cluster_id` hex, `status`, `size`, `epoch`, |
| | | `position`, `members`: [{`id`, `url`, `state`, `voter`, `position`, `local`}], |
| | | `voters`: [id], `reason` (why it is not ACTIVE; "" when it is), `version`, |
| | | `alarms`: [sentence], `clock_off_ms`: {id: ms ahead of the middle of all clocks}, |
| | | `disk_lag_bytes` and `disk_lag_ms` of this member |
| | | `drained`: [id] of members that take no clients |
| | | `views`: [{`at_ms`, `ring`, `epoch`, `primary`, `members`, `left`, `reason`}] that it |
| | | saw; `left`: members no longer in it that left in order |
| `connections` | | `connections`: [{`member`, `address`, `user`, `vhost`, `channels`}] of all |
| | | members; for its own clients the asked member adds `connected_s`, `product`, ... |
| `disconnect` | `address` of a client; | `members`: [id] where it is; its connection is closed |
| | `id` of its member, or none | |
| `drain` | `id`, `on`, `force` | `id`, `on`; that member disconnects its clients and refuses |
| | | new ones, or accepts clients again (`on` false) |
| `promote` | | `ha` as in `status`; the asked member is to become the active one |
| `passive` | | `ha` as in `status`; the other one of a pair is to become the active one |
| `stop` | `id` of a member | `id`; that member leaves cleanly, its store stays DIRTY |
| `voters` | `action`, `id`, `by`, `votes` | `voter_set`: the terms that will be in force |
| `upgrade` | `force`: also while a voter is away | `machine_version` that will be in force |
| `shutdown` | | `shutdown_id` hex; every member leaves at one position, stores CLEAN |
| `replicate` | `queue`, `vhost`, `value` | `queue`; it follows one elsewhere; no `value`: no more |
| `replicas` | | `replicas`: [{`queue`, `vhost`, `src_uri`, `state`, `node`, ...}] |
| `counters` | | `counters`: {name: whole number} of this member only |
| `groups` | | the output of `cpgtool --json`: `vsync.admin.views.groups_reply` |
| `quorum` | | the output of `quorumtool --json`: `vsync.admin.views.quorum_reply` |
| `trace` | `on`: true, false, or none | `trace`: {`on`, `file`, `trouble`} of the ring's trace |

Programs that use the ring as a library (`vsync.api.cluster`) answer the last four, without a login.
`disconnect` and `drain` may be lost on their way to another member: repeat them until the answers
to `connections` and `status` show that they were carried out.

`status` is one of ACTIVE (serving in a primary view), JOINING (receiving state or catching up),
INQUORATE (no majority of voters: it serves nobody), WAITING (first start, --cluster-size not yet
reached). A member's `state` is one of ACTIVE, JOINING, DOWN (an absent voter); about itself the
asked member says more in `member_state`, whose values docs/operations/watching.md explains. `size`
counts the members that are not DOWN. `id` is the member's name, the argument of `-s`. `position` is
the last command position that the answering member knows to be durable there. For a joining member
`received_percent` is the received part of the state, if known.

An answer to `stop` and `shutdown` means: ordered, and about to happen. A connection that breaks
before the answer means the same, because the asked broker may be the one that stops. A broker that
is not ACTIVE answers questions but changes nothing (`not-active`), except its trace.

A change of the voters: `action` is one of add (`id`), remove (`id`), replace (`id` by `by`), votes
(`id` gets `votes`), expected (`votes`; 0: all). It is in force when `status` shows the same
`voter_set` as the answer; `vsync/quorum/voter_set.py` explains the terms. `status` also has
`quorum` {`expected_votes`, `total_votes`, `quorum`, `quorate`}, and for each member `votes` and
`arbitrator`.

Codes: `refused` (a forbidden change), `bad-request`, `unknown-op`, `access-refused`,
`no-such-member`, `not-active`, `internal`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import click

from broker.exit_codes import Exit
from broker.options.addresses import parse_address
from broker.options.client_ports import AMQP_PORT
from tools.cli.answers import fields, items, objects
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import agreed, with_version
from tools.cli.streams import complain
from tools.client.broker_url import AMQP
from tools.client.credentials import Credentials, from_environment, with_credentials
from tools.client.failover import read_brokers
from tools.client.management import (
    Askable,
    ClusterStatus,
    ConnectionAborted,
    Json,
    ManagementError,
    Target,
)
from tools.client.member_operations import (
    await_end,
    await_member,
    client_lines,
    connections,
    disconnect,
    drain,
    not_running,
    rebalance,
)
from tools.client.target_options import (
    answered,
    with_broker_argument,
    with_json,
    with_timeout,
)
from tools.commands.voter_commands import (
    change_of,
    change_voters,
    wait_until,
    with_voter_options,
)
from tools.stores.diagnosis import diagnose, sought, with_diagnosis_options
from vsync.types import record

EXIT_FAILURE = 1
EXIT_USAGE = 2
PROMPT_STOP = "Warning: This command will shut down a cluster member. Are you sure? [N]: "
PROMPT_STOP_LAST = (
    "Warning: This command will shut down the last running cluster member. Are you sure? [N]: "
)
PROMPT_STOP_ALL = (
    "Warning: This command will shut down the entire cluster{}: {}. Are you sure? [N]: "
)
PROMPT_UPGRADE = (
    "Warning: With version {} in force no member can go back to an older release. "
    "Are you sure? [N]: "
)
EPILOG = """\
BROKER is any member of the cluster, [amqp[s]://][user/password@]host[:port], or a list of members,
host:port,host:port or failover:(tcp://host:port,...), of which the first reachable one is asked.
Addresses as this command prints them (amqp:ssl:...) are accepted. Default localhost:5672 (amqps://:
5671), or $QPID_BROKER. Without a user here or in --user: $QPID_USER and $QPID_PASSWORD, else guest,
who may log in on the member's machine only.

\b
Examples:
  qpid-cluster                          show the cluster that localhost belongs to
  qpid-cluster --json otherhost:5673    the same, for programs
  qpid-cluster host1,host2,host3        ask the first of these that can be reached
  qpid-cluster --ssl-ca ca.pem amqps://otherhost   over TLS
  qpid-cluster -C                       show the clients of all members
  qpid-cluster -d 10.0.0.7:41234        disconnect this client
  qpid-cluster --drain b                disconnect b's clients; b still votes and replicates
  qpid-cluster --rebalance              after a rolling restart: spread clients evenly
  qpid-cluster --await b otherhost      wait until b, just restarted, is ACTIVE
  qpid-cluster -s b otherhost           stop the member with ID b
  qpid-cluster -k --cluster-name shop   stop all members if the cluster has this name
  qpid-cluster -k -f                    stop all members, without a question
  qpid-cluster --add-voter d            make d, which is ACTIVE, a voter
  qpid-cluster --replace-voter c d      make d a voter in place of c, which is gone for good
  qpid-cluster --set-votes a 2          give a two votes
  qpid-cluster --diagnose report.tar.gz --data-dir /var/lib/qpidd --log-file /var/log/qpidd.log

A drained member accepts no clients until it is undrained or restarted. Draining the last member
that accepts clients needs --force.

A change of the voters is refused if it would let two groups act independently, if the running
members could not make it durable, or while another change is under way. The command returns when
the change is in force.

-k returns when every member stops. It looks at each process that it can reach, also of members that
are DOWN: one that hangs has read no order, so the command fails and names it.

Exit codes: 0 done (for the status: the cluster is ACTIVE as seen by BROKER), 1 failed, refused,
canceled, or not ACTIVE, 2 wrong usage.
"""


@click.command(
    name="qpid-cluster", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("-C", "--all-connections", is_flag=True, help="Show the clients of all members.")
@click.option("-c", "--connections", "of", metavar="ID", help="Show the clients of one member.")
@click.option(
    "-d", "--del-connection", "client", metavar="HOST:PORT", help="Disconnect one client."
)
@click.option("-n", "--numeric", is_flag=True, help="Do not look up the names of clients' hosts.")
@click.option(
    "--drain",
    "drained",
    metavar="ID",
    help="Disconnect a member's clients and accept none, until --undrain or a restart.",
)
@click.option("--undrain", "undrained", metavar="ID", help="Let it accept clients again.")
@click.option(
    "--rebalance",
    "even_out",
    is_flag=True,
    help="Disconnect clients from members that have more than their share.",
)
@click.option("--await", "awaited", metavar="ID", help="Wait until a member is ACTIVE.")
@click.option("-s", "--stop", metavar="ID", help="Stop one member of the cluster by its ID.")
@click.option(
    "-k",
    "--all-stop",
    is_flag=True,
    help="Stop all members of the cluster and mark their stores clean.",
)
@click.option(
    "--upgrade",
    is_flag=True,
    help="After a rolling upgrade: enable what all members now support. This cannot be undone.",
)
@click.option("-f", "--force", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--cluster-name",
    metavar="NAME",
    help="Do nothing unless BROKER belongs to this cluster.",
)
@with_timeout
@with_credentials
@with_voter_options
@with_diagnosis_options
@with_json
@with_broker_argument()
@with_version
def qpid_cluster(
    all_connections: bool, of: str | None, client: str | None, numeric: bool,
    drained: str | None, undrained: str | None, even_out: bool, awaited: str | None,
    stop: str | None, all_stop: bool, upgrade: bool, force: bool, timeout: float,
    as_json: bool, broker: str, credentials: Credentials,
    add_voter: str | None, remove_voter: str | None, replace_voter: tuple[str, str] | None,
    set_votes: tuple[str, str] | None, expected_votes: str | None, **given: object,
) -> int:  # fmt: skip
    """Show the cluster that BROKER belongs to, or its clients; or stop it, or change who votes."""
    change = change_of(add_voter, remove_voter, replace_voter, set_votes, expected_votes)
    archive = sought(given)
    verbs = (of, client, drained, undrained, awaited, stop, change, archive)
    flags = all_connections + all_stop + upgrade + even_out
    if sum(verb is not None for verb in verbs) + flags > 1:
        raise click.UsageError("Only one command option may be supplied")
    target = parse_target(broker, timeout or None, credentials)

    def said(document: Json, text: str = "") -> int:
        if as_json or text:
            print(json.dumps(document, indent=2, sort_keys=True) if as_json else text)
        return Exit.OK

    if archive is not None:
        document = diagnose(archive, members_of(target))
        problems = map(str, items(document["problems"]))
        return said(document, "\n".join([f"{archive.file} is written", *problems]))
    with answered():
        demand_cluster(target, given["cluster_name"])
        if all_connections or of is not None:
            members = connections(target, of or "")
            return said([*members], "\n".join(client_lines(members, numeric=numeric)))
        if client is not None:
            closed = disconnect(target, *parse_client(client))
            missing = f"Client connection '{client}' not found"
            text = f"Closing connection from client: {closed}" if closed else missing
            return said({"address": closed or None}, text)
        if (member := drained if undrained is None else undrained) is not None:
            on = drained is not None
            drain(target, member, on=on, force=force)
            return said({"id": member, "drained": on})
        if even_out:
            closed_at = rebalance(target)
            return said({"closed": dict(closed_at)}, rebalanced(closed_at))
        if awaited is not None:
            await_member(target, awaited)
            return said({"id": awaited, "state": "ACTIVE"})
        if stop is not None:
            stop_member(target, stop, force)
            return said({"id": stop})
        if all_stop:
            stop_all(target, force)
            return said({})
        if upgrade:
            line = upgrade_all(target, force)
            return said({"upgraded": line}, line)
        if change is not None:
            line = change_voters(target, change)
            return said({"voter_set": [*line.partition(": ")[2].split(", ")]}, line)
        return show(target, as_json)


def rebalanced(closed_at: dict[str, int]) -> str:
    """The closed connections, in a line."""
    closed = [f"{count} at {member}" for member, count in closed_at.items() if count]
    if not closed:
        return "no member has more clients than its share"
    return f"closed {', '.join(closed)}; each client reconnects to the next broker in its list"


@record
class Unreachable:
    """A member without an address of the kind needed; the reason is its answer."""

    reason: str

    def ask(self, **request: Json) -> dict[str, Json]:
        raise ManagementError(self.reason)


def members_of(target: Target) -> dict[str, Askable]:
    """The members that may be asked, by name; or the one named, if it knows no others."""
    try:
        status = target.status()
    except ManagementError:
        return {str(target.address): target}
    return members_in(status, target)


def members_in(status: ClusterStatus, target: Target, *, down: bool = False) -> dict[str, Askable]:
    """The members that may be asked, by name, as `target` shows them. `down`: also those that have
    left."""
    found: dict[str, Askable] = {}
    for member in status.members:
        kind = "tcp:" if target.tls is None else "ssl:"
        place = member.url.partition(kind)[2].partition(",")[0]
        if member.local:
            found[member.id] = target
        elif member.arbitrator or (member.state == "DOWN" and not down):
            continue
        elif place:
            address = parse_address(place, AMQP_PORT)
            found[member.id] = replace(target, address=address, others=())
        else:
            how = "without TLS" if target.tls is None else "over TLS"
            why = f"its URL {member.url or '(none)'} has no address {how} (--cluster-url)"
            found[member.id] = Unreachable(why)
    return found


def parse_client(text: str) -> tuple[str, int]:
    """Parse HOST:PORT of a client; the host of an IPv6 address may be in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port):
        raise click.UsageError("Client address must be of form: <host or ip>:<number>")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show(target: Target, as_json: bool) -> int:
    """Print the overview; the exit code says whether the cluster serves."""
    status = target.status()
    print(json.dumps(status.raw, indent=2, sort_keys=True) if as_json else overview(status))
    active = status.status == "ACTIVE"
    if not active:
        reason = str(status.raw.get("reason") or "it does not say why")
        who = next((m.id for m in status.members if m.local and target.others), target.address)
        complain(f"qpid-cluster: {who} is {status.status}: {reason}")
    if not as_json and (
        status.raw.get("alarms") or any(m.state != "ACTIVE" for m in status.members)
    ):
        complain("qpid-cluster: qpidctl check_cluster says what to do")
    return Exit.OK if active else EXIT_FAILURE


def overview(status: ClusterStatus) -> str:
    """The classic layout: labels right-aligned to the colon, one line per member."""
    lines = [
        f"  Cluster Name: {status.cluster}",
        f"Cluster Status: {status.status}",
        f"  Cluster Size: {status.size}",
    ]
    label = "       Members"
    drained = items(status.raw.get("drained"))
    own = str(status.raw.get("member_state") or "READY")
    roles = roles_in(status)
    for member in status.members:
        state = own if member.local and own != "READY" else member.state
        marks = [] if state == "ACTIVE" else [state]
        # A member that looks for the others receives nothing yet, whatever its store holds.
        if member.received_percent is not None and state not in ("PRE_INIT", "INIT"):
            marks.append(f"{member.received_percent:g} % received")
        marks += [] if member.voter else ["no vote"]
        marks += ["arbitrator"] if member.arbitrator else []
        marks += [f"{member.votes} votes"] if member.votes > 1 else []
        marks += ["drained"] if member.id in drained else []
        marks += ROLE_MARKS.get(roles.get(member.id, ""), [])
        marks += ["local"] if member.local else []
        note = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"{label}: ID={member.id} URL={member.url}{note}")
        label = "              "
    in_force, possible = (
        status.raw.get(key) for key in ("machine_version", "machine_version_possible")
    )
    if in_force and possible != in_force:
        lines.append(
            f"       Version: {in_force} (--upgrade: {possible}, which all members execute)"
        )
    lines += [f"         Alarm: {alarm}" for alarm in items(status.raw.get("alarms"))]
    shared = status.raw.get("shared_store")
    if isinstance(shared, dict):
        lines.append(
            f"  Shared store: {shared['directory']}, led since {shared['since']} by "
            f"{shared['leader']} (token {shared['token']})"
        )
    down = items(status.raw.get("links_down"))
    lines += [f"     Link down: {link} (its member has another one)" for link in down]
    return "\n".join(lines)


ROLE_MARKS = {"active": ["the active one"], "recovering": ["the active one"], "ready": ["backup"]}
"""How roles of an active-passive cluster are shown; the other roles are states as well."""


def roles_in(status: ClusterStatus) -> dict[str, str]:
    """The role of each member; empty if any member takes clients."""
    members = objects(fields(status.raw.get("ha")).get("members"))
    return {str(one["id"]): str(one["status"]) for one in members}


def stop_member(target: Target, member_id: str, force: bool) -> None:
    """Stop one member; prints nothing when it worked."""
    status = target.status()
    running = [member.id for member in status.members if member.state != "DOWN"]
    if member_id not in running:
        raise not_running(status, member_id)
    confirm(PROMPT_STOP_LAST if len(running) == 1 else PROMPT_STOP, force)
    try:
        target.ask(op="stop", id=member_id)
    except ConnectionAborted:
        return  # the member that we asked was the one to stop


def demand_cluster(target: Target, name: object) -> None:
    """Continue only if the target is of the cluster of this name; None: of any."""
    if name is None or (found := target.status().cluster) == name:
        return
    theirs = f"of cluster '{found}'" if found else "a stand-alone broker"
    raise ManagementError(f"{target.address} is {theirs}, not of '{name}': nothing was done")


def stop_all(target: Target, force: bool) -> None:
    """Stop every member with a clean store; prints nothing when all stop.

    A member that has left because it hangs reads no order, so each process is looked at.
    """
    status = target.status()  # a refusal or a dead address should come before the question
    name = f" '{status.cluster}'" if status.cluster else ""
    here = ", ".join(member.id for member in status.members if member.state != "DOWN")
    confirm(PROMPT_STOP_ALL.format(name, here), force)
    members = members_in(status, target.alone(), down=True)
    try:
        target.ask(op="shutdown")
    except ConnectionAborted:
        pass
    except ManagementError as problem:
        if status.status not in {"INQUORATE", "WAITING"}:
            raise
        instead = "nothing can be ordered: end each process by SIGTERM, or systemctl stop qpidd"
        raise ManagementError(f"{problem}; {instead}") from None
    processes = {name: one for name, one in members.items() if isinstance(one, Target)}
    await_end(processes, target.timeout_seconds)


def upgrade_all(target: Target, force: bool) -> str:
    """Put the newest version that all members execute in force; return the one in force then."""
    raw = target.status().raw
    before, possible = raw.get("machine_version"), raw.get("machine_version_possible")
    if before == possible:
        return f"version {before} is in force, the newest that all members here execute"
    confirm(PROMPT_UPGRADE.format(possible), force)
    wanted = target.ask(op="upgrade", force=force).get("machine_version")
    wait_until(target, lambda status: status.raw.get("machine_version") == wanted)
    return f"version {wanted} is in force"


def confirm(prompt: str, force: bool) -> None:
    """Continue only with --force or an answer that starts with y."""
    if not (force or agreed(prompt)):
        raise ManagementError("Operation canceled")


def parse_target(
    broker: str, timeout_seconds: float | None, credentials: Credentials | None = None
) -> Target:
    """Parse a URL of `tools.client.broker_url`, or a library program's socket: unix:/a/path."""
    if broker.startswith("unix:"):
        return Target(Path(broker.removeprefix("unix:")), "guest", "guest", timeout_seconds)
    given = credentials or from_environment()
    try:
        url, (first, *others), _ = read_brokers(broker, AMQP)
    except ValueError as problem:
        raise click.UsageError(f"BROKER: {problem}") from None
    login, tls = given.login(url), given.context(url)
    return Target(first, *login, timeout_seconds, tls, tuple(others))


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_cluster, sys.argv[1:], Codes(EXIT_USAGE, EXIT_FAILURE))


if __name__ == "__main__":
    main()
