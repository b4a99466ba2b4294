"""Clients that guess passwords are slowed, and no others."""

from __future__ import annotations

from broker.access.access import Access
from broker.access.backends import REFUSED
from broker.access.login_delays import (
    ADDRESS_FREE,
    FIRST_S,
    FORGET_S,
    KEPT_MAX,
    LONGEST_S,
    USER_FREE,
    LoginDelays,
)
from broker.access.logins import Claim, LoginChecks
from broker.amqp import codec
from broker.machine.machine import Machine
from tests.support.amqp_peer import start_ok
from tests.support.gateway_loop import Loop, Peer


def turn_of_one(delays: LoginDelays, user: str, now: float = 1.0) -> float | None:
    """The delay of one login with no other before it."""
    known = dict(delays._failed)
    turn_s = delays.turn_s("h", user, now)
    delays._failed = known
    return turn_s


def test_the_verdict_comes_later_with_each_failure() -> None:
    delays = LoginDelays()
    seen = []
    for _ in range(USER_FREE + 8):
        seen.append(turn_of_one(delays, "u"))
        delays.failed("h", "u", 1.0)
    assert seen[: USER_FREE + 3] == [0.0] * USER_FREE + [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert seen[-1] == LONGEST_S
    assert turn_of_one(delays, "other") == 0.0
    assert delays.turn_s("elsewhere", "u", 1.0) == 0.0
    assert turn_of_one(delays, "u", 2.0 + FORGET_S) == 0.0


def test_many_at_once_guess_no_faster_than_one() -> None:
    delays = LoginDelays()
    for _ in range(USER_FREE + 3):
        delays.failed("h", "u", 1.0)
    turns = [delays.turn_s("h", "u", 1.0) for _ in range(6)]
    assert turns == [2.0, 4.0, 6.0, 8.0, None, None]
    assert delays.turn_s("h", "other", 1.0) == 0.0
    assert delays.turn_s("h", "u", 3.0) == LONGEST_S  # the first one has got its verdict


def test_addresses_count_by_network_where_a_host_has_many() -> None:
    delays = LoginDelays()
    for number in range(USER_FREE):
        delays.failed(f"[2001:db8::{number:x}]", "u", 1.0)
    assert delays.turn_s("[2001:db8::ffff]", "u", 1.0) == FIRST_S
    assert delays.turn_s("[2001:db8:0:1::1]", "u", 1.0) == 0.0


def test_a_login_decided_at_once_waits_from_the_last_failure() -> None:
    delays = LoginDelays()
    for _ in range(USER_FREE + 2):
        assert delays.wait_s("h", "u", 1.0) in (0.0, FIRST_S, 2 * FIRST_S)
        delays.failed("h", "u", 1.0)
    assert delays.wait_s("h", "u", 1.0) == 4 * FIRST_S
    assert delays.wait_s("h", "u", 1.0 + 3 * FIRST_S) == FIRST_S
    assert delays.wait_s("h", "u", 1.0 + 4 * FIRST_S) == 0.0
    assert delays.wait_s("h", "other", 1.0) == 0.0


def test_trying_many_users_is_slowed_as_well() -> None:
    delays = LoginDelays()
    for number in range(ADDRESS_FREE):
        assert delays.turn_s("h", f"u{number}", 1.0) == 0.0
        delays.failed("h", f"u{number}", 1.0)
    assert delays.turn_s("h", "fresh", 1.0) == FIRST_S
    assert delays.turn_s("h", "newer", 1.0) == 2 * FIRST_S  # behind the other


def test_a_client_with_an_old_password_never_slows_others_of_its_machine() -> None:
    """However long it goes on: it is slowed itself, and fails no faster than failures are
    forgotten."""
    delays = LoginDelays()
    now = 0.0
    for _ in range(4 * ADDRESS_FREE):
        now += LONGEST_S + 1.0
        if delays.turn_s("h", "old", now) is not None:
            delays.failed("h", "old", now)
    assert delays.turn_s("h", "other", now) == 0.0


def test_an_address_that_tries_users_guesses_no_faster_than_failures_are_forgotten() -> None:
    delays = LoginDelays()
    now, tried = 0.0, 0
    while now < 20 * FORGET_S:
        wait = delays.turn_s("h", f"u{tried}", now)
        now += wait if wait is not None else 1.0
        if wait is not None:
            delays.failed("h", f"u{tried}", now)
            tried += 1
    assert tried <= 22 * ADDRESS_FREE


def test_the_memory_of_failures_is_bounded() -> None:
    delays = LoginDelays()
    for number in range(KEPT_MAX + 10):
        delays.failed(f"h{number}", "u", 1.0)
    assert len(delays._failed) <= KEPT_MAX


def login(loop: Loop, password: str) -> Peer:
    peer = Peer(loop, is_local=True)
    peer.received = peer.send(codec.PROTOCOL_HEADER, start_ok("guest", password))
    return peer


def test_a_client_is_not_read_while_it_waits_for_its_verdict() -> None:
    loop = Loop()
    for _ in range(USER_FREE):
        assert login(loop, "wrong").take()[-1].method == "connection.close"
    wrong, good = login(loop, "wrong"), login(loop, "guest")
    for peer in (wrong, good):
        assert peer.take()[-1].method == "connection.start"
        assert not peer.client.may_be_read
    loop.gateway.refuse_overdue(LONGEST_S)
    loop.turn()
    code, text = wrong.take()[-1].args[:2]
    assert (code, str(text).endswith("failed from there before, so this answer came late.")) == (
        403, True
    )  # fmt: skip
    assert any("login of 'guest': logins have failed from 127.0.0.1" in line for line in loop.log)
    assert good.take()[-1].method == "connection.tune"
    assert good.client.may_be_read


def test_a_client_that_comes_when_too_many_wait_is_refused_whatever_its_password() -> None:
    loop = Loop()
    for _ in range(USER_FREE):
        login(loop, "wrong")
    for _ in range(40):
        login(loop, "wrong")
    (_, closed) = login(loop, "guest").take()
    assert closed.args[:2] == (
        403, "ACCESS_REFUSED - too many logins have failed from 127.0.0.1: try again in 8 s"
    )  # fmt: skip
    assert any("login of 'guest' is not looked at" in line for line in loop.log)


def test_guessing_at_a_member_that_serves_nobody_is_slowed_too() -> None:
    """It sends away clients that it does not know, but not without a limit."""
    loop = Loop()
    loop.gateway.fenced = True
    for _ in range(USER_FREE):
        assert login(loop, "wrong").take()[-1].args[0] == 320
    assert [one.method for one in login(loop, "wrong").take()] == ["connection.start"]


def test_a_member_without_a_state_slows_nobody_whom_it_cannot_know() -> None:
    """Its own clients come to it while it joins, with passwords that are right."""
    access = Access(lambda: Machine("a"))
    checks = LoginChecks(access)
    claim = Claim("ada", "secret", "10.0.0.1", is_local=False)
    for _ in range(2 * USER_FREE):
        assert checks.judge(claim, 0.0, lambda *_: None) == REFUSED
    assert checks.turn_s(claim.address, claim.user, 0.0) == 0.0


def test_a_client_that_leaves_before_its_verdict_is_forgotten() -> None:
    loop = Loop()
    for _ in range(USER_FREE):
        login(loop, "wrong")
    peer = login(loop, "guest")
    loop.gateway.connection_lost(peer.client)
    loop.gateway.refuse_overdue(LONGEST_S)
    assert not loop.gateway.take_writable()
