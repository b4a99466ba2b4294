"""Breaches reported for a shovel that moved a message twice, too early, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine.commands import OK, PERSISTENT, PUBLISH, REPEATED, Publish
from broker.machine.effects import DeliverEffect
from broker.machine.machine import Machine
from broker.machine.move_log import MOVE, Op
from broker.shovels.definition import NO_ACK, ON_CONFIRM, ON_PUBLISH
from tests.sim.clients.link_ends import ATTEMPT
from tests.sim.clients.link_plan import (
    DESTINATION,
    ELSEWHERE,
    HERE,
    SECOND,
    SHOVEL_NAMES,
    SOURCE,
)
from tests.sim.clients.messages import MESSAGE
from tests.sim.clients.moved import MoveWitness


def publish(number: int, queue: str) -> Publish:
    return Publish(PUBLISH, CONN, 1, number, "", queue, PERSISTENT, b"", MESSAGE.pack(1, number))


CONN = 7


class History:
    """Messages 1, 2 and 3 have entered the source, and one attempt has received them all."""

    def __init__(self, source: str = HERE, mode: str = ON_CONFIRM) -> None:
        self.broken: list[str] = []
        self.witness = MoveWitness(lambda _, text: self.broken.append(text), lambda _: None)
        value = {"src-uri": source, "ack-mode": mode}
        definition = {"parameter": {("/", SHOVEL_NAMES[SOURCE]): {"value": value}}}
        queue = SimpleNamespace(number=3, name=SOURCE, ready=[], returned={})
        vhosts = {"/": SimpleNamespace(queues={SOURCE: queue})}
        self._machine = cast("Machine", SimpleNamespace(definitions=definition, vhosts=vhosts))
        self._position, self._conn = 10, CONN
        for number in (1, 2, 3):
            entered = MOVE.pack(Op.ENQUEUED, 0, 3, number, 0, 0)
            self.witness.enters(self._machine, publish(number, SOURCE), [entered])
        self.begins(1, 2, 3)

    def begins(self, *takes: int, source: str = SOURCE) -> None:
        """Another attempt."""
        self._conn += 1
        self.witness.opens(self._conn, f"{ATTEMPT}{self._conn}")
        for number in takes:
            body = MESSAGE.pack(1, number)
            taken = DeliverEffect(
                self._conn, 1, source, number, False, "", source, b"", body, False
            )
            self.witness.taken(taken)

    def moves(self, *numbers: int, outcome: int = OK) -> None:
        for number in numbers:
            self._position += 1
            command = publish(number, DESTINATION)._replace(conn=self._conn)
            assert self.witness.arrives(self._machine, self._position, command, outcome, [])

    def leaves(self, *numbers: int) -> None:
        for number in numbers:
            self._position += 1
            self.witness.leaves(self._machine, (SOURCE, (1, number)), self._position)

    def ends(self) -> list[str]:
        """Everything that was reported."""
        self.witness.at_rest(self._machine)
        return self.broken

    def starts_cold(self) -> None:
        self._position += 1
        self.witness.cold_start(self._position)


def test_a_correct_move_is_not_blamed() -> None:
    history = History()
    history.moves(1, 2)
    history.leaves(1)
    history.moves(2, outcome=REPEATED)
    history.moves(3)
    history.leaves(2, 3)
    assert history.ends() == []


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
def test_a_repeat_or_a_move_out_of_turn_is_named(
    source: str, moved: tuple[int, ...], blamed: str | None
) -> None:
    """From a source elsewhere messages may come out of turn, as it returns those that it had
    sent."""
    history = History(source)
    history.moves(*moved)
    assert history.ends() == ([] if blamed is None else [blamed])


def test_a_message_that_leaves_before_it_arrived_is_named() -> None:
    history = History()
    history.moves(1)
    history.leaves(1, 2)
    history.moves(2, 3)
    assert history.broken == ["(1, 2) is acknowledged at the source at 13, and did not arrive"]


def test_after_a_cold_start_messages_under_way_may_come_again() -> None:
    """The remaining messages have new places then."""
    history = History()
    history.moves(1, 2)
    history.starts_cold()
    history.begins(2, 3)
    history.moves(2, 3)
    assert history.ends() == []
    assert history.witness.twice == {(DESTINATION, (1, 2))}


class Chain(History):
    """The first shovel brings them to the queue from which a second one takes them."""

    def __init__(self) -> None:
        super().__init__()
        queue = SimpleNamespace(number=4, name=SECOND, ready=[], returned={})
        cast("dict[str, object]", self._machine.vhosts["/"].queues)[SECOND] = queue
        parameters = cast("dict[object, object]", self._machine.definitions["parameter"])
        for source, to in ((SOURCE, SECOND), (SECOND, DESTINATION)):
            value = {"src-uri": HERE, "ack-mode": ON_CONFIRM, "dest-queue": to}
            parameters["/", SHOVEL_NAMES[source]] = {"value": value}

    def brings(self, number: int) -> None:
        """Into the second queue, where its shovel takes it."""
        self._position += 1
        command = publish(number, SECOND)._replace(conn=self._conn)
        entered = MOVE.pack(Op.ENQUEUED, 0, 4, number, 0, 0)
        assert self.witness.arrives(self._machine, self._position, command, OK, [entered])


@pytest.mark.parametrize(
    ("moved", "blamed"),
    [
        ((1, 2, 3), None),
        ((1, 2), "1 messages are not moved, as of (1, 3)"),
        ((1, 3, 2), "(1, 2), place 4, comes at 16 after place 5"),
        ((1, 2, 3, 3), "(1, 3) came at 16, and comes again at 17"),
    ],
)
def test_a_second_shovel_moves_on_what_the_first_brought(
    moved: tuple[int, ...], blamed: str | None
) -> None:
    chain = Chain()
    for number in (1, 2, 3):
        chain.brings(number)
    chain.begins(*moved, source=SECOND)
    chain.moves(*moved)
    assert chain.ends() == ([] if blamed is None else [blamed])


@pytest.mark.parametrize("mode", [ON_PUBLISH, NO_ACK])
def test_without_confirms_the_last_message_may_be_lost_or_repeated(mode: str) -> None:
    history = History(mode=mode)
    history.leaves(1, 2, 3)
    history.moves(1)
    history.begins(1)
    history.moves(1)
    assert history.ends() == []
    assert history.witness.twice == {(DESTINATION, (1, 1))}


@pytest.mark.parametrize(
    ("moved", "blamed"),
    [
        ((1, 3), "1 messages are not moved, as of (1, 2)"),
        ((1, 3, 2), "(1, 2), place 1, comes at 13 after place 2"),
        ((1, 1), "(1, 1) comes at 12, more often than it was taken"),
    ],
)
@pytest.mark.parametrize("mode", [ON_PUBLISH, NO_ACK])
def test_without_confirms_no_message_in_between_is_left_out(
    mode: str, moved: tuple[int, ...], blamed: str
) -> None:
    history = History(mode=mode)
    history.moves(*moved)
    assert history.ends() == [blamed]
