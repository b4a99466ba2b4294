"""`qpid-ha`: show, test and assign the roles of members of an active-passive cluster.

It uses the management protocol documented in `tools/commands/qpid_cluster`: `status`, whose answer
has the roles under `ha`, `promote`, `replicate` and `replicas`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import click

from broker.exit_codes import Exit
from broker.roles.role_table import Role
from tools.cli.answers import objects
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import BROKER_VARIABLE, BrokerOption, with_version
from tools.client.broker_url import AMQP, parse_url
from tools.client.credentials import Credentials, with_credentials
from tools.client.management import (
    POLL_S,
    Answer,
    Askable,
    Json,
    ManagementError,
    Target,
    wait_for,
)
from tools.client.target_options import answered, with_json, with_timeout
from tools.commands.qpid_cluster import members_of, parse_target

FAILED, USAGE = 1, 2
SETTLES_S = 2.0
"""How long a view may take to change; until that is known the active member is unknown, too."""
PROMOTED_S = 30.0
"""How long to wait for a promotion if --timeout is 0."""
ROLES = [role.value for role in Role]
COMMANDS = ("status", "ping", "ready", "promote", "passive", "query", "replicate")
EPILOG = """\b
Commands:
  status               print the role of BROKER: standalone, joining, catchup, ready,
                       recovering or active
  status --expect S    print nothing; exit 0 if this is its role
  status --is-primary  print nothing; exit 0 if it accepts clients (active, or recovering)
  status --all         print the role of each member of its cluster, one per line
  ping                 print nothing; exit 0 if BROKER answers
  ready                print nothing; exit 0 if BROKER is a backup that could be promoted
  promote              make BROKER, which must be ready, the active member
  passive              in a pair: make BROKER, which must be active, hand its clients to the
                       other member
  query                print its role, id, cluster and addresses; --all: of each member
  replicate QUEUE URL  make QUEUE here a replica of QUEUE at a broker outside the cluster, URL
                       amqp[s]://[user:password@]host[:port][/vhost]; a replica has no consumers
  replicate QUEUE --stop   make the replica an independent queue, with all its messages
  replicate            list the replicas, and how far each has come

promote is for clusters whose members run with --ha-promotion manual, where a resource manager or
an operator decides. It is refused while another member is active: stop that member, or make it give
up the role with qpid-cluster --drain. If two members are promoted at the same time, one of them
becomes active.

\b
Examples:
  qpid-ha status                       the role of localhost's broker
  qpid-ha -b node2 status --is-primary && echo "clients go to node2"
  qpid-ha -b node2 promote             after node1 is gone
  qpid-ha -b node2 status --all --json
  qpid-ha replicate orders amqp://copier:secret@old-broker

Exit codes: 0 done, or yes; 1 no, failed or refused, 2 wrong usage.
"""


OF_ONE = ("ping", "ready", "promote", "passive")
"""Questions to which a list of brokers has no answer or, worse, another broker's."""


