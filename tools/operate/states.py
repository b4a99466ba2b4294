"""The state of a member and its cluster for qpidctl, and waiting until they serve."""

from __future__ import annotations

import time
from collections.abc import Callable

from broker.exit_codes import Exit
from tools.cli.answers import Json, fields, items, objects
from tools.cli.failures import ToolError
from tools.client.http_api import Api, ApiError, OtherProtocol
from tools.operate.output import plain, print_json, print_rows

UNITS = {
    "bytes": 1, "kb": 10**3, "kilobytes": 10**3, "mb": 10**6, "megabytes": 10**6,
    "gb": 10**9, "gigabytes": 10**9, "tb": 10**12, "terabytes": 10**12,
}  # fmt: skip
"""RabbitMQ's: powers of a thousand, in four decimals."""
POLL_SECONDS = 0.2
REFUSALS, REFUSED_SECONDS = 4, 1.0
"""A new cluster knows the users of --load-definitions a moment after it serves. So a wait ends only
after this many refusals, this far apart. After five the broker slows its user down."""


def print_status(api: Api, unit: str, *, as_json: bool) -> None:
    """Print the status of the member that is asked, in sections; as JSON in bytes, whatever the
    unit."""
    overview = api.fields("overview")
    name = str(overview.get("node"))
    node = next((one for one in api.rows("nodes") if one.get("name") == name), {})
    if as_json:
        print_json({"overview": overview, "node": node})
        return
    _section("Runtime", [
        ("Product", f"{overview.get('product_name')} {overview.get('product_version')}"),
        ("Member", name), ("Cluster", overview.get("cluster_name")),
        ("Uptime (s)", _seconds(node.get("uptime"))), ("OS PID", node.get("os_pid")),
    ])  # fmt: skip
    _section("Alarms", [
        ("memory", "set" if node.get("mem_alarm") else "none"),
        ("disk", "set" if node.get("disk_free_alarm") else "none"),
    ])  # fmt: skip
    _section("Memory and disk", [
        *((what, _in_unit(node.get(key), unit)) for what, key in (
            ("Memory used", "mem_used"), ("Memory limit", "mem_limit"),
            ("Disk free", "disk_free"), ("Disk free limit", "disk_free_limit"),
        )),
        ("File descriptors", node.get("fd_used")),
    ])  # fmt: skip
    _section("Totals", sorted(fields(overview.get("object_totals")).items()))
    _section("Listeners", [
        (str(one.get("protocol")), f"{one.get('ip_address')} port {one.get('port')}")
        for one in objects(overview.get("listeners"))
    ])  # fmt: skip


def print_cluster(api: Api, *, as_json: bool) -> None:
    """Print the members, the votes, the alarms."""
    cluster = api.fields("qpid", "cluster")
    if as_json:
        print_json(cluster)
        return
    votes = fields(cluster.get("quorum"))
    _section("Basics", [
        ("Cluster name", cluster.get("cluster")), ("State", cluster.get("status")),
        ("Reason", cluster.get("reason") or None),
        ("Votes", f"{votes.get('total_votes')} of {votes.get('expected_votes')}"),
        ("Quorate", votes.get("quorate")), ("Epoch", cluster.get("epoch")),
        ("Position", cluster.get("position")),
    ])  # fmt: skip
    print("Members\n")
    columns = ("id", "state", "voter", "votes", "position", "url")
    print_rows(
        columns,
        [[f"{one.get('id')}{' (local)' if one.get('local') else ''}",
          *(one.get(name) for name in columns[1:])] for one in objects(cluster.get("members"))],
    )  # fmt: skip
    print()
    _section("Alarms", [("", one) for one in items(cluster.get("alarms"))] or [("", "(none)")])


def _section(title: str, pairs: list[tuple[str, Json]]) -> None:
    print(f"{title}\n")
    for name, value in pairs:
        if value is not None:
            print(f"{name}: {plain(value)}" if name else plain(value))
    print()


def _in_unit(size: Json, unit: str) -> Json:
    if unit == "bytes" or not isinstance(size, int):
        return size
    return f"{round(size / UNITS[unit], 4)} {unit}"


def _seconds(milliseconds: Json) -> Json:
    return milliseconds // 1000 if isinstance(milliseconds, int) else None


def await_serving(api: Api, members: int) -> None:
    """Return when the member asked serves clients, and this many members do."""

    def why_not() -> str:
        nodes = api.rows("nodes")
        running = sum(1 for one in nodes if one.get("running") is True)
        status = api.fields("qpid", "cluster")
        if status.get("status") == "ACTIVE" and running >= members:
            return ""
        why = f"this member is {status.get('status')}"
        why += f", {status['reason']}" if status.get("reason") else ""
        return why if members == 1 else f"{running} of {members} members serve, and {why}"

    _await(api, why_not)


def await_check(api: Api, check: str) -> None:
    """Return when a health check of the member passes."""

    def why_not() -> str:
        api.get("health", "checks", check)
        return ""

    _await(api, why_not)


def _await(api: Api, why_not: Callable[[], str]) -> None:
    began = time.monotonic()
    refused = 0
    while True:
        pause = POLL_SECONDS
        try:
            why = why_not()
        except OtherProtocol as problem:
            raise ToolError(str(problem), Exit.UNAVAILABLE) from None
        except ApiError as problem:
            why = str(problem)
            if problem.status in (401, 403):
                refused += 1
                if refused == REFUSALS:
                    raise ToolError(why, Exit.DATA) from None
                pause = REFUSED_SECONDS
        if not why:
            return
        if api.timeout_seconds is not None and time.monotonic() - began > api.timeout_seconds:
            raise ToolError(f"not in {api.timeout_seconds:g} s: {why}", Exit.UNAVAILABLE)
        time.sleep(pause)
