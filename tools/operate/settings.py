"""The verbs of qpidctl that change something: their arguments, and their requests to the API."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeAlias

import click

from broker.machine.policies.settings import APPLY_TO, KEYS, OPERATOR_KEYS
from tools.cli.failures import meant
from tools.client.credentials import has_terminal
from tools.client.http_api import Api, ApiError, Json, LacksTag, Object
from vsync.types import record

Given: TypeAlias = Mapping[str, Any]
Act: TypeAlias = Callable[[str, Given], tuple[str, Callable[[Api], str | None]]]
"""From a virtual host and the arguments: a description of the action, and the call that does it.
The call may return lines to print. Raises ValueError for bad data."""


@record
class Verb:
    """One verb."""

    help: str
    parameters: tuple[click.Parameter, ...]
    act: Act


def arguments(*names: str) -> tuple[click.Parameter, ...]:
    """Positional arguments."""
    return tuple(click.Argument([name]) for name in names)


COMPONENTS = ("shovel", "federation-upstream", "federation-upstream-set", "queue-replica")
"""The components whose parameters a broker acts on."""
TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
PASSWORD = click.Argument(["new_password"], required=False, metavar="[PASSWORD]")
"""Asked for if it is not given, so that it need not be on a command line."""


def asked_password(given: Given, *, twice: bool = True) -> str:
    """The given password, or one typed now, or the line that a script pipes in."""
    found = given["new_password"]
    if found is None and not has_terminal():
        found = sys.stdin.readline().rstrip("\r\n") if sys.stdin is not None else ""
        if not found:
            raise ValueError("no password was given, neither as an argument nor on stdin")
    if found is None:
        found = click.prompt("Password", hide_input=True, confirmation_prompt=twice, err=True)
    return str(found)


def definition(text: str) -> Object:
    """A definition given on the command line."""
    found = any_json(text)
    if not isinstance(found, dict):
        raise ValueError(f'a definition is a JSON object, as {{"max-length": 1000}}; got: {text}')
    return found


def parameter(given: Given) -> Object:
    """The body of a parameter. Brokers keep those of unknown components, for other programs, so a
    mistyped one would define nothing.
    """
    component = given["component"]
    if component not in COMPONENTS and (question := meant(component, COMPONENTS)):
        raise click.UsageError(f"{component}: no component that has an effect{question}")
    return {"component": component, "name": given["name"], "value": any_json(given["value"])}


def any_json(text: str) -> Json:
    """A value given on the command line."""
    try:
        value: Json = json.loads(text)
    except ValueError as problem:
        raise ValueError(
            f"{text} is no JSON ({problem}); words stand in double quotes, and all of it for "
            """the shell in single ones, as '{"max-length": 1000}' or '"word"'"""
        ) from None
    return value


def deleting(doing: str, *path: str) -> Act:
    """Remove the resource at a path; `{vhost}` and the names of arguments stand for their values.

    Clients are told a reason; the broker is told --if-empty and --if-unused.
    """

    def act(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        named = {**given, "vhost": vhost}
        names = [part.format(**named) for part in path]
        reason = " ".join(given.get("reason", ()))
        only = {key.replace("_", "-"): True for key in ("if_empty", "if_unused") if given.get(key)}

        def call(api: Api) -> None:
            api.delete(*names, only=only, reason=reason)

        return doing.format(**named), call

    return act


def clear_topics(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Clear all of a user's, or those for one exchange."""
    path = "topic-permissions", "{vhost}", "{user}"
    one = ("{exchange}",) if given["exchange"] else ()
    return deleting("Deleting topic permissions of {user}", *path, *one)(vhost, given)


