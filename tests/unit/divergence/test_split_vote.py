"""No majority on a digest: a member that cannot reproduce its state is named, the rest go
on (G10)."""

from __future__ import annotations

import pytest

from broker.divergence.digest_vote import DigestVerdict, Value
from broker.divergence.split_vote import (
    ABSENT,
    FAILED,
    PROVEN,
    UNPROVEN,
    SplitOutcome,
    SplitVote,
    report_of,
)
from broker.durability.recovery import checkpoint_of
from broker.exit_codes import Exit
from broker.machine import commands as c
from broker.machine.digest import MASK
from broker.machine.machine import Machine
from broker.machine.state import BODY
from broker.selfcheck.reexecution import reexecute
from tests.support.replaced_message import replace_message
from tests.support.scripted_views import Bus, formed, hello, same_everywhere
from tests.support.scripted_views import publish as publish_q
from tests.support.stores.memory import MemoryDisk, MemoryStore
from tests.support.stores.poisoned import META, Author, publish, raising
from vsync.quorum.voter_set import parse

GOOD = (1, b"c" * 16, 7)
BAD = (1, b"d" * 16, 8)
VOTERS = ("a", "b", "c")


def settle(
    votes: dict[str, Value],
    terms: tuple[str, ...] = VOTERS,
    arbitrators: frozenset[str] = frozenset(),
    **reports: tuple[int, Value],
) -> SplitOutcome:
    split_vote = SplitVote(DigestVerdict(10, None, (), True, votes), parse(terms), arbitrators)
    outcome = None
    for member, (verdict, value) in reports.items():
        assert outcome is None
        outcome = split_vote.report(member, report_of(10, verdict, *value[1:]))
    assert outcome is not None
    return outcome


def test_a_member_that_cannot_reproduce_itself_is_named_and_a_majority_goes_on() -> None:
    three: dict[str, Value] = {"a": GOOD, "b": BAD, "c": GOOD}
    found = settle(three, a=(PROVEN, GOOD), b=(PROVEN, GOOD), c=(PROVEN, GOOD))
    assert (found.diverged, found.value, found.may_continue) == (("b",), GOOD, True)
    assert "b cannot reproduce" in found.reason
    two: dict[str, Value] = {"a": GOOD, "b": BAD}
    found = settle(two, b=(PROVEN, GOOD), a=(PROVEN, GOOD))
    assert (found.diverged, found.value, found.may_continue) == (("b",), GOOD, False)


@pytest.mark.parametrize(
    ("terms", "rest_of", "arbitrators", "may_continue"),
    [
        (("a", "b"), "a", "", False),  # two of two are needed
        (("a", "b", "@arbitrator=x"), "a", "x", True),
        (("a", "b", "@arbitrator=x"), "a", "", False),  # it is not in the view
        (("a", "b", "@two_node", "@arbitrator=x"), "b", "x", True),
        (("a", "b", "@auto_tie_breaker=lowest"), "a", "", True),
        (("a", "b", "@auto_tie_breaker=lowest"), "b", "", False),
        (("a=2", "b", "c"), "a", "", False),
        (("a=2", "b", "c", "@expected_votes=4"), "ac", "", True),
        (("a", "b", "c", "@last_man_standing=1", "@away=c"), "a", "", False),
        (("a", "b", "c", "->", "a", "b", "d"), "ac", "", False),  # not a majority of the new set
        (("a", "b", "c", "->", "a", "c", "d"), "ac", "", True),
    ],
)
def test_the_remaining_members_go_on_if_they_are_a_quorum(
    terms: tuple[str, ...], rest_of: str, arbitrators: str, may_continue: bool
) -> None:
    """G10: votes count, not members. Members that do not reproduce their state are out; then the
    quorum decides."""
    wrong = "b" if "a" in rest_of else "a"
    votes: dict[str, Value] = {**dict.fromkeys(rest_of, GOOD), wrong: BAD}
    reports = dict.fromkeys((*rest_of, wrong), (PROVEN, GOOD))
    found = settle(votes, terms, frozenset(arbitrators), **reports)
    assert (found.diverged, found.value, found.may_continue) == ((wrong,), GOOD, may_continue)


def test_if_all_reproduce_themselves_nobody_goes_on() -> None:
    found = settle({"a": GOOD, "b": BAD}, a=(PROVEN, GOOD), b=(PROVEN, BAD))
    assert (found.diverged, found.value, found.may_continue) == ((), None, False)
    assert "not deterministic" in found.reason


