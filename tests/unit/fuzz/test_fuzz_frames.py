"""A small, fixed part of each fuzz campaign: `python -m tests.fuzz.frames` runs the rest."""

from __future__ import annotations

import pytest

from tests.fuzz.frames import Fuzz
from tests.fuzz.parsers import case, targets
from vsync.totem.phases import Phase


def test_broken_frames_harm_neither_the_decoder_nor_a_node_in_any_phase() -> None:
    """Pitfall 33, behind the envelope: only `FrameError` is raised, and invariants hold."""
    fuzz = Fuzz(seed=7)
    for number in range(40):
        fuzz.batch(number)
    phases = {victim.label.split()[0] for victim in fuzz.victims}
    assert phases == {phase.name for phase in Phase}
    read = {code for code in fuzz.outcomes if code.startswith("read ")}
    assert len(read) >= 8, "the mutations are too coarse: hardly any frame can still be read"
    assert sum(fuzz.outcomes[code] for code in read) < fuzz.frames * 0.9, "they are too fine"
    assert {"frame_short", "data_length", "token_count", "control_msgpack"} <= fuzz.outcomes.keys()


def test_a_batch_depends_only_on_seed_and_number() -> None:
    first, second = Fuzz(seed=3), Fuzz(seed=3)
    first.batch(0)
    first.batch(5)
    before = first.outcomes.copy()
    first.outcomes.clear()
    first.batch(5)
    second.batch(5)
    assert first.outcomes == second.outcomes
    assert before - second.outcomes


@pytest.mark.parametrize("name", sorted(targets()))
def test_broken_input_of_other_parsers_raises_only_their_own_error(name: str) -> None:
    target = targets()[name]
    outcomes = {case(name, target, 1, number) for number in range(250)}
    assert len(outcomes) > 1, "the mutations are too coarse or too fine"
