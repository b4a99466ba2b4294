"""Questions about users to a server: its answers, how long they count, how many are asked at
once.
"""

from __future__ import annotations

import pytest

from broker.access import auth_server
from broker.access.auth_server import (
    ANSWER_BYTES_MAX,
    AT_ONCE_MAX,
    LIMIT_S,
    QUESTION_BYTES_MAX,
    RESOURCE,
    USER,
    WAITING_MAX,
    WAITING_OF_USER_MAX,
    Answer,
    AuthQuestion,
    read_answer,
)
from tests.support.auth_wire import AuthWire, Told

ALLOWED = Answer(True)


def about(name: str, kind: str = RESOURCE, user: str = "ada") -> AuthQuestion:
    return AuthQuestion(kind, (("username", user), ("name", name)))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("allow", ALLOWED),
        (" Allow\r\n", ALLOWED),
        ("deny", Answer(False)),
        ("DENY", Answer(False)),
        ("deny because it is Sunday", Answer(False)),
    ],
)
def test_valid_answers(text: str, answer: Answer) -> None:
    for kind in (USER, RESOURCE):
        assert read_answer(kind, 200, text.encode()) == answer
        assert read_answer(kind, 201, text.encode()) == answer


def test_a_login_has_tags_and_a_permission_has_none() -> None:
    body = b"allow Monitoring  administrator"
    assert read_answer(USER, 200, body).tags == ("administrator", "monitoring")
    assert read_answer(RESOURCE, 200, body).fault


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"", "neither"),
        (200, b"allowed", "neither"),
        (200, b"<html>allow</html>", "neither"),
        (200, b"{}", "neither"),
        (200, b"\xff\xfe", "neither"),
        (200, b"allow \x07", "neither"),
        (200, b"allow" + b" " * ANSWER_BYTES_MAX, "longer than 4096 bytes"),
        (204, b"allow", "status 204"),
        (302, b"allow", "go elsewhere, which is not followed"),
        (500, b"allow", "status 500"),
    ],
)
def test_an_invalid_answer_counts_as_a_refusal(status: int, body: bytes, said: str) -> None:
    answer = read_answer(USER, status, body)
    assert not answer.allowed
    assert said in answer.fault


def test_an_answer_is_not_quoted_as_it_may_hold_the_password() -> None:
    wire, told = AuthWire(), Told()
    secret = AuthQuestion(USER, (("username", "ada"), ("password", "topsecret")))
    wire.server.ask(secret, told)
    wire.answer("no page /user?username=ada&password=topsecret")
    assert "topsecret" not in told.answers[0].fault + wire.log[0]
    assert "asked about a user (username 'ada'): its reply is neither" in wire.log[0]


def test_a_permission_is_cached_for_a_while_and_a_refusal_is_not() -> None:
    wire, told = AuthWire(kept_s=10), Told()
    for name, said in (("good", "allow"), ("bad", "deny")):
        wire.server.ask(about(name), told)
        wire.answer(said)
    assert told.answers == [ALLOWED, Answer(False)]
    wire.go_on(9.9)
    assert wire.server.kept(about("good")) == ALLOWED
    assert wire.server.kept(about("bad")) is None
    wire.go_on(0.2)
    assert wire.server.kept(about("good")) is None


def test_logins_are_never_cached_and_a_time_of_zero_caches_nothing() -> None:
    wire = AuthWire()
    wire.server.ask(about("", USER), Told())
    wire.answer("allow")
    assert wire.server.kept(about("", USER)) is None
    wire = AuthWire(kept_s=0)
    wire.server.ask(about("q"), Told())
    wire.answer("allow")
    assert wire.server.kept(about("q")) is None


def test_a_bounded_number_is_cached_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_server, "KEPT_MAX", 10)
    wire = AuthWire()
    for number in range(11):
        wire.server.ask(about(str(number)), Told())
        wire.answer("allow")
    assert wire.server.kept(about("0")) is None
    assert wire.server.kept(about("1")) == ALLOWED
    assert wire.server.kept(about("10")) == ALLOWED


