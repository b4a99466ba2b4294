"""`qpidctl`: what an operator sets and asks, by the verbs of rabbitmqctl, at any member.

Scripts that were written for rabbitmqctl run with another name of the command: verbs, columns,
`-p VHOST`, `-q`, `-s`, `--formatter`, `-t` and exit codes are the same.  It speaks to the HTTP
management API, with a user and a password, not to the broker's process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.client.credentials import Credentials
from tools.client.http_api import Api, Json
from tools.operate import states
from tools.operate.listings import LISTINGS, Listing
from tools.operate.output import FORMATS, print_rows
from tools.operate.settings import CHANGES, Change
from tools.operate.target import answered, api_of, epilog, note, with_target

EXAMPLES = """\b
Examples:
  qpidctl list_queues name messages consumers     the queues of "/", three columns
  qpidctl -p shop --formatter json list_queues    those of another virtual host, for a program
  qpidctl add_user ada                            asks for the password
  qpidctl set_permissions -p shop ada ".*" ".*" ".*"
  qpidctl set_policy caps "^orders" '{"max-length": 1000}' --apply-to queues
  qpidctl cluster_status
  qpidctl await_startup --timeout 60
\b
"""
REFUSED = {
    "eval": "there is no Erlang here to evaluate; ask by --formatter json, or by the HTTP API",
    "stop": "stop a member by qpid-cluster -s ID",
    "stop_app": "a member stops as a whole: qpid-cluster -s ID",
    "start_app": "a member starts with its process: qpidd, or your service manager",
    "reset": "start the member with an empty --data-dir, or with another one",
    "join_cluster": "start the member with the --cluster-name and --cluster-nodes of those that "
    "run; qpid-cluster --add-voter gives it a vote",
    "forget_cluster_node": "take its vote by qpid-cluster --remove-voter ID",
    "rotate_logs": "send the broker SIGHUP, or let logrotate do it",
    "report": "qpid-cluster --diagnose writes one archive",
    "enable_feature_flag": "new behaviour is switched on by qpid-cluster --upgrade",
}
"""Verbs of rabbitmqctl that have no sense here, and what to do instead."""


class Verbs(click.Group):
    """Says what to do instead of a verb that cannot be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in REFUSED:
            raise ToolError(f"{args[0]} is refused: {REFUSED[args[0]]}", Exit.USAGE)
        return super().resolve_command(ctx, args)


def of_node(node: str | None) -> str | None:
    """`-n rabbit@host`: the member at that host."""
    return None if node is None else node.rpartition("@")[2]


