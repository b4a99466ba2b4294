"""No bytes and no order of methods fail a connection except in AMQP's way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.amqp import codec
from broker.amqp.connection import ServerConnection
from broker.amqp.events import CloseRequested, Event, Faulted, OpenRequested, Published
from broker.amqp.fields import Value
from broker.amqp.frame_reader import ReaderPhase
from broker.amqp.handshake import Limits, ServerIdentity
from broker.amqp.spec import METHODS, Method
from tests.support.amqp_peer import PERSISTENT, method, methods_in, publish, start_ok, tune_ok

PREFIXES: dict[ReaderPhase, bytes] = {ReaderPhase.HEADER: b""}
PREFIXES[ReaderPhase.START] = codec.PROTOCOL_HEADER
PREFIXES[ReaderPhase.TUNE] = PREFIXES[ReaderPhase.START] + start_ok()
PREFIXES[ReaderPhase.LOGIN] = PREFIXES[ReaderPhase.TUNE]
PREFIXES[ReaderPhase.OPENING] = PREFIXES[ReaderPhase.TUNE] + tune_ok()
PREFIXES[ReaderPhase.OPEN] = PREFIXES[ReaderPhase.OPENING] + method(0, "connection.open", "/")
PREFIXES[ReaderPhase.CLOSE_RECEIVED] = PREFIXES[ReaderPhase.OPEN] + method(
    0, "connection.close", 200, "", 0, 0
)
PREFIXES[ReaderPhase.CLOSING] = PREFIXES[ReaderPhase.OPEN] + method(9, "basic.ack", 1, False)
PREFIXES[ReaderPhase.CLOSED] = PREFIXES[ReaderPhase.START] + method(
    0, "connection.close", 200, "", 0, 0
)


def reach(phase: ReaderPhase, *channels: int) -> ServerConnection:
    known = phase is not ReaderPhase.LOGIN
    connection = ServerConnection(
        lambda one: one.user if known else None, Limits(), ServerIdentity(), 0.0
    )
    connection.receive(PREFIXES[phase], 0.0)
    if phase is ReaderPhase.OPEN:
        connection.receive(b"".join(method(number, "channel.open") for number in channels), 0.0)
    assert connection.phase is phase
    return connection


def zero(row: Method) -> tuple[Value, ...]:
    values: dict[str, Value] = {"shortstr": "", "longstr": b"", "table": {}, "bit": False}
    return tuple(values.get(field.type, 0) for field in row.fields if not field.reserved)


def check(connection: ServerConnection, before: ReaderPhase, events: list[Event]) -> None:
    """What holds after anything that a client sends."""
    out = bytes(connection.take_output())
    if out[:4] == b"AMQP" and before is ReaderPhase.HEADER and connection.has_ended:
        return
    received = methods_in(out)
    faults = [event for event in events if isinstance(event, Faulted)]
    assert len(faults) <= 1
    if faults:
        assert events[-1] is faults[0]
        assert connection.phase in (ReaderPhase.CLOSING, ReaderPhase.CLOSED)
        assert not connection.channels
        if connection.phase is ReaderPhase.CLOSING:
            assert [one.method for one in received][-1] == "connection.close"
    if connection.has_ended:
        assert connection.next_timer() is None
        assert connection.receive(b"more", 1.0) == []


@given(
    st.sampled_from(list(ReaderPhase)), st.sampled_from(list(METHODS.values())), st.integers(0, 3)
)
@settings(max_examples=400)
def test_every_method_in_every_phase(phase: ReaderPhase, row: Method, channel: int) -> None:
    connection = reach(phase, 1, 2)
    if phase is ReaderPhase.OPEN:
        connection.close_channel(2, 404, "NOT_FOUND - x", 0, 0)
    connection.take_output()
    events = connection.receive(method(channel, row.name, *zero(row)), 0.0)
    if phase in (ReaderPhase.CLOSE_RECEIVED, ReaderPhase.CLOSED):
        assert events == []
    check(connection, phase, events)


frames = st.tuples(
    st.sampled_from([1, 2, 3, 8, 0, 77]), st.integers(0, 3), st.binary(max_size=40)
).map(lambda parts: _frame(*parts))
calls = st.tuples(st.sampled_from(list(METHODS.values())), st.integers(0, 3)).map(
    lambda pair: method(pair[1], pair[0].name, *zero(pair[0]))
)
messages = st.tuples(st.integers(1, 3), st.binary(max_size=50)).map(
    lambda pair: publish(pair[0], "e", "k", pair[1])
)
pieces = st.lists(st.one_of(frames, calls, messages, st.binary(max_size=20)), max_size=12)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    out = bytearray()
    codec.append_frame(out, kind, channel, payload)
    return bytes(out)


@given(st.sampled_from(list(ReaderPhase)), pieces, st.integers(1, 60))
@settings(max_examples=400)
def test_any_bytes_in_any_phase(phase: ReaderPhase, received: list[bytes], step: int) -> None:
    connection = reach(phase, 1, 2)
    connection.take_output()
    stream = b"".join(received)
    events: list[Event] = []
    for at in range(0, len(stream), step):
        events += connection.receive(stream[at : at + step], 0.0)
    opened = [event for event in events if isinstance(event, OpenRequested | CloseRequested)]
    assert len(opened) <= 2
    check(connection, phase, events)
    connection.wake(1e9)
    connection.wake(2e9)


@given(pieces, st.integers(1, 60))
@settings(max_examples=300)
def test_chunking_of_the_bytes_does_not_matter(received: list[bytes], step: int) -> None:
    stream = b"".join(received)
    whole, cut = reach(ReaderPhase.OPEN, 1, 2), reach(ReaderPhase.OPEN, 1, 2)
    events = whole.receive(stream, 0.0)
    others: list[Event] = []
    for at in range(0, len(stream), step):
        others += cut.receive(stream[at : at + step], 0.0)
    assert events == others
    if whole.phase is cut.phase:
        assert whole.take_output() == cut.take_output()


ALIKE = [
    publish(channel, "e", key, body, properties)
    for channel in (1, 2)
    for key in ("k", "l")
    for body in (b"", b"one", b"two", b"\xce\xce\xce", bytes(300))
    for properties in (PERSISTENT, b"\0\0")
]


@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from(ALIKE), calls), st.integers(1, 9), st.integers(0, 40)),
        max_size=9,
    ),
    st.integers(1, 2000),
)
@settings(max_examples=300)
def test_similar_messages_are_read_as_one_at_a_time(
    received: list[tuple[bytes, int, int]], step: int
) -> None:
    """Some have one other octet: in the repeated part too, and at the end of a frame."""
    whole, cut = reach(ReaderPhase.OPEN, 1, 2), reach(ReaderPhase.OPEN, 1, 2)
    stream = bytearray()
    for piece, times, spoilt in received:
        stream += piece * times
        if spoilt == 1:
            stream[-1] ^= 1
        elif spoilt == 2:
            stream[-len(piece) + step % len(piece)] ^= 1
    events: list[Event] = []
    for at in range(0, len(stream), step):
        events += whole.receive(bytes(stream[at : at + step]), 0.0)
    frames: list[Event] = []
    for at in range(len(stream)):
        frames += cut.receive(bytes(stream[at : at + 1]), 0.0)
    assert list(map(_anywhere, events)) == list(map(_anywhere, frames))


def _anywhere(event: Event) -> Event:
    """The fault without its place in the input."""
    return event._replace(text="") if isinstance(event, Faulted) else event


@given(
    st.lists(st.tuples(st.integers(1, 2), st.binary(max_size=10_000)), min_size=1, max_size=6),
    st.integers(1, 9000),
    st.integers(4096, 8192),
)
@settings(max_examples=100)
def test_every_message_arrives_whole(
    messages: list[tuple[int, bytes]], step: int, frame_max: int
) -> None:
    connection = reach(ReaderPhase.OPEN, 1, 2)
    stream = b"".join(
        publish(channel, "e", "k", body, frame_max=frame_max) for channel, body in messages
    )
    events: list[Event] = []
    for at in range(0, len(stream), step):
        events += connection.receive(stream[at : at + step], 0.0)
    assert events == [
        Published(channel, "e", "k", 4, PERSISTENT, body, None) for channel, body in messages
    ]
