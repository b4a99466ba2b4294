"""The tools around the simulator: shrinking, coverage, generated mutants, repetition, corruption of
frames.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.mutation import run
from tests.sim.mutation.by_hand import broken
from tests.sim.mutation.equivalents import EQUIVALENT, UNSEEN
from tests.sim.mutation.operators import MODULES, generate, generate_all, mutated, sample
from tests.sim.run import batch, shrink
from tests.sim.run.batch import Job, differences, run_batch
from tests.sim.run.campaign import Outcome, options_for, plan_of
from tests.sim.run.coverage import FAULTS, PRIMARY_STAGES, STAGES, lines, possible
from tests.sim.run.gate import FIXED, fixed_jobs, fresh_start
from tests.sim.run.plan import ALL_FAULTS, EPISODE_FAULTS, make_plan
from tests.sim.run.runner import Runner
from tests.sim.stacks.stack import covers
from tests.sim.stacks.toy_log import Image, ToyLog
from tests.sim.world.net import Net, Weather
from tests.sim.world.random_tape import Tape
from vsync.errors import FrameError
from vsync.primary.events import PrimaryPhase
from vsync.types import Member, RingId
from vsync.wire.codec import Codec
from vsync.wire.messages import NOBODY, Token

# -- shrinking ------------------------------------------------------------------------------------


def test_ddmin_finds_the_two_that_matter() -> None:
    tried: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        tried.append(items)
        return {3, 17} <= set(items)

    assert shrink.ddmin(range(24), fails) == [3, 17]
    assert len(tried) < 80
    assert shrink.ddmin(range(5), lambda items: True) == []


class Guessing(shrink.Shrinker):
    """Runs nothing: a scenario fails if it has everything that the bug needs."""

    def fails(self, scenario: shrink.Scenario) -> bool:
        return "loss" in scenario.faults and scenario.members >= 2


def test_a_failing_seed_becomes_a_file_that_replays_it(tmp_path: Path) -> None:
    """Parts that the bug does not need are left out, and the file has the rest."""
    seed = next(s for s in range(1, 500) if {"loss", "crash"} <= set(make_plan(s).faults))
    said: list[str] = []
    with broken("half_safe"):
        found = Guessing(60.0, said.append).shrink(seed, "ring")
    assert found is not None
    assert found.faults == ("loss",)
    assert found.members == 2
    path = tmp_path / "scenario.json"
    shrink.write(found, path)
    assert shrink.read(path) == found
    assert found.plan().faults == ("loss",)
    path.write_text(json.dumps({"seed": 1, "weather": "bad"}))
    with pytest.raises(ValueError, match="weather"):
        shrink.read(path)


def test_leaving_episodes_out_keeps_the_rest() -> None:
    """A scenario with all its parts is the seed itself."""
    plan = plan_of(7, options_for("ring"))
    whole = shrink.Scenario(7, "ring", plan.faults, len(plan.names))
    assert whole.plan() == plan
    assert replace(whole, episodes=(1,)).plan().episodes == (1,)


# -- plans and coverage ---------------------------------------------------------------------------


def test_old_seeds_keep_their_faults() -> None:
    """Later groups of faults draw from a tape of their own, so an old seed keeps its scenario."""
    first = {name for name in make_plan(96).faults if name in EPISODE_FAULTS}
    assert first == set(make_plan(96, only=EPISODE_FAULTS).faults)
    assert len(set(ALL_FAULTS)) == len(ALL_FAULTS) >= 40
    drawn = Counter(name for seed in range(900, 1300) for name in make_plan(seed).faults)
    assert set(drawn) == set(ALL_FAULTS), "some seed draws every fault"


def test_the_stages_are_those_of_the_code() -> None:
    assert set(PRIMARY_STAGES) == {phase.value for phase in PrimaryPhase}
    assert len(set(FAULTS)) == len(FAULTS)


def test_the_table_lists_pairs_that_never_met() -> None:
    pairs = possible()
    met = Counter(dict.fromkeys(pairs, 3))
    assert not [line for line in lines(met) if line.startswith("never")]
    del met["crash", "commit"]
    assert "never: crash in commit" in lines(met)
    assert ("crash", "down") not in pairs
    assert len(pairs) <= len(FAULTS) * len(STAGES)


# -- mutants --------------------------------------------------------------------------------------


def test_every_mutant_has_a_name_and_compiles() -> None:
    everything = generate_all()
    names = [mutant.name for mutant in everything]
    assert len(set(names)) == len(names) > 500
    for mutant in sample(everything, 12):
        compile(mutated(mutant.module, mutant.name), mutant.module, "exec")
    assert {mutant.module for mutant in sample(everything, 100)} == {
        module for module in MODULES if generate(module)
    }


def test_a_generated_mutant_is_killed_and_the_real_code_is_not() -> None:
    """Through the same processes as a mutation run."""
    mutant = next(
        m
        for m in generate("vsync.totem.ordering.window")
        if (m.function, m.operator) == ("Window.add", "negate")
    )
    record = run.run_mutant(mutant, 2, 60.0, run.Baseline())
    assert record["verdict"] == "killed", record


def test_every_survivor_has_a_reason() -> None:
    """None is left unexplained, and none that was killed is called equivalent."""
    present = {mutant.name for mutant in [*generate_all(), *run.by_hand()]}
    known = {name: r["verdict"] for name, r in run.read_ledger().items() if name in present}
    survivors = {name for name, verdict in known.items() if verdict == "survived"}
    assert not survivors - EQUIVALENT.keys() - UNSEEN.keys()
    assert EQUIVALENT.keys() & known.keys() <= survivors
    assert not EQUIVALENT.keys() & UNSEEN.keys()


# -- repetition and the gate ----------------------------------------------------------------------


def test_one_seed_leaves_one_trace_in_every_process() -> None:
    """G1 of the simulator itself: other hash seeds and other processes give the same run."""
    jobs = [Job("ring", 3)]
    first, again = run_batch(jobs, 11), run_batch(jobs, 12)
    assert first[0].trace
    assert differences(first, again) == []
    changed = [again[0]._replace(trace="other")]
    assert "--stack ring --seed 3" in differences(first, changed)[0]


def test_a_batch_that_dies_is_a_failure() -> None:
    outcomes: list[Outcome] = run_batch([Job("no such stack", 1)], 1)
    assert [outcome.ok for outcome in outcomes] == [False]


def test_a_seed_that_does_not_end_is_named_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report says which run it was, and how far it had come."""

    def chaos(runner: Runner) -> None:
        runner.world.start()
        while runner.plan.seed == 2:
            runner.world.run_until(lambda: False, runner.world.now + 0.1)

    options = replace(options_for("ring"), cpu_s=0.2)
    monkeypatch.setattr(Runner, "_chaos", chaos)
    monkeypatch.setattr(batch, "options_for", lambda _: options)
    assert batch.main(["ring:1", "ring:2", "ring:3"]) == 0
    found = [Outcome(*json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(one.stack, one.seed, one.ok) for one in found] == [
        ("ring", 1, True), ("ring", 2, False), ("ring", 3, True)
    ]  # fmt: skip
    (text,) = found[1].violations
    assert re.fullmatch(
        r"G0/no end: not over after 0.2 s of the processor: chaos, at \d+\.\d+ s, after \d+ events",
        text,
    )


def test_fresh_seeds_follow_from_what_they_are_drawn_by() -> None:
    assert fresh_start("abcdef0123") == fresh_start("abcdef0123") != fresh_start("abcdef1123")
    assert len(fixed_jobs(1.0)) == sum(FIXED.values())


# -- corrupted frames and old disks ---------------------------------------------------------------


def test_corrupted_frames_are_refused() -> None:
    """Flipped bits, a body cut or padded under a correct checksum, a frame of another cluster."""
    codec = Codec(Member("a", 1, "a:1"), "simulated", 4096, None)
    token = Token(RingId(1, "a", 1), 4, 9, 9, NOBODY, 0, 0, False, (3, 4), (7, 8))
    frame = codec.encode(token)
    net = Net(["a", "b"], Tape(1), Weather(), 16, lambda *_: None)
    assert codec.decode(frame, codec.open(frame)) == token
    for spoil in (net._flip, net._forge, net._retag):
        for _ in range(300):
            spoilt = spoil(frame)
            if spoilt == frame:
                continue  # the same bit twice
            with pytest.raises(FrameError):
                codec.decode(spoilt, codec.open(spoilt))


def test_an_old_disk_returns_only_where_others_know_more() -> None:
    """Restoring a backup is amnesia; a cluster survives it when each majority has a witness."""
    log = ToyLog(Image())
    log.apply(1, b"x")
    old = replace(log.image(), filled=True, promised_epoch=1)
    log.apply(1, b"y")
    new = replace(log.image(), filled=True, promised_epoch=2)
    assert covers(new, old)
    assert covers(new, new)
    assert not covers(old, new)
    assert not covers(replace(new, promised_epoch=1), new)
    assert not covers(Image(), old)
