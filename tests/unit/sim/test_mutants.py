"""The simulator notices a wrong protocol: a few seeds find each deliberate bug."""

from __future__ import annotations

import pytest

from tests.sim.mutation.by_hand import MEMBER_MUTANTS, PRIMARY_MUTANTS, broken
from tests.sim.mutation.of_links import LINK_MUTANTS
from tests.sim.run.campaign import Options, run_seed

# Seeds that found the bug, the cheapest first; once one finds it, the others do not run. Any seeds
# will do, as the protocol changes.
KILLERS: dict[str, tuple[int, ...]] = {
    "safe_on_one_rotation": (2, 1, 3),
    "agreed_overtakes_safe": (2, 3, 1),
    "half_safe": (2, 1, 3),
    "token_taken_twice": (4, 3, 2),
    "token_of_any_ring": (36, 9, 23),
    "holes_ignored": (2, 4, 7),
    "first_token_twice": (168, 91, 185, 184, 113),
    "never_looks_for_others": (3, 4, 1, 2),
    "all_is_regular": (16, 14, 2),
    "minority_is_enough": (7, 3, 4),
    "epoch_stays": (7, 3, 4),
    "replies_before_the_log": (3, 2, 1),
    "replies_when_any_log_is_written": (3, 1, 2),
    "replies_without_a_lease": (9, 14, 90),
    "promises_while_others_reply": (87, 28),
    "promises_before_durable": (2, 1, 3),
    "promises_behind_nothing": (57, 32, 33, 61),
    "promise_of_another_view": (83, 2, 4),
    "confirms_before_durable": (1, 2, 3),
    "applied_counts_as_durable": (9, 13),
    "numbers_are_not_read": (12, 3, 11, 8),
    "transactions_settle_nothing": (1019, 1026, 1009),
    "repeats_are_taken": (1019, 1050, 1009),
    "readers_begin_late": (9, 2, 8),
    "letters_that_cannot_go_are_lost": (1, 3, 4),
    "replicas_drop_before_they_are_level": (219, 262, 451),
    "links_acknowledge_before_the_confirm": (13, 16),
    "links_forget_their_numbers": (43,),
    "links_begin_beside_another": (33,),
    "links_let_go_while_they_run": (33, 587),
    "links_pass_no_unbinding_on": (16,),
    "links_lose_what_came_together": (54, 84, 4),
    "links_give_up_what_nobody_waits_for": (550, 222),
    "links_of_two_queues_share_a_name": (43, 18),
}


def options_of(name: str) -> Options:
    """The stack in which the layer with the bug shows it."""
    if name.startswith("replicas_"):  # cold starts, which are frequent there, reveal it
        return Options(stack="oracle")
    if name in {mutant.__name__ for mutant in (*MEMBER_MUTANTS, *LINK_MUTANTS)}:
        return Options(stack="broker")
    return Options(ring_only=name not in {mutant.__name__ for mutant in PRIMARY_MUTANTS})


EVERYDAY = ("all_is_regular", "confirms_before_durable", "letters_that_cannot_go_are_lost")
"""One of each layer; the others cost more than a tenth of all everyday tests."""

SLOW = [pytest.mark.slow, pytest.mark.turns(7)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in EVERYDAY else SLOW) for one in KILLERS],
)
def test_a_bug_of_the_protocol_is_found(name: str) -> None:
    """With the bug at least one of the seeds fails; without it all of them pass."""
    options = options_of(name)
    with broken(name):
        assert any(not run_seed(seed, options).ok for seed in KILLERS[name])
