"""Output and error stream that are full: what a command says, and its code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.exit_codes import Exit

ROOT = Path(__file__).resolve().parents[4]
FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="a device that is full is Linux's")

WORKS_ON = """
from tools.cli.progress import Progress
progress = Progress("drain", quiet=False)
progress.note("the broker is lost")
progress.note("the next one is asked")
print("done")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with its stderr on a full disk."""
    with FULL.open("w") as full:
        return subprocess.run(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=full, text=True,
            timeout=60, check=False, cwd=ROOT,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"), [(("no_such_verb",), Exit.USAGE), (("environment",), Exit.USAGE)]
)
def test_a_refusal_that_nobody_can_be_told_keeps_its_code(
    arguments: tuple[str, ...], code: Exit
) -> None:
    assert run("-m", "tools.operate.qpidctl", *arguments).returncode == code


def test_a_job_goes_on_whose_notes_cannot_be_written() -> None:
    """The disk of the log that stderr goes to may be full; the messages go elsewhere."""
    ended = run("-c", WORKS_ON)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
