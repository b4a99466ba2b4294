"""The permissions that AMQP methods need: all methods, each permission, each name in them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from broker.access.access import SYSTEM, Resource
from broker.access.backends import Login
from broker.amqp import codec
from broker.amqp.fields import Table, Value
from broker.amqp.spec import METHODS
from broker.frontend.needs import UNDERSTAND
from broker.machine.state import FAILOVER
from tests.support.amqp_peer import method, publish
from tests.support.gateway_loop import PERMISSIONS, Loop, Peer

QUEUES, EXCHANGES = ("q", "new"), ("x", "y", "amq.default", "fresh")
UNIVERSE = [
    *(Resource(one, "queue", name) for one in PERMISSIONS for name in QUEUES),
    *(Resource(one, "exchange", name) for one in PERMISSIONS for name in EXCHANGES),
]
_Q, _X, _Y = ("queue", "q"), ("exchange", "x"), ("exchange", "y")


class Call(NamedTuple):
    """A method with arguments, its permissions in the order of checking, and the reply if
    granted."""

    name: str
    args: tuple[Value, ...]
    needed: tuple[Resource, ...] = ()
    reply: str = ""
    prelude: tuple[tuple[str, tuple[Value, ...]], ...] = ()


def declare(queue: str, arguments: Table, *, passive: bool = False) -> tuple[Value, ...]:
    return (queue, passive, False, False, False, False, arguments)


def exchange(name: str, arguments: Table, *, passive: bool = False) -> tuple[Value, ...]:
    return (name, "direct", passive, False, False, False, False, arguments)


def can(permission: str, kind: str, name: str) -> Resource:
    return Resource(permission, kind, name)


_TX = (("tx.select", ()),)
CALLS = [
    Call("exchange.declare", exchange("fresh", {}), (can("configure", "exchange", "fresh"),),
        "exchange.declare-ok"),
    Call("exchange.declare", exchange("fresh", {"alternate-exchange": "y"}),
        (can("configure", "exchange", "fresh"), can("read", "exchange", "fresh"),
         can("write", *_Y)), "exchange.declare-ok"),
    Call("exchange.declare", exchange("x", {}, passive=True), (), "exchange.declare-ok"),
    Call("exchange.delete", ("x", False, False), (can("configure", *_X),), "exchange.delete-ok"),
    Call("exchange.bind", ("y", "x", "k", False, {}), (can("write", *_Y), can("read", *_X)),
        "exchange.bind-ok"),
    Call("exchange.unbind", ("y", "x", "k", False, {}), (can("write", *_Y), can("read", *_X)),
        "exchange.unbind-ok"),
    Call("queue.declare", declare("new", {}), (can("configure", "queue", "new"),),
        "queue.declare-ok"),
    Call("queue.declare", declare("new", {"x-dead-letter-exchange": "y"}),
        (can("configure", "queue", "new"), can("read", "queue", "new"), can("write", *_Y)),
        "queue.declare-ok"),
    Call("queue.declare", declare("q", {}, passive=True), (), "queue.declare-ok"),
    Call("queue.bind", ("q", "x", "k", False, {}), (can("write", *_Q), can("read", *_X)),
        "queue.bind-ok"),
    Call("queue.unbind", ("q", "x", "k", {}), (can("write", *_Q), can("read", *_X)),
        "queue.unbind-ok"),
    Call("queue.purge", ("q", False), (can("read", *_Q),), "queue.purge-ok"),
    Call("queue.delete", ("q", False, False, False), (can("configure", *_Q),), "queue.delete-ok"),
    Call("basic.consume", ("q", "t", False, False, False, False, {}), (can("read", *_Q),),
        "basic.consume-ok"),
    Call("basic.get", ("q", False), (can("read", *_Q),), "basic.get-empty"),
    Call("basic.publish", ("x", "k", False, False), (can("write", *_X),)),
    Call("basic.publish", ("", "q", False, False), (can("write", "exchange", "amq.default"),)),
    Call("basic.publish", ("x", "k", False, False), (can("write", *_X),), prelude=_TX),
    Call("basic.qos", (0, 1, False), (), "basic.qos-ok"),
    Call("basic.cancel", ("t", False), (), "basic.cancel-ok"),
    Call("basic.ack", (0, True)),
    Call("basic.nack", (0, True, True)),
    Call("basic.recover", (True,), (), "basic.recover-ok"),
    Call("basic.recover-async", (True,)),
    Call("channel.flow", (True,), (), "channel.flow-ok"),
    Call("confirm.select", (False,), (), "confirm.select-ok"),
    Call("tx.select", (), (), "tx.select-ok"),
    Call("tx.commit", (), (), "tx.commit-ok", _TX),
    Call("tx.rollback", (), (), "tx.rollback-ok", _TX),
]  # fmt: skip
WITHOUT_A_QUESTION = {
    "basic.reject": "like basic.nack, of one that does not exist: the machine refuses it",
    "channel.open": "every user may; how many is a limit",
    "channel.close": "", "channel.close-ok": "", "channel.flow-ok": "", "basic.cancel-ok": "",
}  # fmt: skip


def test_every_method_of_a_client_is_in_the_matrix() -> None:
    of_clients = {name for name, one in METHODS.items() if one.by_client and one.class_id != 10}
    assert of_clients == {call.name for call in CALLS} | set(WITHOUT_A_QUESTION)


def member() -> Loop:
    loop = Loop({"u": "secret"})
    owner = loop.connect().open(1)
    owner.declare(1, "q")
    for name in ("x", "y"):
        assert owner.call(1, "exchange.declare", *exchange(name, {})) == [("exchange.declare-ok",)]
    return loop


def patterns(refused: Resource | None, nothing: bool = False) -> Table:
    """A pattern of everything but the refused name: re2 has no negation."""
    found: Table = {}
    for permission in PERMISSIONS:
        names = [
            one.name
            for one in UNIVERSE
            if one.permission == permission and one != refused and not nothing
        ]
        found[permission] = f"^({'|'.join(names)})$" if names else ""
    return found


def outcome(call: Call, permission: Table) -> list[tuple[object, ...]]:
    loop = member()
    loop.define("permission", "/", "u", permission)
    peer = Peer(loop, is_local=False)
    assert isinstance(found := loop.gateway.access.login("u", "secret", is_local=False), Login)
    assert found.backend == "internal"
    peer.client.connection.trust("u")
    peer.send(method(0, "connection.open", "/"))
    peer.open(1)
    for name, args in call.prelude:
        peer.call(1, name, *args)
    if call.name == "basic.publish":
        received = peer.send(publish(1, str(call.args[0]), str(call.args[1])))
        return [(one.method, *one.args) for one in received]
    return peer.call(1, call.name, *call.args)


def text_of(resource: Resource) -> str:
    _, kind, name = resource
    return f"ACCESS_REFUSED - access to {kind} '{name}' in vhost '/' refused for user 'u'"


def refusal(call: Call, resource: Resource) -> list[tuple[object, ...]]:
    ids = METHODS[call.name]
    return [("channel.close", 403, text_of(resource), ids.class_id, ids.method_id)]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.name}-{len(call.needed)}")
def test_each_cell(call: Call) -> None:
    """Granted with all permissions but one that it does not need; refused without one that it
    needs, whatever else is granted."""
    for refused in (None, *UNIVERSE):
        got = outcome(call, patterns(refused))
        if refused in call.needed:
            assert refused is not None
            assert got == refusal(call, refused), f"without {refused}"
        else:
            assert [one[0] for one in got] == ([call.reply] if call.reply else []), refused
    if call.needed:
        assert outcome(call, patterns(None, nothing=True)) == refusal(call, call.needed[0])


def test_an_unnamed_queue_is_checked_by_the_shape_of_its_name() -> None:
    """It gets a name only when it may be declared: asking twice leaves no trace."""
    loop = member()
    peer = as_u(loop).open(1, 2)
    loop.define("permission", "/", "u", patterns(None, nothing=True))
    loop.turn()
    (closed,) = peer.call(1, "queue.declare", *declare("", {}))
    assert closed[1] == 403
    assert loop.names == 0
    loop.define(
        "permission", "/", "u", {"configure": "^amq\\.gen-[\\w-]{22}$", "write": "", "read": ""}
    )
    loop.turn()
    assert peer.call(2, "queue.declare", *declare("", {})) == [
        ("queue.declare-ok", "amq.gen-1", 0, 0)
    ]


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.needed], ids=lambda call: call.name
)
def test_permissions_are_known_before_anything_is_done(call: Call) -> None:
    if call.name == "basic.publish":
        return
    loop = member()
    peer = as_u(loop).open(1)
    channel, client = peer.client.channels[1], peer.client
    before = repr(channel)
    understand = UNDERSTAND[call.name]
    args, needs = understand(client.rights, channel, call.args)
    assert understand(client.rights, channel, call.args) == (args, needs)
    assert needs.resources == call.needed
    assert (repr(channel), loop.gateway.commands, loop.names) == (before, [], 0)


def test_a_withdrawn_permission_counts_at_once() -> None:
    """G22."""
    loop = member()
    peer = Peer(loop)
    peer.client.connection.trust("u")
    peer.send(method(0, "connection.open", "/"))
    peer.open(1)
    assert peer.publish(1, "q", b"1", b"2") == []
    loop.define("permission", "/", "u", {"configure": ".*", "write": "", "read": ".*"})
    loop.turn()
    (closed,) = peer.publish(1, "q", b"3")
    assert closed.args[:2] == (403, text_of(Resource("write", "exchange", "amq.default")))


def as_u(loop: Loop, vhost: str = "/") -> Peer:
    peer = Peer(loop)
    peer.client.connection.trust("u")
    peer.received = peer.send(method(0, "connection.open", vhost))
    return peer


def test_topic_permissions_check_each_key() -> None:
    loop = member()
    owner = loop.connect().open(1)
    owner.call(1, "exchange.declare", "t", "topic", False, False, False, False, False, {})
    topic: Table = {"exchange": "t", "write": "^{username}\\.", "read": "^{vhost}"}
    loop.define("topic_permission", "/", "u", topic)
    peer = as_u(loop).open(1, 2)
    assert peer.send(publish(1, "t", "u.x"), publish(1, "t", "u.y")) == []
    (closed,) = peer.send(publish(1, "t", "v.x"))
    assert closed.args == (
        403, "ACCESS_REFUSED - access to topic 'v.x' in exchange 't' in vhost '/' refused for user "
        "'u'", 60, 40,
    )  # fmt: skip
    (bound,) = peer.call(2, "queue.bind", "q", "t", "/x", False, {})
    assert bound == ("queue.bind-ok",)
    (refused,) = peer.call(2, "queue.bind", "q", "t", "u.x", False, {})
    assert refused[1] == 403


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_check_the_keys_of_copies_too(header: str) -> None:
    loop = member()
    topic: Table = {"exchange": "amq.topic", "write": "^mine", "read": ""}
    loop.define("topic_permission", "/", "u", topic)

    def copied(*keys: Value) -> bytes:
        return codec.encode_properties({"headers": {header: keys}})

    peer = as_u(loop).open(1, 2)
    assert peer.send(publish(1, "amq.topic", "mine.1", b"", copied("mine.2", 5))) == []
    (closed,) = peer.send(publish(1, "amq.topic", "mine.1", b"", copied("mine.2", "others.1")))
    assert closed.args[0] == 403
    assert "access to topic 'others.1' in exchange 'amq.topic'" in str(closed.args[1])
    peer.call(2, "tx.select")
    (closed,) = peer.send(publish(2, "amq.topic", "mine.1", b"", copied("others.1")))
    assert closed.args[0] == 403


def test_the_name_of_a_user_is_no_expression() -> None:
    """Otherwise an administrator of users could make one whose own keys match everybody's."""
    loop = member()
    topic: Table = {"exchange": "amq.topic", "write": "^{username}-{vhost}$", "read": ""}
    loop.define("user", "", ".*", loop.hashed("p"))
    loop.define("topic_permission", "/", ".*", topic)

    def refused(key: str) -> str:
        return loop.gateway.access.refuses_topic(".*", "/", "write", "amq.topic", key)

    assert refused(".*-/") == ""
    assert "access to topic 'other-/'" in refused("other-/")


