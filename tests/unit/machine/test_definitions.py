"""Definitions by operators: ordered and part of the state; and the deletion of a virtual host
(G22).
"""

from __future__ import annotations

import base64
import hashlib

import pytest

from broker.machine import commands as c
from broker.machine.command_codec import BlobMalformed, pack_blob, unpack_blob
from broker.machine.commands import Table
from broker.machine.effects import CancelNotify
from broker.machine.handlers import definitions
from broker.machine.limits import DEFINITIONS_MAX
from broker.machine.machine import Machine
from tests.support.three_machines import Rig

VHOST: Table = {"description": "", "tags": ()}
USER: Table = {"password_hash": "", "hashing_algorithm": "", "tags": ()}
NONE: Table = {"configure": "", "write": "", "read": ""}


def test_a_new_cluster_has_the_default_virtual_host_and_guest() -> None:
    machine = Rig().machine
    assert list(machine.vhosts) == ["/"]
    assert machine.definitions["permission"]["/", "guest"] == {
        "configure": ".*", "write": ".*", "read": ".*",
    }  # fmt: skip
    guest = machine.definitions["user"]["", "guest"]
    assert guest["tags"] == ("administrator",)
    packed = base64.b64decode(str(guest["password_hash"]))
    assert packed[4:] == hashlib.sha256(packed[:4] + b"guest").digest()


def test_a_later_view_defines_nothing_again() -> None:
    rig = Rig()
    assert rig.define("user", "", "guest", None) == (204, "")
    rig.activate("a", cold=True)
    assert not rig.machine.definitions["user"]


def test_the_asking_member_gets_the_outcome() -> None:
    rig = Rig()
    assert rig.define("vhost", "", "v", VHOST, "b") == (201, "")
    assert rig.define("vhost", "", "v", VHOST, "c") == (204, "")
    assert rig.define("user", "", "u", USER) == (201, "")
    assert rig.define("permission", "v", "u", NONE) == (201, "")
    assert rig.define("user", "", "u", None) == (204, "")
    assert not rig.machine.definitions["permission"].get(("v", "u"))
    assert rig.define("user", "", "u", None) == (404, "there is no user 'u'")


@pytest.mark.parametrize(
    ("what", "vhost", "name", "body", "told"),
    [
        ("weather", "", "x", {}, (400, "nothing is called a weather")),
        ("user", "/", "x", USER, (400, "a user has no virtual host")),
        ("permission", "", "guest", NONE, (400, "a permission needs a virtual host")),
        ("permission", "v", "guest", NONE, (404, "there is no vhost 'v'")),
        ("permission", "/", "u", NONE, (404, "there is no user 'u'")),
        ("permission", "/", "guest", {"read": ""}, (400,
            "permission 'guest': 'configure' must be text")),
        ("vhost", "", "", VHOST, (400, "the name of a vhost has 1 to 255 bytes")),
        ("vhost", "", "v" * 256, VHOST, (400, "the name of a vhost has 1 to 255 bytes")),
        ("user", "", "u", {**USER, "tags": "x"}, (400, "user 'u': 'tags' must be a list of words")),
        ("user_limit", "", "guest", {"max-channels": True}, (400,
            "user_limit 'guest': 'max-channels' must be a whole number from -1, which means none, "
            "to 4294967295")),
        ("vhost_limit", "/", "limits", {"x": 1}, (400,
            "vhost_limit 'limits': there is no limit 'x', but max-connections, max-queues")),
        ("policy", "/", "p", {"pattern": "", "apply-to": "queues", "priority": 0}, (400,
            'Validation failed\n\nKey "definition" not found\n')),
        ("parameter", "/", "c/n", {"value": "x" * 70_000}, (400,
            "parameter 'c/n' has more than 65536 bytes")),
        ("policy", "/", "p", None, (404, "there is no policy 'p' in vhost '/'")),
    ],
)  # fmt: skip
def test_an_invalid_definition_changes_nothing(
    what: str, vhost: str, name: str, body: Table | None, told: tuple[int, str]
) -> None:
    rig = Rig()
    root = rig.machine.root()
    assert rig.define(what, vhost, name, body) == told
    assert rig.machine.root() == root


def test_the_number_of_definitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "DEFINITIONS_MAX", 4)
    assert DEFINITIONS_MAX > 4
    rig = Rig()
    assert rig.define("user", "", "u", USER)[0] == 201
    assert rig.define("user", "", "u2", USER)[0] == 400
    assert rig.define("user", "", "u", USER)[0] == 204


def test_a_user_has_one_topic_permission_for_each_exchange() -> None:
    rig = Rig()
    for exchange in ("x", "y"):
        body: Table = {"exchange": exchange, "write": "w", "read": "r"}
        rig.define("topic_permission", "/", "guest", body)
    known = rig.machine.definitions["topic_permission"]
    assert list(known["/", "guest"]) == ["x", "y"]
    assert rig.define("topic_permission", "/", "guest", {"exchange": "x"}) == (204, "")
    assert list(known["/", "guest"]) == ["y"]
    told = rig.define("topic_permission", "/", "guest", {"exchange": "x"})
    assert told == (404, "there is no topic_permission 'guest' for exchange 'x'")
    assert rig.define("topic_permission", "/", "guest", {"exchange": "y"}) == (204, "")
    assert ("/", "guest") not in known
    assert rig.machine.root() == rig.machine.recompute_root()


