"""A rule of the queue contract: its promise, its sentence, and SQL that selects the breaking rows.

The rules are in `causes`, `arrivals`, `order` and `lives`, each file with the tables over which
they are stated; findings of the reference model have a sentence only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

BREACHES = (
    "rule string, position bigint, ordinal bigint, queue bigint, seq bigint, since bigint, "
    "more string, n bigint"
)


class Rule(NamedTuple):
    """A rule that a log can break."""

    promise: str
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
    since: int = -1  # the position of the message's previous move
    more: str = ""  # figures
    n: int = 1


def broken(rules: Mapping[str, Rule], since: str = "-1", more: str = "''") -> str:
    """Return the SELECT of all rows that break one of the rules, one row for each broken rule.

    Each table is scanned once, whatever the number of its rules: the rules that a row breaks are
    bits of one number. `since` and `more` are expressions over the columns of these tables.
    """
    by_table: dict[str, dict[str, Rule]] = {}
    for name, rule in rules.items():
        if rule.table:
            by_table.setdefault(rule.table, {})[name] = rule
    selects, bits = [], []
    for number, (table, of_table) in enumerate(by_table.items()):
        conditions = [rule.broken for rule in of_table.values()]
        broken = (
            f"CASE WHEN {one} THEN {1 << bit} ELSE 0 END" for bit, one in enumerate(conditions)
        )
        selects.append(f"""SELECT {number} AS judged, position, ordinal, queue, seq,
            {since} AS since, {more} AS more, {" + ".join(broken)} AS broken
        FROM {table}""")
        bits += [f"('{name}', {number}, {1 << bit})" for bit, name in enumerate(of_table)]
    return f"""
        SELECT rule, position, ordinal, queue, seq, since, more, 1 AS n
        FROM ({" UNION ALL ".join(selects)}) AS suspects
        JOIN (VALUES {", ".join(bits)}) AS rules(rule, of_table, bit)
            ON of_table = judged AND (broken & bit) <> 0
        WHERE broken > 0"""


def first_of_each(rows: str) -> str:
    """Return the SELECT of each rule's first breach in these rows, with the number of breaches."""
    return f"""
        SELECT rule, position, ordinal, queue, seq, since, more, n FROM (
            SELECT rule, position, ordinal, queue, seq, since, more,
                CAST(SUM(n) OVER (PARTITION BY rule) AS BIGINT) AS n,
                ROW_NUMBER() OVER (
                    PARTITION BY rule ORDER BY position, ordinal, queue, seq, more
                ) AS nth
            FROM ({rows}) AS found
        ) AS ranked WHERE nth = 1"""
