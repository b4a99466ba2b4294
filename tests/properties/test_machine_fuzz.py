"""The machine answers everything that a blob may contain with a value: it never raises."""

from typing import cast

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from broker.machine import commands as c
from broker.machine.command_codec import (
    LARGE_BYTES,
    pack_blob,
    unpack_blob,
)
from broker.machine.commands import Command, Value
from broker.machine.machine import Machine
from broker.machine.requests.death_headers import bury
from broker.machine.requests.properties import encode_value, expiration_of, headers_of, short_string
from broker.machine.version import MACHINE_VERSION

INTS = st.sampled_from([0, 1, 1, 1, 2, 3, -1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1])
NAMES = st.sampled_from(["", "q", "q", "x", "amq.topic", "amq.headers", "#", "*.a", "topic", "é"])
RECORDED: c.Table = {"x-death": ({"queue": "q", "count": (1 << 63) - 1},), "q": 1}
HEADERS = b"".join(short_string(name) + encode_value(value) for name, value in RECORDED.items())


def numbered(number: Value, epoch: Value) -> bytes:
    """Properties of a message that its producer numbered."""
    headers = {"x-producer-id": "p", "x-sequence": number, "x-producer-epoch": epoch}
    table = b"".join(short_string(name) + encode_value(value) for name, value in headers.items())
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


