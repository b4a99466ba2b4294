"""`quorumtool`: may this member act? Votes and voters as one member sees them, once or watched."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import click

from broker.exit_codes import Exit
from tools.cli.answers import Json, aligned, items, objects
from tools.cli.options import Codes, run_command
from tools.cli.shared_options import Seconds, with_version
from tools.client.credentials import Credentials, with_credentials
from tools.client.management import ManagementError, Target
from tools.client.target_options import asked, with_broker_argument, with_json, with_timeout
from tools.commands.qpid_cluster import parse_target

QUORATE, FAILED, NOT_QUORATE = Exit.OK, 1, 2
MARKS = {"away": ".", "joins": "+", "here": "#"}
EPILOG = """\
MEMBER is a broker, [amqp[s]://][user/password@]host[:port] (default localhost:5672, or
$QPID_BROKER), or a program that uses vsync as a library, by its manage= address: host:port or
unix:/a/path.

\b
-m prints a line at each change, with a column for each voter: # is present, . is absent,
+ is present but has no vote yet, since it still receives the state.
  12:00:01  quorate      3/2  # # #  ring 4.a
  12:00:31  NOT QUORATE  1/2  # . .  ring 6.a  1 of 3 voters here, 2 needed; missing: b, c

\b
Examples:
  quorumtool                            show the status of localhost's broker
  quorumtool -m otherhost:5673          watch until interrupted
  quorumtool -l unix:/run/shop.sock     list the voters of a library program
  quorumtool --json || page-somebody    for programs: the exit code is the answer

Exit codes: 0 quorate, 1 no answer, refused or wrong usage, 2 not quorate.
"""


@click.command(
    name="quorumtool", epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("-s", "--status", "_", is_flag=True, help="Show the status; that is the default.")
@click.option("-l", "--list", "only_list", is_flag=True, help="Show the list of voters only.")
@click.option("-m", "--monitor", is_flag=True, help="Print a line whenever something changed.")
@click.option(
    "-i", "--interval", metavar="SECS", type=Seconds(0.01), default=1.0,
    help="How often -m asks. Default 1.",
)  # fmt: skip
@click.option(
    "-c", "--count", metavar="N", type=click.IntRange(min=1),
    help="With -m: ask N times, then stop. Default: until interrupted.",
)  # fmt: skip
@with_json
@with_timeout
@with_credentials
@with_broker_argument("member")
@with_version
def quorumtool(
    _: bool,
    only_list: bool,
    monitor: bool,
    interval: float,
    count: int | None,
    as_json: bool,
    timeout: float,
    member: str,
    credentials: Credentials,
) -> int:
    """Show whether MEMBER may act for its cluster, and how that is counted."""
    if monitor and (as_json or only_list):
        raise click.UsageError("--monitor prints lines of its own: without --json and --list")
    target = parse_target(member, timeout or None, credentials)
    if monitor:
        return watch(target, interval, count)
    answer = asked(target, "quorum")
    if as_json:
        print(json.dumps(answer, indent=2, sort_keys=True))
    elif only_list:
        print("\n".join(membership(answer)))
    else:
        print(overview(answer, time.strftime("%a %b %d %H:%M:%S %Y")))
    return QUORATE if answer.get("quorate") is True else NOT_QUORATE


def overview(answer: dict[str, Json], date: str) -> str:
    """The three blocks of corosync-quorumtool."""
    blocked = "" if answer.get("quorate") is True else " Activity blocked"
    nodes = objects(answer.get("nodes"))
    reason = answer.get("reason")
    return "\n".join(
        [
            "Quorum information",
            "------------------",
            f"Date:             {date}",
            f"Cluster name:     {answer.get('cluster')}",
            f"Nodes:            {sum(1 for one in nodes if one.get('present'))}",
            f"Node ID:          {answer.get('member')}",
            f"Ring ID:          {answer.get('ring')}",
            f"Quorate:          {'No' if blocked else 'Yes'}",
            *([f"Reason:           {reason}"] if reason else []),
            "",
            "Votequorum information",
            "----------------------",
            f"Expected votes:   {answer.get('expected')}",
            f"Highest expected: {answer.get('highest_expected')}",
            f"Total votes:      {answer.get('total')}",
            f"Quorum:           {answer.get('quorum')}{blocked}",
            f"Flags:            {' '.join(flags(answer))}",
            "",
            *membership(answer),
        ]
    )


def flags(answer: dict[str, Json]) -> list[str]:
    """The words of an answer that name the rules in force."""
    return [str(flag) for flag in items(answer.get("flags"))]


def state_of(node: dict[str, Json]) -> str:
    """Whether a voter or guest is present, and with its vote."""
    if not node.get("present"):
        return "away"
    return "joins" if node.get("joining") else "here"


def membership(answer: dict[str, Json]) -> list[str]:
    """The list of voters and guests, as a table under its heading."""
    rows = [("Votes", "State", "Role", "Name")]
    for one in objects(answer.get("nodes")):
        local = " (local)" if one.get("local") else ""
        rows.append(
            (
                str(one.get("votes")),
                state_of(one),
                str(one.get("role")),
                f"{one.get('name')}{local}",
            )
        )
    return ["Membership information", "----------------------", *aligned(rows)]


def watch(
    target: Target, interval: float, count: int | None, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Print a line for each change until interrupted; the exit code is that of the last answer."""
    code, shown, columns = FAILED, "", ""
    try:
        while count is None or count > 0:
            try:
                answer = target.ask(op="quorum")
            except ManagementError as problem:
                code, line = FAILED, f"no answer: {problem}"
            else:
                code = QUORATE if answer.get("quorate") is True else NOT_QUORATE
                names = [str(one.get("name")) for one in objects(answer.get("nodes"))]
                if columns != (columns := "voters: " + ", ".join(names)):
                    print(columns)
                line = drawn(answer)
            if line != shown:
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
                shown = line
            count = count - 1 if count is not None else None
            if count != 0:
                sleep(interval)
    except KeyboardInterrupt:
        print()
    return code


def drawn(answer: dict[str, Json]) -> str:
    """A view as one line: the verdict, votes of quorum, a mark for each voter."""
    word = "quorate" if answer.get("quorate") is True else "NOT QUORATE"
    marks = " ".join(MARKS[state_of(one)] for one in objects(answer.get("nodes")))
    votes = f"{answer.get('total')}/{answer.get('quorum')}"
    reason = f"  {answer['reason']}" if answer.get("reason") else ""
    return f"{word:<11}  {votes:>5}  {marks}  ring {answer.get('ring')}{reason}"


def main() -> None:
    """Entry point of the installed command."""
    run_command(quorumtool, sys.argv[1:], Codes(usage=FAILED, failure=FAILED))


if __name__ == "__main__":
    main()
