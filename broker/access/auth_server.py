"""Questions about users to the operator's auth server, and its answers: no sockets, no clock.

Logins and permissions are asked for in the protocol of RabbitMQ's `rabbitmq_auth_backend_http`
(docs/decisions/0040-a-server-is-asked-over-http.md). Equal questions in progress are sent only
once. Permission is cached for a while; denial is not, so that a user who is allowed a moment later
need not wait. A malformed or late answer counts as a refusal, is counted as failed, and gets a log
line that quotes nothing of it: it may hold the password.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import urlencode

USER, VHOST, RESOURCE, TOPIC = "user", "vhost", "resource", "topic"
ABOUT = (USER, VHOST, RESOURCE, TOPIC)
"""The subjects of questions; each has its own path at the server."""
LIMIT_S = 5.0
"""How long an answer may take, including the wait for the question's turn."""
AT_ONCE_MAX = 16
"""Questions sent and not answered, separately for logins and for logged-in users, so that strangers
do not hold up work."""
WAITING_MAX = 1000
"""Waiting questions of each of the two sorts; further ones are refused at once."""
WAITING_OF_USER_MAX = WAITING_MAX // 4
"""Waiting questions about one user: a message may name 64 keys, on any number of connections."""
KEPT_MAX = 10_000
QUESTION_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 4096
GOOD_STATUS = (200, 201)


class AuthQuestion(NamedTuple):
    """One request to the server."""

    about: str
    fields: tuple[tuple[str, str], ...]

    @property
    def user(self) -> str:
        """The user it is about."""
        return dict(self.fields)["username"]

    def encoded(self) -> str:
        """As a query string, or the body of a form."""
        return urlencode(self.fields)

    def describe(self) -> str:
        """A description for the log."""
        facts = (f"{name} {value[:64]!r}" for name, value in self.fields if name != "password")
        return f"{self.about} ({', '.join(facts)})"


class Answer(NamedTuple):
    """What the server said."""

    allowed: bool
    tags: tuple[str, ...] = ()
    """The tags of a user who may log in."""
    fault: str = ""
    """Why there is no answer; it counts as a refusal."""


Then: TypeAlias = Callable[[Answer, float], None]
"""Takes the answer, and the time."""


def read_answer(about: str, status: int, body: bytes) -> Answer:
    """Parse a reply: `deny`, perhaps with a reason, or `allow`, with tags for a user."""
    if status not in GOOD_STATUS:
        moved = ", to go elsewhere, which is not followed" if 300 <= status < 400 else ""
        return Answer(False, fault=f"its reply has the status {status}{moved}")
    if len(body) > ANSWER_BYTES_MAX:
        return Answer(False, fault=f"its reply is longer than {ANSWER_BYTES_MAX} bytes")
    words = body.decode("utf-8", "replace").lower().split()
    match words:
        case ["deny", *_]:
            return Answer(False)
        case ["allow"]:
            return Answer(True)
        case ["allow", *tags] if about == USER and "".join(tags).isprintable():
            return Answer(True, tuple(sorted(set(tags))))
        case _:
            expected = "'allow' with tags or without" if about == USER else "'allow'"
            return Answer(False, fault=f"its reply is neither {expected} nor 'deny'")


class Wire(Protocol):
    """The transport of questions to the server."""

    def send(self, number: int, question: AuthQuestion) -> None:
        """Ask; `AuthServer.answered` or `failed` is called later, with this number."""

    def cancel(self, number: int) -> None:
        """This answer is no longer awaited."""

    def wake_at(self, when: float) -> None:
        """Call `AuthServer.wake` then, and never from within this call."""


class _Asked:
    """A question in progress."""

    def __init__(self, number: int, question: AuthQuestion, due: float, then: Then) -> None:
        self.number, self.question, self.due = number, question, due
        self.then = [then]
        self.is_sent = False
        self.may_be_kept = True


class _Line:
    """Questions of one sort: those waiting for their turn, and the number of those sent."""

    def __init__(self) -> None:
        self.waiting: deque[_Asked] = deque()
        self.waiting_of: Counter[str] = Counter()  # by user
        self.sent = 0

    def add(self, one: _Asked) -> None:
        self.waiting.append(one)
        self.waiting_of[one.question.user] += 1

    def take(self) -> _Asked:
        """Take the question that has waited longest: it is its turn."""
        one = self.waiting[0]
        self.drop(one)
        return one

    def drop(self, one: _Asked) -> None:
        """The question no longer waits."""
        self.waiting.remove(one)
        self.waiting_of[one.question.user] -= 1
        if not self.waiting_of[one.question.user]:
            del self.waiting_of[one.question.user]


