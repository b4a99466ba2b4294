"""A shovel between two scripted ends: what it acknowledges, sends without a number, waits for."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest

from broker.amqp import codec
from broker.machine.commands import Table
from broker.shovels.definition import parse_shovel
from tests.unit.shovels.scripted_ends import Broker, Sent
from tools.shovel import mover
from tools.shovel.content import number_of
from tools.shovel.mover import Mover, Task

HIGHEST, REMEMBERED = 6000, 4096
TOO_OLD = (
    "x-sequence {number} of producer '{producer}' is too old to be known, {remembered} are "
    "remembered up to {highest}; keep fewer messages unconfirmed, and begin a higher epoch"
)


class Run:
    """One attempt, from its begin to its end."""

    def __init__(
        self,
        places: list[int],
        on_publish: Callable[[Broker, Sent], None],
        *,
        delete_after: int | None = None,
        doubtful: dict[str, int] | None = None,
        takes_numbers: bool = True,
    ) -> None:
        self.source, self.destination = Broker(), Broker(on_publish)
        for place in places:
            headers: Table = {"x-queue-id": "id/1", "x-queue-sequence": place}
            properties = codec.encode_properties({"headers": headers})
            self.source.messages[place] = properties, str(place).encode()
        value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b",
                 "src-delete-after": delete_after or "never"}  # fmt: skip
        task = Task(
            parse_shovel("/", "s", value), 0, doubtful or {}, "near", self.source.descriptor,
            self.destination.descriptor, takes_numbers,
        )  # fmt: skip
        control, self._stop = os.pipe()
        try:
            self.ended = Mover(task, lambda _: None, control).run()
        finally:
            for one in (control, self._stop):
                os.close(one)
            self.source.close()
            self.destination.close()

    @property
    def left(self) -> list[int]:
        """Places that were not acknowledged."""
        return list(self.source.messages)

    @property
    def bodies(self) -> list[int]:
        """What was published."""
        return [int(body) for _, _, body in self.destination.published]


def test_numbers_that_are_too_old_are_found_at_once_and_nothing_is_sent_twice() -> None:
    """Ten messages that another consumer returned, in front of the rest: one refusal tells it of
    all.  Before, each refusal told it of one, and a pause followed that doubled."""
    taken: list[int] = []

    def on_publish(broker: Broker, sent: Sent) -> None:
        producer, number = number_of(sent[1])
        if producer and number <= HIGHEST - REMEMBERED:
            broker.refuses(TOO_OLD.format(
                number=number, producer=producer, remembered=REMEMBERED, highest=HIGHEST
            ))  # fmt: skip
            return
        taken.append(int(sent[2]))
        broker.confirms(sent[0])

    places = [*range(10), *range(HIGHEST, HIGHEST + 10)]
    run = Run(places, on_publish, delete_after=len(places))
    assert run.ended == {"why": mover.ALL_MOVED, "done": True,
                         "doubtful": {"id/1": HIGHEST - REMEMBERED}}  # fmt: skip
    assert taken == places
    assert run.left == []
    assert run.destination.opened == 2
    numbered = [number_of(properties)[1] for _, properties, _ in run.destination.published]
    assert numbered == [0, *[-1] * 10, *places[10:]]


def test_a_number_that_was_given_away_concerns_no_other_message() -> None:
    def on_publish(broker: Broker, sent: Sent) -> None:
        producer, number = number_of(sent[1])
        if number == 2:
            text = f"x-sequence 2 of producer '{producer}' was given to another message; send"
            broker.refuses(text)
        else:
            broker.confirms(sent[0])

    run = Run([1, 2, 3], on_publish, delete_after=3)
    assert run.ended == {"why": mover.ALL_MOVED, "done": True, "doubtful": {}}
    assert run.bodies == [1, 2, 2, 3]
    assert run.left == []


def test_a_refusal_of_anything_else_ends_the_attempt() -> None:
    run = Run([1, 2], lambda broker, _: broker.refuses("no such thing"))
    assert "no such thing" in str(run.ended["why"])
    assert (run.ended["doubtful"], run.left) == ({}, [1, 2])


def test_what_has_no_number_is_confirmed_before_a_numbered_one_follows() -> None:
    followed: list[bool] = []

    def on_publish(broker: Broker, sent: Sent) -> None:
        if not number_of(sent[1])[0]:
            time.sleep(0.1)
            try:
                followed.append(bool(broker.mine.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
            except BlockingIOError:
                followed.append(False)
        broker.confirms(sent[0])

    run = Run([1, 2], on_publish, delete_after=2, doubtful={"id/1": 1})
    assert (run.bodies, followed) == ([1, 2], [False])


def test_one_that_came_back_is_doubted_and_the_others_are_acknowledged() -> None:
    """Before, all that was under way was sent again, without numbers: it came twice."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            broker.returns(sent)
        if sent[0] == 4:
            broker.confirms(4, multiple=True)

    run = Run([10, 11, 12, 13], on_publish)
    assert run.left == [11]
    assert run.ended == {"why": f"destination: {mover.UNROUTED}", "done": False,
                         "doubtful": {"id/1": 11}}  # fmt: skip


def test_one_without_a_number_that_came_back_is_not_acknowledged() -> None:
    """Nor what was confirmed behind it, as that may be it; what was confirmed before it is."""

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 3:
            broker.confirms(1)
            broker.returns((2, *broker.published[1][1:]))
            broker.confirms(2)
            broker.confirms(3)

    run = Run([10, 11, 12], on_publish, takes_numbers=False)
    assert run.left == [11, 12]
    assert run.ended["doubtful"] == {}
    assert run.ended["why"] == f"destination: {mover.UNROUTED}"


def test_the_last_ones_are_waited_for_when_so_many_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that gave up began to count again, and moved more than was asked."""
    monkeypatch.setattr(mover, "FINISH_S", 0.05)

    def on_publish(broker: Broker, sent: Sent) -> None:
        if sent[0] == 2:
            time.sleep(0.4)
            broker.confirms(2, multiple=True)

    run = Run([1, 2, 3], on_publish, delete_after=2)
    assert (run.ended["done"], run.left) == (True, [3])
