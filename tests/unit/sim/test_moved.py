"""What is said of a shovel's history, where it moved something twice, too early, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine.commands import OK, PERSISTENT, PUBLISH, REPEATED, Publish
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE, Op
from tests.sim.clients.link_plan import DESTINATION, ELSEWHERE, HERE, SHOVEL_NAME, SOURCE
from tests.sim.clients.messages import MESSAGE
from tests.sim.clients.moved import MoveWitness


def publish(number: int, queue: str) -> Publish:
    return Publish(PUBLISH, 7, 1, number, "", queue, PERSISTENT, b"", MESSAGE.pack(1, number))


class History:
    """The source has taken the messages 1, 2 and 3."""

    def __init__(self, source: str = HERE) -> None:
        self.broken: list[str] = []
        self.witness = MoveWitness(lambda _, text: self.broken.append(text), lambda _: None)
        definition = {"parameter": {("/", SHOVEL_NAME): {"value": {"src-uri": source}}}}
        vhosts = {"/": SimpleNamespace(queues={SOURCE: SimpleNamespace(number=3)})}
        self._machine = cast("Machine", SimpleNamespace(definitions=definition, vhosts=vhosts))
        self._position = 10
        for number in (1, 2, 3):
            entered = MOVE.pack(Op.ENQUEUED, 0, 3, number, 0, 0)
            self.witness.enters(self._machine, publish(number, SOURCE), [entered])

    def moves(self, *numbers: int, outcome: int = OK) -> None:
        for number in numbers:
            self._position += 1
            command = publish(number, DESTINATION)
            assert self.witness.arrives(self._machine, self._position, command, outcome)

    def leaves(self, *numbers: int) -> None:
        for number in numbers:
            self._position += 1
            self.witness.leaves((1, number), self._position)

    def starts_cold(self) -> None:
        self._position += 1
        self.witness.cold_start(self._position)


def test_what_is_moved_as_it_should_is_not_blamed() -> None:
    history = History()
    history.moves(1, 2)
    history.leaves(1)
    history.moves(2, outcome=REPEATED)
    history.moves(3)
    history.leaves(2, 3)
    history.witness.at_rest()
    assert history.broken == []


@pytest.mark.parametrize(
    ("source", "moved", "blamed"),
    [
        (HERE, (1, 3, 2), "(1, 2), place 1, comes at 13 after place 2"),
        (ELSEWHERE, (1, 3, 2), None),
        (HERE, (1, 2, 2, 3), "(1, 2) came at 12, and comes again at 13"),
        (ELSEWHERE, (1, 2, 2, 3), "(1, 2) came at 12, and comes again at 13"),
        (HERE, (1, 2), "1 messages are not moved, as of (1, 3)"),
    ],
)
def test_what_comes_twice_or_out_of_turn_is_named(
    source: str, moved: tuple[int, ...], blamed: str | None
) -> None:
    """From a source elsewhere it may come out of turn, as that gives back what it had given."""
    history = History(source)
    history.moves(*moved)
    history.witness.at_rest()
    assert history.broken == ([] if blamed is None else [blamed])


def test_what_goes_before_it_has_arrived_is_named() -> None:
    history = History()
    history.moves(1)
    history.leaves(1, 2)
    history.moves(2, 3)
    assert history.broken == ["(1, 2) is acknowledged at the source at 13, and did not arrive"]


def test_after_a_cold_start_what_was_under_way_may_come_again() -> None:
    """What is left has new places then."""
    history = History()
    history.moves(1, 2)
    history.starts_cold()
    history.moves(2, 3)
    history.witness.at_rest()
    assert history.broken == []
    assert history.witness.twice == {(1, 2)}
