"""`qpidctl`: sets and queries a cluster at any member, with the verbs of rabbitmqctl.

Scripts written for rabbitmqctl run after a change of the command name: verbs, columns, `-p VHOST`,
`-q`, `-s`, `--formatter`, `-t` and exit codes are the same. It uses the HTTP management API, with a
user and a password, and does not talk to the broker's process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from broker import release
from broker.access import passwords
from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.cli.options import run_command
from tools.cli.sections import VerbsInSections
from tools.cli.shared_options import BrokerOption, Seconds, together, with_version
from tools.client import credentials
from tools.client.http_api import Api, Json
from tools.oncall import report
from tools.oncall.answers import asked as asked_of
from tools.operate import states
from tools.operate.listings import LISTINGS, Listing
from tools.operate.output import FORMATS, plain, print_json, print_rows
from tools.operate.questions import QUESTIONS
from tools.operate.refused import ELSEWHERE, REFUSED
from tools.operate.settings import CHANGES, Verb, asked_password
from tools.operate.target import answered, api_of, epilog, note, with_broker, with_timeout
from vsync.types import record

EXAMPLES = """\b
Examples:
  qpidctl list_queues name messages consumers     the queues of "/", three columns
  qpidctl -p shop --formatter json list_queues    those of another virtual host, for a program
  qpidctl add_user ada                            asks for the password
  qpidctl set_permissions -p shop ada ".*" ".*" ".*"
  qpidctl set_policy caps "^orders" '{"max-length": 1000}' --apply-to queues
  qpidctl cluster_status
  qpidctl await_startup --timeout 60
