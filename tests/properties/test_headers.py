"""Headers of every type that clients send: gateway and machine read them alike and drop none."""

import struct

import pamqp.decode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.amqp.codec import inspect_properties
from broker.amqp.errors import SYNTAX_ERROR, ProtocolFault
from broker.amqp.fields import DEPTH_MAX, Value, decode_table
from broker.machine.requests.death_headers import bury
from broker.machine.requests.properties import headers_of, raw_headers

Raw = st.SearchStrategy[bytes]


def fixed(tag: str, form: str, values: st.SearchStrategy[int] | st.SearchStrategy[float]) -> Raw:
    return values.map(lambda value: tag.encode() + struct.pack(form, value))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def counted(tag: bytes, data: bytes) -> bytes:
    return tag + len(data).to_bytes(4, "big") + data


def table_of(entries: list[tuple[str, bytes]]) -> bytes:
    body = b"".join(bytes((len(n.encode()),)) + n.encode() + value for n, value in entries)
    return len(body).to_bytes(4, "big") + body


SCALARS: dict[str, Raw] = {
    "t": st.sampled_from([b"t\x00", b"t\x01"]),
    "b": fixed("b", ">b", signed(8)),
    "B": fixed("B", ">B", unsigned(8)),
    "s": fixed("s", ">h", signed(16)),
    "u": fixed("u", ">H", unsigned(16)),
    "I": fixed("I", ">i", signed(32)),
    "i": fixed("i", ">I", unsigned(32)),
    "l": fixed("l", ">q", signed(64)),
    "L": fixed("L", ">q", signed(64)),
    "f": fixed("f", ">f", st.floats(width=32, allow_nan=False)),
    "d": fixed("d", ">d", st.floats(allow_nan=False)),
    "D": st.tuples(st.integers(0, 20), signed(32)).map(lambda d: b"D" + struct.pack(">Bi", *d)),
    "S": st.binary(max_size=12).map(lambda data: counted(b"S", data)),
    "T": fixed("T", ">Q", unsigned(32)),
    "V": st.just(b"V"),
    "x": st.binary(max_size=12).map(lambda data: counted(b"x", data)),
}
names = st.text(max_size=12)


def nested(inner: Raw) -> Raw:
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda items: counted(b"A", b"".join(items))),
        st.lists(st.tuples(names, inner), max_size=4).map(lambda one: b"F" + table_of(one)),
    )


values: Raw = st.recursive(st.one_of(*SCALARS.values()), nested, max_leaves=12)
headers = st.lists(st.tuples(names, values), max_size=6, unique_by=lambda one: one[0]).map(table_of)


def properties_of(table: bytes) -> bytes:
    return b"\x20\x00" + table


def plain(value: Value) -> Value:
    """Without the types only an encoder needs: what a command carries."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case tuple():
            return tuple(plain(item) for item in value)
        case bool() | None:
            return value
        case int():
            return int(value)
        case bytes():
            return bytes(value)
        case float() | str():
            return value


@given(headers)
def test_gateway_and_machine_read_the_same(table: bytes) -> None:
    properties = properties_of(table)
    inspect_properties(properties)
    decoded, end = decode_table(table, 0, len(table))
    assert end == len(table)
    assert headers_of(properties) == plain(decoded)


@given(headers)
def test_a_dead_letter_keeps_every_header_byte_for_byte(table: bytes) -> None:
    properties = properties_of(table)
    before = [one for one in raw_headers(properties) if not one[0].startswith("x-")]
    once = bury(properties, "q", "x", ("k",), "expired", 5_000_000).properties
    twice = bury(once, "q2", "x", ("k",), "rejected", 6_000_000).properties
    for letter in (once, twice):
        inspect_properties(letter)
        after = [one for one in raw_headers(letter) if not one[0].startswith("x-")]
        assert after == before
    assert b"".join(name + value for _, name, value in raw_headers(properties)) == table[4:]


@pytest.mark.parametrize("tag", SCALARS)
def test_no_header_type_costs_the_others(tag: str) -> None:
    """Regression: the machine did not know type `L`, and dead-lettering dropped all headers."""

    @given(SCALARS[tag])
    def check(value: bytes) -> None:
        properties = properties_of(table_of([("first", b"t\x01"), ("odd", value)]))
        inspect_properties(properties)
        letter = bury(properties, "q", "x", ("k",), "expired", 0).properties
        assert [one[2] for one in raw_headers(letter)][:2] == [b"t\x01", value]
        assert headers_of(letter)["first"] is True

    check()


ORACLE_TAGS = [tag for tag in SCALARS if tag not in "DTSVx"]  # those that pamqp returns as numbers


@given(st.sampled_from(ORACLE_TAGS).flatmap(lambda tag: SCALARS[tag]))
def test_numbers_are_read_as_pamqp_reads_them(value: bytes) -> None:
    table = table_of([("n", value)])
    _, theirs = pamqp.decode.field_table(table)
    assert headers_of(properties_of(table)) == theirs


def test_tables_as_deep_as_the_gateway_allows() -> None:
    value = b"t\x01"
    for _ in range(DEPTH_MAX - 1):
        value = counted(b"A", value)
    properties = properties_of(table_of([("deep", value), ("x", b"V")]))
    inspect_properties(properties)
    assert set(headers_of(properties)) == {"deep", "x"}
    letter = bury(properties, "q", "x", ("k",), "expired", 0).properties
    assert [one[2] for one in raw_headers(letter)][:2] == [value, b"V"]


def test_foreign_death_records_keep_what_a_client_put_into_them() -> None:
    """Records from elsewhere may contain any type, which is kept."""
    foreign = b"F" + table_of([("queue", counted(b"S", b"far")), ("count", b"L" + b"\xff" * 8)])
    properties = properties_of(table_of([("x-death", counted(b"A", foreign))]))
    letter = bury(properties, "q", "x", ("k",), "expired", 0)
    assert [one.raw for one in letter.deaths][1] == foreign
    assert foreign in letter.properties


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"tbBsuIilLfdDSATFVx")))
def test_an_unknown_type_is_a_connection_error(tag: int) -> None:
    properties = properties_of(table_of([("n", bytes((tag,)) + b"\x00" * 8)]))
    with pytest.raises(ProtocolFault, match="unknown type") as fault:
        inspect_properties(properties)
    assert fault.value.code == SYNTAX_ERROR
