"""The verbs of qpidctl that ask a member one thing, or turn away one member's clients.

These are checks, versions and maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from broker.exit_codes import Exit
from tools.cli.failures import ToolError
from tools.client.http_api import Api
from tools.operate.settings import Act, Given, Verb, arguments


def checking(check: str, *more: str, doing: str = "") -> Act:
    """Run one health check; a failure gives a reason and exit code 69."""

    def act(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
        path = [check, *(str(given[name]) for name in more)]

        def call(api: Api) -> str:
            api.get("health", "checks", *path)
            return f"{' '.join(path)}: passed"

        return f"Checking {doing or ' '.join(path)}", call

    return act


def check_node(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """The check of older releases, which had only one."""
    del given

    def call(api: Api) -> str:
        found = api.fields("healthchecks", "node")
        if found.get("status") != "ok":
            raise ToolError(str(found.get("reason")), Exit.UNAVAILABLE)
        return "Health check passed"

    return "Checking health of the member", call


def node_of(api: Api) -> str:
    """The name of the member that is asked. Raises UsageError for a list of brokers."""
    if api.others:
        raise click.UsageError("this is about one member: give one with --broker, not a list")
    return str(api.fields("overview", columns="node").get("node"))


def drain(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Until it is revived or restarted."""
    force = bool(given["force"])
    return "Putting the member into maintenance: it takes no clients", lambda api: _done(
        api.put("qpid", "members", node_of(api), "drain", only={"force": True} if force else None)
    )


def revive(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """The contrary of drain."""
    del given
    return "Ending the maintenance of the member: it takes clients", lambda api: _done(
        api.delete("qpid", "members", node_of(api), "drain")
    )


def rebalance(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """Every member serves any queue, so none has to move."""
    return f"Rebalancing {given['type']} queues: no queue has a leader, none moves", (
        lambda api: _done(api.post("rebalance", "queues"))
    )


def restart_vhost(vhost: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """A virtual host runs wherever a member serves."""
    del given
    return f"Starting virtual host {vhost}", lambda api: _done(
        api.post("vhosts", vhost, "start", node_of(api))
    )


def _done(_: object) -> None:
    return None


def server_version(_: str, given: Given) -> tuple[str, Callable[[Api], str | None]]:
    """The version that scripts compare; the product's own version is in `status`."""
    del given
    return "Asking the member for its version", lambda api: str(
        api.fields("overview", columns="rabbitmq_version").get("rabbitmq_version")
    )


SERVING = "whether the member serves clients"
QUESTIONS: Mapping[str, Verb] = {
    "check_alarms": Verb("Fail when any member has an alarm.", (), checking("alarms")),
    "check_local_alarms": Verb(
        "Fail when this member has an alarm.", (), checking("local-alarms")
    ),
    "check_virtual_hosts": Verb(
        "Fail when a virtual host is down.", (), checking("virtual-hosts")
    ),
    "check_running": Verb(
        "Fail unless the member serves clients.", (), checking("virtual-hosts", doing=SERVING)
    ),
    "is_running": Verb(
        "The same as check_running.", (), checking("virtual-hosts", doing=SERVING)
    ),
    "check_if_node_is_quorum_critical": Verb(
        "Fail when the cluster could not lose this member.", (),
        checking("node-is-quorum-critical"),
    ),
    "check_if_node_is_mirror_sync_critical": Verb(
        "Fail when a member is joining and only this one has the whole state.", (),
        checking("node-is-mirror-sync-critical"),
    ),
    "check_certificate_expiration": Verb(
        "Fail when the certificate that clients see ends within this time.",
        (
            click.Option(["--within"], type=click.IntRange(0, 99_999), default=4, metavar="NUMBER"),
            click.Option(
                ["--unit"], type=click.Choice(("days", "weeks", "months", "years")),
                default="weeks",
            ),
        ),
        checking("certificate-expiration", "within", "unit"),
    ),
    "check_port_listener": Verb(
        "Fail unless the member listens on this PORT.", arguments("port"),
        checking("port-listener", "port"),
    ),
    "check_protocol_listener": Verb(
        "Fail unless the member listens for this PROTOCOL: amqp, amqp/ssl, http, https.",
        arguments("protocol"), checking("protocol-listener", "protocol"),
    ),
    "node_health_check": Verb(
        "Fail unless the member serves and has no alarm.", (), check_node
    ),
    "drain": Verb(
        "Put the member into maintenance: it closes its clients' connections and lets none in.",
        (click.Option(["--force"], is_flag=True, help="Even if no other member accepts clients."),),
        drain,
    ),
    "revive": Verb("End the maintenance of the member.", (), revive),
    "rebalance": Verb(
        "Succeed: no queue has a leader, so there is nothing to move.",
        (
            click.Argument(
                ["type"], type=click.Choice(("all", "classic", "quorum")), default="all"
            ),
            click.Option(["--vhost-pattern"], help="Ignored."),
            click.Option(["--queue-pattern"], help="Ignored."),
        ),
        rebalance,
    ),
    "restart_vhost": Verb(
        "Succeed when there is this virtual host: it runs wherever a member serves.", (),
        restart_vhost,
    ),
    "server_version": Verb(
        "Print the release of RabbitMQ whose API the member answers like.", (), server_version
    ),
}  # fmt: skip
"""Each question by its name."""
