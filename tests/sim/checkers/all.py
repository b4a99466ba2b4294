"""All checkers of a history of the ring, in one call."""

from __future__ import annotations

from tests.sim.checkers.history import History
from tests.sim.checkers.order import ORDER_CHECKERS
from tests.sim.checkers.views import VIEW_CHECKERS
from tests.sim.checkers.violation import Violation

ALL_CHECKERS = ORDER_CHECKERS + VIEW_CHECKERS
REPORTED_PER_CHECKER = 3


def check(history: History) -> list[Violation]:
    """The first few violations that each checker finds."""
    found: list[Violation] = []
    for checker in ALL_CHECKERS:
        for count, violation in enumerate(checker(history), 1):
            found.append(violation)
            if count >= REPORTED_PER_CHECKER:
                break
    return found