PROPERTIES = st.one_of(
    st.binary(max_size=12),
    st.builds(numbered, INTS, st.sampled_from([0, 0, 0, 1, -1, "1", True])),
    st.just(b"\x20\x00" + len(HEADERS).to_bytes(4, "big") + HEADERS),
    st.just(b"\x01\x00\x0210"),
)
VALUES = st.recursive(
    st.one_of(INTS, st.booleans(), st.none(), st.floats(), NAMES, st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tuple), st.dictionaries(NAMES, inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.sampled_from(
    [
        *("x-max-length", "x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-overflow"),
        *("x-queue-type", "x-single-active-consumer", "alternate-exchange", "x-match", "note"),
        *("x-max-priority", "x-priority", "x-max-length-bytes", "x-delivery-limit"),
        *("x-dead-letter-strategy", "dead-letter-strategy"),
        *("qpid.max_count", "qpid.policy_type", "qpid.priorities", "qpid.auto_delete_timeout"),
    ]
)
TABLES = st.one_of(
    st.just({}),
    st.just({"x-dead-letter-exchange": "", "x-max-length": 1}),
    st.just({"x-dead-letter-exchange": "", "x-delivery-limit": 1}),
    st.just({"x-queue-type": "quorum"}),
    st.just(
        {
            "x-dead-letter-exchange": "e1",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    ),
    st.dictionaries(ARGUMENTS, VALUES, max_size=2),
)


POLICIES = st.fixed_dictionaries(
    {
        "pattern": st.sampled_from(["", "^(?!amq\\.)", "q$", "("]),
        "definition": st.dictionaries(
            st.sampled_from([
                *("max-length", "message-ttl", "expires", "delivery-limit", "max-length-bytes"),
                *("alternate-exchange", "dead-letter-exchange", "overflow", "ha-mode", "note"),
            ]),
            st.sampled_from([0, 1, 2, "q", "amq.topic", "reject-publish", "all"]),
            max_size=2,
        ),
    },
    optional={"priority": INTS, "apply-to": st.sampled_from(["all", "queues", "exchanges", "q"])},
)  # fmt: skip
DEFINES = st.builds(
    c.Define,
    st.just(c.DEFINE),
    INTS,
    NAMES,
    st.sampled_from(["vhost", "policy", "policy", "operator_policy", "vhost_limit", "user", "no"]),
    st.sampled_from(["/", "/", "", "q"]),
    NAMES,
    st.one_of(POLICIES, POLICIES, st.none(), TABLES),
).map(tuple)


def command_of(kind: int) -> st.SearchStrategy[Command]:
    if kind == c.DEFINE:
        return cast("st.SearchStrategy[Command]", DEFINES)
    by_type = {
        int: INTS,
        str: NAMES,
        bool: st.booleans(),
        bytes: PROPERTIES,
        c.Table: TABLES,
        tuple[c.TxPublish, ...]: st.lists(
            st.tuples(NAMES, NAMES, INTS, PROPERTIES, st.binary(max_size=3)), max_size=2
        ).map(tuple),
        tuple[c.TxSettle, ...]: st.lists(
            st.tuples(INTS, st.booleans(), st.integers(0, 3)), max_size=2
        ).map(tuple),
        tuple[c.ActiveMember, ...]: st.lists(
            st.tuples(st.sampled_from("ab"), st.just(1), st.booleans()),
            max_size=2,
            unique_by=lambda member: member[0],
        ).map(tuple),
        tuple[str, ...]: st.lists(NAMES, max_size=2).map(tuple),
    }
    fields = list(c.CLASSES[kind].__annotations__.values())
    items = [by_type[field] for field in fields[1:]]
    return cast("st.SearchStrategy[Command]", st.tuples(st.just(kind), *items))


COMMANDS = st.sampled_from(sorted(c.CLASSES)).flatmap(command_of)


@given(st.lists(COMMANDS, max_size=40))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_machine_never_raises(commands: list[Command]) -> None:
    machine = Machine("a")
    members = (c.ActiveMember("a", 1, True),)
    machine.apply(1, 0, 0, c.Activate(c.ACTIVATE, 1, members, False, (), "", MACHINE_VERSION))
    # An order to execute what this release cannot stops the member: that is intended.
    orders = [o for o in commands if o[0] != c.UPGRADE or o[2] <= MACHINE_VERSION]  # type: ignore[misc,operator]
    for position, command in enumerate(orders, 2):
        session = machine.sessions["a"].session if "a" in machine.sessions else 0
        if (session, 1) not in machine.connections:
            machine.apply(position, session, 0, c.ConnectionOpen(1, 1, "/", "", ""))
        if (session, 1, 1) not in machine.channels:
            machine.apply(position, session, 0, c.ChannelOpen(3, 1, 1))
        blob = unpack_blob(pack_blob(session, 1, position, [command]))
        outcome = machine.apply(position, session, blob.time_us, blob.commands[0])
        assert 0 <= outcome < 1000
        machine.invariants()
    copy = Machine.restore("a", machine.snapshot())
    assert list(copy.snapshot()) == list(machine.snapshot())


PUBLISHES = st.lists(
    st.tuples(
        st.just(c.PUBLISH),
        st.integers(1, 2),
        st.just(1),
        st.sampled_from([0, 0, 1, 2, 3, 4, -1, (1 << 62) - 1, 1 << 62, (1 << 62) + 1]),
        st.just(""),
        st.sampled_from(["q", "q", "q", "r"]),
        st.just(c.PERSISTENT),
        st.sampled_from([b"", b"", b"\x10\x00\x02"]),
        st.sampled_from([b"", b"1", b"2", bytes(LARGE_BYTES - 1), bytes(LARGE_BYTES)]),
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(st.one_of(PUBLISHES, PUBLISHES.map(sorted), st.lists(COMMANDS, max_size=3))))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_packed_commands_are_unpacked_in_order(parts: list[list[Command]]) -> None:
    """Whichever of them travel as runs."""
    commands = [command for part in parts for command in part]
    assume(commands)  # an item without commands is malformed
    assert repr(unpack_blob(pack_blob(1, 2, 3, commands)).commands) == repr(tuple(commands))


@given(st.binary(max_size=60), st.booleans())
@settings(max_examples=500, deadline=None)
def test_properties_of_any_bytes_are_read_and_written(data: bytes, headed: bool) -> None:
    if headed:
        data = b"\x20\x00" + len(data).to_bytes(4, "big") + data
    before: dict[str, Value] = headers_of(data)
    expiration_of(data)
    letter = bury(data, "q", "x", ("k",), "expired", 5_000_000)
    after = headers_of(letter.properties)
    if before:
        assert "x-death" in after
        assert {n: v for n, v in after.items() if not n.startswith("x-")}.keys() == {
            name for name in before if not name.startswith("x-")
        }
    assert letter.without_cycles(()) == ()
