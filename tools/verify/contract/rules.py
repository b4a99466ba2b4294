"""What a rule of the queue contract is: its promise, its sentence, and in SQL which rows break it.

The rules stand in `causes`, `arrivals`, `order` and `lives`, each file with the tables over which
they are stated; what the reference model finds has a sentence only.
"""

from __future__ import annotations

from collections import Counter
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


def judged(rules: Mapping[str, Rule], since: str = "-1", more: str = "''") -> dict[str, str]:
    """Return, for each table that rules are about, the SELECT of its rows that break one of them.

    A table is gone through once, whatever the number of its rules, and none of its other rows is
    kept.  `since` and `more` are expressions over its columns.
    """
    found = {}
    for table in dict.fromkeys(rule.table for rule in rules.values() if rule.table):
        conditions = [rule.broken for rule in rules.values() if rule.table == table]
        columns = [f"({one}) AS broken{number}" for number, one in enumerate(conditions)]
        found[f"broken_{table}"] = f"""
        SELECT position, ordinal, queue, seq, of AS channel, {since} AS since, {more} AS more,
            {", ".join(columns)}
        FROM {table} WHERE ({") OR (".join(conditions)})"""
    return found


def broken(rules: Mapping[str, Rule]) -> str:
    """Return the SELECT of what `judged` found, a row for each rule that a row breaks."""
    numbers: Counter[str] = Counter()
    selects = []
    for name, rule in rules.items():
        if rule.table:
            selects.append(f"""SELECT '{name}' AS rule, position, ordinal, queue, seq, channel,
            since, more, 1 AS n
        FROM broken_{rule.table} WHERE broken{numbers[rule.table]}""")
            numbers[rule.table] += 1
    return "\n    UNION ALL ".join(selects)


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