class AuthServer:
    """The server, as this member knows it."""

    def __init__(
        self,
        wire: Wire,
        clock: Callable[[], float],
        kept_s: float,
        log: Callable[[str, str], None],
    ) -> None:
        """`log` takes a kind and a line, and limits their rate; `clock` counts seconds."""
        self.clock = clock
        self.counters = dict.fromkeys(("asked", "allowed", "denied", "failed"), 0)
        self._wire, self._kept_s, self._log = wire, kept_s, log
        self._kept: dict[AuthQuestion, float] = {}  # allowed until then, the oldest first
        self._asked: dict[AuthQuestion, _Asked] = {}  # the oldest, which is due first, comes first
        self._numbers: dict[int, _Asked] = {}  # of the sent questions
        self._refused: deque[tuple[Then, AuthQuestion, str]] = deque()  # never sent
        self._lines = {True: _Line(), False: _Line()}  # logins, and all others
        self._last_number = 0
        self._wakes_at: float | None = None

    def kept(self, question: AuthQuestion) -> Answer | None:
        """The cached answer to this; None: ask the server."""
        return Answer(True) if self.kept_until(question) > self.clock() else None

    def kept_until(self, question: AuthQuestion) -> float:
        """How long the cached permission counts; 0: it is not cached."""
        return self._kept.get(question, 0.0)

    def forget(self) -> None:
        """Ask everything anew."""
        self._kept.clear()
        for one in self._asked.values():
            one.may_be_kept = False

    def ask(self, question: AuthQuestion, then: Then) -> None:
        """`then` is called within `LIMIT_S`, and never from within this call."""
        one = self._asked.get(question)
        if one is not None:
            one.then.append(then)
            return
        line = self._lines[question.about == USER]
        if len(question.encoded()) > QUESTION_BYTES_MAX:
            self._refuse(question, then, f"it is longer than {QUESTION_BYTES_MAX} bytes")
        elif len(line.waiting) >= WAITING_MAX:
            self._refuse(question, then, f"{WAITING_MAX} questions wait for their turn already")
        elif line.waiting_of[question.user] >= WAITING_OF_USER_MAX:
            fault = f"{WAITING_OF_USER_MAX} questions about this user wait for their turn already"
            self._refuse(question, then, fault)
        else:
            self._last_number += 1
            one = _Asked(self._last_number, question, self.clock() + LIMIT_S, then)
            self._asked[question] = one
            line.add(one)
            self._send(line)
            self._wake_in_time()

    def _refuse(self, question: AuthQuestion, then: Then, fault: str) -> None:
        self._refused.append((then, question, fault))
        self._wake_in_time()

    def _send(self, line: _Line) -> None:
        """Send the questions whose turn it is."""
        while line.waiting and line.sent < AT_ONCE_MAX:
            one = line.take()
            one.is_sent = True
            line.sent += 1
            self._numbers[one.number] = one
            self.counters["asked"] += 1
            self._wire.send(one.number, one.question)

    # -- for the wire ----------------------------------------------------------------------------

    def answered(self, number: int, status: int, body: bytes) -> None:
        """A reply arrived."""
        one = self._numbers.get(number)
        if one is not None:
            self._finish(one, read_answer(one.question.about, status, body))

    def failed(self, number: int, why: str) -> None:
        """No reply will arrive."""
        one = self._numbers.get(number)
        if one is not None:
            self._finish(one, Answer(False, fault=why))

    def wake(self) -> None:
        """Refuse overdue questions."""
        self._wakes_at = None
        now = self.clock()
        for then, question, fault in [self._refused.popleft() for _ in range(len(self._refused))]:
            self._note_failure(question, fault)
            then(Answer(False, fault=fault), now)
        overdue = list(takewhile(lambda one: one.due <= now, self._asked.values()))
        for one in overdue:
            if one.is_sent:
                self._wire.cancel(one.number)
            else:
                self._lines[one.question.about == USER].drop(one)
        for one in overdue:
            fault = f"there was no reply in {LIMIT_S:g} s"
            if not one.is_sent:
                fault = f"its turn did not come in {LIMIT_S:g} s: the server is too slow"
            self._finish(one, Answer(False, fault=fault))
        self._wake_in_time()

    def _wake_in_time(self) -> None:
        first = next(iter(self._asked.values()), None)
        due = self.clock() if self._refused else first.due if first is not None else None
        if due is not None and (self._wakes_at is None or due < self._wakes_at):
            self._wakes_at = due
            self._wire.wake_at(due)

    def _finish(self, one: _Asked, answer: Answer) -> None:
        question, line = one.question, self._lines[one.question.about == USER]
        del self._asked[question]
        if one.is_sent:
            del self._numbers[one.number]
            line.sent -= 1
        if answer.fault:
            self._note_failure(question, answer.fault)
        else:
            self.counters["allowed" if answer.allowed else "denied"] += 1
        now = self.clock()
        if answer.allowed and question.about != USER and one.may_be_kept and self._kept_s:
            self._kept.pop(question, None)
            if len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[question] = now + self._kept_s
        self._send(line)
        for then in one.then:
            then(answer, now)

    def _note_failure(self, question: AuthQuestion, fault: str) -> None:
        self.counters["failed"] += 1
        self._log("auth", f"asked about a {question.describe()}: {fault}; so it is refused")
