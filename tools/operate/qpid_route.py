"""`qpid-route`: links between clusters, with the command line of Qpid's tool."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tools.cli.options import run_command
from tools.cli.shared_options import with_version
from tools.client.credentials import Credentials, with_credentials
from tools.client.http_api import Api, ApiError
from tools.client.target_options import with_broker_argument
from tools.operate.output import plain, print_json, print_rows
from tools.operate.routes import Peer, Route, Routes, peer_of
from tools.operate.target import answered, api_of, epilog, note, with_timeout

Command = TypeVar("Command", bound=Callable[..., Any])
EXAMPLES = """\
There are two kinds of addresses. The cluster that runs the route is given by its management API
(host:15672). It connects to the other cluster's AMQP port (host:5672) as the user in that address:
user/password@host, or amqps://user:password@host?cacertfile=FILE. By default the destination runs
the route and pulls; with --src-local the source runs it and pushes, and the addresses swap kinds.

\b
Examples: near pulls from far what it has bindings for in 'news', and everything in 'logs'
  qpid-route dynamic add near link/secret@far news
  qpid-route route add near link/secret@far logs '#'
  qpid-route route list near
  qpid-route link list near
  qpid-route -e dynamic del near far news

\b
near pushes messages that match eu.# in its exchange 'orders', and all of its queue 'work'
  qpid-route -s route add link/secret@far near orders 'eu.#'
  qpid-route -s queue add link/secret@far near orders work