def restart_link(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """End the running attempt of a link, by the id that federation_status shows."""
    name = given["link_id"]

    def call(api: Api) -> None:
        where = [row["vhost"] for row in api.rows("federation-links") if row.get("id") == name]
        api.delete("federation-links", "vhost", str((where or [vhost])[0]), name, "restart")

    return f"Restarting federation link {name}", call


def putting(doing: str, path: tuple[str, ...], body: Callable[[Given], Mapping[str, Json]]) -> Act:
    """Set the resource at a path."""

    def act(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        named = {**given, "vhost": vhost}
        names = [part.format(**named) for part in path]
        content = body(given)

        def call(api: Api) -> None:
            api.put(*names, body=content)

        return doing.format(**named), call

    return act


def add_user(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Add a user; an existing one is left alone."""
    name = str(given["name"])
    secret = "password_hash" if given["pre_hashed_password"] else "password"
    body: Object = {secret: asked_password(given), "tags": ""}

    def call(api: Api) -> None:
        if any(row.get("name") == name for row in api.rows("users")):
            raise click.UsageError(f"user '{name}' is there already; see change_password")
        api.put("users", name, body=body)

    return f"Adding user {name}; give it permissions by set_permissions", call


def change_user(name: str, change: Callable[[Object], Mapping[str, Json]]) -> Callable[[Api], None]:
    """Keep the parts of a user that the change does not name."""

    def call(api: Api) -> None:
        now = api.fields("users", name)
        kept = {key: now[key] for key in ("password_hash", "hashing_algorithm", "tags")
                if now.get(key) is not None}  # fmt: skip
        changed = {**kept, **change(now)}
        if "password" in changed:
            changed.pop("password_hash", None)
            changed.pop("hashing_algorithm", None)
        tags = changed.get("tags", "")
        changed["tags"] = ",".join(map(str, tags)) if isinstance(tags, list) else tags
        api.put("users", name, body=changed)

    return call


def change_password(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Change the password; the tags stay."""
    password = asked_password(given)
    name = str(given["name"])
    return f"Changing the password of user {name}", change_user(
        name, lambda _: {"password": password}
    )


def clear_password(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Clear the password: the user can then log in only by certificate."""
    name = str(given["name"])
    return f"Clearing the password of user {name}", change_user(
        name, lambda _: {"password_hash": ""}
    )


def set_user_tags(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Set the tags; none given clears them."""
    tags = ",".join(given["tags"])
    name = str(given["name"])
    unknown = [tag for tag in tags.split(",") if tag and tag not in TAGS]
    hint = f" (the brokers know no tag {', '.join(unknown)})" if unknown else ""
    return f"Setting the tags of user {name} to [{tags}]{hint}", change_user(
        name, lambda _: {"tags": tags}
    )


def authenticate_user(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Whether the API accepts this user with this password, even one that may not use the API."""
    name, password = str(given["name"]), asked_password(given, twice=False)

    def call(api: Api) -> str:
        with suppress(LacksTag):
            replace(api, user=name, password=password).get("whoami")
        return f"user {name} and this password are good"

    return f"Authenticating user {name}", call


def close_all_connections(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Close those of one virtual host, or all."""
    reason = " ".join(given["reason"])
    everywhere = bool(given["everywhere"])

    def call(api: Api) -> str:
        found = [
            str(row["name"])
            for row in api.rows("connections", columns="name,vhost")
            if everywhere or row.get("vhost") == vhost
        ]
        closed = 0
        for name in found:
            try:
                api.delete("connections", name, reason=reason)
            except ApiError as problem:
                if problem.status != HTTPStatus.NOT_FOUND:
                    raise
            else:  # a connection that was not found has left by itself
                closed += 1
        return f"{closed} closed"

    where = "all virtual hosts" if everywhere else f"virtual host {vhost}"
    return f"Closing all connections to {where}", call


def set_permissions_everywhere(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Set them in each existing virtual host."""
    user = str(given["user"])
    body = {key: given[key] for key in ("configure", "write", "read")}

    def call(api: Api) -> None:
        for row in api.rows("vhosts", columns="name"):
            api.put("permissions", str(row["name"]), user, body=body)

    return f"Setting permissions of user {user} in all virtual hosts", call


def change_vhost(named: str, change: Callable[[Given], Mapping[str, Json]]) -> Act:
    """Keep the parts that the change does not name; the virtual host exists."""

    def act(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        name, body = str(given["name"]), change(given)

        def call(api: Api) -> None:
            api.fields("vhosts", name, columns="name")
            api.put("vhosts", name, body=body)

        return f"Setting {named} of virtual host {name}", call

    return act


def synchronise(action: str) -> Act:
    """Synchronise one queue."""

    def act(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        name = str(given["name"])

        def call(api: Api) -> None:
            api.post("queues", vhost, name, "actions", body={"action": action})

        return f"{action} of queue {name}", call

    return act


def policy(kind: str) -> Verb:
    """`set_policy` and `set_operator_policy`."""
    of_queues = tuple(to for to in APPLY_TO if to not in ("all", "exchanges"))
    shown = APPLY_TO if kind == "policies" else of_queues
    put = putting(
        "Setting policy {name} of virtual host {vhost}",
        (kind, "{vhost}", "{name}"),
        lambda given: {
            "pattern": given["pattern"], "definition": definition(given["definition"]),
            "priority": given["priority"], "apply-to": given["apply_to"],
        },
    )  # fmt: skip
    known = KEYS if kind == "policies" else OPERATOR_KEYS

    def act(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        doing, call = put(vhost, given)
        unknown = [key for key in definition(given["definition"]) if key not in known]

        def told(api: Api) -> str | None:
            try:
                return call(api)
            except ApiError as problem:
                if problem.status != HTTPStatus.BAD_REQUEST:
                    raise
                # The broker judges the keys: it may be of another release.
                questions = "".join(meant(key, known) for key in unknown)
                raise ApiError(f"{problem}{questions}", problem.status) from None

        return doing, told

    return Verb(
        "Set a policy: NAME, PATTERN (a regular expression of names), DEFINITION (JSON).",
        (
            *arguments("name", "pattern", "definition"),
            click.Option(
                ["--priority"], type=int, default=0, help="The highest matching one applies."
            ),
            click.Option(["--apply-to"], type=click.Choice(shown), default=shown[0]),
        ),
        act,
    )  # fmt: skip


REASON = click.Argument(["reason"], nargs=-1, required=True)
QUEUE_TYPE = click.Option(
    ["--default-queue-type"], type=click.Choice(("classic", "quorum", "stream")),
    help="Type of durable queues that are declared without one.",
)  # fmt: skip
VHOST_VALUES = ("description", "tags", "default_queue_type")
CHANGES: dict[str, Verb] = {
    "add_user": Verb(
        "Add a user without any right; the password is asked for when it is not given.",
        (
            *arguments("name"), PASSWORD,
            click.Option(["--pre-hashed-password"], is_flag=True, help="PASSWORD is a hash."),
        ),
        add_user,
    ),
    "change_password": Verb(
        "Change the password of a user.", (*arguments("name"), PASSWORD), change_password
    ),
    "clear_password": Verb(
        "Take the password from a user: no login by password.", arguments("name"), clear_password
    ),
    "authenticate_user": Verb(
        "Check a user's password.", (*arguments("name"), PASSWORD), authenticate_user
    ),
    "delete_user": Verb(
        "Delete a user.", arguments("name"), deleting("Deleting user {name}", "users", "{name}")
    ),
    "set_user_tags": Verb(
        "Set a user's tags: administrator, monitoring, policymaker, management; or none.",
        (*arguments("name"), click.Argument(["tags"], nargs=-1)), set_user_tags,
    ),
    "set_permissions": Verb(
        "Set what a user may CONFIGURE, WRITE and READ: regular expressions of names.",
        arguments("user", "configure", "write", "read"),
        putting(
            "Setting permissions of user {user} in virtual host {vhost}",
            ("permissions", "{vhost}", "{user}"),
            lambda given: {key: given[key] for key in ("configure", "write", "read")},
        ),
    ),
    "set_permissions_globally": Verb(
        "Set what a user may CONFIGURE, WRITE and READ in all virtual hosts that there are.",
        arguments("user", "configure", "write", "read"), set_permissions_everywhere,
    ),
    "clear_permissions": Verb(
        "Take all rights in a virtual host from a user.", arguments("user"),
        deleting("Deleting permissions of {user}", "permissions", "{vhost}", "{user}"),
    ),
    "set_topic_permissions": Verb(
        "Set what a user may write to and read from a topic EXCHANGE, by routing key.",
        arguments("user", "exchange", "write", "read"),
        putting(
            "Setting topic permissions of user {user} in virtual host {vhost}",
            ("topic-permissions", "{vhost}", "{user}"),
            lambda given: {key: given[key] for key in ("exchange", "write", "read")},
        ),
    ),
    "clear_topic_permissions": Verb(
        "Take the topic permissions in a virtual host from a user; or those for one EXCHANGE.",
        (*arguments("user"), click.Argument(["exchange"], required=False)), clear_topics,
    ),
    "add_vhost": Verb(
        "Add a virtual host; you get all permissions in it.",
        (
            *arguments("name"),
            click.Option(["--description"], default=""), click.Option(["--tags"], default=""),
            QUEUE_TYPE,
        ),
        putting(
            "Adding virtual host {name}", ("vhosts", "{name}"),
            lambda given: {key: given[key] for key in VHOST_VALUES if given[key]},
        ),
    ),
    "set_vhost_tags": Verb(
        "Set the tags of a virtual host; or none.",
        (*arguments("name"), click.Argument(["tags"], nargs=-1)),
        change_vhost("tags", lambda given: {"tags": ",".join(given["tags"])}),
    ),
    "update_vhost_metadata": Verb(
        "Set the description, tags or queue type of a virtual host; the others stay.",
        (
            *arguments("name"), click.Option(["--description"]), click.Option(["--tags"]),
            QUEUE_TYPE,
        ),
        change_vhost(
            "metadata",
            lambda given: {key: given[key] for key in VHOST_VALUES if given[key] is not None},
        ),
    ),
    "delete_vhost": Verb(
        "Delete a virtual host with all that is in it.", arguments("name"),
        deleting("Deleting virtual host {name}", "vhosts", "{name}"),
    ),
    "set_policy": policy("policies"),
    "clear_policy": Verb(
        "Delete a policy.", arguments("name"),
        deleting("Deleting policy {name}", "policies", "{vhost}", "{name}"),
    ),
    "set_operator_policy": policy("operator-policies"),
    "clear_operator_policy": Verb(
        "Delete an operator policy.", arguments("name"),
        deleting("Deleting operator policy {name}", "operator-policies", "{vhost}", "{name}"),
    ),
    "set_parameter": Verb(
        "Set a parameter of a component to a JSON value.", arguments("component", "name", "value"),
        putting(
            "Setting parameter {name} of {component} in virtual host {vhost}",
            ("parameters", "{component}", "{vhost}", "{name}"),
            parameter,
        ),
    ),
    "clear_parameter": Verb(
        "Delete a parameter.", arguments("component", "name"),
        deleting("Deleting parameter {name}", "parameters", "{component}", "{vhost}", "{name}"),
    ),
    "restart_shovel": Verb(
        "Restart a shovel, at the member that runs it.", arguments("name"),
        deleting("Restarting shovel {name}", "shovels", "vhost", "{vhost}", "{name}", "restart"),
    ),
    "restart_federation_link": Verb(
        "Restart a federation link; federation_status shows the ids.", arguments("link_id"),
        restart_link,
    ),
    "delete_shovel": Verb(
        "Stop and delete a shovel.", arguments("name"),
        deleting("Deleting shovel {name}", "shovels", "vhost", "{vhost}", "{name}"),
    ),
    "set_global_parameter": Verb(
        "Set a parameter of the cluster to a JSON value.", arguments("name", "value"),
        putting(
            "Setting global parameter {name}", ("global-parameters", "{name}"),
            lambda given: {"name": given["name"], "value": any_json(given["value"])},
        ),
    ),
    "clear_global_parameter": Verb(
        "Delete a parameter of the cluster.", arguments("name"),
        deleting("Deleting global parameter {name}", "global-parameters", "{name}"),
    ),
    "close_connection": Verb(
        "Close a client's connection (see list_connections pid) and tell it why.",
        (*arguments("pid"), REASON),
        deleting("Closing connection {pid}", "connections", "{pid}"),
    ),
    "close_all_connections": Verb(
        "Close all clients' connections to a virtual host and tell them why.",
        (
            REASON,
            click.Option(["--global", "everywhere"], is_flag=True, help="To any virtual host."),
        ),
        close_all_connections,
    ),
    "close_all_user_connections": Verb(
        "Close all connections of a user and tell them why.", (*arguments("name"), REASON),
        deleting("Closing all connections of user {name}", "connections", "username", "{name}"),
    ),
    "delete_queue": Verb(
        "Delete a queue and its messages.",
        (
            *arguments("name"),
            click.Option(["-e", "--if-empty"], is_flag=True, help="Only if it is empty."),
            click.Option(["-u", "--if-unused"], is_flag=True, help="Only if it has no consumers."),
        ),
        deleting("Deleting queue {name} of virtual host {vhost}", "queues", "{vhost}", "{name}"),
    ),
    "purge_queue": Verb(
        "Remove all ready messages of a queue.", arguments("name"),
        deleting(
            "Deleting the messages of queue {name} of virtual host {vhost}",
            "queues", "{vhost}", "{name}", "contents",
        ),
    ),
    "sync_queue": Verb("Synchronise a queue.", arguments("name"), synchronise("sync")),
    "cancel_sync_queue": Verb(
        "End the synchronising of a queue.", arguments("name"), synchronise("cancel_sync")
    ),
}  # fmt: skip
"""Each change by its name."""


def limits(kind: str, owner: str, of: tuple[click.Parameter, ...]) -> tuple[Verb, Verb]:
    """Set the limits of a user or a virtual host, one by one; clear one or all."""

    def named(vhost: str, given: Given) -> str:
        return str(given["user"]) if kind == "user-limits" else vhost

    def set_them(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        wanted = definition(given["definition"])
        name = named(vhost, given)

        def call(api: Api) -> None:
            for limit, value in wanted.items():
                api.put(kind, name, limit, body={"value": value})

        return f"Setting limits of {owner} {name}", call

    def clear(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        name = named(vhost, given)

        def call(api: Api) -> None:
            for row in api.rows(kind, name):
                value = row.get("value")
                for limit in value if isinstance(value, dict) else ():
                    if given["limit"] in (None, "all", limit):
                        api.delete(kind, name, limit)

        return f"Clearing limits of {owner} {name}", call

    one = click.Argument(["limit"], required=False)
    return (
        Verb(f"Set limits of a {owner}, as JSON.", (*of, *arguments("definition")), set_them),
        Verb(f"Clear a limit of a {owner}, or all.", (*of, one), clear),
    )


CHANGES["set_vhost_limits"], CHANGES["clear_vhost_limits"] = limits(
    "vhost-limits", "virtual host", ()
)
CHANGES["set_user_limits"], CHANGES["clear_user_limits"] = limits(
    "user-limits", "user", arguments("user")
)