def test_a_topic_permission_that_grows_too_large_with_a_name_permits_nothing() -> None:
    loop, user = member(), "x" * 200
    topic: Table = {"exchange": "amq.topic", "write": "({username}){1000}|.*", "read": ""}
    loop.define("user", "", user, loop.hashed("p"))
    loop.define("topic_permission", "/", user, topic)
    refused = loop.gateway.access.refuses_topic(user, "/", "write", "amq.topic", "a")
    assert "access to topic 'a'" in refused


def test_an_exchange_redeclared_as_topic_is_checked_at_once() -> None:
    loop = member()
    loop.define("topic_permission", "/", "u", {"exchange": "x", "write": "^$", "read": ""})
    peer = as_u(loop).open(1, 2)
    assert peer.send(publish(1, "x", "k")) == []
    peer.call(2, "exchange.delete", "x", False, False)
    peer.call(2, "exchange.declare", "x", "topic", False, False, False, False, False, {})
    (closed,) = peer.send(publish(1, "x", "k"))
    assert closed.args[0] == 403


@pytest.mark.parametrize(("tags", "is_good"), [((), False), (("impersonator",), True)])
def test_only_an_impersonator_names_another_user(tags: tuple[str, ...], is_good: bool) -> None:
    loop = member()
    loop.define("user", "", "u", Loop.hashed("secret", *tags))
    peer = as_u(loop).open(1, 2)
    own = codec.encode_properties({"user_id": "u"})
    other = codec.encode_properties({"user_id": "guest"})
    assert peer.send(publish(1, "", "q", b"", own)) == []
    received = peer.send(publish(1, "", "q", b"", other))
    if is_good:
        assert received == []
    else:
        assert received[0].args == (
            406, "PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was "
            "'u'", 60, 40,
        )  # fmt: skip


