"""Breaches reported for a history in which a transaction came in part, or a key was taken twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.machine.commands import (
    OK,
    PERSISTENT,
    TX_ACK,
    TX_COMMIT,
    Command,
    TxCommit,
    TxPublish,
    TxSettle,
)
from broker.machine.machine import Machine
from broker.machine.requests.properties import with_header
from broker.machine.state import BODY, NUMBER
from tests.sim.clients.dealers import KEY, STAMPS, TILLS, DealWitness
from tests.sim.clients.messages import MESSAGE, MessageId

HERE, THERE = TILLS
REFUSED = 404


def coin(number: int, till: str) -> TxPublish:
    return TxPublish("", till, PERSISTENT, b"\0\0", MESSAGE.pack(1, number))


def stamp(number: int, key: str) -> TxPublish:
    properties = with_header(b"\0\0", KEY, key)
    return TxPublish("", STAMPS, PERSISTENT, properties, MESSAGE.pack(2, number))


def commit(*publishes: TxPublish, settles: int = 0) -> Command:
    tags = tuple(TxSettle(tag, False, TX_ACK) for tag in range(1, 1 + settles))
    return TxCommit(TX_COMMIT, 1, 1, publishes, tags)


class History:
    """Two coins were paid in, and two stamps with one key."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.settled: dict[tuple[str, MessageId], int] = {}
        self.witness = DealWitness(
            lambda promise, _: self.broken.append(promise), lambda _: None, self.settled
        )
        paid = commit(coin(1, HERE), coin(2, HERE), stamp(1, "k"), stamp(2, "k"))
        self.goes_on(paid, here=(1, 2), stamps=(1,))

    def goes_on(
        self,
        command: Command,
        outcome: int = OK,
        *,
        here: tuple[int, ...] = (),
        there: tuple[int, ...] = (),
        stamps: tuple[int, ...] = (),
    ) -> None:
        """A command is applied; afterwards these messages wait."""
        waits = {HERE: (1, here), THERE: (1, there), STAMPS: (2, stamps)}
        queues = {
            name: SimpleNamespace(
                name=name, returned={}, ready=[_message(conn, number) for number in numbers]
            )
            for name, (conn, numbers) in waits.items()
        }
        vhosts = {"/": SimpleNamespace(queues=queues)}
        machine = cast("Machine", SimpleNamespace(vhosts=vhosts, channels={}))
        self.witness.applied(machine, 10, command, outcome)


def _message(conn: int, number: int) -> tuple[object, ...]:
    message: list[object] = [0] * (1 + max(BODY, NUMBER))
    message[BODY], message[NUMBER] = MESSAGE.pack(conn, number), number
    return tuple(message)


def test_a_whole_transaction_is_no_breach() -> None:
    history = History()
    history.goes_on(commit(coin(1, THERE), settles=1), here=(2,), there=(1,), stamps=(1,))
    history.goes_on(commit(coin(2, THERE), settles=1), REFUSED, here=(2,), there=(1,), stamps=(1,))
    history.settled[STAMPS, (2, 1)] = 11
    history.goes_on(commit(stamp(3, "k"), stamp(4, "other")), here=(2,), there=(1,), stamps=(4,))
    assert not history.broken


@pytest.mark.parametrize(
    ("here", "there", "stamps", "promise"),
    [
        ((1, 2), (1,), (1,), "G9"),  # not settled
        ((2,), (), (1,), "G9"),  # not published
        ((2,), (1, 1), (1,), "G9"),  # committed twice
        ((2,), (1,), (1, 2), "G26"),  # a key that was already taken
        ((2,), (1,), (), "G26"),  # and a stamp that is lost
    ],
)
def test_half_a_transaction_is_found(
    here: tuple[int, ...], there: tuple[int, ...], stamps: tuple[int, ...], promise: str
) -> None:
    history = History()
    history.goes_on(commit(coin(1, THERE), settles=1), here=here, there=there, stamps=stamps)
    assert history.broken == [promise]


def test_a_refused_transaction_does_nothing() -> None:
    history = History()
    history.goes_on(commit(coin(1, THERE), settles=1), REFUSED, here=(2,), there=(1,), stamps=(1,))
    assert not history.broken, "it does not matter where the coin is"
    history.goes_on(commit(coin(3, HERE)), REFUSED, here=(1, 2, 3), stamps=(1,))
    assert history.broken == ["G9"]
