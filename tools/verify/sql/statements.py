"""SQL over the Arrow tables of one task: rules are stated in SQL, and DuckDB answers within a task.

The statements are also valid Spark SQL (a test runs them there and compares). Spark brings the rows
of a bin together, and a bin is answered where it is, without further shuffles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_WORD = re.compile(r"\w+")
Statements: TypeAlias = Mapping[str, str]
"""Tables by name, each defined by a SELECT over earlier ones, and over the given ones."""


def answer(
    statements: Statements, given: Mapping[str, pa.Table], wanted: Iterable[str]
) -> dict[str, pa.Table]:
    """Return the wanted tables that the statements make of the given ones.

    A table used only once, by a single statement, is a view: it is answered as part of that
    statement, without columns that are not needed there.
    """
    made: dict[str, pa.Table] = dict.fromkeys(wanted)
    named = Counter(word for select in statements.values() for word in _WORD.findall(select))
    with _database().cursor() as session:
        for name, table in given.items():
            session.register(name, table)
        for name, select in statements.items():
            if name in made:
                made[name] = session.sql(select).to_arrow_table()
                session.register(name, made[name])
            else:
                kind = "TABLE" if named[name] > 1 else "VIEW"
                session.execute(f"CREATE TEMP {kind} {name} AS {select}")
    return made


@cache
def _database() -> DuckDBPyConnection:
    import duckdb

    # Spark has a task for each core, and the statements name no files.
    database = duckdb.connect(config={"threads": 1, "enable_external_access": False})
    database.execute("CREATE MACRO explode(list) AS unnest(list)")  # as Spark calls it
    return database