def test_an_unexecutable_store_diverged_and_a_late_checkpoint_proves_nothing() -> None:
    zero = (0, bytes(16), 0)
    assert settle({"a": GOOD, "b": BAD}, a=(PROVEN, GOOD), b=(FAILED, zero)).diverged == ("b",)
    for verdict, value in ((UNPROVEN, BAD), (ABSENT, zero)):
        found = settle({"a": GOOD, "b": BAD}, a=(PROVEN, GOOD), b=(verdict, value))
        assert found.diverged == ()
        assert found.unproven == ("b",)
        assert found.value is None
        assert "checkpoint of b" in found.reason
    assert settle({"a": GOOD, "b": BAD}, a=(PROVEN, GOOD), b=(UNPROVEN, GOOD)).diverged == ("b",)


def test_reports_of_others_and_of_other_positions_do_not_count() -> None:
    votes: dict[str, Value] = {"a": GOOD, "b": BAD}
    split_vote = SplitVote(DigestVerdict(10, None, (), True, votes), parse(VOTERS))
    for member, position in (("x", 10), ("a", 9)):
        assert split_vote.report(member, report_of(position, PROVEN, *BAD[1:])) is None
    assert split_vote.report("a", report_of(10, PROVEN, *GOOD[1:])) is None
    assert split_vote.report("a", report_of(10, PROVEN, *BAD[1:])) is None
    assert "waiting for b" in split_vote.reason


def store_of(author: Author) -> MemoryStore:
    store = MemoryStore(MemoryDisk(), META)
    author.keep(store)
    return store


def test_the_store_is_re_executed_up_to_the_disputed_position() -> None:
    author = Author()
    author.submit(publish(1, b"one"))
    point, root = author.replica.history, author.replica.machine.root()
    author.submit(publish(2, b"two"), publish(3, b"three"))
    store = store_of(author)
    found = reexecute("a", store, point.position, 0)
    assert (found.verdict, found.chain, found.root) == (PROVEN, point.chain, root)
    assert found.rows[0].ready == 1
    store.write_checkpoint(
        author.replica.history.position, checkpoint_of(author.replica), store.meta
    )
    assert reexecute("a", store, point.position, 0).verdict == ABSENT
    end = author.replica.history.position
    assert reexecute("a", store, end, end - 1).verdict == UNPROVEN
    assert reexecute("a", store, end, end).verdict == PROVEN
    assert reexecute("a", store, end + 1, end).verdict == FAILED


def test_a_store_that_raises_or_is_corrupt_fails() -> None:
    author = Author()
    author.submit(publish(1, b"one"))
    store = store_of(author)
    end = author.replica.history.position
    with raising(containing=b"one"):
        assert reexecute("a", store, end, end).verdict == FAILED
    chunks = list(checkpoint_of(author.replica))
    chunks[1] = chunks[1].replace(b"one", b"0ne")
    store.write_checkpoint(end, chunks, store.meta)
    assert "root" in reexecute("a", store, end, end).reason


# -- three members that each hold a store ------------------------------------------------------


class Trial:
    """Members on a scripted ring whose stores are re-executed when votes split."""

    def __init__(self, names: str = "a b c") -> None:
        self.bus = formed()
        self.names = names
        if names != "a b c":
            self.bus.change(names)
        self.bus.cores["a"].submit([*hello(), publish_q(1), publish_q(2)])
        self.bus.run(names)

    def vote(self) -> None:
        """All members vote at the present position."""
        for name in self.names.split():
            self.bus.cores[name]._claim()
        self.bus.run(self.names)

    def reexecute(self) -> None:
        """Report what each store gives; that of a member whose memory is right reproduces it."""
        right = self.bus.cores["a"].judgement.split_vote
        assert right is not None
        for name in self.names.split():
            _, chain, root = right.votes[self.healthy]
            self.bus.cores[name].submit([report_of(right.position, PROVEN, chain, root)])
        self.bus.run(self.names)

    healthy = "a"


def flip_a_body(bus: Bus, name: str) -> None:
    """A bit of a message is flipped in memory, and the message has left the queue since."""
    machine = bus.cores[name].replica.machine
    queue = machine.vhosts["/"].queues["q"]
    message = queue.ready.first
    body = bytes([bytes(message[BODY])[0] ^ 1]) + bytes(message[BODY])[1:]
    replace_message(queue.ready, 0, (*message[:BODY], body))


def get_all(bus: Bus, names: str) -> None:
    get = c.Get(c.GET, 1, 1, "q", False)
    bus.cores["a"].submit([get, get, c.Ack(c.ACK, 1, 1, 0, True)])
    bus.run(names)


