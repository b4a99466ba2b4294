"""Deliberate bugs of shovels and links, one function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.shovels.definition import ON_CONFIRM
from broker.shovels.handover import Handover
from broker.shovels.status import Key
from tools.client.amqp_client import AmqpConnection
from tools.shovel.content import Content
from tools.shovel.mover import Mover
from tools.shovel.upstream import UpstreamExchange

Patches = list[tuple[Any, str, Any]]


def links_acknowledge_before_the_confirm() -> Patches:
    """Messages under way to the destination are acknowledged at the source."""
    forward = Mover._forward

    def hasty(self: Mover, source: AmqpConnection, destination: AmqpConnection) -> None:
        before = set(self._pending)
        forward(self, source, destination)
        for number, one in self._pending.items():
            if number not in before:
                source.ack(one.tag, multiple=False)

    return [(Mover, "_forward", hasty)]


def links_forget_their_numbers() -> Patches:
    """Messages are sent without numbers, so those that a broken link had moved are moved again."""

    return [(Content, "_producer", lambda *_: "")]


def links_begin_beside_another() -> Patches:
    """A joining member does not ask whether the previous mover still moves messages."""

    def nobody(self: Handover, _keys: object, _members: object, _now: float) -> None:
        self._awaited = {}

    return [(Handover, "joined", nobody)]


def links_let_go_while_they_run() -> Patches:
    """An asked member answers at once that it has stopped, although its own attempt still runs."""
    takes = Handover.takes

    def free(self: Handover, sender: str, payload: bytes, runs: Callable[[Key], str]) -> bool:
        here, self._last = self._last, {}
        try:
            return takes(self, sender, payload, runs)
        finally:
            self._last = here

    return [(Handover, "takes", free)]


def links_pass_no_unbinding_on() -> Patches:
    """A binding removed here stays at the upstream until the next attempt."""
    change = UpstreamExchange.change

    def deaf(self: UpstreamExchange, source: AmqpConnection, told: Mapping[str, object]) -> None:
        change(self, source, {**told, "unbind": []})

    return [(UpstreamExchange, "change", deaf)]


def links_lose_what_came_together() -> Patches:
    """Without confirms, only the first and last of several messages that came together are passed
    on."""
    forward = Mover._forward

    def hasty(self: Mover, source: AmqpConnection, destination: AmqpConnection) -> None:
        if self._shovel.ack_mode != ON_CONFIRM:
            del source.deliveries[1:-1]
        forward(self, source, destination)

    return [(Mover, "_forward", hasty)]


def links_give_up_what_nobody_waits_for() -> Patches:
    """Messages that a link has under way from a queue are acknowledged when no consumer waits any
    more."""
    follow = Mover._follow_demand

    def gives_up(self: Mover, source: AmqpConnection) -> None:
        if self._consumes and not self._wanted:
            for one in self._pending.values():
                source.ack(one.tag, multiple=False)
        follow(self, source)

    return [(Mover, "_follow_demand", gives_up)]


def links_of_two_queues_share_a_name() -> Patches:
    """Messages of two queues are sent to one destination with numbers of the same producer."""
    producer = Content._producer

    return [(Content, "_producer", lambda self, _queue_id: producer(self, ""))]


LINK_MUTANTS: tuple[Callable[[], Patches], ...] = (
    links_acknowledge_before_the_confirm,
    links_forget_their_numbers,
    links_begin_beside_another,
    links_let_go_while_they_run,
    links_pass_no_unbinding_on,
    links_lose_what_came_together,
    links_give_up_what_nobody_waits_for,
    links_of_two_queues_share_a_name,
)
"""Shown by runs that have links (`tests/sim/clients/links.py`)."""
