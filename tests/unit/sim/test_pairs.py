"""Pairs in the simulator: fixed seeds of HAC and of master/slave (G25, G28), and planted mistakes.

`python -m tests.sim --stack pair --count N` runs more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.replication.persister import Persister
from broker.roles import by_pair
from broker.roles.active_passive import ActivePassive, Standby
from broker.roles.by_pair import ByPair
from broker.roles.pair_table import Peer, Seen
from store.api import Marker, Meta
from tests.sim.pairs.stack import PairStack
from tests.sim.run.campaign import Options, run_line, run_seed
from tests.sim.run.runner import Result
from tests.support.stores.memory import MemoryDisk
from vsync.primary import state_exchange
from vsync.primary.component import Primary
from vsync.quorum.reconfiguration import change_to
from vsync.quorum.voter_set import Terms

BOTH = "a", "b", "@pair=a"
A_ALONE = "a", "b", "@away=b", "@pair=a"
COUNTED_AGAIN = change_to(A_ALONE, BOTH)
SEEDS = (1, 119, 2603, 201489279011)
"""The second is of two that went apart; in the third the one that was kept had confirmed alone what
both had, as it was undecided when they parted; in the fourth one had a full disk then."""
MORE = (*range(2, 40), 900056, *SEEDS)
Patch = Callable[[pytest.MonkeyPatch], None]


def run(seed: int) -> Result:
    return run_seed(seed, Options(stack="pair"))


def check(seed: int) -> PairStack:
    result = run(seed)
    assert result.ok, "\n".join([run_line(result), *map(str, result.violations)])
    assert isinstance(result.world.stack, PairStack)
    return result.world.stack


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs(seed: int) -> None:
    assert check(seed).judge.confirms_sent, "a run without confirms shows nothing"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_pairs_meet_every_kind_of_event() -> None:
    """Each kind of event happens in them, so that a mistake has the occasion to show."""
    stacks = [check(seed) for seed in MORE]
    counters = {name for stack in stacks for name in +stack.judge.counters}
    assert {
        "votes_taken", "both_active", "set_aside", "given_up", "declared", "held", "let_in",
    } <= counters  # fmt: skip
    moves = {move for stack in stacks for move in stack.moves}
    for one, other in (("primary", "backup"), ("master", "slave")):
        assert {f"{one} pending>active", f"{other} pending>passive"} <= moves
        assert {f"{one} active>passive", f"{other} passive>active"} <= moves


@pytest.mark.parametrize(
    ("on_disk", "applied", "asked", "lost"),
    [
        (A_ALONE, A_ALONE, (), True),
        (A_ALONE, None, (), True),  # it is down
        (BOTH, BOTH, (), False),
        (COUNTED_AGAIN, None, (), False),
        (A_ALONE, COUNTED_AGAIN, (), False),  # its disk is about to record it
        (A_ALONE, A_ALONE, A_ALONE, False),  # here too: this is ordered
    ],
)
def test_no_disk_is_lost_that_the_other_member_comes_to_need(
    on_disk: Terms, applied: Terms | None, asked: Terms, lost: bool
) -> None:
    """The member would rightly wait for what nobody has: 1775 and 1944 were such seeds."""
    meta = Meta("c", "a", "s", "c", voters=on_disk, position=3, chain=b"3", marker=Marker.DIRTY)
    behind = MemoryDisk(Meta("c", "b", "t", "c", marker=Marker.DIRTY))
    stack, uppers = PairStack(), dict[str, Any]()
    stack.disks = {"a": MemoryDisk(meta), "b": behind}
    uppers["a"] = SimpleNamespace(
        dead=applied is None,
        controller=SimpleNamespace(promise=SimpleNamespace(voters=applied or BOTH)),
    )
    uppers["b"] = SimpleNamespace(dead=True, watchdogs=SimpleNamespace(asked=asked))
    stack.uppers = uppers
    stack.wipe("b", ("a", "b"))
    assert (stack.disks["b"] is not behind) == lost


# -- planted mistakes ------------------------------------------------------------------------------


def without_a_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByPair, "_hears", True)


def with_an_old_state(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda _: True, lambda _, __: None)
    patch.setattr(Primary, "_is_current", always, raising=False)


def the_other_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_exchange, "min", max, raising=False)


def set_aside_with_its_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Persister, "takes_back_vote", lambda _, done: done())


def pending_refuses(patch: pytest.MonkeyPatch) -> None:
    real = ByPair.for_clients
    patch.setattr(ByPair, "for_clients", lambda *args: Standby(real(*args).reason))


def all_let_clients_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActivePassive, "_for_clients", lambda _: Standby())


def before_its_time(patch: pytest.MonkeyPatch) -> None:
    def seen(peer: Peer, **more: bool) -> Seen:
        return Seen(peer, **{**more, "gone_long": True})

    patch.setattr(by_pair, "Seen", seen)


MISTAKES: dict[Patch, tuple[int, str]] = {
    without_a_client: (1, "G28"),
    with_an_old_state: (2, "G28"),
    the_other_history: (119, "G28"),
    set_aside_with_its_vote: (119, "G28"),
    pending_refuses: (1, "G28"),
    all_let_clients_in: (3, "G25"),
    before_its_time: (3, "G28"),
}
"""Each with a seed that shows it, and what it breaks."""
OTHERS = tuple(range(1, 12))
"""Looked at where that seed shows it no more: any change of the broker moves what one shows."""


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.__name__)
def test_a_planted_mistake_is_found(mistake: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, promise = MISTAKES[mistake]
    mistake(monkeypatch)
    shown = (promise in {one.promise for one in run(it).violations} for it in (seed, *OTHERS))
    assert any(shown)