def test_the_broker_itself_may_pass_on_the_user_of_a_message() -> None:
    """A shovel to this cluster without a user of its own; a link that logs in is checked."""
    loop = member()
    peer = Peer(loop)
    peer.client.connection.trust(SYSTEM)
    peer.send(method(0, "connection.open", "/"))
    peer.open(1)
    other = codec.encode_properties({"user_id": "guest"})
    assert peer.send(publish(1, "", "q", b"", other)) == []


@pytest.mark.parametrize(
    ("user", "is_member"), [("guest", False), ("guest", True), (SYSTEM, False), (SYSTEM, True)]
)
def test_no_client_publishes_to_amq_failover(user: str, is_member: bool) -> None:
    """Whatever else it may do: listeners connect to the addresses announced there. A shovel acts
    for the broker, and whoever may make policies could have it announce any address."""
    peer = Peer(member())
    peer.client.connection.trust(user)
    peer.client.unlimited = is_member
    peer.send(method(0, "connection.open", "/"))
    peer.open(1)
    refused = peer.send(publish(1, FAILOVER, ""))
    assert bool(refused) == ((user, is_member) != (SYSTEM, True))
    if refused:
        assert refused[0].args[:2] == (
            403, f"ACCESS_REFUSED - cannot publish to internal exchange '{FAILOVER}' in vhost '/'"
        )  # fmt: skip


