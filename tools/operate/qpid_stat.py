"""`qpid-stat`: one table of the cluster's objects, with the options of Qpid's tool."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import click

from tools.cli.answers import Json, Object, aligned, fields
from tools.cli.options import run_command
from tools.cli.shared_options import Seconds, with_version
from tools.client.credentials import Credentials, with_credentials
from tools.client.http_api import Api
from tools.client.target_options import with_broker_argument
from tools.operate.listings import PATHS_OF_VHOSTS
from tools.operate.output import Column, asked, at, plain, print_json
from tools.operate.target import answered, api_of, epilog, with_timeout
from vsync.types import record

EXAMPLES = """\
BROKER is the management API of any member, [http[s]://][user/password@]host[:port], or a list
host:port,host:port, of which the first that answers is used. Default localhost:15672, or
$QPID_BROKER; give no port there, since other commands take it for the AMQP port.

\b
Examples:
  qpid-stat -q                      queues: depth, messages in and out, consumers
  qpid-stat -q -S msgIn -L 10       the ten busiest queues
  qpid-stat -q -V shop              the queues of one virtual host
  qpid-stat -e -F orders otherhost  exchanges whose names contain "orders"
  qpid-stat -c --json               connections, for a program
  qpid-stat -q -i 2                 repeat every two seconds
"""


@record
class Table:
    """The table of one option."""

    title: str
    path: str
    """The list of the API; empty: not a list, see `general`."""
    columns: Mapping[str, Column]
    name: Column
    """The field that --include-filter matches."""
    vhost: str = ""
    """The field with the virtual host; empty: the objects are in none."""

    def rows(self, api: Api, vhost: str | None) -> list[Object]:
        """Request the fields that the columns need."""
        if not self.path:
            return general(api)
        if vhost is None:
            return api.rows(self.path, columns=asked((*self.columns.values(), self.name)))
        of_vhost = Column(self.vhost)
        columns = asked((*self.columns.values(), self.name, of_vhost))
        names = (self.path, vhost) if self.path in PATHS_OF_VHOSTS else (self.path,)
        return [row for row in api.rows(*names, columns=columns) if of_vhost(row) == vhost]


def total(stat: str) -> Column:
    """A count of messages since the broker began to count."""
    return at(f"message_stats.{stat}")


def flag(name: str) -> Column:
    """Y, or nothing, as Qpid shows it."""
    return Column(name, lambda value: "Y" if value else "")


def general(api: Api) -> list[Object]:
    """The cluster in numbers, one per line."""
    overview = api.fields("overview")
    pairs: list[tuple[str, Json]] = [
        ("cluster", overview.get("cluster_name")), ("member", overview.get("node")),
        ("product", f"{overview.get('product_name')} {overview.get('product_version')}"),
    ]  # fmt: skip
    for part in ("object_totals", "queue_totals", "message_stats"):
        numbers = sorted(fields(overview.get(part)).items())
        pairs += [(name, value) for name, value in numbers if isinstance(value, int)]
    return [{"name": name, "value": value} for name, value in pairs]


def seconds(found: Json) -> Json:
    """Seconds from milliseconds."""
    return found // 1000 if isinstance(found, int) else None


TABLES: dict[str, Table] = {
    "brokers": Table(
        "Brokers", "nodes",
        {"member": at("name"), "running": flag("running"), "state": at("state"),
         "uptime_s": Column("uptime", seconds), "voter": flag("voter"),
         "position": at("position"), "url": at("url")},
        at("name"),
    ),
    "connections": Table(
        "Connections", "connections",
        {"connection": at("name"), "cproc": at("client_properties.product"), "member": at("node"),
         "auth": at("user"), "vhost": at("vhost"), "channels": at("channels"),
         "bytesIn": at("recv_oct"), "bytesOut": at("send_oct"), "state": at("state")},
        at("name"), "vhost",
    ),
    "exchanges": Table(
        "Exchanges", "exchanges",
        {"exchange": at("name"), "vhost": at("vhost"), "type": at("type"), "dur": flag("durable"),
         "autoDel": flag("auto_delete"), "msgIn": total("publish_in"),
         "msgOut": total("publish_out")},
        at("name"), "vhost",
    ),
    "queues": Table(
        "Queues", "queues",
        {"queue": at("name"), "vhost": at("vhost"), "dur": flag("durable"),
         "autoDel": flag("auto_delete"), "excl": flag("exclusive"), "msg": at("messages"),
         "msgIn": total("publish"), "msgOut": total("deliver_get"), "bytes": at("message_bytes"),
         "cons": at("consumers")},
        at("name"), "vhost",
    ),
    "subscriptions": Table(
        "Subscriptions", "consumers",
        {"subscr": at("consumer_tag"), "queue": at("queue.name"), "vhost": at("queue.vhost"),
         "conn": at("channel_details.name"), "excl": flag("exclusive"),
         "acked": flag("ack_required"), "prefetch": at("prefetch_count")},
        at("queue.name"), "queue.vhost",
    ),
    "memory": Table(
        "Memory and disk of the members", "nodes",
        {"member": at("name"), "memUsed": at("mem_used"), "memLimit": at("mem_limit"),
         "memAlarm": flag("mem_alarm"), "diskFree": at("disk_free"),
         "diskLimit": at("disk_free_limit"), "diskAlarm": flag("disk_free_alarm")},
        at("name"),
    ),
    "general": Table(
        "Cluster", "", {"name": at("name"), "value": at("value")}, at("name")
    ),
}  # fmt: skip


@click.command(
    name="qpid-stat",
    epilog=EXAMPLES + epilog("qpid-stat"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-g", "--general", "shown", flag_value="general", help="Totals of the cluster.")
@click.option("-b", "--brokers", "shown", flag_value="brokers", help="The members.")
@click.option("-c", "--connections", "shown", flag_value="connections", help="Clients.")
@click.option("-e", "--exchanges", "shown", flag_value="exchanges", help="Exchanges.")
@click.option("-q", "--queues", "shown", flag_value="queues", help="Queues.")
@click.option("-u", "--subscriptions", "shown", flag_value="subscriptions", help="Consumers.")
@click.option("-m", "--memory", "shown", flag_value="memory", help="Memory and disk of members.")
@click.option("-V", "--vhost", help="Only objects in this virtual host. Default: in all.")
@click.option("-S", "--sort-by", metavar="COLUMN", help="Sort by this column.")
@click.option("-I", "--increasing", is_flag=True, help="Sort in increasing order.")
@click.option(
    "-F", "--include", "wanted", metavar="TEXT", help="Only names that contain this text."
)
@click.option("-L", "--limit", type=click.IntRange(min=1), help="Show at most this many rows.")
@click.option("-i", "--interval", type=Seconds(0.1), help="Repeat every SECS seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@with_credentials
@with_timeout
@with_broker_argument(kind=click.Option)
@with_version
def qpid_stat(
    shown: str | None, vhost: str | None, sort_by: str | None, increasing: bool,
    wanted: str | None, limit: int | None, interval: float | None, as_json: bool,
    credentials: Credentials, timeout: float, broker: str,
) -> None:  # fmt: skip
    """Show statistics of the cluster that BROKER belongs to; -g unless told otherwise."""
    table = TABLES[shown or "general"]
    if sort_by is not None and sort_by not in table.columns:
        raise click.UsageError(f"no column '{sort_by}'; there are: {', '.join(table.columns)}")
    if vhost is not None and not table.vhost:
        raise click.UsageError("--vhost goes with -c, -e, -q or -u")
    api = api_of(broker, credentials, timeout)
    while True:
        with answered():
            found = table.rows(api, vhost)
        if wanted:
            found = [row for row in found if wanted in str(table.name(row))]
        if sort_by is not None:
            found.sort(key=lambda row: _order(table.columns[sort_by](row)), reverse=not increasing)
        show(table, found[:limit], as_json=as_json)
        if interval is None:
            return
        time.sleep(interval)


def _order(value: Json) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (1, float(value), "") if number else (0, 0.0, str(value or ""))  # type: ignore[arg-type]


def show(table: Table, rows: list[Object], *, as_json: bool) -> None:
    """Print one table, in the layout of Qpid's, or as JSON."""
    cells = [[column(row) for column in table.columns.values()] for row in rows]
    if as_json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in cells])
        return
    lines = aligned([list(table.columns), *([plain(value) for value in row] for row in cells)],
                    cells)  # fmt: skip
    print(table.title)
    print(f"  {lines[0]}")
    print("  " + "=" * max(len(line) for line in lines))
    for line in lines[1:]:
        print(f"  {line}")


def main() -> None:
    """Entry point of the installed command."""
    run_command(qpid_stat, sys.argv[1:])


if __name__ == "__main__":
    main()
