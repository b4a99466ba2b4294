"""The comparison with RabbitMQ: its measurements, and the table it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compare.__main__ import Row, table
from tests.bench.compare.rabbitmq import scripts
from tests.bench.compare.works import WORKS, chosen
from tools.cli.failures import ToolError


def row(system: str, messages: int, p50: float) -> Row:
    return {
        "work": "w", "system": system, "messages": messages, "seconds": 2.0, "broker_cpu_s": 1.0,
        "flushes": 10.0, "confirm_ms": {"p50": p50, "p99": 9.0}, "end_to_end_ms": {},
    }  # fmt: skip


def test_the_table_has_medians_and_ratios_to_the_first_system() -> None:
    rows = [row("ours", 100, 1.0), row("ours", 300, 3.0), row("ours", 200, 8.0), row("q", 50, 2.0)]
    _, _, ours, theirs = table(rows).splitlines()
    assert ours == "| w | ours | 100 | 3.00 | 9.00 |  | 0.50 | 5,000 | 0.050 | 1.00 |"
    assert theirs == "| w | q | 25 | 2.00 | 9.00 |  | 0.50 | 20,000 | 0.200 | 0.25 |"


def test_a_workload_of_which_nothing_arrived_is_an_ordinary_row() -> None:
    assert "| w | ours | 0 | 3.00 |" in table([row("ours", 0, 3.0)])


def test_sizes_and_windows_are_combined_and_the_backlog_fits_into_memory() -> None:
    works = chosen(["pair"], [256, 262_144], [1, 1000], [], False)
    assert [(one.size, one.window) for one in works] == [
        (256, 1), (256, 1000), (262_144, 1), (262_144, 1000),
    ]  # fmt: skip
    assert not any(one.persistent for one in works)
    assert works[-1].load((), "q", "quorum", 1.0).backlog == 256
    assert [one for one in chosen([], [], [], [], None) if one not in WORKS.values()] == []


def test_a_folder_without_the_scripts_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="has no rabbitmq-server"):
        scripts(str(tmp_path))