"""


class VerbGroup(VerbsInSections):
    """A group that says what to do instead of a refused verb."""

    sections = tuple(
        (title, re.compile(names))
        for title, names in (
            ("When something is wrong, begin here", "check_cluster|cluster_status|status"),
            ("Checks and waiting", "check_.*|await_.*|is_running|node_health_check|ping"),
            ("Queues, exchanges, consumers",
             "list_(queues|exchanges|bindings|consumers)|(delete|purge|sync|cancel_sync)_queue"),
            ("Connections", "list_(connections|channels)|close_.*"),
            ("Users and permissions", ".*(user|password|permission).*"),
            ("Virtual hosts", ".*vhost.*"),
            ("Policies and parameters", ".*(polic|parameter).*"),
            ("Links to other brokers", ".*(shovel|federation|replica).*"),
            ("Maintenance and definitions", "drain|revive|rebalance|.*definitions|.*version|help"),
        )
    )  # fmt: skip

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in REFUSED:
            raise ToolError(f"{args[0]} is refused: {REFUSED[args[0]]}", Exit.USAGE)
        if args and self.get_command(ctx, args[0]) is None:
            near = " or ".join(get_close_matches(args[0], self.list_commands(ctx), 3, 0.7))
            hint = ELSEWHERE.get(args[0]) or (near and f"is {near} meant?")
            hint = hint or "'qpidctl --help' has them all"
            raise ToolError(f"there is no verb '{args[0]}'; {hint}", Exit.USAGE)
        return super().resolve_command(ctx, args)


def of_node(node: str | None) -> str | None:
    """`-n rabbit@host`: the member at that host."""
    return None if node is None else node.rpartition("@")[2]


@click.group(
    name="qpidctl",
    cls=VerbGroup,
    epilog=EXAMPLES + epilog("qpidctl"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-n", "--node", metavar="[NAME@]HOST", help="Like --broker, with the standard port.")
@click.option("-p", "--vhost", default="/", help="The virtual host. Default /.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report actions.")
@click.option("-s", "--silent", is_flag=True, help="Like -q, and without column headings.")
@click.option("--formatter", "form", type=click.Choice(FORMATS), help="Output format of lists.")
@click.option("--json", "as_json", is_flag=True, help="The same as --formatter json.")
@click.option("-l", "--longnames", is_flag=True, hidden=True)
@with_broker
@together(*credentials.OPTIONS)
@with_timeout
@with_version
@click.pass_context
def qpidctl(ctx: click.Context, /, **given: Any) -> None:  # noqa: ANN401  # as click has them
    """Ask and set what a cluster knows: lists, users, permissions, policies, state.

    Options may be given before or after the verb; those after it win.
    """
    if given["node"] and ctx.get_parameter_source("broker") is ParameterSource.ENVIRONMENT:
        given["broker"] = None  # the command line counts, not the environment
    ctx.obj = given


with_common = together(
    click.option("-n", "--node", metavar="[NAME@]HOST", help="The member to ask."),
    click.option("-p", "--vhost", help="The virtual host."),
    click.option("-q", "--quiet", is_flag=True, help="Do not report actions."),
    click.option("-s", "--silent", is_flag=True, help="Like -q, and without column headings."),
    click.option(
        "--formatter", "form", type=click.Choice(FORMATS), help="Output format of the list."
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --formatter json."),
    click.option("-t", "--timeout", type=Seconds(), help="Longest wait."),
    click.option("--no-table-headers", "silent", is_flag=True, hidden=True),
    click.option("-l", "--longnames", is_flag=True, hidden=True),
    click.option(
        "--broker",
        metavar="BROKER",
        cls=BrokerOption,
        help="The member to ask, as before the verb.",
    ),
    *credentials.OPTIONS,
)
"""Options that may also come after the verb."""
INSTEAD = {
    "node": ("broker",), "broker": ("node",), "password": ("password_file",),
    "password_file": ("password",),
}  # fmt: skip
"""Two ways to say a thing: one of them after the verb cancels the other before it."""


@record
class Asked:
    """The options that every verb has."""

    given: Mapping[str, Any]

    def api(self) -> Api:
        """The API to ask. Raises ToolError."""
        given = dict(self.given)
        broker = given["broker"] or of_node(given["node"])
        return api_of(broker, credentials.taken(given), given["timeout"])

    @property
    def vhost(self) -> str:
        """The virtual host to use."""
        return str(self.given["vhost"])

    @property
    def quiet(self) -> bool:
        """Whether not to say what is done."""
        return bool(self.given["quiet"] or self.given["silent"])

    @property
    def heads(self) -> bool:
        """Whether columns have headings."""
        return not self.given["silent"]

    @property
    def form(self) -> str:
        """One of `FORMATS`."""
        return "json" if self.given["as_json"] else self.given["form"] or FORMATS[0]


def asked(ctx: click.Context, again: dict[str, Any]) -> Asked:
    """The options before the verb, overridden by those after it, which are removed."""
    values = {name: again.pop(name, None) for name in ctx.obj}
    behind = {name: one for name, one in values.items() if one is not None and one is not False}
    other = {one for name in behind for one in INSTEAD.get(name, ())}
    return Asked({**ctx.obj, **dict.fromkeys(other), **behind})


def succeeded(found: Asked, text: str = "") -> None:
    """Report that it went well: in a note, and to a program as each changing verb does."""
    if found.form == "json":
        print_json({"result": "ok", "message": text})
    elif text:
        note(text, quiet=found.quiet)


def told(found: Asked, name: str, text: str) -> None:
    """Print one value; for a program with its name."""
    if found.form == "json":
        print_json({name: text})
    else:
        print(text)


def add_listing(verb: str, listing: Listing) -> None:
    """Add one `list_...` verb."""
    names = ", ".join(sorted(listing.columns))

    def completed(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
        return [name for name in sorted(listing.columns) if name.startswith(begun)]

    text = f"{listing.help}\n\nColumns: {names}.\n\nWithout any: {' '.join(listing.default)}."
    every, user = ("global" in listing.narrowed_by), ("user" in listing.narrowed_by)

    def command(ctx: click.Context, /, columns: tuple[str, ...], **again: Any) -> None:  # noqa: ANN401  # as click has them
        of_user, everywhere = again.pop("of_user", None), again.pop("everywhere", False)
        none = again.pop("offline", False)
        found = asked(ctx, again)
        # Other manuals separate columns by commas, too.
        chosen = [name for text in columns for name in text.split(",") if name] or listing.default
        for name in chosen:
            if name not in listing.columns:
                raise click.UsageError(f"there is no column '{name}'; there are: {names}")
        vhost = found.vhost if listing.per_vhost and not everywhere else None
        where = f" of virtual host {vhost}" if vhost is not None else ""
        where += f" of user {of_user}" if of_user is not None else ""
        note(f"Listing {listing.path}{where} ...", quiet=found.quiet)
        with answered():
            rows = [] if none else listing.rows(found.api(), vhost, chosen, of_user)
        print_rows(chosen, rows, found.form, heads=found.heads)

    made: click.Command = qpidctl.command(name=verb, help=text, short_help=listing.help)(
        click.argument("columns", nargs=-1, shell_complete=completed)(click.pass_context(command))
    )
    with_common(made)
    if listing.of_user:
        made.params.insert(0, click.Argument(["of_user"], metavar="USER"))
    if every:
        made.params.append(
            click.Option(["--global", "everywhere"], is_flag=True, help="Of all virtual hosts.")
        )
    if user:  # the user is given before the verb
        made.params = [one for one in made.params if one.name != "login_user"]
        made.params.append(click.Option(["--user", "of_user"], help="Only of this user."))
    if verb == "list_queues":
        made.params += LOCATIONS


LOCATIONS: list[click.Parameter] = [
    click.Option(["--online"], is_flag=True, expose_value=False,
                 help="All: every queue is on every member."),
    click.Option(["--local"], is_flag=True, expose_value=False,
                 help="All: every queue is on every member."),
    click.Option(["--offline"], is_flag=True, help="None: every queue is on every member."),
]  # fmt: skip
"""How scripts select queues by location."""


def add_verb(name: str, verb: Verb) -> None:
    """Add one verb that changes something, or asks one thing."""

    @qpidctl.command(name=name, help=verb.help, short_help=verb.help.partition("\n")[0])
    @with_common
    @click.pass_context
    def command(ctx: click.Context, /, **given: Any) -> None:  # noqa: ANN401  # as click has them
        found = asked(ctx, given)
        try:
            doing, call = verb.act(found.vhost, given)
        except ValueError as problem:
            raise ToolError(str(problem), Exit.DATA) from None
        note(f"{doing} ...", quiet=found.quiet)
        with answered():
            answer = call(found.api())
        if found.form == "json":
            print_json({"result": "ok", "message": answer or ""})
        elif answer:
            print(answer)

    for parameter in verb.parameters:
        command.params.append(parameter)


for _name, _listing in LISTINGS.items():
    add_listing(_name, _listing)
for _name, _verb in {**CHANGES, **QUESTIONS}.items():
    add_verb(_name, _verb)


def verb(name: str) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Make a function a verb, with the common options."""

    def add(function: Callable[..., None]) -> Callable[..., Any]:
        return qpidctl.command(name=name)(with_common(click.pass_context(function)))

    return add


