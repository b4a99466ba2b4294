"""Mutants that no seed can kill, and those that none has killed yet, each with the reason.

The key is the mutant's name; `python -m tests.sim.mutation.run --table` drops entries whose mutant
the code no longer has.  `EQUIVALENT`: why no promise can depend on the change.
`UNSEEN`: what hides a survivor: another guard behind the removed one, a bound wider than the delay
that it causes, or a situation that the simulator does not produce.
"""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    "a848f2e5": "one step of a growing delay: only a foreign member is retried sooner or later",
    "2c0af8f4": "differs only at the exact instant at which the wait ends",
    "f9b3dc95": "a loop that stops at `limit` results may only search further",
    "9f880835": "the guard only skips a loop over an empty range",
    "69b0e2aa": "the next token's marks update it again",
    "94cfc585": "`add` refuses a frame that the window already has",
    "903b4a76": "changes only a counter",
    "f430502e": "changes only a counter",
    "74888c11": "how joins spread among more than eight members: affects load only",
    "923db0a2": "how joins spread among more than eight members: affects load only",
    "c35dc110": "how joins spread among more than eight members: affects load only",
    "f3eea514": "how joins spread among more than eight members: affects load only",
    "6424d4bb": "releases an empty range again",
    "8085378f": "stores a present frame again; a number has one content only",
    "bc36cd81": "the store is one frame smaller; a refused frame is requested again",
    "8d6946e4": (
        "the hop counts the entries, so a token with another hop's entries is refused for these"
    ),
    "aa8d6529": "a token on its second rotation has all entries; its hop tells the rotation",
    "620e53a7": ("other frames do not decode as wrapped ones, and a known frame is refused"),
    "02491d26": ("callers only fail candidates: members of the ring or of the sets"),
    "1fe4f75d": "the first frame of each new incarnation is lost; any frame may be",
    "2af326bd": "only a member that moves alone resends its old frames, to itself",
    "e81fe009": ("a member that knows less calls more frames undecided; all deliver the same"),
    "62df00f4": "the ring is installed one token visit later",
    "0d9689cc": "the ring is installed one token visit later",
    "1d5c77b7": "resends old frames; a member that has one drops it",
    "5432a508": "resends old frames; a member that has one drops it",
    "858a8f29": ("a member that agreed to fewer refuses the commit token: its candidates differ"),
    "f11b7535": ("the last frame before a held token is dropped, and requested at the next visit"),
    "88d98591": "with nothing waiting anywhere there is nothing to share",
    "0471f16b": (
        "changes only the share of a visit; other bounds protect the store and the window"
    ),
    "19d6de80": (
        "changes only the share of a visit; other bounds protect the store and the window"
    ),
    "1ed53be4": (
        "hops only rise, and a later token never has a lower number: nothing left to refuse"
    ),
    "271f3738": "every token of this ring has a mark for each member",
    "old_incarnation_stays": (
        "the former incarnation never agrees to sets with its successor, so it is failed in time"
    ),
    "9a90a386": ("a busy ring's token is held for some milliseconds, as an idle ring's is"),
}

_FORMING = "the attempt goes on without a member that gave up, until its token is lost: time"
_ARBITRATOR = "needs an arbitrator: tests/sim/explore and unit tests have one"
_ONE_CLUSTER = "needs a patient member or a second cluster: unit tests of the plan have them"
_LEASE = "needs a lease that changes as a member is cut off: unit tests of the lease have it"
_SHELL = "rare in random runs: tests/unit/sim/test_shell_mutants.py forces it"
_CRASHES = "needs two crashes at a view's end, of members whose disks do not have it yet"

UNSEEN: dict[str, str] = {
    "47eb0f46": _FORMING,
    "c48f9010": _FORMING,
    "12d2147a": _FORMING,
    "e78da8eb": "a foreign member's join breaks the attempt, as long as joins come: time",
    "c6ba32ab": "foreign members are let in only after the ring has formed: time",
    "cda9cf11": "waits for a link known to be broken as for any other: time",
    "1a8d3db6": "gives up the sets earlier than necessary: time",
    "d7409c63": "answers a join without news: load",
    "4d16aa83": "announces a known foreign member again: load",
    "e0a7283e": "foreign members are let in by their joins, not by reports of others: time",
    "1eded87e": (
        "counts former incarnations of others; their ring, or the newer one, refutes them"
    ),
    "f315bf61": "counts former incarnations of others; their ring, or the newer one, refutes them",
    "42b8249c": "neither the simulated network nor TCP returns a frame to its sender",
    "8f3aec6d": (
        "a stopped member uses old joins and breaks its ring again: no check counts rings"
    ),
    "093dda66": "the timer announces the ring a moment later: load",
    "4aa6f3d8": "the token is lost with the visit, so the ring breaks a token timeout later: time",
    "235aeb3f": "the ring does not promise datagrams; state transfer asks again",
    "444bf328": "a slow member is failed on time alone: it rejoins, and no check counts rings",
    "1c75074d": (
        "messages queued as a ring of one begins go out with the next submit; one always comes"
    ),
    "b58d0ec2": "a visit may fill a rotation's window; the store has its own bound",
    "86fbc529": _ARBITRATOR,
    "2db22797": _ARBITRATOR,
    "dc4f71b0": _ARBITRATOR,
    "de7811ce": _ONE_CLUSTER,
    "434b1c93": _ONE_CLUSTER,
    "7f733b55": _ONE_CLUSTER,
    "ce637267": "needs forged frames: the decoder behind the envelope is fuzzed on its own",
    "6ecba303": (
        "needs a second commit token of the same ring after its attempt broke, with equal sets"
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
    "links_give_up_what_nobody_waits_for": "rare: tests/unit/sim/test_mutants.py names a seed",
    "data_in_commit": (
        "needs a frame of a dead member that no other member has, within a few hops"
    ),
    "stores_beat_the_living": _CRASHES,
    "a0be04f3": _CRASHES,
    "9d21da20": _CRASHES,
    "73c7f913": _CRASHES,
    "bce9916c": _CRASHES,
    "88e9a52e": _CRASHES,
    "cd90eb4f": "the simulator makes no states that differ only in their outcomes",
    "6b8c4f8f": "the member applies the messages and then fetches them too: the transfer hides it",
    "2d463a49": "replies after the activation have no effect: time",
    "dfd868e2": "a late message of a past epoch: its receiver compares epochs",
    "0015330f": _ARBITRATOR,
    "01374938": "a member that has not caught up does not serve; its early digest is right",
    "01443f36": "the bound is twice as far as a sender may be ahead: none reaches its edge",
    "029f2a57": "hop and predecessor are checked before; only a forged token goes backwards",
    "02d12636": "the member that lacks the frame requests it at its own visit: time",
    "03eaaca6": ("needs a member that passes tokens and receives nothing: a ring scenario has one"),
    "0405eb8f": "a throttled member keeps the token a little longer: time",
    "13142c21": "needs a repeated commit token within a few hops: unit tests of pitfall 25 have it",
    "26d3e569": "needs a state fetched in a view that is never activated, and clients since",
    "839af9d5": "puts the same frame into its place again",
    "9b6e6ec4": "for one join, sets of failed members agree while the members differ: time",
}
