"""One contender's decisions, step by step; test_lease_world.py has all contenders together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.sharing.lease import (
    HANG_S,
    LEASE_MS_MAX,
    RECORD_BYTES,
    SLACK,
    WHO_CHARACTERS_MAX,
    Contender,
    ForeignLease,
    Found,
    Held,
    LeaseRecord,
    Phase,
    decode,
)

LEASE_S = 0.8
WAIT_S = LEASE_S * (1 + SLACK)


def record(token: int, **fields: object) -> LeaseRecord:
    own = LeaseRecord(token, "shop", f"id-{token}", f"host process {token}", "", 800, 0)
    return replace(own, **fields)  # type: ignore[arg-type]


def found(lease: LeaseRecord) -> Found:
    return Found(lease.token, lease.encode(), lease)


def torn(token: int) -> Found:
    return Found(token, b"half", None)


def waiter() -> Contender:
    return Contender(record(0, who="me"))


def holder() -> Contender:
    """A contender that has led with token 1 since time 0."""
    contender = waiter()
    claim = contender.look(None, 0, 0)
    assert claim is not None
    contender.claimed(claim, None, 1, 0, 0)
    assert contender.phase is Phase.HOLDS
    contender.serve()
    renew(contender, 0.1)
    return contender


def renew(contender: Contender, now: float, newest: int = 1) -> LeaseRecord | None:
    written = contender.renewal(now)
    if written is not None:
        contender.renewed(written, newest, now, now + 0.01)
    return written


def test_a_record_is_a_line_with_a_checksum() -> None:
    lease = record(7, who="ü" * WHO_CHARACTERS_MAX, cluster="x" * 128, since="y" * 25)
    raw = lease.encode()
    assert len(raw) == RECORD_BYTES
    assert decode(raw) == lease
    for at in (14, 25, 80):
        assert decode(raw[:at] + b"?" + raw[at + 1 :]) is None
    assert decode(raw[:40]) is None
    assert decode(b"") is None
    for foreign in (b"<html>", b"qpidd-lease 2 0 {}", b"\x7fELF"):
        with pytest.raises(ForeignLease):
            decode(foreign)


@pytest.mark.parametrize(
    ("name", "value"), [("token", "7"), ("lease_ms", 0.5), ("count", True), ("who", 3)]
)
def test_a_record_with_a_field_of_the_wrong_type_is_torn(name: str, value: object) -> None:
    assert decode(replace(record(7), **{name: value}).encode()) is None  # type: ignore[arg-type]


def test_the_first_contender_of_all_leads_at_once() -> None:
    contender = holder()
    assert contender.own.generation == contender.own.token == 1
    assert contender.holds(0.1)


def test_nobody_leads_before_the_record_names_its_generation() -> None:
    contender = waiter()
    claim = contender.look(None, 0, 0)
    assert claim is not None
    contender.claimed(claim, None, 1, 0, 0)
    renew(contender, 0.1)
    assert contender.phase is Phase.HOLDS
    assert not contender.holds(0.2)


def test_a_lease_counts_from_the_start_of_its_renewal() -> None:
    contender = holder()
    assert contender.holds(0.1 + LEASE_S - 0.001)
    assert not contender.holds(0.1 + LEASE_S)
    renew(contender, 5.0)  # late, and nobody has taken the next token
    assert contender.holds(5.1)


def test_a_later_token_ends_the_lease() -> None:
    contender = holder()
    renew(contender, 0.2, newest=2)
    assert contender.phase is Phase.LOST
    assert not contender.holds(0.2)
    assert contender.ends(Held.RELEASED) is None
    assert contender.phase is Phase.LOST


def test_a_hanging_loop_lets_the_lease_expire() -> None:
    contender = holder()
    assert renew(contender, 50.0) is not None  # it was not expected to run yet
    contender.beat(50.0)
    assert renew(contender, 50.0 + HANG_S - 0.1) is not None
    assert renew(contender, 50.0 + HANG_S + 0.1) is None


def test_a_waiter_claims_a_record_that_has_not_changed_for_its_time() -> None:
    contender, lease = waiter(), record(3, generation=3)
    assert contender.look(found(lease), 10, 10) is None
    lease = replace(lease, count=1)
    assert contender.look(found(lease), 10.5, 10.6) is None
    assert contender.look(found(lease), 10.6 + WAIT_S - 0.01, 10.6 + WAIT_S) is None
    claim = contender.look(found(lease), 10.601 + WAIT_S, 11.6)
    assert claim is not None
    assert (claim.token, claim.generation, claim.who) == (4, 3, "me")


def test_a_pause_between_two_reads_proves_nothing() -> None:
    """It was stopped in the middle of a read: what it read is old, and the lease may be alive."""
    contender, lease = waiter(), record(3)
    contender.look(found(lease), 10, 10)
    assert contender.look(found(lease), 10.1, 60) is None


def test_a_waiter_that_could_not_read_waits_anew() -> None:
    """The database restarted: its leader could not renew either, and may be alive."""
    contender, lease = waiter(), record(3)
    contender.look(found(lease), 10, 10)
    contender.blind()
    assert contender.look(found(lease), 20, 20) is None
    assert contender.look(found(lease), 20 + WAIT_S - 0.01, 21) is None
    assert contender.look(found(lease), 20.001 + WAIT_S, 21) is not None


def test_a_torn_record_is_waited_for_as_last_read() -> None:
    contender = waiter()
    contender.look(found(record(3)), 10, 10)
    assert contender.look(torn(3), 10.1, 10.1) is None
    assert contender.look(torn(3), 10.101 + WAIT_S, 12) is not None
    stranger = waiter()
    longest = LEASE_MS_MAX / 1000 * (1 + SLACK)
    stranger.look(torn(3), 10, 10)
    assert stranger.look(torn(3), 10 + longest - 1, 100) is None
    claim = stranger.look(torn(3), 10 + longest, 100)
    assert claim is not None
    assert claim.lease_ms == LEASE_MS_MAX


@pytest.mark.parametrize("held", [Held.RELEASED, Held.SHUT_DOWN])
def test_a_lease_that_was_given_up_is_taken_at_once(held: Held) -> None:
    contender = waiter()
    claim = contender.look(found(record(3, held=held)), 10, 10)
    assert claim is not None
    contender.claimed(claim, found(record(3, held=held)), 4, 10, 10)
    assert contender.phase is Phase.HOLDS


def test_a_shutdown_ends_its_waiters() -> None:
    contender = waiter()
    contender.look(found(record(3)), 10, 10)
    assert contender.look(found(record(3, held=Held.SHUT_DOWN)), 10.1, 10.1) is None
    assert contender.ended_for_all


def test_a_renewal_between_read_and_claim_is_waited_for() -> None:
    """The former holder renewed meanwhile: the claim ends its renewals, not its lease."""
    contender, lease = waiter(), record(3, generation=2)
    contender.look(found(lease), 10, 10)
    claim = contender.look(found(lease), 12, 12)
    assert claim is not None
    renewed = replace(lease, count=5, generation=3)
    contender.claimed(claim, found(renewed), 4, 14.5, 15)  # which counts from its end
    assert contender.phase is Phase.SETTLES
    assert contender.own.generation == 3
    renew(contender, 15 + WAIT_S - 0.1, newest=4)
    assert contender.phase is Phase.SETTLES
    assert contender.ends(Held.RELEASED) is None, "the lease of token 3 may still run"
    contender.phase = Phase.SETTLES
    renew(contender, 15 + WAIT_S, newest=4)
    assert contender.phase is Phase.HOLDS


def test_a_lease_given_up_between_read_and_claim_is_not_waited_for() -> None:
    contender = waiter()
    contender.look(found(record(1)), 0, 0)
    claim = contender.look(found(record(1)), WAIT_S, WAIT_S)
    assert claim is not None
    released = found(record(1, count=1, held=Held.RELEASED))
    contender.claimed(claim, released, 2, WAIT_S, WAIT_S)
    assert contender.phase is Phase.HOLDS


def test_a_claim_that_comes_too_late_is_lost() -> None:
    """It was stopped before its claim, and that token's files are long removed."""
    contender, lease = waiter(), record(3)
    contender.look(found(lease), 10, 10)
    claim = contender.look(found(lease), 12, 12)
    assert claim is not None
    contender.claimed(claim, torn(3), 9, 500, 500)
    assert contender.phase is Phase.LOST


def test_a_waiter_for_a_claim_waits_for_the_longer_lease_before_it() -> None:
    """A lease of 2 s is claimed by a contender with 0.8 s, whose record says 2 s until
    it serves."""
    contender, lease = waiter(), record(3, lease_ms=2000)
    contender.look(found(lease), 10, 10)
    claim = contender.look(found(lease), 10 + 2 * (1 + SLACK), 20)
    assert claim is not None
    assert claim.lease_ms == 2000
    contender.claimed(claim, found(lease), 4, 20, 20)
    contender.serve()
    assert contender.own.lease_ms == 800