Routes are made of federation upstreams, policies and shovels whose names begin with 'qpid-route';
qpidctl federation_status and shovel_status show them, too. All definitions are durable. Tags and
exclude-lists are not needed: links detect loops by the names of clusters.
"""
MECHANISMS = {"PLAIN": "", "EXTERNAL": "auth_mechanism=external"}


@click.group(
    name="qpid-route",
    epilog=EXAMPLES + epilog("qpid-route"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-V", "--vhost", default="/", help="The virtual host of the cluster. Default /.")
@click.option("-s", "--src-local", is_flag=True,
              help="The source broker pushes; by default the destination pulls.")  # fmt: skip
@click.option("-e", "--del-empty-link", is_flag=True, help="Delete the link with its last route.")
@click.option(
    "-d", "--durable", is_flag=True, help="Accepted without effect: all definitions are durable."
)
@click.option("--transport", type=click.Choice(("tcp", "ssl")), default="tcp",
              help="Transport to the other broker; amqps://host implies ssl.")  # fmt: skip
@click.option("--client-sasl-mechanism", "mechanism", metavar="MECH", default="PLAIN",
              help="PLAIN, or EXTERNAL with amqps://host?certfile=FILE&keyfile=FILE.")  # fmt: skip
@click.option("--credit", type=click.IntRange(1, 65_535), metavar="N",
              help="Unconfirmed messages per route or queue.")  # fmt: skip
@click.option("--ack", type=click.IntRange(0), metavar="N",
              help="Accepted without effect: everything that arrives is acknowledged.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only what was asked for.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Accepted without effect: every action is reported anyway.",
)
@click.option("--json", "as_json", is_flag=True, help="Print lists as one JSON document.")
@with_credentials
@with_timeout
@with_version
@click.pass_context
def qpid_route(
    ctx: click.Context, /, credentials: Credentials, timeout: float, **given: object
) -> None:
    """Show and change routes and links between clusters."""
    ctx.obj = {**given, "credentials": credentials, "timeout": timeout}


def _mechanism(given: dict[str, Any], mechanism: str | None) -> str:
    name = (mechanism or given["mechanism"]).upper()
    if name not in MECHANISMS:
        known = " and ".join(MECHANISMS)
        raise click.UsageError(f"links log in by {known}, not by '{name}'")
    return MECHANISMS[name]


class _Ends:
    """The cluster that is asked, and the broker at the other end."""

    def __init__(
        self, ctx: click.Context, destination: str, source: str, mechanism: str | None = None
    ) -> None:
        given = ctx.obj
        self.push = bool(given["src_local"])
        here, there = (source, destination) if self.push else (destination, source)
        self.api = api_of(here, given["credentials"], given["timeout"])
        self.routes = Routes(self.api, given["vhost"])
        self.peer: Peer = peer_of(
            there, tls=given["transport"] == "ssl", mechanism=_mechanism(given, mechanism)
        )

    def deleted(self, ctx: click.Context, kind: str, exchange: str, key: str) -> None:
        """Delete this one route."""
        with answered():
            found = [
                one for one in self.routes.listed()
                if (one.kind, one.push, one.peer, one.exchange, one.key)
                == (kind, self.push, self.peer.name, exchange, key)
            ]  # fmt: skip
            if not found:
                raise click.UsageError(
                    "there is no such route; route list shows those that are, and --src-local "
                    "names one that is pushed"
                )
            said = self.routes.delete(found[0], empty_link=ctx.obj["del_empty_link"])
        note(said or "Deleted.", quiet=ctx.obj["quiet"] and not said)


def with_ends(command: Command) -> Command:
    """The two brokers as arguments."""
    for one in ("SRC-BROKER", "DEST-BROKER"):
        name = one.lower().replace("-", "_")
        command = click.argument(name, metavar=one)(command)
    return command


def refuse_tags(tag: str | None, exclude: str | None) -> None:
    """Refuse tags: Qpid finds loops by tags set by operators; here they are not needed."""
    if tag or exclude:
        raise click.UsageError(
            "a tag and an exclude-list have no counterpart: links find loops by the names of "
            "clusters; give an empty text for each to name a mechanism"
        )


# -- dynamic -------------------------------------------------------------------------------------


@qpid_route.group()
def dynamic() -> None:
    """Routes that follow what is bound to an exchange at the destination."""


def _pulled(ctx: click.Context) -> None:
    if ctx.obj["src_local"]:
        raise click.UsageError(
            "a dynamic route is run by the destination, which knows what is bound: leave "
            "--src-local out"
        )


@dynamic.command("add")
@with_ends
@click.argument("exchange")
@click.argument("tag", required=False)
@click.argument("exclude_list", required=False)
@click.argument("mechanism", required=False)
@click.pass_context
def dynamic_add(
    ctx: click.Context, dest_broker: str, src_broker: str, exchange: str, tag: str | None,
    exclude_list: str | None, mechanism: str | None,
) -> None:  # fmt: skip
    """What is bound to EXCHANGE at the destination comes from that of the source."""
    _pulled(ctx)
    refuse_tags(tag, exclude_list)
    ends = _Ends(ctx, dest_broker, src_broker, mechanism)
    with answered():
        ends.routes.add_dynamic(ends.peer, exchange)
    note(f"Exchange '{exchange}' takes from {ends.peer.name}.", quiet=ctx.obj["quiet"])


@dynamic.command("del")
@with_ends
@click.argument("exchange")
@click.pass_context
def dynamic_del(ctx: click.Context, dest_broker: str, src_broker: str, exchange: str) -> None:
    """End that."""
    _pulled(ctx)
    _Ends(ctx, dest_broker, src_broker).deleted(ctx, "dynamic", exchange, "")


# -- static --------------------------------------------------------------------------------------


@qpid_route.group()
def route() -> None:
    """Routes by one key; and lists of all routes."""


@route.command("add")
@with_ends
@click.argument("exchange")
@click.argument("routing_key")
@click.argument("tag", required=False)
@click.argument("exclude_list", required=False)
@click.argument("mechanism", required=False)
@click.pass_context
def route_add(
    ctx: click.Context, dest_broker: str, src_broker: str, exchange: str, routing_key: str,
    tag: str | None, exclude_list: str | None, mechanism: str | None,
) -> None:  # fmt: skip
    """What is published to EXCHANGE at the source by ROUTING-KEY goes to that of the destination.

    Pulled messages do not wait while the link is down (dynamic does), pushed ones do.
    """
    refuse_tags(tag, exclude_list)
    ends = _Ends(ctx, dest_broker, src_broker, mechanism)
    with answered():
        ends.routes.add_static(
            ends.peer, exchange, routing_key, push=ends.push, credit=ctx.obj["credit"]
        )
    note(f"Exchange '{exchange}', key '{routing_key}': {_way(ends)}.", quiet=ctx.obj["quiet"])


def _way(ends: _Ends) -> str:
    return f"{'to' if ends.push else 'from'} {ends.peer.name}"


@route.command("del")
@with_ends
@click.argument("exchange")
@click.argument("routing_key")
@click.pass_context
def route_del(
    ctx: click.Context, dest_broker: str, src_broker: str, exchange: str, routing_key: str
) -> None:
    """End that."""
    _Ends(ctx, dest_broker, src_broker).deleted(ctx, "route", exchange, routing_key)


def _asked(ctx: click.Context, broker: str) -> tuple[Api, Routes]:
    api = api_of(broker, ctx.obj["credentials"], ctx.obj["timeout"])
    return api, Routes(api, ctx.obj["vhost"])


@route.command("list")
@with_broker_argument()
@click.pass_context
def route_list(ctx: click.Context, broker: str) -> None:
    """All routes that a cluster runs: destination, source, exchange, key."""
    api, routes = _asked(ctx, broker)
    with answered():
        found = [one.words(str(api.address)) for one in routes.listed()]
    if ctx.obj["as_json"]:
        names = ("destination", "source", "exchange", "key")
        print_json([dict(zip(names, one, strict=True)) for one in found])
        return
    for words in found:
        print(*map(plain, words))


@route.command("flush")
@with_broker_argument()
@click.pass_context
def route_flush(ctx: click.Context, broker: str) -> None:
    """End all routes that a cluster runs."""
    _, routes = _asked(ctx, broker)
    with answered():
        found = routes.listed()
        said = [routes.delete(one, empty_link=ctx.obj["del_empty_link"]) for one in found]
    for one in filter(None, said):
        note(one, quiet=False)
    note(f"{len(found)} routes are deleted.", quiet=ctx.obj["quiet"])


@route.command("map")
@with_broker_argument()
@click.option("--at", "places", multiple=True, metavar="AMQP=API",
              help="Management API of the broker whose AMQP port is HOST:PORT. Default: that host, "
                   "with port and login of the first broker.")  # fmt: skip
@click.pass_context
def route_map(ctx: click.Context, broker: str, places: tuple[str, ...]) -> None:
    """All routes of a cluster, and of those that it is linked to, and so on."""
    known = dict(one.partition("=")[::2] for one in places)
    api, _ = _asked(ctx, broker)
    pending, seen = [(str(api.address), api)], {str(api.address)}
    places_asked = {str(api.address): str(api.address)}
    found: list[tuple[str, Route]] = []
    asked: list[tuple[str, str]] = []
    for here, at in pending:  # grows while it runs
        try:
            routes = Routes(at, ctx.obj["vhost"]).listed()
            asked.append((here, "Ok"))
        except ApiError as problem:
            asked.append((here, f"Failed: {problem}"))
            continue
        found += [(here, one) for one in routes]
        for peer in dict.fromkeys(one.peer for one in routes):
            if peer not in seen:
                seen.add(peer)
                where = known.get(peer) or f"{peer.rpartition(':')[0]}:{api.address.port}"
                if where in places_asked:
                    whose = places_asked[where]
                    asked.append((peer, f"Not asked: {where} is {whose}; give --at {peer}=..."))
                    continue
                places_asked[where] = peer
                pending.append((peer, api_of(where, ctx.obj["credentials"], ctx.obj["timeout"])))
    if ctx.obj["as_json"]:
        print_json({"brokers": [{"name": name, "result": said} for name, said in asked],
                    "routes": [[*one.words(here)] for here, one in found]})  # fmt: skip
        return
    _print_map(asked, found)


def _print_map(asked: list[tuple[str, str]], found: list[tuple[str, Route]]) -> None:
    print("Finding Linked Brokers:")
    for name, said in asked:
        print(f"  {name}... {said}")
    print("\nDynamic Routes:")
    for here, one in found:
        if one.kind == "dynamic":
            print(f"  {here} <= {plain(one.peer)}  exchange {plain(one.exchange)}")
    print("\nStatic Routes:")
    for here, one in found:
        if one.kind != "dynamic":
            to, source, exchange, key = map(plain, one.words(here))
            print(f"  {to} <= {source}  exchange {exchange}  key {key}")


# -- queues and links ----------------------------------------------------------------------------


@qpid_route.group()
def queue() -> None:
    """Routes that take all of a queue."""


@queue.command("add")
@with_ends
@click.argument("exchange")
@click.argument("queue_name", metavar="QUEUE")
@click.argument("mechanism", required=False)
@click.pass_context
def queue_add(
    ctx: click.Context, dest_broker: str, src_broker: str, exchange: str, queue_name: str,
    mechanism: str | None,
) -> None:  # fmt: skip
    """What QUEUE of the source holds goes to EXCHANGE of the destination, once and in order."""
    ends = _Ends(ctx, dest_broker, src_broker, mechanism)
    with answered():
        ends.routes.add_queue(
            ends.peer, exchange, queue_name, push=ends.push, credit=ctx.obj["credit"]
        )
    note(f"Queue '{queue_name}', exchange '{exchange}': {_way(ends)}.", quiet=ctx.obj["quiet"])


@queue.command("del")
@with_ends
@click.argument("exchange")
@click.argument("queue_name", metavar="QUEUE")
@click.pass_context
def queue_del(
    ctx: click.Context, dest_broker: str, src_broker: str, exchange: str, queue_name: str
) -> None:
    """End that."""
    _Ends(ctx, dest_broker, src_broker).deleted(ctx, "queue", exchange, queue_name)


@qpid_route.group()
def link() -> None:
    """Links: brokers at the other end; a route makes its own."""


@link.command("add")
@with_ends
@click.argument("mechanism", required=False)
@click.pass_context
def link_add(ctx: click.Context, dest_broker: str, src_broker: str, mechanism: str | None) -> None:
    """Define how the destination reaches the source, or with another user than before."""
    _pulled(ctx)
    ends = _Ends(ctx, dest_broker, src_broker, mechanism)
    with answered():
        ends.routes.add_link(ends.peer)
    note(f"There is a link to {ends.peer.name}.", quiet=ctx.obj["quiet"])


@link.command("del")
@with_ends
@click.pass_context
def link_del(ctx: click.Context, dest_broker: str, src_broker: str) -> None:
    """Forget it, if no route needs it."""
    _pulled(ctx)
    ends = _Ends(ctx, dest_broker, src_broker)
    with answered():
        ends.routes.delete_link(ends.peer.name)
    note("Deleted.", quiet=ctx.obj["quiet"])


@link.command("list")
@with_broker_argument()
@click.pass_context
def link_list(ctx: click.Context, broker: str) -> None:
    """Where links go, and how they are: Operational, Connecting, Waiting (with the last error)."""
    _, routes = _asked(ctx, broker)
    with answered():
        found = routes.links()
    heads = ("Broker", "Durable", "State", "Last Error")
    rows = [(peer, "Y", state, error) for peer, state, error in found]
    if ctx.obj["as_json"]:
        names = [head.lower().replace(" ", "_") for head in heads]
        print_json([dict(zip(names, one, strict=True)) for one in rows])
    else:
        print_rows(heads, rows)


def main() -> None:
    """Entry point."""
    run_command(qpid_route, sys.argv[1:])


if __name__ == "__main__":
    main()
