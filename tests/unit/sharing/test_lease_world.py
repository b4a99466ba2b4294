"""At most one contender leads, and the leader has every confirmed commit: in a world of pauses.

G7, G8 for brokers that share a store. The world runs the real `LeaseThread`; the other tests remove
a safeguard and check that the world notices.
"""

from __future__ import annotations

import pytest

from broker.sharing import lease_database
from broker.sharing.lease import Contender, Found, LeaseRecord
from tests.unit.sharing.lease_world import World

SEEDS = range(40)
WORLD_S = 40.0


@pytest.mark.turns(20)
@pytest.mark.parametrize("in_row", [False, True], ids=["files", "row"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_leads_and_has_every_confirmed_commit(seed: int, in_row: bool) -> None:
    """G7, G8: with the lease in files, and in a row of a database whose clock is set."""
    world = World(seed, 2 + seed % 3, in_row=in_row)
    world.run(WORLD_S)
    assert not world.violations
    assert world.takeovers


class Careless(Contender):
    """Trusts what it read before its claim."""

    def claimed(
        self, claim: LeaseRecord, former: Found | None, newest: int, began: float, now: float
    ) -> None:
        """As if nothing had changed."""
        super().claimed(claim, self._seen if former is not None else None, newest, began, now)


class Deaf(Contender):
    """Does not check for a later token."""

    def renewed(self, written: LeaseRecord, newest: int, began: float, now: float) -> None:
        """As if its own token were the newest."""
        super().renewed(written, written.token, began, now)


@pytest.mark.parametrize("mistaken", [Careless, Deaf])
def test_the_world_notices(mistaken: type[Contender]) -> None:
    for seed in range(200):
        world = World(seed, 2 + seed % 3, mistaken)
        world.run(WORLD_S)
        if world.violations:
            return
    pytest.fail("two contenders led, and nobody noticed")


def test_the_world_notices_a_claim_of_a_renewed_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row is claimed whatever happened to it since it was read."""
    as_read = "AND renewals = %s AND ("
    careless = lease_database._CLAIM.replace(as_read, "AND renewals <> -1 - %s OR (")
    assert careless != lease_database._CLAIM
    monkeypatch.setattr(lease_database, "_CLAIM", careless)
    for seed in range(200):
        world = World(seed, 2 + seed % 3, in_row=True)
        world.run(WORLD_S)
        if world.violations:
            return
    pytest.fail("two contenders led, and nobody noticed")
