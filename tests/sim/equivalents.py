"""Generated mutants that change nothing that is promised, each with the reason.

The key is the mutant's name; `python -m tests.sim.mutate --table` drops entries whose mutant the
code does not have any more.  A reason says why no promise can depend on the change, not only that
no seed found it.
"""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    "01b615c9": "only how far a loop looks that ends at `limit` findings; it may look further",
    "4113fa3c": "only skips a loop over an empty range",
    "00aa7bf6": "one step of a growing waiting time; only how soon a shunned member is tried again",
    "00ec4f39": "the mark is updated again with the next token's marks",
    "02ff0967": "`add` refuses a frame that the window has already, so it is only found twice",
    "042da45f": "from how many members on joins are spread by chance; a matter of load only",
    "1424aeae": "differs only at the very instant at which the timer is due, when both are right",
}
