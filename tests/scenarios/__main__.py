"""Prints the verbs of scenario files; with --write puts them into the README beside it."""

from __future__ import annotations

import argparse

from tests.scenarios.engine import help_text
from tests.scenarios.test_stories import README, STAGES

MARKS = "<!-- verbs -->\n", "<!-- end -->\n"


def main() -> None:
    verbs = help_text(STAGES.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.scenarios", description=__doc__, epilog=verbs,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write the verbs into README.md")
    if parser.parse_args().write:
        before, _, rest = README.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        text = f"{before}{MARKS[0]}```\n{verbs}```\n{MARKS[1]}{after}"
        README.write_text(text, encoding="utf-8")
    else:
        print(verbs, end="")


if __name__ == "__main__":
    main()
