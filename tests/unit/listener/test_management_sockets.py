"""A socket with management requests: when it reads, when it is idle, and when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from broker.access.backends import Login
from broker.listener.client_socket import MANAGEMENT_IDLE_S, ClientSocket, Listening
from vsync.admin.protocol import LINE_BYTES_MAX, PREAMBLE

ADMINISTRATOR = Login("internal", ("administrator",))
STATUS = b'{"op":"status"}\n'


class Wire:
    """The transport of a client; it notes what is done with it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reads, self.closed = True, False

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, high: int) -> None:
        assert high

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False


class Asked:
    """One management socket; its logins wait if `slow`."""

    def __init__(self) -> None:
        self.slow = False
        self.waiting: list[Callable[[Login, float], None]] = []
        operations = SimpleNamespace(login=self._login, status=dict)
        listener = SimpleNamespace(
            accept=lambda *_: object(), member=SimpleNamespace(operations=operations)
        )
        self.wire = Wire()
        self.socket = ClientSocket(cast("Listening", listener), tls=False)
        self.socket.connection_made(cast("asyncio.BaseTransport", self.wire))

    def _login(self, *given: object) -> Login | None:
        if not self.slow:
            return ADMINISTRATOR
        self.waiting.append(cast("Callable[[Login, float], None]", given[-1]))
        return None


def test_requests_are_read_again_when_a_slow_client_has_caught_up() -> None:
    asked = Asked()
    asked.socket.data_received(PREAMBLE + STATUS)
    asked.socket.pause_writing()
    assert not asked.wire.reads
    asked.socket.resume_writing()
    assert asked.wire.reads
    asked.slow = True
    asked.socket.data_received(STATUS)
    assert not asked.wire.reads, "one request at a time"
    asked.waiting.pop()(ADMINISTRATOR, 0.0)
    assert asked.wire.reads
    assert len(asked.wire.written) == 2


def test_an_answer_to_a_client_that_does_not_read_lets_it_ask_nothing_more() -> None:
    asked = Asked()
    asked.slow = True
    asked.socket.data_received(PREAMBLE + STATUS)
    asked.socket.pause_writing()
    asked.waiting.pop()(ADMINISTRATOR, 0.0)
    assert not asked.wire.reads
    asked.socket.resume_writing()
    assert asked.wire.reads


def test_a_client_that_has_caught_up_still_waits_for_its_login() -> None:
    asked = Asked()
    asked.slow = True
    asked.socket.data_received(PREAMBLE + STATUS)
    asked.socket.pause_writing()
    asked.socket.resume_writing()
    assert not asked.wire.reads
    asked.waiting.pop()(ADMINISTRATOR, 0.0)
    assert asked.wire.reads


def test_the_idle_time_begins_with_the_connection_and_with_each_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    asked = Asked()
    asked.socket.data_received(PREAMBLE)
    assert not asked.socket.overdue(now + MANAGEMENT_IDLE_S)
    assert asked.socket.overdue(now + MANAGEMENT_IDLE_S + 1)
    now = 1050.0
    asked.socket.data_received(STATUS[:5])
    assert asked.socket.overdue(1000.0 + MANAGEMENT_IDLE_S + 1), "a part of a request is none"
    asked.socket.data_received(STATUS[5:])
    assert not asked.socket.overdue(now + MANAGEMENT_IDLE_S)
    assert asked.socket.overdue(now + MANAGEMENT_IDLE_S + 1)


def test_a_request_without_an_end_is_answered_and_closed() -> None:
    asked = Asked()
    asked.socket.data_received(PREAMBLE + b"x" * (LINE_BYTES_MAX + 1))
    assert asked.wire.closed
    (answer,) = asked.wire.written
    assert b'"ok": false' in answer.replace(b'":f', b'": f')