@verb("status")
@click.option(
    "--unit", type=click.Choice(states.UNITS, case_sensitive=False), default="bytes",
    show_default=True, help="Of memory and disk.",
)  # fmt: skip
def status(ctx: click.Context, /, unit: str, **again: object) -> None:
    """Show what the member that is asked says of itself."""
    found = asked(ctx, again)
    with answered():
        states.print_status(found.api(), unit, as_json=found.form == "json")


@verb("cluster_status")
def cluster_status(ctx: click.Context, /, **again: object) -> None:
    """Show the members, who runs, the votes and the alarms."""
    found = asked(ctx, again)
    with answered():
        states.print_cluster(found.api(), as_json=found.form == "json")


@verb("check_cluster")
def check_cluster(ctx: click.Context, /, **again: object) -> None:
    """Say what is wrong with the cluster, what follows, and what to do: begin here.

    A member tells of all: who is away or late, quorum, alarms, views that come and go,
    certificates, stuck consumers, long queues, shovels and links. Of a list (--broker a,b,c) every
    one is asked, and given a few seconds. 69 when there is anything but notices, or one is silent.
    """
    found = asked(ctx, again)
    with answered():
        answers = asked_of(found.api())
    if found.form == "json":
        print_json(report.document(answers))
    else:
        text = report.text(answers, shutil.get_terminal_size().columns)
        print("\n".join(plain(line) for line in text.split("\n")))
    if answers.grave:
        ctx.exit(Exit.UNAVAILABLE)