def test_the_topic_permissions_of_a_user_are_bounded_together() -> None:
    rig = Rig()
    body: Table = {"exchange": "x", "write": "w" * 40_000, "read": "r"}
    assert rig.define("topic_permission", "/", "guest", body)[0] == 201
    told = rig.define("topic_permission", "/", "guest", {**body, "exchange": "y"})
    assert told == (400, "topic_permission 'guest' has more than 65536 bytes")
    assert list(rig.machine.definitions["topic_permission"]["/", "guest"]) == ["x"]


def test_only_one_first_administrator_can_be_defined() -> None:
    rig = Rig()
    assert rig.define("user", "", "admin", {**USER, "first": True}, "b") == (201, "")
    told = rig.define("user", "", "boss", {**USER, "first": True}, "c")
    assert told == (409, "the cluster has had its first administrator")
    assert list(rig.machine.definitions["user"]) == [("", "guest"), ("", "admin")]
    assert "first" not in rig.machine.definitions["user"]["", "admin"]
    assert rig.machine.definitions["permission"]["/", "admin"]["configure"] == ".*"
    value = rig.machine.definitions["global_parameter"]["", definitions.FIRST_ADMINISTRATOR]
    assert value == {"value": ("admin", "guest")}


def test_the_mark_of_the_first_administrator_stays() -> None:
    """Without it a member that starts would define another one and write its password to its
    log."""
    rig = Rig()
    rig.define("user", "", "admin", {**USER, "first": True}, "b")
    told = (409, "'first_administrator' is set by the cluster itself, once")
    other: Table = {"value": "me"}
    for body in (None, other):
        assert rig.define("global_parameter", "", "first_administrator", body) == told
    rig.define("user", "", "admin", None)
    assert rig.define("user", "", "admin", {**USER, "first": True}, "c")[0] == 409


def test_the_first_administrator_replaces_no_existing_user() -> None:
    rig = Rig()
    rig.define("user", "", "admin", USER)
    told = rig.define("user", "", "admin", {**USER, "first": True})
    assert told == (409, "the cluster has had its first administrator")


def test_definitions_and_deletions_survive_encoding() -> None:
    for body in (VHOST, None):
        define = c.Define(c.DEFINE, 1, "me", "vhost", "", "v", body)
        assert unpack_blob(pack_blob(1, 1, 1, [define])).commands == (tuple(define),)
    alarm = (c.ALARM, "disk", True, None)
    with pytest.raises(BlobMalformed):
        unpack_blob(pack_blob(1, 1, 1, [alarm]))  # type: ignore[list-item]


def test_definitions_are_in_snapshots() -> None:
    """G14."""
    rig = Rig()
    rig.define("vhost", "", "v", VHOST)
    rig.define("vhost_limit", "v", "limits", {"max-queues": 1})
    client = rig.client(vhost="v")
    client.queue("q")
    rig.define("vhost", "", "v", None)
    copy = Machine.restore("c", rig.machine.snapshot())
    copy.invariants()
    assert copy.definitions == rig.machine.definitions
    assert copy.root() == rig.machine.root()
    assert [vhost.name for vhost in copy.leaving] == ["v"]
    assert copy.connected == {"guest": 1}


def test_a_queue_limit_holds_from_its_position_on() -> None:
    rig = Rig()
    client = rig.client()
    client.queue("q")
    rig.define("vhost_limit", "/", "limits", {"max-queues": 1})
    assert client.queue("q") == c.OK
    assert client.queue("r") == 406
    assert client.error() == (
        "PRECONDITION_FAILED - cannot declare queue 'r': queue limit in vhost '/' (1) is reached"
    )


def test_a_deleted_vhost_refuses_connections_and_goes_with_the_last_one() -> None:
    rig = Rig()
    client = rig.client(vhost="v")
    client.queue("q")
    rig.define("permission", "v", "guest", NONE)
    assert rig.define("vhost", "", "v", None) == (204, "")
    assert not rig.machine.definitions["permission"].get(("v", "guest"))
    rig.pass_time(1_000_000)
    assert not rig.machine.vhosts["v"].queues
    opened = c.ConnectionOpen(c.CONNECTION_OPEN, 77, "v", "guest", "a:1")
    assert rig.apply(client.session, opened) == 530
    assert rig.define("vhost", "", "v", VHOST) == (
        409, "vhost 'v' was deleted and is not gone yet (connections 1, queues 0); try again",
    )  # fmt: skip
    assert rig.machine.wants_tick
    client.close()
    assert list(rig.machine.vhosts) == ["/"]
    assert not rig.machine.wants_tick
    assert rig.define("vhost", "", "v", VHOST) == (201, "")


