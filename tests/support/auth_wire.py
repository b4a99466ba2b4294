"""A server of users in the same process: it gets a member's questions; a test lets it answer."""

from __future__ import annotations

from collections.abc import Callable

from broker.access.auth_server import LIMIT_S, Answer, AuthQuestion, AuthServer
from broker.access.backends import HTTP, Backends


class AuthWire:
    """The wire, and the clock of its `AuthServer`."""

    def __init__(self, kept_s: float = 15.0) -> None:
        self.now = 0.0
        self.sent: dict[int, AuthQuestion] = {}  # and not answered
        self.all: list[AuthQuestion] = []
        self.cancelled: list[int] = []
        self.log: list[str] = []
        self.wakes_at: float | None = None
        self.server = AuthServer(
            self, lambda: self.now, kept_s, lambda kind, text: self.log.append(f"{kind}: {text}")
        )

    def backends(self, *order: str) -> Backends:
        """For a member that asks here."""
        return Backends(order or (HTTP,), server=self.server)

    # -- for the server (`Wire`) -----------------------------------------------------------------

    def send(self, number: int, question: AuthQuestion) -> None:
        self.sent[number] = question
        self.all.append(question)

    def cancel(self, number: int) -> None:
        del self.sent[number]
        self.cancelled.append(number)

    def wake_at(self, when: float) -> None:
        self.wakes_at = when

    # -- for tests -------------------------------------------------------------------------------

    def questions(self) -> list[dict[str, str]]:
        """The waiting questions: their fields, and their subjects."""
        return [{"about": one.about, **dict(one.fields)} for one in self.sent.values()]

    def answer(self, text: str | Callable[[dict[str, str]], str], status: int = 200) -> int:
        """Answer the waiting questions, and those that follow; return the number of answers."""
        count = 0
        while self.sent:
            self.answer_first(text if isinstance(text, str) else text(self.questions()[0]), status)
            count += 1
        return count

    def answer_first(self, text: str, status: int = 200) -> None:
        """Answer the question that has waited longest."""
        number = next(iter(self.sent))
        del self.sent[number]
        self.server.answered(number, status, text.encode())

    def go_on(self, seconds: float = LIMIT_S) -> None:
        """Let time pass."""
        self.now += seconds
        if self.wakes_at is not None and self.wakes_at <= self.now:
            self.wakes_at = None
            self.server.wake()


class Told:
    """Receives answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def __call__(self, answer: Answer, _now: float) -> None:
        self.answers.append(answer)
