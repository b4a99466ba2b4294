"""`qpid-config`: queues, exchanges and bindings, with the command line of Qpid's tool.

`queue_arguments` translates the options of Qpid's manual. An option without a counterpart is
refused with the reason, never silently ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from broker.exit_codes import Exit
from broker.machine.policies.qpid_options import PREFIX
from broker.machine.requests.arguments import QUEUE_ARGUMENTS
from tools.cli.answers import Json, Object, fields
from tools.cli.failures import ToolError, meant
from tools.cli.options import run_command
from tools.cli.shared_options import with_version
from tools.client.credentials import Credentials
from tools.client.http_api import Api, ApiError
from tools.operate.output import plain, print_json, print_rows
from tools.operate.target import answered, api_of, epilog, with_target

EXAMPLES = """\b
Examples:
  qpid-config                                      count queues and exchanges
  qpid-config queues                               list the queues
  qpid-config -r queues 'orders*'                  list queues by name, with their bindings
  qpid-config add queue orders --durable --max-queue-count 1000 --limit-policy ring
  qpid-config add queue prices --durable --lvq-key ticker
  qpid-config add queue orders --durable --group-header customer --shared-groups
  qpid-config add exchange topic events --durable
  qpid-config bind events orders 'order.#'
  qpid-config bind h orders '' all format=pdf      for an exchange of type headers
  qpid-config unbind events orders 'order.#'
  qpid-config del queue orders --force