@verb("help")
@click.argument("name", metavar="[VERB]", required=False)
def explain(ctx: click.Context, /, name: str | None, **again: object) -> None:
    """List the verbs, or explain one."""
    whole = ctx.find_root()
    if name is not None:
        _, command, _ = qpidctl.resolve_command(whole, [name])
        assert command is not None  # an unknown one is refused
        whole = click.Context(command, parent=whole, info_name=name)
    click.echo(whole.get_help())


@verb("version")
def version(ctx: click.Context, /, **again: object) -> None:
    """Print the release of this command."""
    told(asked(ctx, again), "version", release.version())


@verb("hash_password")
@click.argument("new_password", required=False, metavar="[PASSWORD]")
def hash_password(ctx: click.Context, /, new_password: str | None, **again: object) -> None:
    """Print the hash of a password; nobody is asked, nothing is changed.

    Definitions, add_user --pre-hashed-password and the file of --auth-file take it.
    """
    try:
        password = asked_password({"new_password": new_password})
    except ValueError as problem:
        raise ToolError(str(problem), Exit.DATA) from None
    found = passwords.hashed(password, os.urandom(passwords.SALT_BYTES))
    told(asked(ctx, again), "hash", found)


@verb("ping")
def ping(ctx: click.Context, /, **again: object) -> None:
    """Succeed when the member answers."""
    found = asked(ctx, again)
    with answered():
        name = found.api().fields("overview", columns="node").get("node")
    succeeded(found, f"Ping succeeded: {name} answers")


@verb("await_startup")
def await_startup(ctx: click.Context, /, **again: object) -> None:
    """Wait until the member serves clients; -t says how long."""
    found = asked(ctx, again)
    states.await_serving(found.api(), members=1)
    succeeded(found)


@verb("await_online_nodes")
@click.argument("count", type=click.IntRange(min=1))
def await_online_nodes(ctx: click.Context, /, count: int, **again: object) -> None:
    """Wait until so many members serve clients; -t says how long."""
    found = asked(ctx, again)
    states.await_serving(found.api(), members=count)
    succeeded(found)


@verb("await_online_quorum_plus_one")
def await_online_quorum_plus_one(ctx: click.Context, /, **again: object) -> None:
    """Wait until the cluster could lose this member; -t says how long."""
    found = asked(ctx, again)
    states.await_check(found.api(), "node-is-quorum-critical")
    succeeded(found)


@verb("await_online_synchronized_mirror")
def await_online_synchronized_mirror(ctx: click.Context, /, **again: object) -> None:
    """Wait until another member has the whole state, if one is joining; -t says how long."""
    found = asked(ctx, again)
    states.await_check(found.api(), "node-is-mirror-sync-critical")
    succeeded(found)


@verb("export_definitions")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--format", "_format", type=click.Choice(("json",)), expose_value=False, hidden=True)
def export_definitions(ctx: click.Context, /, file: str, **again: object) -> None:
    """Write users, virtual hosts, permissions, policies, queues, exchanges and bindings to FILE.

    It has hashes of passwords, and those of shovels as they are: a new file is its owner's alone.
    """
    found = asked(ctx, again)
    with answered():
        document = found.api().fields("definitions")
    to_file = partial(open, opener=partial(os.open, mode=0o600))
    write = click.open_file if file == "-" else to_file
    try:
        with write(file, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=2)
            out.write("\n")
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise ToolError(f"{file}: {problem.strerror}", Exit.CANNOT_CREATE) from None


@verb("import_definitions")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--format", "_format", type=click.Choice(("json",)), expose_value=False, hidden=True)
def import_definitions(ctx: click.Context, /, file: str, **again: object) -> None:
    """Make what FILE, or stdin, defines; what is there and not in it stays.

    An entry that is refused prevents no other: all of them are listed at the end, with code 65.
    """
    found = asked(ctx, again)
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
        found.api().post("definitions", body=document)
    succeeded(found)


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpidctl, sys.argv[1:])


if __name__ == "__main__":
    main()