def break_memory(bus: Bus, name: str) -> None:
    machine = bus.cores[name].replica.machine
    machine.digest = (machine.digest + 1) & MASK


def test_a_flipped_byte_of_a_body_is_found_when_the_message_leaves() -> None:
    """G10: it does not cancel out, and the next vote names the wrong member."""
    trial = Trial()
    flip_a_body(trial.bus, "b")
    get_all(trial.bus, trial.names)
    trial.vote()
    assert trial.bus.shells["a"].verdicts[-1].divergent == ("b",)
    stopped = trial.bus.shells["b"].stopped
    assert stopped is not None
    assert stopped[0] is Exit.INTERNAL
    assert trial.bus.shells["a"].stopped is None
    assert trial.bus.shells["c"].stopped is None


def test_two_disagree_while_the_third_is_down() -> None:
    """G10: the wrong member is named. The other is no majority, and serves again when the third
    returns, which takes its state from the right one."""
    trial = Trial("a b")
    bus = trial.bus
    flip_a_body(bus, "b")
    get_all(bus, trial.names)
    trial.vote()
    for name in "ab":
        assert not bus.cores[name].serving
        assert "cannot reproduce its own state" in bus.cores[name].halted
    trial.reexecute()
    stopped = bus.shells["b"].stopped
    assert stopped is not None
    assert "b cannot reproduce the state that it voted for" in stopped[1]
    assert bus.shells["a"].stopped is None
    assert not bus.cores["a"].halted
    assert not bus.cores["a"].serving  # alone it may not
    bus.change("a")
    assert not bus.cores["a"].serving
    bus.start("c", incarnation=2, keep=True)
    bus.change("a c")
    assert bus.cores["a"].serving
    assert bus.cores["c"].serving
    same_everywhere(bus, "a c")


@pytest.mark.parametrize("wrong", ["b", "c"])
def test_the_others_go_on_at_once_if_they_are_a_majority(wrong: str) -> None:
    """All three differ: b and c voted alone, but only one of them cannot reproduce its state."""
    trial = Trial()
    bus = trial.bus
    position = bus.cores["a"].replica.history.position
    epoch = bus.cores["a"].primary.epoch
    split_vote: dict[str, Value] = {}
    for name, root in zip("abc", (1, 2, 3), strict=True):
        split_vote[name] = (epoch, b"x" * 16, root)
        bus.cores[name].submit([c.DigestClaim(c.DIGEST, epoch, position, b"x" * 16, root)])
    bus.run("a b c")
    assert all(bus.cores[name].halted for name in "abc")
    for name in "abc":
        root = split_vote[name][2] if name != wrong else 1
        bus.cores[name].submit([report_of(position, PROVEN, b"x" * 16, root)])
    bus.run("a b c")
    assert bus.shells[wrong].stopped is not None
    # The other two differ and reproduce themselves, so no member may go on.
    rest = [name for name in "abc" if name != wrong]
    assert all(bus.cores[name].halted and not bus.cores[name].serving for name in rest)
    assert "still do not agree" in bus.cores["a"].halted


def test_a_machine_with_another_outcome_at_one_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G10: the chain differs from that item on; the majority names the member at the next vote."""
    trial = Trial()
    bus = trial.bus
    machine = bus.cores["c"].replica.machine
    right = type(machine).apply

    def apply(self: Machine, position: int, session: int, time_us: int, command: c.Command) -> int:
        outcome = right(self, position, session, time_us, command)
        return 404 if self is machine and command[0] == c.PUBLISH else outcome

    monkeypatch.setattr(type(machine), "apply", apply)
    bus.cores["a"].submit([publish_q(3)])
    bus.run("a b c")
    trial.vote()
    assert bus.shells["c"].stopped is not None
    assert bus.shells["a"].verdicts[-1].divergent == ("c",)


def test_a_new_view_votes_again_and_a_majority_ends_the_fence() -> None:
    """G10: the votes of the next view settle a dispute that a view change cut short."""
    trial = Trial("a b")
    bus = trial.bus
    break_memory(bus, "b")
    trial.vote()
    assert bus.cores["a"].halted
    bus.start("c", incarnation=2, keep=True)
    bus.change("a b c")
    # c has its state from a or from b, so it outvotes neither: both reproduce what is on their
    # disks.
    trial.names = "a b c"
    assert bus.shells["c"].stopped is None
    assert bus.cores["a"].judgement.split_vote is not None
    trial.reexecute()
    assert bus.shells["b"].stopped is not None
    assert not bus.cores["a"].halted
    bus.change("a c")
    assert bus.cores["a"].serving
    assert bus.cores["c"].serving
    same_everywhere(bus, "a c")
