"""What a rule of the queue contract is: its promise, its sentence, and in SQL which rows break it.

The rules stand in `causes`, `arrivals`, `order` and `lives`, each file with the tables over which
they are stated; what the reference model finds has a sentence only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

BREACHES = (
    "rule string, position bigint, ordinal bigint, queue bigint, seq bigint, channel bigint, "
    "since bigint, more string, n bigint"
)


class Rule(NamedTuple):
    """A rule that a log can break."""

    promise: str
    check: str  # as in the table of checks in docs/MEMBERLOG.md
    sentence: str
    table: str = ""  # of the rows that it judges; "": the reference model judges
    broken: str = ""  # the condition, in SQL, by which a row breaks it


class Breach(NamedTuple):
    """First place at which a rule is broken, and how often it is; -1 = does not apply."""

    rule: str
    position: int
    ordinal: int
    queue: int
    seq: int
    channel: int = -1
    since: int = -1  # the position of the message's previous move
    more: str = ""  # figures
    n: int = 1


def broken(rules: Mapping[str, Rule], since: str = "-1", more: str = "''") -> str:
    """Return the SELECT of all rows that break one of the rules.

    `since` and `more` are expressions over the columns of the tables of these rules.
    """
    return "\n    UNION ALL ".join(
        f"""SELECT '{name}' AS rule, position, ordinal, queue, seq, of AS channel,
            {since} AS since, {more} AS more, 1 AS n
        FROM {rule.table} WHERE {rule.broken}"""
        for name, rule in rules.items()
        if rule.table
    )


def first_of_each(rows: str) -> str:
    """Return the SELECT of the first breach of each rule, with how many there are."""
    return f"""
        SELECT rule, position, ordinal, queue, seq, channel, since, more, n FROM (
            SELECT rule, position, ordinal, queue, seq, channel, since, more,
                CAST(SUM(n) OVER (PARTITION BY rule) AS BIGINT) AS n,
                ROW_NUMBER() OVER (
                    PARTITION BY rule ORDER BY position, ordinal, queue, seq, channel, more
                ) AS nth
            FROM {rows}
        ) AS ranked WHERE nth = 1"""
