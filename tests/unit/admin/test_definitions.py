"""Definitions by operators, from the request to the durable outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from broker.access import passwords
from broker.admin.definitions import GONE_S, PATIENCE_S, Definitions, Outcome
from broker.machine.commands import TICK, Command, Tick, Value
from broker.replication.controller import Controller
from tests.support.gateway_loop import Loop


class Member:
    """A member without a ring: submitted commands are ordered when the test says so."""

    def __init__(self) -> None:
        self.loop, self.now = Loop(), 0.0
        self.controller = SimpleNamespace(
            serving=True, reason="no quorum",
            submissions=SimpleNamespace(session=self.loop.gateway.session),
            replica=SimpleNamespace(machine=self.loop.machine), submit=self._submit,
        )  # fmt: skip
        self.definitions = Definitions(cast("Controller", self.controller))
        self.loop.gateway.on_defined = self.definitions.done

    def _submit(self, commands: list[Command]) -> None:
        self.loop.gateway.commands += commands

    def define(
        self, what: str, name: str, body: Mapping[str, Value] | None, vhost: str = ""
    ) -> Outcome:
        async def run() -> Outcome:
            task = asyncio.ensure_future(self.definitions.define(what, vhost, name, body, "admin"))
            await asyncio.sleep(0)
            self.loop.turn()
            self.definitions.wake(self.now)
            return await task

        return asyncio.run(run())


def test_a_password_is_kept_as_a_salted_hash() -> None:
    member = Member()
    assert member.define("user", "u", {"password": "secret", "tags": "administrator, x"}) == (
        201,
        "",
    )
    kept = member.loop.machine.definitions["user"]["", "u"]
    assert kept["tags"] == ("administrator", "x")
    assert "secret" not in str(kept)
    password_hash = cast("str", kept["password_hash"])
    assert passwords.matches("secret", password_hash, passwords.DEFAULT_ALGORITHM)
    assert member.define("user", "v", {"password": "secret"}) == (201, "")
    other = member.loop.machine.definitions["user"]["", "v"]
    assert other["password_hash"] != password_hash


def test_a_virtual_host_is_gone_when_its_deletion_returns() -> None:
    member = Member()
    assert member.define("vhost", "v", {"tags": "a"}) == (201, "")
    assert member.loop.machine.definitions["vhost"]["", "v"] == {"description": "", "tags": ("a",)}
    assert member.define("vhost", "v", None) == (204, "")
    assert list(member.loop.machine.vhosts) == ["/"]


def test_the_deletion_of_a_virtual_host_waits_for_its_last_connection() -> None:
    member = Member()
    member.loop.machine.vhosts["/"].connections += 1

    async def run() -> None:
        task = asyncio.ensure_future(member.definitions.define("vhost", "", "/", None, "admin"))
        for _ in range(5):
            await asyncio.sleep(0)
            member.loop.turn()
            member.definitions.wake(member.now)
        assert not task.done()
        member.loop.machine.vhosts["/"].connections -= 1
        member.loop.apply(0, Tick(TICK, 0, 0, 0))
        member.definitions.wake(member.now)
        assert await task == (204, "")
        assert not member.loop.machine.vhosts

    asyncio.run(run())


def test_a_virtual_host_that_stays_holds_up_its_deletion_for_a_while_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that does not read keeps its connection."""
    member = Member()
    member.loop.machine.vhosts["/"].connections += 1

    async def run() -> None:
        task = asyncio.ensure_future(member.definitions.define("vhost", "", "/", None, "admin"))
        for _ in range(5):
            await asyncio.sleep(0)
            member.loop.turn()
        member.now += GONE_S + 1
        member.definitions.wake(member.now)
        assert await task == (204, "")

    asyncio.run(run())
    assert "vhost '/' was deleted, and is not gone yet: connections 1" in caplog.text


def test_nothing_is_kept_of_requests_that_are_done() -> None:
    member = Member()
    member.define("vhost", "v", {})
    member.define("vhost", "v", None)
    assert not member.definitions._waiting
    assert not member.definitions._leaving


