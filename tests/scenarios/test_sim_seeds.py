"""Seeds that once failed, each with what it showed.

A seed stands for its plan (cluster, load, faults), which later changes of the protocol preserve;
the exact interleaving shifts with the protocol. A unit test pins down the bug itself where
possible.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.sim.run.campaign import Options, run_seed
from tests.sim.run.plan import (
    FROZEN,
    LATEST,
    NEWEST,
    RELEASES,
    VOTES,
    YOUNGEST,
    YOUNGEST_LASTING,
)


class FailedSeed(NamedTuple):
    seed: int
    ring_only: bool
    showed: str
    stack: str = "replica"
    without: tuple[str, ...] = LATEST  # kinds of fault introduced after the seed
    votes: bool = False  # as young as the choice of voters
    young: bool = False  # as young as hanging disks and mixed releases
    youngest: bool = False  # has the faults of `plan.YOUNGEST_FROM`
    newest: bool = False  # has shutdowns of all
    long: bool = False  # takes over two seconds: not every day


SEEDS = {
    "storm_of_rings": FailedSeed(
        96,
        False,
        "L1: after the last fault three members formed rings of one, hundreds a second: each late"
        " join broke a ring, and each broken ring made new joins (also seed 9154)",
    ),
    "storm_of_rings_on_slow_links": FailedSeed(
        9154, True, "L1: the same with late frames of old joins"
    ),
    "backed_off_in_turn": FailedSeed(
        3249, True, "L1: two members that backed off from each other in turn never merged"
    ),
    "settled_by_name_only": FailedSeed(
        3081,
        True,
        "L3, the simulator's own: one ring id at all members is not a settled ring while its token"
        " is lost and nobody has missed it yet",
    ),
    "corrupted_datagram": FailedSeed(
        63,
        False,
        "the simulator's own: datagrams carried no checksum, so garbage on the wire became one",
    ),
    "clocks_ahead_by_hours": FailedSeed(
        8031,
        False,
        "L4: two clocks jumped by hours, and the machine's time followed a step of 10 s a second",
        "mixed",
    ),
    "restored_beside_one_that_never_ran": FailedSeed(
        55107957146,
        False,
        "the simulator's own: it compared an old disk with that of a member without one",
        "oracle",
    ),
    "delivered_before_the_activation_was_durable": FailedSeed(
        161728200976,
        False,
        "G11: both members of a view left for their disks before its activation was durable; the"
        " third had stayed up beside it, and what they had delivered came again unflagged",
        "oracle",
    ),
    "a_long_queue_before_the_exchange": FailedSeed(
        161728200655,
        False,
        "L4, the simulator's own: what was queued, at two frames a rotation, went out before the"
        " members could exchange their states (also 161728200714)",
        long=True,
    ),
    "the_only_clock_is_set": FailedSeed(
        273,
        False,
        "G17, the simulator's own: the clock of a cluster's only member was set, and that is no"
        " minority of its clocks",
        "oracle",
        long=True,
    ),
    "mended_after_the_end_of_faults": FailedSeed(
        165276597239,
        False,
        "L1, the simulator's own: a fault that ended late mended the links of a member that was to"
        " stay outside, so that it was in a ring that should have been without it",
        without=(),
    ),
    "late_even_after_the_end_of_faults": FailedSeed(
        133324904255,
        False,
        "L5, the simulator's own: old frames of a member that stays down, held back by that"
        " kind of fault, came two seconds after the end of faults and broke the ring",
        without=(),
    ),
    "readings_of_clocks_held_up": FailedSeed(
        165276597173,
        False,
        "G17: ticks waited on both sides of a cut link; those that came later set their clocks"
        " ahead by as long as they had waited",
        "broker",
        without=(),
        long=True,
    ),
    "restored_to_before_the_first_view": FailedSeed(
        3465,
        False,
        "L4, the simulator's own: one of two disks was restored to where a first start had broken"
        " off; such a disk has no vote, so the cluster waits for it for good, as for an empty one",
        "oracle",
        without=(),
    ),
    "set_back_far_and_then_ahead_a_little": FailedSeed(
        45065801283,
        False,
        "L4, the simulator's own: a clock that is behind by half an hour where it was by an hour is"
        " set ahead, and what its member publishes as an epoch begins expires too late",
        "broker",
        without=(),
    ),
    "named_by_a_first_start_that_came_to_nothing": FailedSeed(
        64260956118,
        False,
        "L4, the simulator's own: of three, one had the name of another cluster from a first start"
        " that broke off, so it counted as empty, and one of the other two stayed cut off",
        "broker",
        without=(),
    ),
    "a_burst_that_nothing_slows": FailedSeed(
        3044,
        False,
        "4.11, the simulator's own: what had waited for a view went to the disks at once, after the"
        " end of faults, when nobody leaves, on a ring that has no token to keep",
        "oracle",
        without=(),
        long=True,
    ),
    "all_that_was_not_safe_is_applied_at_once": FailedSeed(
        3042,
        False,
        "4.11, the simulator's own: as a view ended, three megabytes that waited to be safe went to"
        " a disk at once; what a ring keeps is bounded, but by more frames than were allowed for",
        "broker",
        without=(),
        long=True,
    ),
    "views_change_before_a_majority_was_read": FailedSeed(
        2169,
        False,
        "L4: one of two was read, then no view held until the other one was, half a minute later;"
        " it was placed where the time stood, and messages created by the first expired too late",
        "oracle",
        without=(),
    ),
    "read_before_the_clock_stopped": FailedSeed(
        5170,
        False,
        "G17: a tick was read, the last message that could expire went, the next one came, and the"
        " tick was ordered: its clock was placed as if read just then, ahead by what lay between",
        "oracle",
        without=(),
        long=True,
    ),
    "created_by_a_clock_placed_late_before_the_others_were_read": FailedSeed(
        10320,
        False,
        "G17: the first clock that was read was placed late, as its member was behind; what it"
        " published then was created early, and expired as the other clocks were placed right",
        "oracle",
        without=(),
    ),
    "all_clocks_joined_anew": FailedSeed(
        12453,
        False,
        "L4: as both members joined anew their clocks were forgotten, by which messages had been"
        " created, so the outage before did not count any more, and those waited for as long",
        "oracle",
        without=(),
    ),
    "created_by_a_clock_placed_late_that_shows_another_date": FailedSeed(
        242118919183,
        False,
        "G17: a clock that had been set back by half a minute was placed late, so no date showed"
        " that its member's messages were created early; another clock was further, a third one"
        " missing",
        "broker",
        without=(),
    ),
    "one_clock_goes_on_alone": FailedSeed(
        242118919113,
        False,
        "G17: of three clocks one was known as an epoch began; the time went on by it, but what was"
        " published before its first reading there was created no later than two seconds on",
        "broker",
        without=(),
    ),
    "created_by_a_clock_that_was_placed_late": FailedSeed(
        6,
        False,
        "G17: a member that is behind in applying knows little of the time, so its clock was placed"
        " late; its messages were created early by that, as an epoch began",
        "broker",
        without=(),
        long=True,
    ),
    "promise_to_the_cluster_of_an_earlier_view": FailedSeed(
        83,
        False,
        "L4: two first starts asked for epoch 1 of two clusters; the promise to the first became"
        " durable in the view of the second and counted there, so two members never met again",
        "broker",
    ),
    "votes_changed_in_a_running_cluster": FailedSeed(
        43,
        False,
        "L4: after an operator had changed the expected votes, all members refused each other in"
        " the next view: their options were those of their start",
        "broker",
        without=(),
        votes=True,
        long=True,
    ),
    "a_checkpoint_taken_for_a_tail": FailedSeed(
        20,
        False,
        "G0: a member that asked for items while a checkpoint was on its way took the checkpoint's"
        " blocks for items, and stopped",
        "broker",
        without=(),
        votes=True,
        long=True,
    ),
    "a_voter_that_was_further_than_those_who_went_on": FailedSeed(
        307,
        False,
        "L4: a voter whose store reached further than the primary, on a history that nobody"
        " confirmed, waited to be given a state that reached as far",
        "broker",
        without=(),
        votes=True,
    ),
    "voters_ahead_of_a_donor_that_holds_more_unstable": FailedSeed(
        13,
        False,
        "L4: voters whose stores were ahead of the donor's base waited for the activation to"
        " replace them, and the activation for their promises",
        "oracle",
        without=(),
        votes=True,
    ),
    "a_long_tail_in_small_blocks": FailedSeed(
        92,
        False,
        "L4, the simulator's own: a member that lacked hundreds of positions got them in blocks of"
        " one or two, each a round trip, and the time for it did not count them",
        "oracle",
        without=(),
        votes=True,
        long=True,
    ),
    "a_first_start_begun_again_with_an_older_epoch": FailedSeed(
        9107,
        False,
        "G7: a first start that was cut short had come to epoch 2; begun again, it asked for epoch"
        " 1, and a member promised less than it had promised",
        "broker",
        without=(),
        votes=True,
    ),
    "two_voters_that_give_up_their_votes": FailedSeed(
        178,
        False,
        "L4: whoever followed a tail had no vote until it was level; of two voters both had set out"
        " when their views ended, and both waited for good",
        "broker",
        without=(),
        votes=True,
    ),
    "promised_after_a_long_sleep": FailedSeed(
        5008,
        False,
        "G7, the simulator's own: who slept until its view was gone, and another was active,"
        " promised the old one; nobody hears of that, and the newer view may reply",
        "broker",
        without=(),
        votes=True,
    ),
    "a_late_hello_of_the_former_release": FailedSeed(
        88000045,
        False,
        "L1: a hello that a member had sent before it was started with a newer release came when it"
        " ran that one, and its ring went on in the older version of the frames",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "the_last_holder_was_to_go": FailedSeed(
        7200135,
        False,
        "L4: the only holder of the last epoch was a voter that was to go; no voter of the set to"
        " come let the arbitrator vote, and nobody went on with all members there",
        "broker",
        without=(),
        votes=True,
        young=True,
    ),
    "options_changed_after_no_start": FailedSeed(
        7200314,
        False,
        "L4, the simulator's own: a first start broke off, and one operator took the unequal votes"
        " out of the options, as if they were the cluster's by then",
        "broker",
        without=(),
        votes=True,
        young=True,
    ),
    "unroutable_before_a_cold_start": FailedSeed(
        246815063036,
        False,
        "G23, the simulator's own: a cold start forgets the numbers of what reached no queue, and"
        " sent again it is taken, perhaps by a queue that is there now",
        "oracle",
        without=(),
        votes=True,
        young=True,
    ),
    "promised_by_one_who_was_not_there": FailedSeed(
        7200484,
        False,
        "G7, the simulator's own: who was not in the older view has no lease to wait for; the one"
        " who was there promised later",
        "broker",
        without=(),
        votes=True,
        young=True,
    ),
    "five_members_with_large_blobs_under_way": FailedSeed(
        7300454,
        False,
        "4.11, the simulator's own: small commands with large bodies share a blob, so each member"
        " may have 1.5 MB on the ring, and five of them more than one look at the disk allowed for",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "the_only_member_has_old_options": FailedSeed(
        7400149,
        False,
        "the simulator's own: the only member, started with options of before a change, was away"
        " for a moment when it looked for one ring of all members",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "confirmed_without_a_queue": FailedSeed(
        7400499,
        False,
        "G9, the simulator's own: what a lost client had published was published again by another,"
        " before there was its queue; it was confirmed as what reaches no queue is, and missed"
        " (seed 7403336: confirmed once more, as a repeat)",
        "broker",
        without=(),
        votes=True,
        young=True,
    ),
    "options_of_a_change_that_came_to_nothing": FailedSeed(
        7401044,
        False,
        "L4, the simulator's own: its operator started members with the options of whoever had"
        " promised most, not with those that they named when they stopped, and none could stay"
        " (also seed 7401342)",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "new_options_and_an_old_store": FailedSeed(
        640051,
        False,
        "L3: a member that was away while the voters' rule was changed stopped over its new"
        " options by its own old store, when it was alone for a moment; over the old by the others",
        "broker",
        without=(),
        votes=True,
        young=True,
    ),
    "a_cold_start_over_all_pages": FailedSeed(
        660318,
        False,
        "L4, the simulator's own: the activation of a cold start read 285 pages of waiting messages"
        " from a disk that takes 50 ms for each, and the bound knew nothing of pages",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "set_aside_and_on_by_its_record": FailedSeed(
        29,
        False,
        "G8: one of a pair whose history was not to be kept lost the other one again before it had"
        " the state, went on by its old record, and confirmed more of what is given up",
        "pair",
        without=(),
        votes=True,
        young=True,
    ),
    "level_and_on_by_its_record": FailedSeed(
        108271577113,
        False,
        "G28: one of a pair that was set aside had fetched the state of the other one, which was"
        " declared to go on: by that state it needed nobody itself, so when the view broke before"
        " the activation it went on alone by a record of before they met",
        "pair",
        without=(),
        votes=True,
        young=True,
    ),
    "client_of_before_the_meeting": FailedSeed(
        57,
        False,
        "G28: the vote was taken for a client that had come while the other one was gone before,"
        " in a view with both that broke before anybody was served",
        "pair",
        without=(),
        votes=True,
        young=True,
    ),
    "client_that_waits_is_no_vote": FailedSeed(
        2,
        False,
        "G28: the vote was taken for a client that had come before the other one was gone, and was"
        " only waiting: it may have been cut off since",
        "pair",
        without=(),
        votes=True,
        young=True,
    ),
    "epoch_that_was_only_fetched": FailedSeed(
        136,
        False,
        "G7: one of a pair had fetched a state of an epoch that it had never promised, was declared"
        " to go on, and gave its first epoch alone the same number.  And G9: the"
        " other one, set aside, confirmed by what was durable of its own history",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "counts_again_without_a_vote": FailedSeed(
        114,
        False,
        "L4: one that had come back to the other of its pair counted again before its store had a"
        " vote; both broke down, came back, and waited for that vote for ever",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "level_for_a_moment": FailedSeed(
        242,
        False,
        "G28, the judge's own: a member was level with the other one for no longer than the turn in"
        " which their view was over, and the judge looked after the turn",
        "pair",
        without=(),
        votes=True,
        young=True,
    ),
    "set_aside_twice_by_a_slow_disk": FailedSeed(
        371,
        False,
        "G28: one of a pair that was set aside lost the other one before its disk had that, met it"
        " again, and fetched the state while its own still had a vote",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "transient_and_declared_lost": FailedSeed(
        448,
        False,
        "G9, the judge's own: an operator gave up what only one of a pair had; it had confirmed"
        " transient messages alone, and nothing that was durable",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "delivered_on_the_side_that_is_not_kept": FailedSeed(
        688,
        False,
        "G11, the judge's own: what one of a pair delivered alone, on the side that is not kept,"
        " came again from the other one, which had never delivered it, and so without the flag",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "probes_that_the_ring_did_not_have_yet": FailedSeed(
        141,
        False,
        "L4, the simulator's own: what clients of brokers were asked to publish was with the ring a"
        " while later, so neither L2 nor L5 was demanded with them, and all of it fell into the"
        " rest, where a reader with a credit of one was still reading",
        "oracle",
        without=(),
        votes=True,
        young=True,
    ),
    "follows_who_stays_cut_off": FailedSeed(
        9002,
        False,
        "L4, the simulator's own: who keeps a replica followed a member that stayed cut off when"
        " all else healed, by a connection without heartbeats, and waited for it for ever",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "a_replica_of_more_than_a_page": FailedSeed(
        137259046009,
        False,
        "no end, the simulator's own: who keeps a replica looked what it holds, page by page, by"
        " a clock that stood still meanwhile; as it held more than a page each attempt ended there,"
        " for ever, and each event compared both queues anew",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "moved_anew_after_a_loss": FailedSeed(
        400,
        False,
        "G11, the simulator's own: what a shovel had moved was delivered and lost in a cold start;"
        " moved anew it is another message of that queue, and comes without the flag",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "letter_sent_anew_after_a_loss": FailedSeed(
        593,
        False,
        "G11, the simulator's own: a letter had come to its queue and was lost there in a cold"
        " start; sent anew it is another message of that queue, and comes without the flag",
        "broker",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "kept_what_confirmed_nothing": FailedSeed(
        130,
        False,
        "G28: what one of a pair had confirmed alone was given up for the other one, which had been"
        " alone for a moment and had confirmed nothing",
        "pair",
        without=(),
        votes=True,
        young=True,
        long=True,
    ),
    "an_end_that_was_closed_twice": FailedSeed(
        500060,
        False,
        "G24, the simulator's own: a shovel's connection was closed in order and then dropped, and"
        " its member passed both on; the second one overtook what it had published, as it was none"
        " that publishes any more.  A real member passes on one",
        "broker",
        without=(),
        votes=True,
        young=True,
        youngest=True,
        long=True,
    ),
    "a_link_that_was_still_late_when_all_was_healed": FailedSeed(
        941034,
        True,
        "L5, the simulator's own: a delayed frame held up what followed it on its link for 0.4 s"
        " after the last fault, longer than the token may be away.  The checks of a healed network"
        " begin when what was under way has arrived",
        without=(),
        votes=True,
        young=True,
        youngest=True,
        newest=True,
    ),
}

SLOW = [pytest.mark.slow, pytest.mark.turns(8)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW if seed.long else []) for name, seed in SEEDS.items()],
)
def test_a_seed_that_failed_once(name: str) -> None:
    """The seed now keeps all guarantees."""
    failed = SEEDS[name]
    without = failed.without if failed.votes else (*failed.without, *VOTES)
    without = without if failed.young else (*without, *FROZEN, *RELEASES)
    without = without if failed.youngest else (*without, *YOUNGEST, *YOUNGEST_LASTING)
    without = without if failed.newest else (*without, *NEWEST)
    result = run_seed(
        failed.seed,
        Options(ring_only=failed.ring_only, stack=failed.stack, without=without),
    )
    assert [str(v) for v in result.violations] == [], failed.showed
