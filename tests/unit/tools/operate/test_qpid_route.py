"""qpid-route against canned answers: what the deletion of a route leaves alone."""

from __future__ import annotations

import pytest

from tests.support.dashboard.canned_api import CannedApi
from tests.unit.tools.operate.commands import Run
from tools.cli.answers import Json
from tools.operate.qpid_route import qpid_route

SETS = "parameters/federation-upstream-set/%2F"
UPSTREAMS = "parameters/federation-upstream/%2F"
SHOVELS = "parameters/shovel/%2F"
SET = "qpid-route%20news"


@pytest.fixture
def routes(api: CannedApi) -> CannedApi:
    """A broker with a dynamic route from two peers, and one by a queue that pushes."""
    peers = ("far:5672", "near:5672")
    upstreams: list[Json] = [{"upstream": f"qpid-route {one}"} for one in peers]
    api.answers[SETS] = [{"name": "qpid-route news", "value": upstreams}]
    api.answers[UPSTREAMS] = [
        {"name": f"qpid-route {one}", "value": {"uri": f"amqp://{one}"}} for one in peers
    ]
    pushes: Json = {
        "src-uri": "amqp://", "dest-uri": "amqp://far:5672", "dest-exchange": "n",
        "src-queue": "qpid-route to far:5672 n k",
    }  # fmt: skip
    api.answers[SHOVELS] = [{"name": "qpid-route to far:5672 n k", "value": pushes}]
    return api


def test_a_dynamic_route_from_one_of_two_peers_leaves_the_other(
    run: Run, routes: CannedApi
) -> None:
    ended = run(qpid_route, "dynamic", "del", f"127.0.0.1:{routes.port}", "far:5672", "news")
    assert ended.code == 0, ended.err
    left = {"value": [{"upstream": "qpid-route near:5672"}]}
    assert routes.changes == [("PUT", f"{SETS}/{SET}", left)]


def test_the_last_peer_of_a_dynamic_route_takes_set_and_policy_with_it(
    run: Run, routes: CannedApi
) -> None:
    routes.answers[SETS] = [
        {"name": "qpid-route news", "value": [{"upstream": "qpid-route far:5672"}]}
    ]
    ended = run(qpid_route, "dynamic", "del", f"127.0.0.1:{routes.port}", "far:5672", "news")
    assert ended.code == 0, ended.err
    assert routes.changes == [
        ("DELETE", f"policies/%2F/{SET}", None), ("DELETE", f"{SETS}/{SET}", None)
    ]  # fmt: skip


@pytest.mark.parametrize("status", [400, 404])
def test_the_queue_of_a_route_is_deleted_only_if_it_is_empty(
    run: Run, routes: CannedApi, status: int
) -> None:
    queue = "queues/%2F/qpid-route%20to%20far%3A5672%20n%20k"
    words = ("-s", "route", "del", "far:5672", f"127.0.0.1:{routes.port}", "n", "k")
    ended = run(qpid_route, *words)
    assert ended.code == 0, ended.err
    assert routes.changes[-1] == ("DELETE", f"{queue}?if-empty=true", None)
    routes.refusals[queue] = status, "queue 'q' in vhost '/' not empty"
    ended = run(qpid_route, *words)
    assert ended.code == 0, ended.err
    assert ("is left, with its messages" in ended.out + ended.err) is (status == 400)
