"""The health checks: expiry of certificates (with a clock of its own), readiness, and which members
may be stopped.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from broker.management.call import Call, Problem
from broker.management.resources import health
from tests.support.management.member import ApiMember, Http

DAY = 86_400.0
NOW = 1_790_000_000.0


def asked(
    within: str, unit: str, ends_at: float | None, warning: str | None = None
) -> tuple[int, object]:
    """Status and body of the check, for a member with this certificate; with neither argument, for
    one without TLS."""
    tls = None
    if ends_at is not None or warning is not None:
        tls = SimpleNamespace(ends_at=ends_at, warning=warning)
    broker = SimpleNamespace(name="a", tls=lambda: tls)
    call = SimpleNamespace(broker=broker, names={"within": within, "unit": unit})
    reply = asyncio.run(health.certificates(cast("Call", call)))
    return reply.status, reply.body


def test_monitors_that_check_at_the_same_moment_do_not_disturb_each_other() -> None:
    """The queue is the cluster's, and each member may be checked, by several monitors."""

    async def run() -> list[int]:
        async with Http() as http:
            await http.serve(ApiMember())

            async def check(turns: int) -> int:
                for _ in range(turns):  # so that each step of one meets each step of another
                    await asyncio.sleep(0)
                path = "/api/aliveness-test/%2F"
                return (await http.ask("GET", path, login="guest:guest")).status

            return await asyncio.gather(*map(check, range(30)))

    assert asyncio.run(run()) == [200] * 30


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is NOW."""
    monkeypatch.setattr(health, "time", SimpleNamespace(time=lambda: NOW))


@pytest.mark.parametrize(
    ("within", "unit", "days_left", "status"),
    [
        ("4", "weeks", 29, 200), ("4", "weeks", 27, 503), ("1", "months", 30, 503),
        ("30", "days", 31, 200), ("1", "years", 366, 503), ("0", "days", -1, 503),
    ],
)  # fmt: skip
def test_a_certificate_that_expires_within_the_time(
    within: str, unit: str, days_left: float, status: int
) -> None:
    assert asked(within, unit, NOW + days_left * DAY)[0] == status


def test_the_member_and_the_expiry_are_named() -> None:
    assert asked("1", "weeks", NOW)[1] == {
        "status": "failed",
        "reason": "Certificates expiring",
        "expired": [{"name": "a", "until": "2026-09-21T14:13:20+00:00"}],
    }


def test_a_member_without_tls_has_no_certificate_to_expire() -> None:
    assert asked("1", "years", None) == (200, {"status": "ok"})


def test_a_certificate_of_unknown_expiry_fails_the_check() -> None:
    warning = "clients will not take the certificate: unsuitable certificate purpose"
    assert asked("1", "days", None, warning) == (
        503,
        {
            "status": "failed",
            "reason": "The certificate cannot be read back",
            "warning": warning,
        },
    )


@pytest.mark.parametrize(
    ("serving", "standby", "drained", "reason"),
    [
        (True, "", "", ""),
        (False, "", "", "This member does not serve clients now"),
        (True, "member 'b' is active", "", "This member is a backup"),
        (True, "", "drained", "This member is drained"),
    ],
)
def test_a_member_is_ready_only_if_it_serves_clients(
    *, serving: bool, standby: str, drained: str, reason: str
) -> None:
    admission = SimpleNamespace(standby=standby, drained=drained)
    broker = SimpleNamespace(
        controller=SimpleNamespace(serving=serving, reason="", halted=""),
        clients=SimpleNamespace(gateway=SimpleNamespace(admission=admission)),
    )
    call = SimpleNamespace(broker=broker, user=SimpleNamespace(manages=False))
    reply = asyncio.run(health.ready(cast("Call", call)))
    wanted = {"status": "failed", "reason": reason} if reason else {"status": "ok"}
    assert (reply.status, reply.body) == (503 if reason else 200, wanted)


@pytest.mark.parametrize(("within", "unit"), [("x", "weeks"), ("-1", "days"), ("1", "hours")])
def test_an_invalid_period_is_refused(within: str, unit: str) -> None:
    with pytest.raises(Problem, match="days, weeks, months, years") as refused:
        asked(within, unit, None)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("voters", "level", "status"),
    [
        (("a", "b", "c"), "ab", 503), (("a", "b", "c"), "abc", 200),
        (("a", "b"), "ab", 503), (("a", "b", "@pair=b"), "ab", 200),
        (("a", "b", "@pair=b"), "a", 503), (("a", "b", "@pair=b", "@away=b"), "ab", 503),
    ],
)  # fmt: skip
def test_which_members_may_be_stopped(voters: tuple[str, ...], level: str, status: int) -> None:
    """A member may be stopped if the others can go on without it; one of a pair may."""
    controller = SimpleNamespace(
        promise=SimpleNamespace(voters=voters),
        primary=SimpleNamespace(caught_up_names=frozenset(level)),
    )
    call = SimpleNamespace(broker=SimpleNamespace(name="a", controller=controller))
    assert asyncio.run(health.quorum_critical(cast("Call", call))).status == status
