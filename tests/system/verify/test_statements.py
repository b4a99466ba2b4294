"""The rules in SQL: DuckDB, which runs them within a task, and Spark SQL give the same results."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from tests.system.verify.corruption.contract_violations import VIOLATIONS
from tests.system.verify.support.client_fixture import ClientPair, check_all
from tests.system.verify.support.make_client_histories import Clients, Servers
from tests.system.verify.support.recorded_history import plain_history
from tests.system.verify.support.spark_session import shared_session
from tests.system.verify.test_clients import CORRECT, FAULTS
from tests.unit.verify.contract.test_contract import wander
from tools.verify.clients import check, evidence
from tools.verify.contract import segment
from tools.verify.sql import exchange
from tools.verify.sql.statements import Statements, answer

if TYPE_CHECKING:
    import pyarrow as pa

EVERY = 11  # of the violations, each of which is a history of its own

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


class BothEngines:
    """Answers as `tools.verify.sql.statements.answer` does, after a comparison with Spark."""

    def __init__(self) -> None:
        self.compared: set[str] = set()
        self.differences: list[str] = []

    def answer(
        self, statements: Statements, given: Mapping[str, pa.Table], wanted: Iterable[str]
    ) -> dict[str, pa.Table]:
        """Run each statement in Spark, over the tables that DuckDB made before it."""
        spark = shared_session()
        made = answer(statements, given, statements)
        for name, table in given.items():
            spark.createDataFrame(table).createOrReplaceTempView(name)
        for name, select in statements.items():
            ours = made[name]
            theirs = spark.sql(select).toArrow()
            self.compared.add(name)
            if set(theirs.column_names) != set(ours.column_names):
                self.differences.append(f"{name} has {theirs.column_names}")
            elif rows_of(theirs.select(ours.column_names)) != rows_of(ours):
                self.differences.append(f"{name}: {rows_of(theirs)} is not {rows_of(ours)}")
            spark.createDataFrame(made[name]).createOrReplaceTempView(name)
        return {name: made[name] for name in wanted}


def rows_of(table: pa.Table) -> list[str]:
    """Return the rows in a fixed order."""
    return sorted(map(str, zip(*table.to_pydict().values(), strict=True)))


def test_statements_about_clients_are_spark_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all cases of `test_clients`, faults and others."""
    servers, clients = Servers(), Clients()
    for scenario in (*CORRECT, *FAULTS):
        scenario(ClientPair(scenario.__name__, servers, clients))
    plain = check_all(servers, clients)
    both = BothEngines()
    for module in (exchange, evidence, check):
        monkeypatch.setattr(module, "answer", both.answer)
    assert check_all(servers, clients).findings == plain.findings
    assert both.differences == []
    assert {"verdicts", "accusations", "accused", "copies", "doubtful"} <= both.compared


def test_statements_of_the_contract_are_spark_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over random runs of machines, and over some violations."""
    histories = [wander(random.Random(9), 120)]
    for violation in VIOLATIONS[::EVERY]:
        histories.append(plain_history())
        violation(histories[-1])
    plain = [maker.breaches() for maker in histories]
    assert not plain[0]
    both = BothEngines()
    for module in (exchange, segment):
        monkeypatch.setattr(module, "answer", both.answer)
    assert [maker.breaches() for maker in histories] == plain
    assert both.differences == []
    assert {"ended", "copies", "answered", "resumed", "lives", "recoveries"} <= both.compared
