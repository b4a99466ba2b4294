"""Large contents are written as the socket takes them, and delay no end of a connection."""

import pytest

from broker.amqp import codec, output
from broker.amqp.connection import ServerConnection
from broker.amqp.spec import decode_method
from tests.support.amqp_connection import opened
from tests.support.amqp_peer import method, methods_in

PARTS = (b"a" * 3000, b"", b"b" * 5000, b"c" * 100)
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "TAKEN_BYTES", 1000)


def sent_large(frame_max: int = 4096) -> ServerConnection:
    connection = opened(frame_max=frame_max)
    connection.send(1, "basic.get-empty")
    connection.send(1, "basic.deliver", ("c", 1, False, "", "q"))
    connection.send_large(1, b"\0\0", len(WHOLE), iter(PARTS))
    return connection


def taken(connection: ServerConnection) -> list[bytes]:
    pieces = [bytes(connection.take_output())]
    while connection.ahead:
        pieces.append(bytes(connection.take_output()))
    return pieces


def test_it_is_written_in_whole_frames_before_later_output() -> None:
    connection = sent_large()
    connection.send(1, "basic.get-empty")
    pieces = taken(connection)
    assert len(pieces) == 4
    for piece in pieces:
        assert len(piece) <= 1000 + 4096
        assert codec.split_frames(piece)[1] == len(piece)
    before, delivered, after = methods_in(b"".join(pieces))
    assert (before.method, after.method) == ("basic.get-empty", "basic.get-empty")
    assert (delivered.method, delivered.body) == ("basic.deliver", WHOLE)
    assert taken(connection) == [b""]


def test_a_second_content_waits_for_the_first() -> None:
    connection = sent_large()
    connection.take_output()
    connection.send(1, "basic.deliver", ("c", 2, False, "", "q"))
    connection.send_large(1, b"\0\0", 3, iter((b"end",)))
    assert b"".join(taken(connection)).endswith(b"end\xce")


@pytest.mark.parametrize("begun", [False, True])
def test_our_close_does_not_wait_for_it(begun: bool) -> None:
    connection = sent_large()
    first = bytes(connection.take_output()) if begun else b""
    connection.send(1, "basic.get-empty")
    connection.close(320, "CONNECTION_FORCED - bye")
    rest = bytes(connection.take_output())
    assert not connection.ahead
    assert WHOLE[:100] not in rest
    assert codec.split_frames(first + rest)[1] == len(first + rest)
    said = [decode_method(rest, start, end)[0].name for kind, _, start, end in
            codec.split_frames(rest)[0] if kind == codec.METHOD]  # fmt: skip
    before = [] if begun else ["basic.get-empty", "basic.deliver"]
    assert said == [*before, "connection.close"]


def test_nor_does_the_close_ok_for_a_client_that_leaves() -> None:
    connection = sent_large()
    connection.take_output()
    connection.receive(method(0, "connection.close", 200, "", 0, 0), 1.0)
    connection.close_ok()
    assert [one.method for one in methods_in(connection.take_output())] == ["connection.close-ok"]
    assert connection.has_ended


def test_held_output_continues_where_it_stopped() -> None:
    connection = sent_large()
    pieces = [bytes(connection.take_output())]
    connection.send(1, "basic.get-empty")
    connection.hold_output()
    assert connection.take_output() == b""
    connection.out += codec.HEARTBEAT_FRAME  # in the middle of a content: its channel is 0
    assert connection.take_output() == codec.HEARTBEAT_FRAME
    connection.release_output()
    pieces += taken(connection)
    assert [one.method for one in methods_in(b"".join(pieces))] == [
        "basic.get-empty", "basic.deliver", "basic.get-empty",
    ]  # fmt: skip


def test_no_held_output_follows_our_close() -> None:
    connection = sent_large()
    connection.hold_output()
    connection.close(320, "CONNECTION_FORCED - bye")
    connection.release_output()
    assert [one.method for one in methods_in(connection.take_output())] == ["connection.close"]
    assert not connection.ahead


def test_held_output_is_dropped_when_the_client_has_ended() -> None:
    connection = sent_large()
    connection.hold_output()
    connection.receive(method(0, "connection.close", 200, "", 0, 0), 1.0)
    connection.close_ok()
    connection.release_output()
    assert [one.method for one in methods_in(connection.take_output())] == ["connection.close-ok"]
