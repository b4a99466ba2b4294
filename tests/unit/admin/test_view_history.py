"""The views that a member remembers, and which members left before one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from broker.admin.status import ViewHistory
from broker.replication.controller import Controller
from vsync.totem.membership.departures import LEFT
from vsync.types import Member


def test_a_member_that_left_is_named_with_the_first_view_without_it() -> None:
    """Its leave message arrives before the view changes, and may be read in between."""

    def sees(*names: str, active: bool = True) -> None:
        primary.members = tuple(Member(one, 1, one) for one in names)
        primary.active = active
        history.look()

    primary = SimpleNamespace(ring="1.a", epoch=1, reason="", labels=dict)
    history = ViewHistory(cast("Controller", SimpleNamespace(primary=primary)))
    sees("a", "b", "c")
    history.goes("b", "silent for 700 ms")
    history.goes("c", LEFT)
    sees("a", "b", "c", active=False)
    sees("a", "b", active=False)
    sees("a", "b")
    sees("a", "b", "c")
    sees("a", "b")
    assert [one["left"] for one in history.reply()] == [[], [], ["c"], [], [], []]


def test_the_url_of_a_member_is_kept_when_it_is_gone() -> None:
    labels = {"a": "amqp:tcp:a:5672", "b": "amqp:tcp:b:5672"}
    primary = SimpleNamespace(ring="1.a", epoch=1, reason="", members=(), active=True,
                              labels=lambda: labels)  # fmt: skip
    history = ViewHistory(cast("Controller", SimpleNamespace(primary=primary)))
    history.look()
    for changed in ({"a": "amqp:tcp:a:5673"}, {"a": ""}):
        labels = changed
        history.look()
        assert [history.url_of(name) for name in "abc"] == [
            "amqp:tcp:a:5673",
            "amqp:tcp:b:5672",
            "",
        ]
