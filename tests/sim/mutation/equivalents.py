"""Mutants that no seed will ever kill, and those that none has killed yet, each with the reason.

The key is the mutant's name; `python -m tests.sim.mutation.run --table` drops entries whose mutant
the code does not have any more.  `EQUIVALENT`: why no promise can depend on the change.
`UNSEEN`: what hides a survivor: another guard behind the one that is gone, a bound that
is wider than the delay it causes, or something that the simulator does not do.
"""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    "a848f2e5": "one step of a growing wait; only how soon a foreign member is tried again",
    "2c0af8f4": "differs only at the very instant at which the wait ends",
    "f9b3dc95": "only how far a loop looks that ends at `limit` findings; it may look further",
    "9f880835": "only skips a loop over an empty range",
    "69b0e2aa": "the mark is updated again with the next token's marks",
    "94cfc585": "`add` refuses a frame that the window has already, so it is only found twice",
    "903b4a76": "only whether a counter is raised",
    "f430502e": "only a counter",
    "74888c11": "how joins are spread among more than eight members; a matter of load only",
    "923db0a2": "how joins are spread among more than eight members; a matter of load only",
    "c35dc110": "how joins are spread among more than eight members; a matter of load only",
    "f3eea514": "how joins are spread among more than eight members; a matter of load only",
    "6424d4bb": "releases an empty range once more",
    "8085378f": "a frame that is here is kept again; for one number there is one content",
    "bc36cd81": "the store is one frame smaller; what does not fit is asked for again",
    "8d6946e4": (
        "the hop counts the entries, so a token with the entries of another hop is refused by them"
    ),
    "aa8d6529": "a token on its second rotation has all entries; its hop shows that it is",
    "620e53a7": (
        "what is no wrapped frame does not decode as one, and one that was seen is refused"
    ),
    "02491d26": (
        "only candidates are ever failed: each caller names members of the ring or of the sets"
    ),
    "1fe4f75d": "the first frame of each new incarnation is lost, as any frame may be",
    "2af326bd": "only who moves alone sends its old frames once more, to itself",
    "e81fe009": (
        "who knows less calls more frames undecided; the others may, and all deliver the same"
    ),
    "62df00f4": "one more arrival of the token before the ring is installed",
    "0d9689cc": "one more arrival of the token before the ring is installed",
    "1d5c77b7": "old frames are sent that were sent already; whoever has one drops it",
    "5432a508": "old frames are sent that were sent already; whoever has one drops it",
    "858a8f29": (
        "who agreed to less refuses the commit token, as its members are not its candidates"
    ),
    "f11b7535": (
        "the last frame before a token that is being held is dropped, and asked for with the next"
    ),
    "88d98591": "with nothing waiting anywhere there is nothing to share, before as after",
    "0471f16b": (
        "only the share of a visit; what the store and the window can take is bounded apart"
    ),
    "19d6de80": (
        "only the share of a visit; what the store and the window can take is bounded apart"
    ),
    "1ed53be4": (
        "hops only rise, and a later token never has a lower number: nothing is left to refuse"
    ),
    "271f3738": "a token of this ring has a mark for each of its members, whoever made it",
    "old_incarnation_stays": (
        "the former incarnation cannot agree to sets that name its successor, so it fails in time"
    ),
    "9a90a386": (
        "the token of a ring that is not idle is held for some milliseconds, as an idle one's is"
    ),
}

_FORMING = (
    "the attempt goes on without a member that gave it up, and ends when its token is lost: time"
)
_ARBITRATOR = "the simulated cluster has no arbitrator; tests/sim/explore and unit tests have"
_ONE_CLUSTER = (
    "no simulated member is patient, and there is one cluster: unit tests of the plan have others"
)
_LEASE = "takes a lease that changes as a member is cut off: unit tests of the lease have it"
_SHELL = "seldom by chance: tests/unit/sim/test_shell_mutants.py has it without"
_CRASHES = "takes two crashes at the end of one view, of members whose disks do not have it yet"

