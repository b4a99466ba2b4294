"""Groups on simulated rings: G18 and G19, and broken layers are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.sim.run.campaign import Options, run_seed
from vsync.cpg import groups
from vsync.cpg.groups import Groups

# Cheap seeds that include partitions, merges, restarts and pauses; more with --stack groups.
SEEDS = (3, 12, 22)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_agree(seed: int) -> None:
    result = run_seed(seed, Options(stack="groups"))
    assert [str(v) for v in result.violations] == []


class Broken(NamedTuple):
    where: object
    name: str
    instead: Callable[..., object]


_on_view = Groups._on_view


def _view_without_barrier(self: Groups, view: object) -> None:
    _on_view(self, view)  # type: ignore[arg-type]
    if not self.synced:
        here = {g: [m for m in held if m in self.members] for g, held in self._groups.items()}
        self._pass_barrier(here, frozenset())


def _view_that_forgets(self: Groups, view: object) -> None:
    self._in_flight.clear()
    _on_view(self, view)  # type: ignore[arg-type]


BROKEN = {
    "what was sent in another view counts": Broken(groups, "of_ring", lambda *_: True),
    "no barrier": Broken(Groups, "_on_view", _view_without_barrier),
    "what was on its way is forgotten": Broken(Groups, "_on_view", _view_that_forgets),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_layer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BROKEN[name]
    monkeypatch.setattr(broken.where, broken.name, broken.instead)
    found = (run_seed(seed, Options(stack="groups")).violations for seed in SEEDS)
    assert any(violations for violations in found)
