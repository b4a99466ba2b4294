"""The scenario engine itself: what it compares, rewrites and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.engine import ScenarioError, Stage, compare, help_text, run
from tests.scenarios.names import expand, runs
from tests.scenarios.test_stories import README, STAGES


class Sums(Stage):
    """Adds numbers."""

    subject = "sums"

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def do_add(self, *numbers: str) -> None:
        """NUMBER...: add them."""
        self.total += sum(int(number) for number in numbers)

    def do_show(self) -> None:
        """Print the sum."""
        self.print(str(self.total))

    def do_tell(self, *names: str) -> None:
        """NAME...: all of these see the sum."""
        for name in names:
            self.saw(name, f"sum {self.total}")

    def do_lines(self, lines: list[str]) -> None:
        """Print the input."""
        self.print(*lines)


GOOD = """# Why: one and one.

add 1
# in between
add 1
show
----
2

# A quoted word and input.
lines
  x y
  z
tell b a
add "3"
tell c
----
x y
z
a b: sum 2
c: sum 5

add 1
----
"""


def story(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "one.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_the_right_outputs_has_no_difference(tmp_path: Path) -> None:
    assert compare(story(tmp_path, GOOD), Sums(), rewrite=False) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        GOOD.replace("----\n2\n", "----\n3\n"),
        GOOD.replace("----\n2\n", "----\n"),
        GOOD.replace("----\n2\n", ""),  # written by hand, not run yet
        GOOD.replace("c: sum 5\n", "c: sum 5\nd: sum 5\n"),
    ],
)
def test_a_wrong_expectation_fails_and_is_rewritten_with_the_flag(
    tmp_path: Path, wrong: str
) -> None:
    path = story(tmp_path, wrong)
    difference = compare(path, Sums(), rewrite=False)
    assert difference.startswith(f"--- {path}\n")
    assert "@@ -" in difference
    assert path.read_text(encoding="utf-8") == wrong, "changed without the flag"
    assert compare(path, Sums(), rewrite=True) == ""
    assert path.read_text(encoding="utf-8") == GOOD


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add 1\nfly high\n", ("one.txt:2: fly", "unknown verb", "add, lines, show, tell")),
        ("show 1\n", ("one.txt:1: show", "usage: show Print the sum.")),
        ("\nadd one\n", ("one.txt:2: add", "ValueError", "'one'")),
        ("----\n2\n", ("one.txt:1", "an output without a command")),
        ("  x\n", ("one.txt:1", "input without a command")),
    ],
)
@pytest.mark.parametrize("rewrite", [False, True])
def test_a_failed_command_names_file_line_and_verb(
    tmp_path: Path, text: str, words: tuple[str, ...], rewrite: bool
) -> None:
    path = story(tmp_path, text)
    with pytest.raises(ScenarioError) as raised:
        compare(path, Sums(), rewrite=rewrite)
    assert [word for word in words if word not in str(raised.value)] == []
    assert path.read_text(encoding="utf-8") == text


def test_a_story_gives_the_same_output_twice(tmp_path: Path) -> None:
    path = story(tmp_path, "nodes a b c\nstabilize\nsubmit a m1..m3 x\nrun 9ms\nphases\n")
    first = run(path, STAGES["ring"]())
    assert first == run(path, STAGES["ring"]())
    assert "deliver m1..m3 x" in first


def test_numbered_words_are_abbreviated_and_expanded() -> None:
    words = ["m9", "m10", "m11", "x", "m1", "m2"]
    assert runs(words) == "m9..m11 x m1 m2"
    assert expand(["m9..m11", "x"]) == ["m9", "m10", "m11", "x"]


def test_every_verb_has_help_and_the_readme_has_it() -> None:
    silent = [
        f"{s}: {verb}" for s, stage in STAGES.items() for verb, h in stage.verbs().items() if not h
    ]
    assert not silent
    assert help_text(STAGES.values()) in README.read_text(encoding="utf-8"), (
        "run python -m tests.scenarios --write"
    )