def test_an_answer_from_before_a_clearing_is_not_cached() -> None:
    wire, told = AuthWire(), Told()
    wire.server.ask(about("old"), told)
    wire.answer("allow")
    wire.server.ask(about("under way"), told)
    wire.server.forget()
    wire.answer("allow")
    assert told.answers == [ALLOWED, ALLOWED]
    for name in ("old", "under way"):
        assert wire.server.kept(about(name)) is None


def test_equal_questions_under_way_are_asked_once() -> None:
    wire, told = AuthWire(), Told()
    for _ in range(3):
        wire.server.ask(about("q"), told)
    assert wire.answer("allow") == 1
    assert told.answers == [ALLOWED] * 3


def test_questions_at_once_are_bounded_with_half_for_admitted_clients() -> None:
    wire, told = AuthWire(), Told()
    for number in range(2 * AT_ONCE_MAX):
        wire.server.ask(about(str(number), USER), told)
    assert len(wire.sent) == AT_ONCE_MAX
    wire.server.ask(about("q"), told)
    assert len(wire.sent) == AT_ONCE_MAX + 1
    assert wire.answer("allow") == 2 * AT_ONCE_MAX + 1
    assert [dict(one.fields)["name"] for one in wire.all if one.about == USER] == [
        str(number) for number in range(2 * AT_ONCE_MAX)
    ]


def test_the_time_limit_of_a_question_includes_its_wait() -> None:
    wire, told = AuthWire(), Told()
    for number in range(AT_ONCE_MAX + 1):
        wire.server.ask(about(str(number)), told)
    wire.go_on(LIMIT_S - 0.1)
    assert not told.answers
    wire.server.ask(about("later"), told)
    wire.go_on(0.2)
    assert [one.fault for one in told.answers] == [
        *["there was no reply in 5 s"] * AT_ONCE_MAX,
        "its turn did not come in 5 s: the server is too slow",
    ]
    assert len(wire.cancelled) == AT_ONCE_MAX
    assert [one["name"] for one in wire.questions()] == ["later"]
    assert wire.server.counters == {
        "asked": AT_ONCE_MAX + 1, "allowed": 0, "denied": 0, "failed": AT_ONCE_MAX + 1
    }  # fmt: skip
    wire.server.answered(1, 200, b"allow")  # too late
    assert len(told.answers) == AT_ONCE_MAX + 1


def test_too_many_or_too_long_questions_are_refused_after_the_call() -> None:
    wire, told = AuthWire(), Told()
    for number in range(AT_ONCE_MAX + WAITING_MAX + 1):
        wire.server.ask(about(str(number), user=f"user {number % 10}"), told)
    wire.server.ask(about("x" * QUESTION_BYTES_MAX), told)
    assert not told.answers
    assert wire.wakes_at == wire.now
    wire.go_on(0)
    assert [one.fault for one in told.answers] == [
        "1000 questions wait for their turn already", "it is longer than 16384 bytes"
    ]  # fmt: skip


def test_one_user_leaves_room_for_others() -> None:
    wire, told = AuthWire(), Told()
    for number in range(AT_ONCE_MAX + WAITING_OF_USER_MAX + 1):
        wire.server.ask(about(str(number)), told)
    wire.server.ask(about("q", user="bob"), told)
    wire.go_on(0)
    assert [one.fault for one in told.answers] == [
        "250 questions about this user wait for their turn already"
    ]
    wire.answer("allow")
    assert told.answers.count(ALLOWED) == AT_ONCE_MAX + WAITING_OF_USER_MAX + 1


def test_an_unreachable_server_is_a_refusal_with_its_reason() -> None:
    wire, told = AuthWire(), Told()
    wire.server.ask(about("q"), told)
    (number,) = wire.sent
    wire.server.failed(number, "it cannot be reached: Connection refused")
    assert told.answers == [Answer(False, fault="it cannot be reached: Connection refused")]
    assert wire.log == [
        "auth: asked about a resource (username 'ada', name 'q'): it cannot be reached: "
        "Connection refused; so it is refused"
    ]
