"""All that is said of each lie about views, primaries, states and leaders, word for word.

Other tests ask whether a lie is among the findings. Here nobody else may be accused, and no place,
word or order may change unnoticed. `python -m tests.unit.verify.checks.test_word_for_word` writes
`word_for_word.txt` anew: read what changes there as a statement about a member.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("numpy")

from tests.system.verify.corruption import corrupt_logs, fresh_lies, further_lies, more_lies
from tests.system.verify.support.checks_without_spark import rows_in
from tests.system.verify.support.make_logs import LogMaker, good_history
from tests.unit.verify.checks import test_leases, test_lies_between_records
from tools.verify.checks.canonical_history import gaps, plan, superseded
from tools.verify.checks.control_checks import ControlResult, check_control_rows, overtaken_in
from tools.verify.input.rows import Row

EXPECTED = Path(__file__).with_name("word_for_word.txt")
SEGMENT_BYTES = (1 << 30, 700)  # one segment, or some of a few records
LIES: tuple[Callable[..., object], ...] = (
    *further_lies.IN_VIEWS, *fresh_lies.IN_VIEWS, *more_lies.IN_VIEWS, *corrupt_logs.ACROSS_MEMBERS,
    *corrupt_logs.WITHIN_INCARNATIONS, *test_lies_between_records.LIES,
)  # fmt: skip
ABOUT_LEADERS: tuple[Callable[..., object], ...] = tuple(test_leases.LIES)


def findings_of(control: ControlResult, live: ControlResult) -> Iterator[str]:
    """Yield the findings, and which of them only the end of a log shows."""
    early = set(map(str, live.findings))
    for one in control.findings:
        until = f" (to {one.until})" if one.until >= 0 else ""
        yield f"{one}{until}{'' if str(one) in early else ' (only at last)'}"


def history_of(rows: list[Row], control: ControlResult) -> Iterator[str]:
    """Yield what is not known, and which parts of which logs are the history."""
    yield from control.notes
    yield from overtaken_in(rows).values()
    yield f"superseded: {superseded(rows, control.epochs)}, after {control.cutoffs}"
    stretches = plan(rows, control.epochs)
    yield "history: " + ", ".join(f"{one.file} {one.first}-{one.last}" for one in stretches)
    yield from (f"nowhere: {one.first}-{one.last}" for one in gaps(stretches))


def said(truth: Callable[[], LogMaker], lie: Callable[..., object], size: int) -> list[list[str]]:
    """Return findings and history of a lie, told in segments of this size."""
    maker = truth()
    lie(maker)
    with tempfile.TemporaryDirectory() as scratch, patch.object(os, "fsync"):
        maker.write(Path(scratch), size)
        rows = rows_in(sorted(Path(scratch).rglob("*.qml")))
        control, live = check_control_rows(rows), check_control_rows(rows, live=True)
        both = findings_of(control, live), history_of(rows, control)
        return [[line.replace(scratch + os.sep, "") for line in lines] for lines in both]


def sections() -> Iterator[str]:
    """Yield each lie with what is said of it: of its history what differs from that of the truth,
    and of small segments the findings, where they differ."""
    for truth, lies in ((partial(good_history, 4), LIES), (test_leases.orderly, ABOUT_LEADERS)):
        usual: list[str] = []
        for lie in (tell_the_truth, *lies):
            (findings, history), (small, _) = (said(truth, lie, size) for size in SEGMENT_BYTES)
            lines = [f"== {lie.__name__}", *findings]
            lines += [f"-- {line}" for line in history if line not in usual]
            if small != findings:
                lines += ["-- in small segments", *small]
            usual = usual or history
            yield "\n".join([*lines, ""])


def tell_the_truth(_: LogMaker) -> None:
    """Change nothing."""


@pytest.mark.lies
def test_everything_said_of_each_lie() -> None:
    expected = EXPECTED.read_text(encoding="utf-8").split("== ")[1:]
    assert [one.removeprefix("== ") for one in sections()] == expected


if __name__ == "__main__":
    EXPECTED.write_text("".join(sections()), encoding="utf-8")