def test_nothing_is_left_of_a_deleted_vhost() -> None:
    rig = Rig()
    root = rig.machine.root()
    client = rig.client(vhost="v")
    client.queue("q", {"x-expires": 60_000, "x-message-ttl": 1000})
    client.exchange("x")
    client.bind("q", "x")
    client.publish("q", b"m")
    client.consume("q")
    client.close()
    rig.define("vhost", "", "v", None)
    assert list(rig.machine.vhosts) == ["/"]
    assert rig.machine.root() == root


def test_consumers_of_a_deleted_vhost_are_cancelled() -> None:
    rig = Rig()
    client = rig.client(vhost="v")
    client.queue("q")
    client.consume("q")
    rig.define("vhost", "", "v", None)
    assert [type(one) for one in rig.effects if isinstance(one, CancelNotify)] == [CancelNotify]


def test_a_large_vhost_is_deleted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.machine.handlers.definitions.LEAVING_WORK_MAX", 24)
    rig = Rig()
    client = rig.client(vhost="v")
    for number in range(5):
        client.queue(f"q{number}")
    client.close()
    rig.define("vhost", "", "v", None)
    depths = [len(rig.machine.vhosts["v"].queues)]
    while "v" in rig.machine.vhosts:
        rig.tick("a", 0)
        if "v" in rig.machine.vhosts:
            depths.append(len(rig.machine.vhosts["v"].queues))
    assert depths[:4] == [3, 1, 0, 0]
    assert len(depths) == 5, "its exchanges are deleted in slices, too"


def test_the_next_deleted_vhost_waits_when_the_first_exceeds_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last queue of the first vhost may cost more than was left for this position."""
    monkeypatch.setattr("broker.machine.handlers.definitions.LEAVING_WORK_MAX", 24)
    rig = Rig()
    client, other = rig.client(vhost="v"), rig.client(vhost="w")
    other.queue("q")
    for number in range(4):
        client.queue(f"q{number}")
    for key in range(20):
        client.bind("q3", "amq.direct", f"k{key}")
    rig.define("vhost", "", "v", None)
    rig.define("vhost", "", "w", None)
    client.close()
    other.close()
    while rig.machine.wants_tick:
        rig.tick("a", 0)
    assert list(rig.machine.vhosts) == ["/"]


def test_a_lingering_connection_does_not_delay_the_deletion_of_other_vhosts() -> None:
    rig = Rig()
    lingering, other = rig.client(vhost="v"), rig.client(vhost="w")
    other.queue("q")
    other.publish("q", b"m")
    rig.define("vhost", "", "v", None)
    rig.define("vhost", "", "w", None)
    other.close()
    assert list(rig.machine.vhosts) == ["/", "v"]
    lingering.close()
    assert list(rig.machine.vhosts) == ["/"]


def test_counts_of_deleted_vhosts_move_to_the_totals_of_the_members() -> None:
    """Otherwise every virtual host ever deleted would leave its counts behind."""
    rig = Rig()
    for name in ("v", "w"):
        client = rig.client(vhost=name)
        client.queue("q")
        client.publish("q", b"m")
        rig.machine.totals["a", name].messages.sampled = (1, 2)
        client.close()
        rig.define("vhost", "", name, None)
    assert {vhost for _, vhost in rig.machine.totals} == {""}
    gone = rig.machine.totals["a", ""]
    assert (gone.messages.publish, gone.queues_declared, gone.connections_closed) == (2, 2, 2)
    assert gone.messages.sampled == (2, 4), "a rate does not jump by the whole count"
    assert rig.machine.totals["", ""].queues_deleted == 2


def test_nothing_is_defined_in_a_deleted_vhost_that_still_has_connections() -> None:
    rig = Rig()
    rig.client(vhost="going")
    rig.define("vhost", "", "going", None)
    assert "going" in rig.machine.vhosts
    policy: c.Table = {"pattern": ".*", "definition": {"max-length": 1}}
    assert rig.define("policy", "going", "p", policy) == (404, "there is no vhost 'going'")


def test_late_letters_keep_a_deleted_vhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late letter belongs to a virtual host, which a snapshot must hold. The letters are counted,
    because a search through a million of them at each position takes 0.2 s."""
    monkeypatch.setattr("broker.machine.handlers.definitions.LEAVING_WORK_MAX", 120)
    monkeypatch.setattr("broker.machine.publishing.letters.LETTERS_WORK_MAX", 1)
    rig = Rig()
    client = rig.client(vhost="v")
    for number in range(10):
        client.queue(f"q{number}")
    client.queue("q", {"x-delivery-limit": 0, "x-dead-letter-exchange": ""})
    for _ in range(3):
        client.publish("q", b"m")
        client.get("q")
    rig.define("vhost", "", "v", None)
    assert list(rig.machine.vhosts["v"].queues) == ["q"]
    client.close()
    assert rig.machine.late_letters
    assert rig.machine.vhosts["v"].letters == len(rig.machine.late_letters)
    rig.machines["b"] = Machine.restore("b", rig.machine.snapshot())
    while rig.machine.wants_tick:
        rig.tick("a", 0)
    assert list(rig.machine.vhosts) == ["/"]