A queue that is in use or not empty is deleted only with --force. Options of Qpid's command that
have no meaning here are refused with the reason.
"""
OVERFLOW = {
    "none": None,
    "reject": "reject-publish",
    "ring": "drop-head",
    "ring-strict": "drop-head",
    "flow-to-disk": None,
}
"""Limits count waiting messages: `ring` never drops a message that a consumer holds."""
NO_COUNTERPART = {
    "generate_queue_events": "there are no queue events",
    "file_size": "the store has no journal files",
    "file_count": "the store has no journal files",
    "flow_stop_count": "publishers are slowed for all queues alike",
    "flow_stop_size": "publishers are slowed for all queues alike",
    "start_replica": "qpid-ha replicate QUEUE URL keeps a queue the same as one elsewhere",
    "msg_sequence": "exchanges do not number messages",
    "ive": "exchanges do not keep an initial value",
}


def refuse(given: dict[str, object]) -> None:
    """Exit because of an option that would have no effect."""
    for name, reason in NO_COUNTERPART.items():
        if given.pop(name, None):
            option = "--" + name.replace("_", "-")
            raise ToolError(f"{option} has no counterpart here: {reason}", Exit.USAGE)


@click.group(
    name="qpid-config",
    invoke_without_command=True,
    epilog=EXAMPLES + epilog("qpid-config"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-a", "--broker-addr", "addressed", metavar="BROKER", help="The same as --broker.")
@click.option("-r", "--recursive", "-b", "--bindings", "bindings", is_flag=True,
              help="Show bindings in lists. (The broker is given by -a.)")  # fmt: skip
@click.option("-V", "--vhost", default="/", help="The virtual host. Default /.")
@click.option("--json", "as_json", is_flag=True, help="Print lists as one JSON document.")
@with_target
@with_version
@click.pass_context
def qpid_config(
    ctx: click.Context, /, addressed: str | None, bindings: bool, vhost: str, as_json: bool,
    broker: str | None, credentials: Credentials, timeout: float,
) -> None:  # fmt: skip
    """Show and change queues, exchanges and bindings."""
    api = api_of(addressed or broker, credentials, timeout)
    ctx.obj = {"api": api, "vhost": vhost, "bindings": bindings, "as_json": as_json}
    if ctx.invoked_subcommand is None:
        with answered():
            overview(api, vhost, as_json=as_json)


def overview(api: Api, vhost: str, *, as_json: bool) -> None:
    """Count the objects."""
    exchanges, queues = api.rows("exchanges", vhost), api.rows("queues", vhost)
    types: dict[str, int] = {}
    for one in exchanges:
        types[str(one.get("type"))] = types.get(str(one.get("type")), 0) + 1
    durable = sum(1 for one in queues if one.get("durable"))
    document: Object = {
        "exchanges": {"total": len(exchanges), **dict(sorted(types.items()))},
        "queues": {"total": len(queues), "durable": durable, "other": len(queues) - durable},
    }
    if as_json:
        print_json(document)
        return
    for title, counts in document.items():
        assert isinstance(counts, dict)
        print(f"Total {title.capitalize()}: {counts.pop('total')}")
        for name, count in counts.items():
            print(f"{name:>16}: {count}")
        print()


def matching(rows: list[Object], pattern: str | None) -> list[Object]:
    """Those with matching names: `*` stands for any characters; without it, a prefix matches."""
    if pattern is None:
        return rows
    starts = pattern.rstrip("*")
    if "*" in starts:
        raise click.UsageError("a filter has its * at the end")
    return [row for row in rows if str(row.get("name", "")).startswith(starts)]


def listed(ctx: click.Context, kind: str, pattern: str | None) -> None:
    """Print queues or exchanges."""
    api, vhost = ctx.obj["api"], ctx.obj["vhost"]
    with answered():
        rows = matching(api.rows(kind, vhost), pattern)
        found = api.rows("bindings", vhost) if ctx.obj["bindings"] else []
    end = "destination" if kind == "queues" else "source"
    of = {str(row.get("name")): [one for one in found if one.get(end) == row.get("name")]
          for row in rows}  # fmt: skip
    if ctx.obj["as_json"]:
        print_json([{**row, "bindings": [*of[str(row.get("name"))]]} if found else row
                    for row in rows])  # fmt: skip
        return
    if not ctx.obj["bindings"]:
        print_rows(("Name", "Attributes"), [(row.get("name"), attributes(row)) for row in rows])
        return
    for row in rows:
        name = str(row.get("name"))
        print(f"{'Queue' if kind == 'queues' else 'Exchange'} '{plain(name)}' {attributes(row)}")
        for one in of[name]:
            other = one.get("source" if kind == "queues" else "destination")
            more = f" {plain(one['arguments'])}" if one.get("arguments") else ""
            print(f"    bind [{plain(one.get('routing_key'))}] => {plain(other)}{more}")


def attributes(row: Object) -> str:
    """The options that would declare it like this."""
    words = [str(row["type"])] if "type" in row and "messages" not in row else []
    words += ["--durable"] if row.get("durable") else []
    words += ["auto-del"] if row.get("auto_delete") else []
    words += ["excl"] if row.get("exclusive") else []
    given = sorted(fields(row.get("arguments")).items())
    words += [f"--argument {name}={plain(value)}" for name, value in given]
    return " ".join(words)


@qpid_config.command()
@click.argument("pattern", required=False)
@click.pass_context
def queues(ctx: click.Context, /, pattern: str | None) -> None:
    """List the queues, or those whose names begin with PATTERN."""
    listed(ctx, "queues", pattern)


@qpid_config.command()
@click.argument("pattern", required=False)
@click.pass_context
def exchanges(ctx: click.Context, /, pattern: str | None) -> None:
    """List the exchanges, or those whose names begin with PATTERN."""
    listed(ctx, "exchanges", pattern)


@qpid_config.group()
def add() -> None:
    """Declare a queue or an exchange."""


REPLICATE = click.option(
    "--replicate",
    type=click.Choice(["none", "configuration", "all"]),
    expose_value=False,
    help="Accepted without effect: every member holds everything, messages too.",
)
ARGUMENT = click.option(
    "--argument", "arguments", multiple=True, metavar="NAME=VALUE",
    help="A further argument of the declaration; may be repeated.",
)  # fmt: skip


@add.command(name="queue")
@click.argument("name")
@click.option("--durable", is_flag=True, help="Survives a restart of all members.")
@click.option("--auto-delete", is_flag=True, help="Deleted when its last consumer is gone.")
@click.option(
    "--max-queue-size", type=click.IntRange(min=0), help="Limit in bytes of message bodies."
)
@click.option("--max-queue-count", type=click.IntRange(min=0), help="Limit in messages.")
@click.option(
    "--limit-policy",
    type=click.Choice([*OVERFLOW]),
    help="At a limit: reject the new message (the default), drop the oldest (ring), or nothing "
    "(flow-to-disk), since long queues go to disk by themselves. A stream drops the oldest.",
)
@click.option("--alternate-exchange", metavar="NAME", help="Exchange for dead messages.")
@click.option(
    "--cluster-durable",
    is_flag=True,
    help="Accepted without effect: every queue is on every member.",
)
@REPLICATE
@click.option("--file-size", type=int, hidden=True)
@click.option("--file-count", type=int, hidden=True)
@click.option("--flow-stop-size", type=int, hidden=True)
@click.option("--flow-stop-count", type=int, hidden=True)
@click.option("--start-replica", hidden=True)
@click.option(
    "--lvq-key",
    metavar="HEADER",
    help="A last-value queue: keep only the newest message for each value of HEADER.",
)
@click.option(
    "--group-header",
    metavar="HEADER",
    help="Messages with the same value of HEADER form a group, which stays with one consumer as "
    "long as that consumes.",
)
@click.option(
    "--shared-groups",
    is_flag=True,
    help="With --group-header: a group is free when no consumer holds any of its messages.",
)
@click.option("--generate-queue-events", type=int, hidden=True)
@ARGUMENT
@click.pass_context
def add_queue(
    ctx: click.Context, /, name: str, durable: bool, auto_delete: bool, **given: object
) -> None:
    """Declare a queue; the same again is no error, another one is."""
    refuse(given)
    body: Object = {
        "durable": durable, "auto_delete": auto_delete, "arguments": queue_arguments(given),
    }  # fmt: skip
    with answered():
        ctx.obj["api"].put("queues", ctx.obj["vhost"], name, body=body)


def queue_arguments(given: Mapping[str, Any]) -> Object:
    """The arguments of a declaration for the options of the manual."""
    found: Object = {}
    limit_policy = given["limit_policy"]
    if given["max_queue_count"] is not None:
        found["x-max-length"] = given["max_queue_count"]
    if given["max_queue_size"] is not None:
        found["x-max-length-bytes"] = given["max_queue_size"]
    if limit_policy not in (None, "none") and not found:
        raise click.UsageError("--limit-policy needs --max-queue-size or --max-queue-count")
    further = pairs(given["arguments"])
    # A stream drops its oldest messages at a limit, and takes no other policy.
    by_default = "none" if further.get("x-queue-type") == "stream" else "reject"
    overflow = OVERFLOW[limit_policy or by_default]
    if limit_policy == "flow-to-disk":
        found = {}
    elif found and overflow:
        found["x-overflow"] = overflow
    if given["lvq_key"] is not None:
        found["qpid.last_value_queue_key"] = given["lvq_key"]
    if given["group_header"] is not None:
        found["qpid.group_header_key"] = given["group_header"]
    if given["shared_groups"]:
        if given["group_header"] is None:
            raise click.UsageError("--shared-groups needs --group-header: which header says it")
        found["qpid.shared_msg_group"] = True
    if given["alternate_exchange"] is not None:
        found["x-dead-letter-exchange"] = given["alternate_exchange"]
    for name in further:
        # Brokers accept unknown arguments, for the sake of libraries, so a mistyped limit would
        # limit nothing.
        if name not in QUEUE_ARGUMENTS and not name.startswith(PREFIX):
            question = meant(name, QUEUE_ARGUMENTS)
            if question:
                raise click.UsageError(
                    f"--argument {name}: no queue argument that has an effect{question}"
                )
    return found | further


def pairs(texts: tuple[str, ...]) -> Object:
    """NAME=VALUE; a VALUE of digits is a number."""
    found: Object = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.UsageError(f"'{text}' is not of the form NAME=VALUE")
        digits = value.removeprefix("-")
        number = digits.isascii() and digits.isdigit()
        found[name] = int(value) if number else {"true": True, "false": False}.get(value, value)
    return found


KINDS = (
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-modulus-hash",
    "x-random",
)


@add.command(name="exchange")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--durable", is_flag=True, help="Survives a restart of all members.")
@click.option("--auto-delete", is_flag=True, help="Deleted when its last binding is gone.")
@click.option(
    "--alternate-exchange", metavar="NAME", help="Exchange for messages that it cannot route."
)
@REPLICATE
@click.option("--sequence", "msg_sequence", is_flag=True, hidden=True)
@click.option("--ive", is_flag=True, hidden=True)
@ARGUMENT
@click.pass_context
def add_exchange(
    ctx: click.Context, /, kind: str, name: str, durable: bool, auto_delete: bool,
    alternate_exchange: str | None, arguments: tuple[str, ...], **given: object,
) -> None:  # fmt: skip
    """Declare an exchange; the same again is no error, another one is."""
    refuse(given)
    found = pairs(arguments)
    if alternate_exchange is not None:
        found["alternate-exchange"] = alternate_exchange
    body: Object = {
        "type": kind, "durable": durable, "auto_delete": auto_delete, "arguments": found,
    }  # fmt: skip
    with answered():
        ctx.obj["api"].put("exchanges", ctx.obj["vhost"], name, body=body)


@qpid_config.group(name="del")
def delete() -> None:
    """Delete a queue or an exchange."""


@delete.command(name="queue")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if it is in use and not empty.")
@click.option("--force-if-used", is_flag=True, help="Even if it is in use.")
@click.option("--force-if-not-empty", is_flag=True, help="Even if it is not empty.")
@click.pass_context
def delete_queue(
    ctx: click.Context, /, name: str, force: bool, force_if_used: bool, force_if_not_empty: bool
) -> None:
    """Delete a queue that is empty and not used, or with --force any."""
    only: dict[str, bool] = {}
    if not (force or force_if_used):
        only["if-unused"] = True
    if not (force or force_if_not_empty):
        only["if-empty"] = True
    try:
        with answered():
            ctx.obj["api"].delete("queues", ctx.obj["vhost"], name, only=only)
    except ToolError as problem:
        if only and problem.code is Exit.DATA:
            raise ToolError(f"{problem}; --force deletes it all the same", problem.code) from None
        raise


@delete.command(name="exchange")
@click.argument("name")
@click.pass_context
def delete_exchange(ctx: click.Context, /, name: str) -> None:
    """Delete an exchange and its bindings."""
    with answered():
        ctx.obj["api"].delete("exchanges", ctx.obj["vhost"], name)


def end_of(api: Api, vhost: str, name: str) -> str:
    """Whether a binding leads to the queue or to the exchange of this name: the queue first."""
    try:
        api.get("queues", vhost, name, columns="name")
    except ApiError as problem:
        if problem.status != 404:
            raise
        return "e"
    return "q"


@qpid_config.command()
@click.argument("exchange")
@click.argument("name")
@click.argument("key", default="")
@click.argument("match", type=click.Choice(["all", "any"]), required=False)
@click.argument("headers", nargs=-1)
@click.pass_context
def bind(
    ctx: click.Context, /, exchange: str, name: str, key: str, match: str | None,
    headers: tuple[str, ...],
) -> None:  # fmt: skip
    """Bind queue NAME (or exchange NAME) to EXCHANGE by KEY; HEADERS: all|any, then NAME=VALUE."""
    api, vhost = ctx.obj["api"], ctx.obj["vhost"]
    found: dict[str, Json] = {"x-match": match, **pairs(headers)} if match else {}
    body: Object = {"routing_key": key, "arguments": found}
    with answered():
        kind = end_of(api, vhost, name)
        api.post("bindings", vhost, "e", exchange, kind, name, body=body)


@qpid_config.command()
@click.argument("exchange")
@click.argument("name")
@click.argument("key", default="")
@click.pass_context
def unbind(ctx: click.Context, /, exchange: str, name: str, key: str) -> None:
    """Remove every binding of NAME to EXCHANGE by KEY."""
    api, vhost = ctx.obj["api"], ctx.obj["vhost"]
    with answered():
        kind = end_of(api, vhost, name)
        gone = [
            str(one["properties_key"])
            for one in api.rows("bindings", vhost, "e", exchange, kind, name)
            if one.get("routing_key") == key
        ]
        for found in gone:
            api.delete("bindings", vhost, "e", exchange, kind, name, found)
    if not gone:
        raise ToolError(f"'{name}' is not bound to '{exchange}' by '{key}'", Exit.USAGE)


@qpid_config.command(name="reload-acl")
def reload_acl() -> None:
    """Refused: there is no file of rules; users and permissions are set by qpidctl."""
    raise ToolError("there is no file to reload: see qpidctl set_permissions", Exit.USAGE)


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_config, sys.argv[1:])


if __name__ == "__main__":
    main()