@click.group(
    name="qpidctl",
    cls=Verbs,
    epilog=EXAMPLES + epilog("qpidctl"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-n", "--node", metavar="[NAME@]HOST", help="As --broker, with the standard port.")
@click.option("-p", "--vhost", default="/", help='The virtual host; "/" unless given.')
@click.option("-q", "--quiet", is_flag=True, help="Do not say what is done.")
@click.option("-s", "--silent", is_flag=True, help="As -q, and no heads of columns.")
@click.option("--formatter", type=click.Choice(FORMATS), default="table", help="Form of a list.")
@click.option("--json", "as_json", is_flag=True, help="The same as --formatter json.")
@with_target
@click.pass_context
def qpidctl(
    ctx: click.Context, /, node: str | None, vhost: str, quiet: bool, silent: bool, formatter: str,
    as_json: bool, broker: str | None, credentials: Credentials, timeout: float,
) -> None:  # fmt: skip
    """Ask and set what a cluster knows: lists, users, permissions, policies, state.

    Options may stand before the verb or behind it.
    """
    ctx.obj = {
        "broker": broker or of_node(node), "credentials": credentials, "timeout": timeout,
        "vhost": vhost, "quiet": quiet or silent, "heads": not silent,
        "form": "json" if as_json else formatter,
    }  # fmt: skip


def said(ctx: click.Context, /, **again: Any) -> Mapping[str, Any]:  # noqa: ANN401  # as click has them
    """The options before the verb, and over them those behind it."""
    found = dict(ctx.obj)
    found |= {name: value for name, value in again.items() if value not in (None, False)}
    if again.get("node"):
        found["broker"] = of_node(again["node"])
    if again.get("silent"):
        found |= {"quiet": True, "heads": False}
    if again.get("as_json"):
        found["form"] = "json"
    return found


def api(found: Mapping[str, Any]) -> Api:
    """The API to ask."""
    return api_of(found["broker"], found["credentials"], found["timeout"])


AGAIN: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--node", metavar="[NAME@]HOST", help="The member to ask."),
    click.option("-p", "--vhost", help="The virtual host."),
    click.option("-q", "--quiet", is_flag=True, help="Do not say what is done."),
    click.option("-s", "--silent", is_flag=True, help="As -q, and no heads of columns."),
    click.option("--formatter", "form", type=click.Choice(FORMATS), help="Form of the list."),
    click.option("--json", "as_json", is_flag=True, help="The same as --formatter json."),
    click.option("-t", "--timeout", type=click.FloatRange(min=0), help="Longest wait."),
    click.option("--no-table-headers", "silent", is_flag=True, hidden=True),
)


def with_common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that may stand behind the verb as well."""
    for option in AGAIN:
        command = option(command)
    return command


def add_listing(verb: str, listing: Listing) -> None:
    """One `list_...`."""
    names = ", ".join(sorted(listing.columns))

    def completed(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
        return [name for name in sorted(listing.columns) if name.startswith(begun)]

    text = f"{listing.help}\n\nColumns: {names}.\n\nWithout any: {' '.join(listing.default)}."

    @qpidctl.command(name=verb, help=text, short_help=listing.help)
    @with_common
    @click.argument("columns", nargs=-1, shell_complete=completed)
    @click.pass_context
    def command(ctx: click.Context, /, columns: tuple[str, ...], **again: object) -> None:
        found = said(ctx, **again)
        # Other manuals separate columns by commas, too.
        chosen = [name for text in columns for name in text.split(",") if name] or listing.default
        for name in chosen:
            if name not in listing.columns:
                raise click.UsageError(f"there is no column '{name}'; there are: {names}")
        vhost = found["vhost"] if listing.per_vhost else None
        where = f" of virtual host {vhost}" if vhost is not None else ""
        note(f"Listing {listing.path}{where} ...", quiet=found["quiet"])
        with answered():
            rows = listing.rows(api(found), vhost, chosen)
        print_rows(chosen, rows, found["form"], heads=found["heads"])


def add_change(verb: str, change: Change) -> None:
    """One verb that changes something."""

    @qpidctl.command(name=verb, help=change.help, short_help=change.help.partition("\n")[0])
    @with_common
    @click.pass_context
    def command(ctx: click.Context, /, **given: Any) -> None:  # noqa: ANN401  # as click has them
        again = {name: given.pop(name) for name in
                 ("node", "vhost", "quiet", "silent", "form", "as_json", "timeout")}  # fmt: skip
        found = said(ctx, **again)
        try:
            doing, call = change.act(found["vhost"], given)
        except ValueError as problem:
            raise ToolError(str(problem), Exit.DATA) from None
        note(f"{doing} ...", quiet=found["quiet"])
        with answered():
            answer = call(api(found))
        if answer:
            print(answer)

    for parameter in change.parameters:
        command.params.append(parameter)


for _verb, _listing in LISTINGS.items():
    add_listing(_verb, _listing)
for _verb, _change in CHANGES.items():
    add_change(_verb, _change)


@qpidctl.command()
@with_common
@click.pass_context
def status(ctx: click.Context, /, **again: object) -> None:
    """Show what the member that is asked says of itself."""
    found = said(ctx, **again)
    with answered():
        states.print_status(api(found), as_json=found["form"] == "json")


@qpidctl.command(name="cluster_status")
@with_common
@click.pass_context
def cluster_status(ctx: click.Context, /, **again: object) -> None:
    """Show the members, who runs, the votes and the alarms."""
    found = said(ctx, **again)
    with answered():
        states.print_cluster(api(found), as_json=found["form"] == "json")


@qpidctl.command()
@with_common
@click.pass_context
def ping(ctx: click.Context, /, **again: object) -> None:
    """Succeed when the member answers."""
    found = said(ctx, **again)
    with answered():
        name = api(found).fields("overview", columns="node").get("node")
    note(f"Ping succeeded: {name} answers", quiet=found["quiet"])


@qpidctl.command(name="await_startup")
@with_common
@click.pass_context
def await_startup(ctx: click.Context, /, **again: object) -> None:
    """Wait until the member serves clients; -t says how long."""
    found = said(ctx, **again)
    states.await_serving(api(found), members=1)


@qpidctl.command(name="await_online_nodes")
@with_common
@click.argument("count", type=click.IntRange(min=1))
@click.pass_context
def await_online_nodes(ctx: click.Context, /, count: int, **again: object) -> None:
    """Wait until so many members serve clients; -t says how long."""
    found = said(ctx, **again)
    states.await_serving(api(found), members=count)


def add_check(verb: str, check: str, text: str) -> None:
    """One health check; its failure is exit code 69."""

    @qpidctl.command(name=verb, help=text)
    @with_common
    @click.pass_context
    def command(ctx: click.Context, /, **again: object) -> None:
        found = said(ctx, **again)
        with answered():
            api(found).get("health", "checks", check)
        note(f"{check}: passed", quiet=found["quiet"])


for _verb, _check, _text in (
    ("check_alarms", "alarms", "Fail when any member has an alarm."),
    ("check_local_alarms", "local-alarms", "Fail when this member has an alarm."),
    ("check_virtual_hosts", "virtual-hosts", "Fail when a virtual host is down."),
    ("check_if_node_is_quorum_critical", "node-is-quorum-critical",
     "Fail when the cluster could not lose this member."),
):  # fmt: skip
    add_check(_verb, _check, _text)


@qpidctl.command(name="export_definitions")
@with_common
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.pass_context
def export_definitions(ctx: click.Context, /, file: str, **again: object) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges and bindings to FILE."""
    found = said(ctx, **again)
    with answered():
        document = api(found).fields("definitions")
    try:
        with click.open_file(file, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2)
            out.write("\n")
    except OSError as problem:
        raise ToolError(f"{file}: {problem.strerror}", Exit.CANNOT_CREATE) from None


@qpidctl.command(name="import_definitions")
@with_common
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.pass_context
def import_definitions(ctx: click.Context, /, file: str, **again: object) -> None:
    """Make what FILE defines; what is there and not in it stays."""
    found = said(ctx, **again)
    try:
        with click.open_file(file, encoding="utf-8") as given:
            document: Json = json.load(given)
    except OSError as problem:
        raise ToolError(f"{file}: {problem.strerror}", Exit.NO_INPUT) from None
    except ValueError as problem:
        raise ToolError(f"{file} is no JSON: {problem}", Exit.DATA) from None
    if not isinstance(document, dict):
        raise ToolError(f"{file} holds no JSON object", Exit.DATA)
    with answered():
        api(found).post("definitions", body=document)


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpidctl, sys.argv[1:])


if __name__ == "__main__":
    main()
