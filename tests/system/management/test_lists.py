"""What all lists support: columns, sorting, filters, pages; and many queues in one list."""

from __future__ import annotations

import pika
import pytest

from tests.system.management.http import Api
from tools.client import http_api as client
from tools.demo.local_cluster import LocalCluster
from tools.operate.listings import LISTINGS

pytestmark = pytest.mark.system

VARYING = ("rate", "memory", "recv_", "send_", "idle", "consumer_", "state", "messages")
"""Parts of the names of columns whose values may differ between two requests."""
NAMES = [f"listed-{number:04}" for number in range(700)]


@pytest.fixture(scope="module", autouse=True)
def queues(broker: object) -> None:
    host, port = broker[0].address  # type: ignore[index]
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    for name in reversed(NAMES):
        channel.queue_declare(name, durable=True)
    channel.queue_declare("LISTED-capital")
    connection.close()


def names(rows: object) -> list[str]:
    assert isinstance(rows, list)
    return [row["name"] for row in rows if row["name"].lower().startswith("listed")]


def test_a_list_is_sorted_by_name(api: Api) -> None:
    found = names(api.get("queues"))
    assert found == ["LISTED-capital", *NAMES]
    assert names(api.get("queues/%2F?sort=name&sort_reverse=true")) == found[::-1]


def test_only_the_requested_columns_are_returned(api: Api) -> None:
    row = api.row("queues/%2F/listed-0001?columns=name,messages,arguments.none")
    assert row == {"name": "listed-0001", "messages": 0, "arguments": {"none": None}}


@pytest.mark.parametrize("columns", [",".join(["name"] * 101), ".".join("abcdefghi")])
def test_columns_that_are_too_many_are_refused_however_long_the_list(
    api: Api, columns: str
) -> None:
    assert api.ask("GET", f"queues?columns={columns}").status == 400


def test_a_slash_at_the_end_of_a_path_changes_nothing(api: Api) -> None:
    assert names(api.get("queues/%2F/?columns=name")) == ["LISTED-capital", *NAMES]


def test_pages(api: Api) -> None:
    page = api.row("queues/%2F?page=2&page_size=300&name=LISTED-0&columns=name")
    items = page.pop("items")
    assert names(items) == NAMES[300:600]
    total = page.pop("total_count")
    assert isinstance(total, int)
    assert total >= 701
    assert page == {
        "filtered_count": 700, "item_count": 300, "page": 2, "page_count": 3, "page_size": 300,
    }  # fmt: skip


def test_a_page_out_of_range(api: Api) -> None:
    answered = api.ask("GET", "queues?page=9&page_size=100&name=listed-")
    assert answered.status == 400
    assert answered.body == {
        "error": "page_out_of_range",
        "reason": "Page out of range, page: 9 page size: 100, len: 701",
    }


@pytest.mark.parametrize("query", ["page=0", "page=x", "page=1&page_size=501", "page=-1"])
def test_an_invalid_page(api: Api, query: str) -> None:
    assert api.ask("GET", f"queues?{query}").status == 400


def test_names_by_regular_expression(api: Api) -> None:
    found = api.row("queues/%2F?page=1&pagination=false&use_regex=true&name=^LISTED-000[12]$")
    assert names(found["items"]) == ["listed-0001", "listed-0002"]
    answered = api.ask("GET", "queues?page=1&use_regex=true&name=(")
    assert answered.status == 400
    assert isinstance(answered.body, dict)
    assert answered.body["reason"] == "name is no regular expression: missing ): ("


def test_a_regular_expression_that_makes_others_backtrack(api: Api) -> None:
    """A backtracking matcher would not end, and all other requests would wait."""
    assert api.ask("PUT", "queues/%2F/" + "l" * 200, {}).status == 201
    found = api.row("queues?page=1&use_regex=true&name=(l%2Bl%2B)%2By")
    assert found["filtered_count"] == 0
    assert api.ask("DELETE", "queues/%2F/" + "l" * 200).status == 204


@pytest.mark.parametrize("verb", LISTINGS)
def test_commands_request_exactly_what_their_columns_show(
    broker: LocalCluster, amqp: pika.BlockingConnection, verb: str
) -> None:
    """They request no field that they do not show, and miss none that they show."""
    amqp.channel().basic_consume("LISTED-capital", lambda *_: None)
    listing = LISTINGS[verb]
    address = broker[0].management
    assert address is not None
    told = client.Api(address, "guest", "guest")
    steady = [name for name in listing.columns if not any(part in name for part in VARYING)]
    chosen = [listing.columns[name] for name in steady]
    everything = [[column(row) for column in chosen] for row in told.rows(listing.path)]
    vhost = "/" if listing.per_vhost else None
    assert listing.rows(told, None, steady) == everything
    if verb not in ("list_consumers", "list_queues", "list_exchanges", "list_bindings"):
        return
    assert listing.rows(told, vhost, steady) == everything
