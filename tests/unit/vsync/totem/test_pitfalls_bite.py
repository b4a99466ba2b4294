"""Each mistake, put into the core, fails its pitfall's test.

`BITES` gives, for a pitfall, the mistake as a small patch of the core, and the test that must fail
with it. For a pitfall without an entry, docs/reference/pitfalls.md has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from struct import error as StructError
from typing import NamedTuple
from unittest.mock import patch

import pytest

from tests.sim.mutation import by_hand
from tests.sim.mutation.by_hand import Patches
from tests.support.ring import totem_mistakes as mistakes
from tests.unit.vsync.membership import test_exchange as exchanges
from tests.unit.vsync.membership import test_membership as membership
from tests.unit.vsync.membership import test_recovery as recoveries
from tests.unit.vsync.totem import test_node as nodes
from tests.unit.vsync.totem import test_ordering as ordering
from tests.unit.vsync.totem import test_pitfalls as pitfalls
from tests.unit.vsync.totem import test_pitfalls_views as views
from tests.unit.vsync.wire import test_codec as codec_tests


class Bite(NamedTuple):
    """One mistake of another implementation, and the test here that catches it."""

    pitfall: int
    mistake: Callable[[], Patches]
    test: Callable[[], object]
    error: type[Exception] = AssertionError


def every(test: Callable[..., None]) -> Callable[[], None]:
    """Run a parametrized test with all its parameters."""
    (mark,) = test.pytestmark  # type: ignore[attr-defined]

    def run() -> None:
        for values in mark.args[1]:
            test(*(values if isinstance(mark.args[0], tuple) else (values,)))

    return run


BITES = (
    Bite(
        1,
        by_hand.old_incarnation_stays,
        views.test_1_a_restarted_representative_is_in_the_next_ring_at_once,
    ),
    Bite(2, mistakes.token_in_gather_is_used, views.test_2_a_regular_token_is_not_used_in_gather),
    Bite(
        3, by_hand.any_commit_token, views.test_3_the_commit_token_of_an_aborted_attempt_is_refused
    ),
    Bite(3, by_hand.any_commit_token, views.test_3_a_commit_token_for_other_members_is_refused),
    Bite(
        4,
        mistakes.old_state_is_saved_again,
        lambda: views.test_4_the_transitional_members_stay_the_same_after_several_attempts(2),
    ),
    Bite(5, mistakes.last_aru_is_overwritten, pitfalls.test_5_6_7_37_stray_tokens_change_nothing),
    Bite(6, mistakes.loss_timer_is_armed, pitfalls.test_5_6_7_37_stray_tokens_change_nothing),
    Bite(
        7, mistakes.stray_tokens_count_as_idle, pitfalls.test_5_6_7_37_stray_tokens_change_nothing
    ),
    Bite(
        7,
        mistakes.any_sender_of_tokens,
        pitfalls.test_7_a_token_not_from_the_predecessor_is_refused,
    ),
    Bite(8, mistakes.asks_up_to_what_it_received, nodes.test_the_lost_tail_of_a_burst_is_requested),
    Bite(
        9,
        mistakes.aru_stops_at_64,
        ordering.test_the_window_advances_over_any_gap_and_names_missing_frames,
    ),
    Bite(
        10, mistakes.small_recovery_store, views.test_10_a_recovery_as_large_as_the_store_terminates
    ),
    Bite(
        11,
        mistakes.flag_stays_up,
        recoveries.test_11_the_flag_is_raised_and_lowered_by_the_same_member,
    ),
    Bite(
        11,
        mistakes.flag_of_several,
        recoveries.test_11_only_one_of_several_senders_has_the_flag,
    ),
    Bite(
        11,
        mistakes.flag_of_several,
        every(exchanges.test_installing_members_have_every_frame_anybody_held),
    ),
    Bite(
        12,
        by_hand.transition_by_name,
        recoveries.test_12_the_same_name_with_another_old_ring_does_not_come_along,
    ),
    Bite(
        13,
        mistakes.no_room_for_the_wrapping,
        lambda: pitfalls.test_13_a_full_frame_survives_wrapping(0),
    ),
    Bite(14, by_hand.holes_ignored, lambda: pitfalls.test_14_gaps_at_the_end_of_a_ring(True)),
    Bite(14, by_hand.data_in_commit, views.test_a_frame_that_arrives_in_commit_is_not_taken),
    Bite(
        15,
        mistakes.recovered_frames_are_freed_at_once,
        views.test_15_recovered_frames_are_kept_until_all_have_them,
    ),
    Bite(
        17,
        by_hand.fragments_survive,
        ordering.test_17_a_half_sent_payload_restarts_and_received_halves_are_dropped,
    ),
    Bite(
        18,
        mistakes.buffers_are_switched_early,
        views.test_18_a_payload_completed_in_recovery_is_whole_and_before_the_view,
    ),
    Bite(
        19,
        mistakes.takes_joins_that_reject_it,
        membership.test_19_a_join_that_rejects_this_member_does_not_break_its_ring,
    ),
    Bite(
        20,
        mistakes.drops_joins_without_news,
        membership.test_20_a_members_join_breaks_the_ring_even_without_news,
    ),
    Bite(
        21,
        mistakes.believes_failed_sets_of_foreign_members,
        membership.test_21_failed_sets_count_only_from_members_of_the_old_ring,
    ),
    Bite(22, mistakes.fails_itself, membership.test_22_a_member_never_fails_itself),
    Bite(
        23,
        mistakes.members_in_another_order,
        membership.test_any_order_of_joins_ends_in_the_same_sets,
    ),
    Bite(24, mistakes.leaves_without_notice, nodes.test_a_clean_leave_takes_no_timeout),
    Bite(
        25, by_hand.first_token_twice, pitfalls.test_25_duplicate_commit_tokens_start_one_ring_once
    ),
    Bite(
        26,
        mistakes.holds_although_frames_are_lost,
        pitfalls.test_26_a_frame_lost_while_idle_is_resent_in_milliseconds,
    ),
    Bite(
        27,
        mistakes.asks_for_the_youngest,
        pitfalls.test_27_a_token_that_overtakes_data_causes_no_retransmission,
    ),
    Bite(
        28,
        mistakes.stale_joins_count,
        membership.test_28_control_frames_queued_during_a_pause_are_dropped,
    ),
    Bite(
        30,
        mistakes.tries_foreign_members_for_ever,
        pitfalls.test_19_20_30_a_pairwise_cut_costs_a_bounded_share_of_time,
    ),
    Bite(
        31,
        mistakes.what_is_wanted_stays_wanted,
        lambda: views.test_31_unequal_members_and_a_recovery_with_losses_settle(1),
    ),
    Bite(
        32,
        mistakes.numbers_of_32_bits,
        every(codec_tests.test_frames_round_trip),
        StructError,
    ),
    Bite(33, mistakes.lengths_are_trusted, every(codec_tests.test_join_shapes), ValueError),
    Bite(34, mistakes.pieces_overlap, lambda: ordering.test_fragments_are_reassembled(200)),
    Bite(35, mistakes.nothing_is_forgotten, pitfalls.test_35_reconfigurations_leave_nothing_behind),
    Bite(36, mistakes.array_of_16, pitfalls.test_23_36_many_members_in_any_order),
    Bite(37, by_hand.token_of_any_ring, views.test_37_a_token_of_another_ring_changes_nothing),
)


@contextmanager
def broken(mistake: Callable[[], Patches]) -> Iterator[None]:
    with ExitStack() as stack:
        for target, attribute, replacement in mistake():
            stack.enter_context(patch.object(target, attribute, replacement))
        yield


@pytest.mark.turns(13)
@pytest.mark.parametrize("bite", BITES, ids=lambda b: f"{b.pitfall}-{b.mistake.__name__}")
def test_a_mistake_fails_its_test(bite: Bite) -> None:
    with broken(bite.mistake), pytest.raises(bite.error):
        bite.test()