@click.command(
    name="qpid-ha", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "-b", "--broker", metavar="BROKER", default="localhost", envvar=BROKER_VARIABLE,
    cls=BrokerOption,
    help="[amqp[s]://][user/password@]host[:port]; a list host:port,host:port for commands that "
    "are not about one broker. Default localhost:5672, or $QPID_BROKER.",
)  # fmt: skip
@click.option(
    "-a", "--all", "everywhere", is_flag=True, help="For status and query: show every member."
)
@click.option(
    "--expect",
    metavar="ROLE",
    type=click.Choice(ROLES),
    help="For status: exit 0 if the broker has this role.",
)
@click.option(
    "--is-primary", is_flag=True, help="For status: exit 0 if the broker accepts clients."
)
@click.option(
    "--cluster-manager",
    is_flag=True,
    help="Accepted for compatibility with Qpid: promote is safe for everybody.",
)
@click.option(
    "--stop", is_flag=True, help="For replicate: stop replicating; the queue becomes independent."
)
@click.option(
    "--vhost", default="/", help="For replicate: virtual host of the queue here. Default /."
)
@click.option(
    "--source",
    metavar="QUEUE",
    help="For replicate: name of the queue at the other broker, if it differs.",
)
@click.option(
    "--arguments",
    metavar="JSON",
    help="For replicate: arguments of the queue, if it does not exist here yet.",
)
@with_timeout
@with_credentials
@with_json
@click.argument("command", metavar="COMMAND", type=click.Choice(COMMANDS))
@click.argument("given", metavar="[QUEUE] [URL]", nargs=-1)
@with_version
def qpid_ha(
    broker: str, everywhere: bool, expect: str | None, is_primary: bool, cluster_manager: bool,
    stop: bool, vhost: str, source: str | None, arguments: str | None, timeout: float,
    as_json: bool, command: str, given: tuple[str, ...], credentials: Credentials,
) -> int:  # fmt: skip
    """Show which member of an active-passive cluster is active, test it, or promote one."""
    target = parse_target(broker, timeout or None, credentials)
    if target.others and (command in OF_ONE or expect or is_primary):
        raise click.UsageError(f"{command} is about one broker: give one with -b, not a list")
    if command == "replicate":
        with answered():
            return replicate(target, vhost, given, Wanted(stop, source, arguments), as_json)
    if stop or source or arguments:
        raise click.UsageError("--stop, --source and --arguments go with replicate")
    if given:
        raise click.UsageError(f"Wrong number of arguments: {command} takes none")
    if (expect or is_primary) and command != "status":
        raise click.UsageError("--expect and --is-primary go with status")
    if everywhere and command not in ("status", "query"):
        raise click.UsageError("--all goes with status and query")
    if everywhere:
        if expect or is_primary:
            raise click.UsageError("--expect and --is-primary are about one broker, not --all")
        return show_all(target, command, as_json)
    with answered():
        match command:
            case "ping":
                target.status()
                return Exit.OK
            case "promote":
                found = promote(target)
                return said(found) if as_json else Exit.OK
            case "passive":
                found = force_passive(target)
                return said(found) if as_json else Exit.OK
            case "ready":
                expect = Role.READY.value
            case _:
                pass
        found = role_of(target)
    if expect or is_primary:
        is_so = found.get("primary") is True if is_primary else found.get("status") == expect
        if as_json:
            said(found)
        return Exit.OK if is_so else FAILED
    if as_json:
        return said(found)
    print(found.get("status") if command == "status" else "\n".join(described(found)))
    return Exit.OK


class Wanted(NamedTuple):
    """The options of `replicate`."""

    stop: bool
    source: str | None
    arguments: str | None


def replicate(
    target: Target, vhost: str, given: tuple[str, ...], wanted: Wanted, as_json: bool
) -> int:
    """Keep a queue the same as another broker's, or no more, or list those that are."""
    if not given:
        rows = _replicas(target)
        if as_json:
            return said([*rows])
        print("\n".join(_replica_lines(rows)) or "No queue is a replica of another broker's.")
        return Exit.OK
    queue, *urls = given
    if len(urls) != (0 if wanted.stop else 1):
        raise click.UsageError("Wrong number of arguments: replicate QUEUE URL, or QUEUE --stop")
    value: dict[str, Json] | None = None
    if not wanted.stop:
        value = {"src-uri": _as_uri(urls[0])}
        if wanted.source:
            value["src-queue"] = wanted.source
        if wanted.arguments:
            try:
                value["queue-args"] = json.loads(wanted.arguments)
            except ValueError as bad:
                raise click.UsageError(f"--arguments is no JSON: {bad}") from None
    target.ask(op="replicate", queue=queue, vhost=vhost, value=value)

    def in_force() -> list[dict[str, Json]] | None:
        rows = [one for one in _replicas(target) if (one["queue"], one["vhost"]) == (queue, vhost)]
        return rows if bool(rows) is not wanted.stop else None

    found = _waited(target, in_force, lambda: "it was ordered, and is not in force yet: ask again")
    return said(found) if as_json else Exit.OK


def _as_uri(text: str) -> str:
    """Convert Qpid's [user/password@]host[:port] to a URI; a URI stays as it is."""
    if "://" in text:
        return text
    try:
        url = parse_url(text, AMQP)
    except ValueError as problem:
        raise click.UsageError(f"URL: {problem}") from None
    secret = "" if url.password is None else f":{quote(url.password, safe='')}"
    login = "" if url.user is None else f"{quote(url.user, safe='')}{secret}@"
    return f"{'amqps' if url.tls else 'amqp'}://{login}{url.address}"


def _replicas(target: Target) -> list[dict[str, Json]]:
    return objects(target.ask(op="replicas").get("replicas"))


def _replica_lines(rows: list[dict[str, Json]]) -> Iterator[str]:
    """Which queue follows which, and its progress."""
    for one in rows:
        how = str(
            one.get("reason")
            or one.get("behind")
            or ("level" if one.get("level") else one["state"])
        )
        where = f"'{one['src_queue']}' of {one['src_uri']}, " if "src_uri" in one else ""
        yield f"{one['vhost']} {one['queue']}: {where}at {one['node']}: {how}"