def refused_open(peer: Peer) -> tuple[object, ...]:
    return peer.take()[-1].args


def test_which_virtual_hosts_a_user_may_open() -> None:
    loop = member()
    loop.define("vhost", "", "v", {"description": "", "tags": ()})
    assert refused_open(as_u(loop, "v")) == (
        530, "NOT_ALLOWED - access to vhost 'v' refused for user 'u'", 10, 40
    )  # fmt: skip
    assert refused_open(as_u(loop, "w")) == (530, "NOT_ALLOWED - vhost w not found", 10, 40)
    loop.define("permission", "v", "u", dict.fromkeys(PERMISSIONS, ""))
    assert as_u(loop, "v").take()[-1].method == "connection.open-ok"


def test_limits_of_connections_and_channels() -> None:
    loop = member()
    loop.define("user_limit", "", "u", {"max-connections": 1, "max-channels": 2})
    peer = as_u(loop).open(1, 2)
    assert refused_open(as_u(loop)) == (
        530, "NOT_ALLOWED - connection refused for user 'u': user connection limit (1) is reached",
        10, 40,
    )  # fmt: skip
    assert peer.call(3, "channel.open")[0][1:3] == (
        530, "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed "
        "user limit of (2)",
    )  # fmt: skip
    loop.define("user_limit", "", "u", None)
    loop.define("vhost_limit", "/", "limits", {"max-connections": 0})
    assert refused_open(as_u(loop))[1] == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (0) is reached"
    )


def test_connections_not_yet_ordered_count() -> None:
    loop = member()
    loop.define("user_limit", "", "u", {"max-connections": 1})
    for answer in ("connection.open-ok", "connection.close"):
        peer = Peer(loop)
        peer.client.connection.trust("u")
        loop.gateway.data_received(peer.client, method(0, "connection.open", "/"), 0.0)
        peer.receive()
        assert peer.take()[-1].method == answer


