"""How connections and channels end, and how silence is judged."""

import pytest

from broker.amqp import codec
from broker.amqp.events import (
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    Faulted,
    Published,
)
from tests.support.amqp_connection import expect_close, new, opened
from tests.support.amqp_peer import method, methods_in, publish, start_ok, tune_ok


def test_the_client_closes_the_connection() -> None:
    connection = opened()
    data = publish(1, "", "q") + method(0, "connection.close", 200, "bye", 0, 0)
    events = connection.receive(data + publish(1, "", "q") + b"garbage that follows", 0.0)
    assert [type(event) for event in events] == [Published, CloseRequested]
    connection = opened()
    connection.receive(data, 0.0)
    connection.close_ok()
    assert methods_in(connection.take_output())[0].method == "connection.close-ok"
    assert connection.has_ended


def test_both_sides_close_the_connection_at_once() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    connection.close(541, "INTERNAL_ERROR - a second close is not sent")
    connection.receive(method(0, "connection.close", 200, "bye", 0, 0), 0.0)
    received = [one.method for one in methods_in(connection.take_output())]
    assert received == ["connection.close", "connection.close-ok"]
    assert connection.has_ended


def test_after_a_close_nothing_is_sent_and_all_is_discarded_until_close_ok() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    connection.take_output()
    connection.send(1, "basic.get-empty")
    assert connection.receive(publish(1, "", "q") + method(1, "tx.select"), 0.0) == []
    assert connection.take_output() == b""
    assert not connection.has_ended
    connection.receive(method(0, "connection.close-ok"), 0.0)
    assert connection.has_ended


def test_a_client_that_sends_no_close_ok_is_closed_after_a_while() -> None:
    connection = opened()
    connection.receive(b"", 5.0)
    connection.close(320, "CONNECTION_FORCED - stop")
    assert connection.next_timer() == 15.0
    assert [type(event) for event in connection.wake(15.0)] == [Faulted]
    assert connection.has_ended
    assert connection.wake(16.0) == []


def test_a_close_that_its_member_does_not_answer_in_time_ends_it() -> None:
    connection = opened()
    connection.receive(method(0, "connection.close", 200, "", 0, 0), 5.0)
    assert connection.next_timer() == 15.0
    assert connection.wake(14.9) == []
    assert not connection.has_ended
    connection.wake(15.0)
    assert connection.has_ended


def test_an_error_after_a_close_ends_the_connection_at_once() -> None:
    connection = opened()
    connection.close(320, "CONNECTION_FORCED - stop")
    assert connection.receive(b"\xff" * 30, 0.0) == []
    assert connection.has_ended


def test_the_client_closes_a_channel() -> None:
    connection = opened()
    data = publish(1, "", "q") + method(1, "channel.close", 200, "", 0, 0) + publish(1, "", "q")
    events = connection.receive(data, 0.0)
    assert events[1:] == [ChannelCloseRequested(1)]
    connection.channel_close_ok(1)
    assert methods_in(connection.take_output()) == [(1, "channel.close-ok", (), None, b"")]
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_the_server_closes_a_channel_and_discards_until_close_ok() -> None:
    connection = opened()
    connection.close_channel(1, 404, "NOT_FOUND - no queue", 50, 10)
    connection.close_channel(1, 404, "NOT_FOUND - sent only once", 50, 10)
    assert methods_in(connection.take_output()) == [
        (1, "channel.close", (404, "NOT_FOUND - no queue", 50, 10), None, b"")
    ]
    assert connection.receive(publish(1, "", "q") + method(1, "channel.open"), 0.0) == []
    connection.receive(method(1, "channel.close-ok"), 0.0)
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]


