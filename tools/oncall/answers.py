"""What one member answers of itself and its cluster: all that the findings are made from."""

from __future__ import annotations

from collections.abc import Iterator

from tools.client.http_api import Api, ApiError, Json, NoAnswer, Object
from vsync.types import record

QUEUES_MAX = 100
"""So many of the longest queues are looked at."""
QUEUE_COLUMNS = (
    "name,vhost,type,messages_ready,messages_unacknowledged,messages_dlx,consumers,browsers,"
    "message_stats.ack_details.avg_rate,message_stats.deliver_get_details.avg_rate"
)
EXPIRY = (("0", "days"), ("4", "weeks"))
"""After which times the certificate is asked for, the nearest first."""


@record
class Answers:
    """What was asked at one moment."""

    now_ms: int
    cluster: Object
    nodes: list[Object]
    queues: list[Object]
    shovels: list[Object]
    links: list[Object]
    certificate: str = ""
    """`0 days`, `4 weeks`: within which time the certificate ends; empty where it is long."""
    unasked: tuple[str, ...] = ()
    """What this member did not tell, with the reason."""


def members(cluster: Object) -> list[Object]:
    """Its members, voters that are away among them."""
    return objects(cluster.get("members"))


def objects(found: Json) -> list[Object]:
    """The objects of a list; of anything else none."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def asked(api: Api, now_ms: int) -> Answers:
    """Ask a member.  Raises ApiError when it says nothing at all of its cluster."""
    cluster = api.fields("qpid", "cluster")
    unasked: list[str] = []

    def rows(what: str, *path: str, **query: str | int | bool) -> list[Object]:
        try:
            found = api.get(*path, **query)
        except ApiError as problem:
            unasked.append(f"{what}: {problem}")
            return []
        return objects(found.get("items") if isinstance(found, dict) else found)

    nodes = rows("members", "nodes")
    serves = cluster.get("status") == "ACTIVE"  # else it refuses what is the cluster's
    queues = shovels = links = list[Object]()
    if serves:
        queues = rows(
            "queues", "queues", columns=QUEUE_COLUMNS, sort="messages", sort_reverse=True,
            page=1, page_size=QUEUES_MAX,
        )  # fmt: skip
        shovels = rows("shovels", "shovels")
        links = rows("links", "federation-links")
    return Answers(
        now_ms, cluster, nodes, queues, shovels, links, next(_ending(api), ""), tuple(unasked)
    )


def _ending(api: Api) -> Iterator[str]:
    for within, unit in EXPIRY:
        try:
            api.get("health", "checks", "certificate-expiration", within, unit)
        except NoAnswer:
            return
        except ApiError as problem:
            if problem.status == 503:
                yield f"{within} {unit}"
