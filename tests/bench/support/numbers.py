"""The command line of a bench that takes a few whole numbers."""

from __future__ import annotations

import argparse


def numbers(about: str | None, **defaults: int) -> list[int]:
    """The numbers as typed, in this order; --help prints what the bench is."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=int, default=default)
    return [*vars(parser.parse_args()).values()]