@pytest.mark.parametrize("what", ["user", "vhost"])
def test_deleting_a_user_or_virtual_host_ends_its_connections(what: str) -> None:
    loop = member()
    loop.define("vhost", "", "v", {"description": "", "tags": ()})
    loop.define("permission", "v", "u", dict.fromkeys(PERMISSIONS, ".*"))
    peer, other = as_u(loop, "v"), loop.connect()
    peer.take()
    name = {"user": "u", "vhost": "v"}[what]
    loop.define(what, "", name, None)
    loop.turn()
    assert peer.take()[-1].args == (320, f"CONNECTION_FORCED - {what} '{name}' is deleted", 0, 0)
    other.open(1)
    if what == "vhost":
        assert "v" not in loop.machine.vhosts


def test_a_member_without_users_sends_clients_on() -> None:
    """It joins, and has no state yet: a 403 would make clients give up."""
    loop = Loop()
    loop.outbox.fence()
    loop.machine.definitions["user"].clear()
    received = loop.connect().take()[-1]
    assert received.args[:2] == (
        320, "CONNECTION_FORCED - member 'a' is not part of the primary view at this time"
    )  # fmt: skip


LOADING = "member 'a' is loading its definitions: try again in a moment"


def test_while_users_are_loaded_an_unknown_user_is_asked_to_retry() -> None:
    """A 403 would make clients give up, although they may be admitted a moment later."""
    loop = Loop()
    loop.machine.definitions["user"].clear()
    loop.gateway.admission.loading = LOADING
    assert loop.connect().take()[-1].args[:2] == (320, f"CONNECTION_FORCED - {LOADING}")
    loop.gateway.admission.loading = ""
    assert loop.connect().take()[-1].args[0] == 403


@pytest.mark.parametrize("vhost", ["/", "not-there"])
def test_while_permissions_are_loaded_a_user_without_any_is_asked_to_retry(vhost: str) -> None:
    loop = member()
    loop.define("permission", "/", "u", None)
    loop.gateway.admission.loading = LOADING
    assert as_u(loop, vhost).take()[-1].args[:2] == (320, f"CONNECTION_FORCED - {LOADING}")
    loop.gateway.admission.loading = ""
    assert as_u(loop, vhost).take()[-1].args[0] == 530


def test_deleting_an_exchange_just_before_does_not_evade_permissions() -> None:
    """Both methods come in one read: the checked state is older than the first of them."""
    loop = member()
    loop.define("permission", "/", "u", {"configure": "^x$", "write": "", "read": ""})
    peer = as_u(loop).open(1)
    received = peer.send(
        method(1, "exchange.delete", "x", False, False)
        + method(1, "exchange.declare", *exchange("x", {"alternate-exchange": "y"}))
    )
    assert received[-1].args[:2] == (403, text_of(can("read", *_X)))
    assert "x" not in loop.machine.vhosts["/"].exchanges


def test_an_exchange_may_be_declared_again_unchanged() -> None:
    loop = member()
    owner = loop.connect().open(1)
    arguments: Table = {"alternate-exchange": "y"}
    owner.call(1, "exchange.declare", *exchange("fresh", arguments))
    loop.define("permission", "/", "u", {"configure": "^fresh$", "write": "", "read": ""})
    peer = as_u(loop).open(1)
    again = peer.call(1, "exchange.declare", *exchange("fresh", arguments))
    assert again == [("exchange.declare-ok",)]


def test_keys_of_an_exchange_that_does_not_exist_yet_are_checked() -> None:
    """An earlier method in the same read may declare it."""
    loop = member()
    loop.define("topic_permission", "/", "u", {"exchange": "t", "write": "^w", "read": "^r"})
    peer = as_u(loop).open(1)
    topic: tuple[Value, ...] = ("t", "topic", False, False, False, False, False, {})
    received = peer.send(
        method(1, "exchange.declare", *topic) + method(1, "queue.bind", "q", "t", "#", False, {})
    )
    assert received[-1].args[0] == 403
    assert not loop.machine.vhosts["/"].exchanges["t"].bindings


def test_a_user_deleted_while_the_member_is_fenced_is_closed_afterwards() -> None:
    """What is known there may be old, so nobody is closed for it, and it is looked at again."""
    loop = member()
    peer = as_u(loop)
    loop.outbox.fence()
    loop.define("user", "", "u", None)
    loop.turn()
    assert not peer.client.wants_close
    peer.take()
    loop.outbox.unfence()
    loop.turn()
    assert peer.take()[-1].args[0] == 320
