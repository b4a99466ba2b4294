"""Each reply has all keys of RabbitMQ's, which tools read, except those listed here."""

from __future__ import annotations

import json
import re

import pytest

from tests.system.management.as_rabbitmq.scene import RECORDED, Scene
from tests.system.management.http import Api
from tools.demo.local_cluster import LocalCluster

pytestmark = pytest.mark.system

LEFT_OUT = {
    "Erlang's": (
        r"garbage_collection\..*|reductions.*|gc_.*|context_switches.*|proc_.*|metrics_gc_.*|"
        r"erlang_.*|net_ticktime|release_series_support_status|extensions"
    ),
    "RabbitMQ's stores": (
        r"backing_queue_status\..*|io_(?!sync_(count|avg_time)$).*|msg_store_.*|queue_index_.*|mnesia_.*|"
        r"message_stats\.disk_.*|ra_open_file_.*|open_files\..*|readers\..*|pending_raft_commands|"
        r"log_files.*|db_dir|config_files.*|memory\.(?!strategy|total\.rss).*"
    ),
    "of sockets and the web server": (
        r".*socket_opts.*|.*\.(cowboy_opts|ssl_opts|internal_purpose)|(recv|send)_cnt|send_pend"
    ),
    "not counted for each queue": (
        r"(messages|message_bytes)\w*_(persistent|dlx)|head_message_timestamp"
    ),
    "not counted for virtual hosts": (r"(send|recv)_oct(_details\.rate)?"),
    "retention of samples": r"sample_retention.*",
    "its declarer, under another name": (r"user_who_performed_action|single_active_consumer_ctag"),
}
"""The keys missing here, by reason (docs/reference/http-api.md), without the list they may be
in."""
NOW_AND_THEN = {"idle_since"}
SET: dict[int, dict[str, object]] = {
    1: {"confirm": False, "transactional": False, "prefetch_count": 0, "messages_unconfirmed": 0},
    2: {"confirm": True, "messages_unconfirmed": 0},
    3: {"transactional": True, "acks_uncommitted": 1, "messages_uncommitted": 1},
    5: {"global_prefetch_count": 9, "prefetch_count": 0},
    6: {"global_prefetch_count": 0, "prefetch_count": 3},
}
"""The properties of the scene's channels."""


def missing(here: dict[str, list[str]]) -> dict[str, set[str]]:
    """The keys in RabbitMQ's replies that these lack, by path."""
    there: dict[str, list[str]] = json.loads(RECORDED.read_text())
    assert here.keys() == there.keys()
    return {
        path: {key.removeprefix("[].") for key in {*found} - {*here[path]}} - NOW_AND_THEN
        for path, found in there.items()
    }


def test_all_keys_that_tools_read_are_there(broker: LocalCluster, api: Api) -> None:
    patterns = {why: re.compile(pattern) for why, pattern in LEFT_OUT.items()}
    gone: dict[str, set[str]] = {}
    scene = Scene(broker[0].address, api)

    def unexpected() -> dict[str, set[str]]:
        found = {
            path: {key for key in some if not any(one.fullmatch(key) for one in patterns.values())}
            for path, some in gone.items()
        }
        return {path: some for path, some in found.items() if some}

    try:
        for _ in range(50):  # includes keys that a member reports only now and then
            scene.wait(0.2)
            gone.update(missing(scene.keys()))
            if not unexpected():
                break
        channels = {row["number"]: row for row in api.rows("vhosts/keys/channels").values()}
    finally:
        scene.close()
    assert unexpected() == {}
    for why, pattern in patterns.items():
        assert any(pattern.fullmatch(key) for some in gone.values() for key in some), why
    for number, wanted in SET.items():
        assert {name: channels[number][name] for name in wanted} == wanted