@pytest.mark.parametrize(
    ("what", "body", "text"),
    [
        ("permission", {"configure": "(", "write": "", "read": ""},
            "configure: invalid regular expression '(': missing ): ("),
        ("policy", {"pattern": "(a?){900}"},
            "pattern: invalid regular expression '(a?){900}': more than 1000 steps, too many for a "
            "policy: use no large counts such as {500}, or several policies"),
        ("policy", {"pattern": "a(?=b)"},
            "pattern: invalid regular expression 'a(?=b)': invalid perl operator: (?="),
        ("user", {"password": 7}, "password must be text"),
        ("user", {"password": "\ud800"}, "password must be text"),
        ("user", {"password_hash": "x"},
            "password_hash is not base64 of a salt of 4 bytes and a hash of that algorithm"),
        ("parameter", {"value": 1 << 80},
            "its values are nested too deep, too many, or no text and numbers"),
        ("parameter", {"value": "\ud800"},
            "its values are nested too deep, too many, or no text and numbers"),
        ("parameter", {"value": [0] * 5000},
            "its values are nested too deep, too many, or no text and numbers"),
        ("parameter", {"value": "x" * 70_000}, "it has more than 65536 bytes"),
    ],
)  # fmt: skip
def test_a_request_that_can_be_refused_at_once_is_not_ordered(
    what: str, body: dict[str, Value], text: str
) -> None:
    member = Member()
    before = len(member.loop.applied)
    assert member.define(what, "x", body, "" if what == "user" else "/") == (400, text)
    assert len(member.loop.applied) == before


def test_the_policies_of_a_virtual_host_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G15: the declaration of a queue compares all of them."""
    monkeypatch.setattr("broker.admin.definitions.POLICIES_STEPS_MAX", 50)
    member = Member()
    body: dict[str, Value] = {"pattern": "o[a-z]+s", "definition": {"max-length": 1}}
    found = [member.define("policy", f"p{number}", body, "/") for number in range(10)]
    good = [one for one in found if one[0] == 201]
    assert 1 < len(good) < 10
    assert found[-1][0] == 400
    assert "more than 50 steps together" in found[-1][1]
    assert member.define("policy", "p0", body, "/")[0] == 204, "replacing its earlier version"
    assert member.define("operator_policy", "o", body, "/")[0] == 400
    assert member.define("policy", "p1", None, "/")[0] == 204
    assert member.define("operator_policy", "o", body, "/")[0] == 201


def test_the_machine_has_the_last_word() -> None:
    assert Member().define("permission", "x", {"configure": "", "write": "", "read": ""}, "/") == (
        404, "there is no user 'x'",
    )  # fmt: skip


def test_a_member_outside_the_primary_view_accepts_no_definitions() -> None:
    member = Member()
    member.controller.serving = False
    assert member.define("vhost", "v", {}) == (
        503, "this member is not in the primary view: no quorum",
    )  # fmt: skip


def test_an_outcome_is_reported_only_when_durable() -> None:
    member = Member()
    member.loop.durable = False

    async def run() -> None:
        task = asyncio.ensure_future(member.definitions.define("vhost", "", "v", {}, "admin"))
        await asyncio.sleep(0)
        member.loop.turn()
        member.definitions.wake(member.now)
        await asyncio.sleep(0)
        assert "v" in member.loop.machine.vhosts
        assert not task.done()
        member.loop.settle()
        assert await task == (201, "")

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["session", "patience"])
def test_a_request_without_an_outcome_is_given_up(lost: str) -> None:
    member = Member()

    async def run() -> None:
        task = asyncio.ensure_future(member.definitions.define("vhost", "", "v", {}, "admin"))
        await asyncio.sleep(0)
        if lost == "session":
            member.controller.submissions.session += 1
        else:
            member.now += PATIENCE_S + 1
        member.definitions.wake(member.now)
        code, text = await task
        assert code == 503
        assert "look whether it took effect" in text

    asyncio.run(run())
