"""The transitions of OpenAMQ's HAC and ActiveMQ's master/slave, one row each (O6, O7, A3)."""

from __future__ import annotations

from itertools import product

import pytest

from broker.options.modes.pair import BACKUP, MASTER, PRIMARY, SLAVE
from broker.roles.pair_table import ROWS, Peer, Seen, Standing, row_for

PENDING, ACTIVE, PASSIVE = Standing.PENDING, Standing.ACTIVE, Standing.PASSIVE
GONE = Seen(Peer.GONE)
CLIENT = Seen(Peer.GONE, clients=True, connected=True)
LONG = Seen(Peer.GONE, gone_long=True)
IS_PENDING, IS_ACTIVE, IS_PASSIVE = Seen(Peer.PENDING), Seen(Peer.ACTIVE), Seen(Peer.PASSIVE)


@pytest.mark.parametrize(
    ("seat", "standing", "seen", "after"),
    [
        # 3.4.3, the primary, in the manual's order
        (PRIMARY, PENDING, IS_PENDING, ACTIVE), (PRIMARY, PENDING, IS_PASSIVE, ACTIVE),
        (PRIMARY, ACTIVE, IS_ACTIVE, PASSIVE),
        (PRIMARY, PASSIVE, CLIENT, ACTIVE),
        (PRIMARY, PASSIVE, IS_PASSIVE, ACTIVE),
        # 3.4.4, the backup
        (BACKUP, PENDING, IS_PENDING, PASSIVE), (BACKUP, PENDING, IS_ACTIVE, PASSIVE),
        (BACKUP, PASSIVE, CLIENT, ACTIVE),
        (BACKUP, PASSIVE, IS_PASSIVE, ACTIVE),
        (BACKUP, ACTIVE, GONE, PASSIVE),
        # a returning primary defers; so does a member restarted after it had gone on alone
        (PRIMARY, PENDING, IS_ACTIVE, PASSIVE), (PRIMARY, PENDING, CLIENT, ACTIVE),
        (BACKUP, PENDING, CLIENT, ACTIVE),
        # master and slave
        (MASTER, PENDING, IS_PENDING, ACTIVE), (MASTER, PENDING, GONE, ACTIVE),
        (MASTER, PENDING, IS_ACTIVE, PASSIVE), (MASTER, PASSIVE, LONG, ACTIVE),
        (SLAVE, PENDING, IS_PENDING, PASSIVE), (SLAVE, PENDING, IS_ACTIVE, PASSIVE),
        (SLAVE, PASSIVE, LONG, ACTIVE), (SLAVE, PASSIVE, IS_PASSIVE, ACTIVE),
    ],
)  # fmt: skip
def test_each_transition_of_the_manuals(
    seat: str, standing: Standing, seen: Seen, after: Standing
) -> None:
    row = row_for(seat, standing, seen)
    assert row is not None
    assert row.after is after
    assert row.reason


@pytest.mark.parametrize(
    ("seat", "standing", "seen"),
    [
        (PRIMARY, ACTIVE, GONE), (PRIMARY, ACTIVE, IS_PASSIVE), (PRIMARY, PASSIVE, GONE),
        (PRIMARY, PENDING, GONE), (PRIMARY, PASSIVE, IS_ACTIVE), (BACKUP, PENDING, GONE),
        (BACKUP, PASSIVE, GONE), (BACKUP, PASSIVE, IS_ACTIVE), (BACKUP, ACTIVE, CLIENT),
        (BACKUP, ACTIVE, IS_PASSIVE), (MASTER, ACTIVE, GONE), (MASTER, ACTIVE, IS_PENDING),
        (SLAVE, PASSIVE, GONE), (SLAVE, PASSIVE, IS_ACTIVE), (SLAVE, PASSIVE, CLIENT),
    ],
)  # fmt: skip
def test_all_other_events_change_nothing(seat: str, standing: Standing, seen: Seen) -> None:
    assert row_for(seat, standing, seen) is None


EVERYTHING = [
    Seen(peer, *flags)
    for peer in Peer
    for flags in product((False, True), (False, True), (False, True), (False, True))
]


@pytest.mark.parametrize(("seat", "standing"), [*product((PRIMARY, BACKUP), Standing)])
def test_without_its_peer_no_member_that_sees_no_client_is_active(
    seat: str, standing: Standing
) -> None:
    """O9, the rule against two active members."""
    for seen in EVERYTHING:
        row = row_for(seat, standing, seen)
        if row is not None and row.after is ACTIVE and seen.peer is Peer.GONE:
            assert seen.clients


@pytest.mark.parametrize("seat", [PRIMARY, BACKUP, MASTER, SLAVE])
def test_no_member_goes_on_alone_with_a_possibly_old_state(seat: str) -> None:
    """G28, whatever it sees."""
    for standing, seen in product(Standing, EVERYTHING):
        row = row_for(seat, standing, seen)
        if row is not None and row.after is ACTIVE and seen.peer is Peer.GONE:
            assert seen.may_lead


@pytest.mark.parametrize("standing", Standing)
@pytest.mark.parametrize(("first", "second"), [(PRIMARY, BACKUP), (MASTER, SLAVE)])
def test_one_of_two_that_see_each_other_ends_up_active(
    first: str, second: str, standing: Standing
) -> None:
    """Whatever both are when they meet; the order gives one the role (the first of the two)."""
    for other in Standing:
        stand = {first: standing, second: other}
        for _ in range(4):
            role = next((seat for seat in (second, first) if stand[seat] is ACTIVE), "")
            for seat, peer in ((first, second), (second, first)):
                seen = Peer.ACTIVE if role == peer else Peer(stand[peer].value)
                row = row_for(seat, stand[seat], Seen(seen))
                if row is not None and not (row.after is ACTIVE and role):
                    stand[seat] = row.after
                    role = role or (seat if row.after is ACTIVE else "")
        assert sorted(one.value for one in stand.values()) == ["active", "passive"], stand


def test_every_row_can_apply() -> None:
    """No row is hidden by an earlier one."""
    found = {
        row_for(row.seat, row.standing, seen)
        for row in ROWS
        for seen in EVERYTHING
        if seen.peer in row.peers
    }
    assert set(ROWS) <= found