UNSEEN: dict[str, str] = {
    "47eb0f46": _FORMING,
    "c48f9010": _FORMING,
    "12d2147a": _FORMING,
    "e78da8eb": "a foreign member's join breaks the attempt: time, while such joins go on",
    "c6ba32ab": "foreign members are not let in while the ring forms, but after that: time",
    "cda9cf11": "a link known to be broken is waited for as long as any other: time",
    "1a8d3db6": "the sets are given up earlier than they need be: time",
    "d7409c63": "a join without news is answered all the same: load",
    "4d16aa83": "a known foreign member is announced again: load",
    "e0a7283e": "foreign members are let in by their joins, and not by reports of others: time",
    "1eded87e": (
        "former incarnations of others count again; their ring, or the newer one, refutes them"
    ),
    "f315bf61": "former incarnations of others count; their ring, or the newer one, refutes them",
    "42b8249c": "no network brings a frame back to its sender, neither the simulated one nor TCP",
    "8f3aec6d": (
        "who was stopped uses old joins and breaks its ring once more: no check counts rings"
    ),
    "093dda66": "its timer announces the ring a moment later: load",
    "4aa6f3d8": "the token dies with the visit, so the ring breaks a token timeout later: time",
    "235aeb3f": "a lost datagram breaks no promise of the ring; state transfer asks again",
    "444bf328": "a slow member is failed on time alone: it comes back, and nobody counts rings",
    "1c75074d": (
        "what waits as a ring of one begins goes out with the next submit, and one always comes"
    ),
    "b58d0ec2": "a visit may fill the window of a rotation; the store is bounded apart",
    "86fbc529": _ARBITRATOR,
    "2db22797": _ARBITRATOR,
    "dc4f71b0": _ARBITRATOR,
    "de7811ce": _ONE_CLUSTER,
    "434b1c93": _ONE_CLUSTER,
    "7f733b55": _ONE_CLUSTER,
    "ce637267": "forged frames only: the decoder behind the envelope is fuzzed on its own",
    "6ecba303": (
        "takes a commit token of the same ring again after its attempt broke, with equal sets"
    ),
    "acts_for_the_longer_lease": _LEASE,
    "forgets_the_lease_of_a_former_incarnation": _LEASE,
    "holds_before_it_says_so": _LEASE,
    "says_one_lease_at_any_pace": _LEASE,
    "waits_for_the_shorter_lease": _LEASE,
    "arbiter_promises_while_others_reply": _SHELL,
    "clients_outlive_the_tail": _SHELL,
    "half_a_state_votes": _SHELL,
    "installs_before_the_log": _SHELL,
    "promise_forgotten_after_a_transfer": _SHELL,
    "links_give_up_what_nobody_waits_for": "seldom: tests/unit/sim/test_mutants.py names a seed",
    "data_in_commit": (
        "takes a frame that nobody else has, of a member that is gone, within a few hops"
    ),
    "stores_beat_the_living": _CRASHES,
    "a0be04f3": _CRASHES,
    "9d21da20": _CRASHES,
    "73c7f913": _CRASHES,
    "bce9916c": _CRASHES,
    "88e9a52e": _CRASHES,
    "cd90eb4f": "a state that differs only in its outcomes is no fault that the simulator makes",
    "6b8c4f8f": "applied, and then fetched as well: the transfer hides it",
    "2d463a49": "replies after the activation have no effect any more: time",
    "dfd868e2": "a late message of an epoch that is over; who receives it compares epochs",
    "0015330f": _ARBITRATOR,
    "01374938": "who has not caught up does not serve; its early claim of a digest is good",
    "01443f36": "a bound of twice what a sender may be ahead: nobody comes to the very edge",
    "029f2a57": "hop and predecessor are checked before; only a forged token goes back",
    "02d12636": "who lacks the frame asks for it again at its own visit: time",
    "03eaaca6": (
        "takes a member that passes tokens and receives nothing: a story of the ring has it"
    ),
    "0405eb8f": "a throttled member keeps the token a little longer: time",
    "13142c21": "takes a commit token twice within a few hops: unit tests of pitfall 25 have it",
    "26d3e569": "takes a state fetched in a view that is never activated, and clients since",
    "839af9d5": "puts the same frame into its place once more",
    "9b6e6ec4": "sets of failed members that agree while the members differ, for one join: time",
}
