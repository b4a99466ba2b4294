"""Mutants that no seed will ever kill, and those that none has killed yet, each with the reason.

The key is the mutant's name; `python -m tests.sim.mutation.run --table` drops entries whose mutant
the code does not have any more.  `EQUIVALENT`: why no promise can depend on the change.
`UNSEEN`: what hides a survivor: another guard behind the one that is gone, a bound that
is wider than the delay it causes, or something that the simulator does not do.
"""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    "01b615c9": "only how far a loop looks that ends at `limit` findings; it may look further",
    "4113fa3c": "only skips a loop over an empty range",
    "00aa7bf6": "one step of a growing wait; only how soon a foreign member is tried again",
    "00ec4f39": "the mark is updated again with the next token's marks",
    "02ff0967": "`add` refuses a frame that the window has already, so it is only found twice",
    "3e017277": "only whether a counter is raised",
    "2f4a0c15": "only a counter",
    "5fb2abbd": "how joins are spread among more than eight members; a matter of load only",
    "3735676a": "how joins are spread among more than eight members; a matter of load only",
    "073d8528": "how joins are spread among more than eight members; a matter of load only",
    "2ebdbbc7": "how joins are spread among more than eight members; a matter of load only",
    "261cee3c": "differs only at the very instant at which the waiting time ends",
    "1a14d2ad": "releases an empty range once more",
    "7ca9c234": "a frame that is here is kept again; for one number there is one content",
    "1283584a": "the store is one frame smaller; what does not fit is asked for again",
    "03f53acb": (
        "the hop counts the entries, so a token with the entries of another hop is refused by them"
    ),
    "30c87bd3": "a token on its second rotation has all entries; its hop shows that it is",
    "1e620a82": (
        "what is no wrapped frame does not decode as one, and one that was seen is refused"
    ),
    "102278c1": (
        "only candidates are ever failed: each caller names members of the ring or of the sets"
    ),
    "7dbbf20c": "the first frame of each new incarnation is lost, as any frame may be",
    "05d2f729": "an operational member has a ring; `invariants` asserts it after every step",
    "197c2257": "only who moves alone sends its old frames once more, to itself",
    "09459cc0": (
        "who knows less calls more frames undecided; the others may, and all deliver the same"
    ),
    "312a2393": "one more arrival of the token before the ring is installed",
    "2b51fc0b": "one more arrival of the token before the ring is installed",
    "0c77d39a": "old frames are sent that were sent already; whoever has one drops it",
    "14b541c0": "old frames are sent that were sent already; whoever has one drops it",
    "062bd2d6": (
        "who agreed to less refuses the commit token, as its members are not its candidates"
    ),
    "1e334f0b": (
        "the last frame before a token that is being held is dropped, and asked for with the next"
    ),
    "75f20a0d": (
        "when the one who holds an idle ring's token is woken; it goes on by itself soon after"
    ),
    "08a68aa6": (
        "when the one who holds an idle ring's token is woken; it goes on by itself soon after"
    ),
    "d72cc968": "with nothing waiting anywhere there is nothing to share, before as after",
    "289509b0": (
        "only the share of a visit; what the store and the window can take is bounded apart"
    ),
    "5a71716d": (
        "only the share of a visit; what the store and the window can take is bounded apart"
    ),
    "629f8d96": (
        "hops only rise, and a later token never has a lower number: nothing is left to refuse"
    ),
    "05c7ba55": "a token of this ring has a mark for each of its members, whoever made it",
    "old_incarnation_stays": (
        "the former incarnation cannot agree to sets that name its successor, so it fails in time"
    ),
    "355c7068": (
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
_DEATHS = "takes two deaths at the end of one view, of those who know, before their disks do"

UNSEEN: dict[str, str] = {
    "0a66714f": _FORMING,
    "06048bb1": _FORMING,
    "0b187ba8": _FORMING,
    "3e294a66": "a foreign member's join breaks the attempt: time, while such joins go on",
    "0043c8ae": "foreign members are not let in while the ring forms, but after that: time",
    "12e93f4c": "a link known to be broken is waited for as long as any other: time",
    "00553662": "the sets are given up earlier than they need be: time",
    "3685aea7": "a join without news is answered all the same: load",
    "2a7a7287": "a known foreign member is announced again: load",
    "087db49c": "foreign members are let in by their joins, and not by reports of others: time",
    "06862f60": (
        "former incarnations of others count again; their ring, or the newer one, refutes them"
    ),
    "0e38eab8": "former incarnations of others count; their ring, or the newer one, refutes them",
    "07be172e": "no network brings a frame back to its sender, neither the simulated one nor TCP",
    "23da508f": (
        "who was stopped uses old joins and breaks its ring once more: no check counts rings"
    ),
    "037c13dd": "its timer announces the ring a moment later: load",
    "0660c607": "the token dies with the visit, so the ring breaks a token timeout later: time",
    "0496ed09": "a lost datagram breaks no promise of the ring; state transfer asks again",
    "278ae512": "a slow member is failed on time alone: it comes back, and nobody counts rings",
    "0b8dce0c": (
        "what waits as a ring of one begins goes out with the next submit, and one always comes"
    ),
    "2a0f440b": "a visit may fill the window of a rotation; the store is bounded apart",
    "01894d4a": _ARBITRATOR,
    "155e269a": _ARBITRATOR,
    "0aad9093": _ARBITRATOR,
    "073a0ecb": _ONE_CLUSTER,
    "12aa95b3": _ONE_CLUSTER,
    "24aa3a31": _ONE_CLUSTER,
    "0d3e7987": "forged frames only: the decoder behind the envelope is fuzzed on its own",
    "4701b932": (
        "takes a commit token of the same ring again after its attempt broke, with equal sets"
    ),
    "data_in_commit": (
        "takes a frame that nobody else has, of a member that is gone, within a few hops"
    ),
    "stores_beat_the_living": _DEATHS,
    "08d8106a": _DEATHS,
    "86b1c646": _DEATHS,
    "169a0eb3": _DEATHS,
    "17e91424": _DEATHS,
    "21bdd40b": _DEATHS,
    "45ad4145": "a state that differs only in its outcomes is no fault that the simulator makes",
    "3d924797": "applied, and then fetched as well: the transfer hides it",
    "1a12c63b": "answers that come after the activation are for nobody any more: time",
    "22fa3e2a": "a late message of an epoch that is over; who receives it compares epochs",
}