def said(document: Json | Sequence[Json]) -> int:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, sort_keys=True))
    return Exit.OK


def _waited(
    target: Target, answer: Callable[[], Answer | None], otherwise: Callable[[], str]
) -> Answer:
    return wait_for(answer, target.timeout_seconds or PROMOTED_S, otherwise)


def role_of(target: Askable) -> dict[str, Json]:
    """A broker's report of its role, once its view is not about to change any more."""
    deadline = time.monotonic() + SETTLES_S
    while True:
        found = target.ask(op="status").get("ha")
        if not isinstance(found, dict):
            raise ManagementError("this broker tells no role of its own")
        if found.get("settled") is not False or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)


def promote(target: Target) -> dict[str, Json]:
    """Make a broker the active member; return its answer once it is. Raises ManagementError."""
    found = role_of(target)
    if found.get("status") in ("active", "recovering"):
        return found
    target.ask(op="promote")

    def promoted() -> dict[str, Json] | None:
        found = role_of(target)
        if found.get("status") == "active":
            return found
        active = found.get("active")
        if active and active != found.get("id"):
            raise ManagementError(f"{active} was promoted at the same time, and is active now")
        return None

    return _waited(target, promoted, lambda: _still(target, "no member is active"))


def _still(target: Target, who: str) -> str:
    return f"it is {role_of(target).get('status')} still, and {who}"


def force_passive(target: Target) -> dict[str, Json]:
    """Make the other member of a pair active; return this one's answer then."""
    target.ask(op="passive")

    def passive() -> dict[str, Json] | None:
        found = role_of(target)
        active = found.get("active")
        return found if active and active != found.get("id") else None

    return _waited(target, passive, lambda: _still(target, "no other one is active"))


def described(found: dict[str, Json]) -> list[str]:
    """The lines of `query`, in Qpid's layout."""
    urls = [str(one.get("url") or "") for one in objects(found.get("members"))]
    rows = {
        "Status": found.get("status"),
        "Broker ID": found.get("id", ""),
        "Brokers URL": ",".join(url.removeprefix("amqp:") for url in urls if url),
        "Public URL": found.get("public_url", ""),
        "Replicate": found.get("replicate", ""),
        "Promotion": found.get("promotion", ""),
        "Active": found.get("active", ""),
    }
    if "backup_timeout_s" in found:
        late = found.get("not_waited_for")
        names = ", ".join(map(str, late)) if isinstance(late, list) else ""
        rows["Backup timeout"] = f"{found['backup_timeout_s']} s"
        rows["Not waited for"] = names or "nobody: confirms wait for the disks of all"
        expected = found.get("expected")
        if isinstance(expected, list) and expected:
            rows["Expected"] = f"{', '.join(map(str, expected))}: confirms wait for them to come"
    pair = found.get("pair")
    if isinstance(pair, dict):
        rows |= {
            "Pair": f"{pair.get('mode')}, {pair.get('seat')}",
            "Standing": f"{pair.get('standing')}: {pair.get('reason')}",
            "Peer": f"{pair.get('peer')}, {pair.get('peer_seen') or 'the view is changing'}",
            "Connections": f"{pair.get('connections')}; the peer's: {pair.get('peer_connections')}",
            "Went on alone": "yes" if pair.get("alone") else "no",
        }
        if pair.get("apart"):
            rows["Went apart"] = pair["apart"]
    return [f"{name + ':':<20}{value}" for name, value in rows.items()]


def show_all(target: Target, command: str, as_json: bool) -> int:
    """Ask each member of the cluster; return 1 if one of them did not answer."""
    with answered():
        role_of(target)
    found: dict[str, dict[str, Json]] = {}
    for name, member in members_of(target).items():
        try:
            found[name] = {"id": name, **role_of(member)}
        except ManagementError as problem:
            found[name] = {"id": name, "error": str(problem)}
    if as_json:
        said([*found.values()])
    elif command == "status":
        for name, one in found.items():
            print(name, one.get("error") or one.get("status"))
    else:
        blocks = []
        for name, one in found.items():
            lines = [str(one["error"])] if "error" in one else described(one)
            blocks.append("\n".join([f"{'Address:':<20}{name}", *lines]))
        print("\n\n".join(blocks))
    return FAILED if any("error" in one for one in found.values()) else Exit.OK


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_ha, sys.argv[1:], Codes(USAGE, FAILED))


if __name__ == "__main__":
    main()
