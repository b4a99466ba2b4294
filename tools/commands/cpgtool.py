"""`cpgtool`: the groups of a ring and their members, as one member sees them."""

from __future__ import annotations

import json
import sys

import click

from tools.cli.answers import Json, aligned, objects
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import with_version
from tools.client.credentials import Credentials, with_credentials
from tools.client.target_options import asked, with_broker_argument, with_json, with_timeout
from tools.commands.qpid_cluster import parse_target

EPILOG = """\
MEMBER is a broker, [amqp[s]://][user/password@]host[:port] (default localhost:5672, or
$QPID_BROKER), or a program that uses vsync as a library, by its manage= address: host:port or
unix:/a/path.

The members of a group are listed by seniority, the oldest first. The brokers that hold the
cluster's state are one group, named after the cluster.

\b
Examples:
  cpgtool                               groups that localhost's broker knows
  cpgtool unix:/run/shop.sock           groups of a library program
  cpgtool -n 127.0.0.1:5409             only their names
  cpgtool -d : 127.0.0.1:5409           one line per member, fields separated by ':'
  cpgtool --json 127.0.0.1:5409         one JSON document, for programs

Exit codes: 0 done, 1 no answer, or refused, 2 wrong usage.
"""


@click.command(
    name="cpgtool", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("-n", "--names", is_flag=True, help="Print the names of the groups only.")
@click.option("-d", "--delimiter", metavar="TEXT", help="One line a member, without headings.")
@with_json
@with_timeout
@with_credentials
@with_broker_argument("member")
@with_version
def cpgtool(
    names: bool, delimiter: str | None, as_json: bool, timeout: float, member: str,
    credentials: Credentials,
) -> int:  # fmt: skip
    """Show the groups of the ring that MEMBER belongs to, and who is in them."""
    target = parse_target(member, timeout or None, credentials)
    answer = asked(target, "groups")
    groups = objects(answer.get("groups"))
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
    elif names:
        for group in groups:
            print(group.get("name", ""))
    elif delimiter is not None:
        for group in groups:
            for rank, one in enumerate(objects(group.get("members")), 1):
                fields = (group.get("name"), rank, one.get("name"), one.get("address"))
                print(delimiter.join(map(str, fields)))
    else:
        print(overview(answer))
    return 0


def overview(answer: dict[str, Json]) -> str:
    """The ring in one line, then a table with a row for each member of each group."""
    members = " ".join(str(m.get("name")) for m in objects(answer.get("members")))
    lines = [
        f"Cluster {answer.get('cluster')}, ring {answer.get('ring')} of {members}",
        f"Position {answer.get('position')}"
        + ("" if answer.get("settled") else ", the view is changing"),
        "",
    ]
    rows = [("Group", "Rank", "Member", "Address")]
    for group in objects(answer.get("groups")):
        for rank, one in enumerate(objects(group.get("members")), 1):
            local = " (local)" if one.get("local") else ""
            name = str(group.get("name")) if rank == 1 else ""
            rows.append((name, str(rank), f"{one.get('name')}{local}", str(one.get("address"))))
    if len(rows) == 1:
        return "\n".join([*lines, "No groups."])
    return "\n".join([*lines, *aligned(rows)])


def main() -> None:
    """Entry point of the installed command."""
    run_command(cpgtool, sys.argv[1:], Codes(usage=2, failure=1))


if __name__ == "__main__":
    main()