def test_both_sides_close_a_channel_at_once() -> None:
    close = method(1, "channel.close", 200, "", 0, 0)
    # ours was first on the wire
    connection = opened()
    connection.close_channel(1, 404, "NOT_FOUND - x", 50, 10)
    assert connection.receive(close + method(1, "channel.close-ok"), 0.0) == []
    received = [one.method for one in methods_in(connection.take_output())]
    assert received == ["channel.close", "channel.close-ok"]
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]
    # the client's has been handed on already
    connection = opened()
    connection.receive(close, 0.0)
    connection.close_channel(1, 404, "NOT_FOUND - x", 50, 10)
    received = [one.method for one in methods_in(connection.take_output())]
    assert received == ["channel.close", "channel.close-ok"]
    # the client may use the number again at once
    assert connection.receive(method(1, "channel.open"), 0.0) == [ChannelOpened(1)]
    # the server is about to send the reason
    connection = opened()
    connection.discard_channel(1)
    assert connection.receive(close, 0.0) == []
    connection.close_channel(1, 406, "PRECONDITION_FAILED - x", 60, 40)
    received = [one.method for one in methods_in(connection.take_output())]
    assert received == ["channel.close", "channel.close-ok"]


def test_channel_max_bounds_the_number_of_channels() -> None:
    """Whatever their numbers: some clients start at the highest, some never use one again."""
    connection = new()
    data = codec.PROTOCOL_HEADER + start_ok() + tune_ok(channel_max=2)
    connection.receive(data + method(0, "connection.open", "/") + method(1, "channel.open"), 0.0)
    assert connection.receive(method(65_535, "channel.open"), 0.0) == [ChannelOpened(65_535)]
    connection.close_channel(65_535, 404, "NOT_FOUND - x", 50, 10)
    assert connection.receive(method(3000, "channel.open"), 0.0) == [ChannelOpened(3000)]
    connection.take_output()
    events = connection.receive(method(2, "channel.open"), 0.0)
    expect_close(connection, events, 530, "number of channels opened (2)", "channel_max (2)")


def test_a_client_that_never_confirms_closed_channels_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each channel.open would search up to 65,535 of them."""
    monkeypatch.setattr("broker.amqp.connection.UNCONFIRMED_MAX", 2)
    connection = new()
    data = codec.PROTOCOL_HEADER + start_ok() + tune_ok(channel_max=1)
    connection.receive(data + method(0, "connection.open", "/"), 0.0)
    for number in (1, 2):
        assert connection.receive(method(number, "channel.open"), 0.0) == [ChannelOpened(number)]
        connection.close_channel(number, 404, "NOT_FOUND - x", 50, 10)
    connection.take_output()
    events = connection.receive(method(3, "channel.open"), 0.0)
    expect_close(connection, events, 530, "2 channels were closed", "no channel.close-ok came")


def test_close_texts_fit_whatever_they_quote() -> None:
    connection = opened()
    connection.close(530, "NOT_ALLOWED - " + "\u00e9" * 300)
    (received,) = methods_in(connection.take_output())
    assert isinstance(received.args[1], str)
    assert received.args[1].endswith("...")
    assert len(received.args[1].encode()) <= 255


# -- heartbeats -----------------------------------------------------------------------------------


def test_heartbeats_are_sent_when_nothing_else_is() -> None:
    connection = opened(heartbeat=10)
    connection.receive(codec.HEARTBEAT_FRAME, 0.0)
    assert connection.next_timer() == 5.0
    connection.wake(5.0)  # the handshake counts as output
    assert connection.take_output() == b""
    connection.wake(10.0)
    assert connection.take_output() == codec.HEARTBEAT_FRAME
    connection.send(1, "basic.get-empty")
    connection.take_output()
    connection.wake(15.0)
    assert connection.take_output() == b""


def test_a_silent_client_is_gone_after_two_intervals() -> None:
    connection = opened(heartbeat=10)
    connection.receive(codec.HEARTBEAT_FRAME, 7.0)
    assert connection.wake(26.9) == []
    (fault,) = connection.wake(27.0)
    assert isinstance(fault, Faulted)
    assert "heartbeats" in fault.text
    assert connection.has_ended


def test_a_client_that_is_not_read_is_not_silent() -> None:
    connection = opened(heartbeat=10)
    connection.reading(False, 5.0)
    for at in range(5, 100, 5):
        assert connection.wake(float(at)) == []
        timer = connection.next_timer()
        assert timer is not None
        assert timer > at
    connection.reading(True, 100.0)
    assert connection.wake(119.0) == []
    assert [type(event) for event in connection.wake(120.0)] == [Faulted]


def test_without_heartbeats_there_is_no_timer() -> None:
    assert opened(heartbeat=0).next_timer() is None
