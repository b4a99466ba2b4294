"""The rules of style that a machine can check: purity, sizes, samples.

Each check collects every violation before it fails, so that one run shows them all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.exit_codes import Exit
from broker.options.table import DEFAULTS
from tests.manual_pages import chapter
from tools.cli.options import read_option_file, resolve

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("vsync", "broker", "store", "tools", "tests")

PURE_ROOMS = (
    "vsync/types.py", "vsync/errors.py", "vsync/wire/", "vsync/totem/", "vsync/quorum/",
    "vsync/primary/", "vsync/cpg/", "vsync/admin/",
    "broker/waiting/", "broker/machine/", "broker/amqp/", "broker/replication/", "broker/timers/",
    "broker/divergence/", "broker/findings/", "broker/frontend/", "broker/roles/",
    "tools/verify/contract/",
)  # fmt: skip
"""The rooms whose whole input is their arguments."""
IMPURE_FILES = {
    "broker/frontend/connections.py": "the sockets of clients, and the loop that they are read on",
    "broker/frontend/gateway.py": "generated names are drawn at the origin of a command (secrets)",
}

BANNED_MODULES = {
    "asyncio", "datetime", "lmdb", "multiprocessing", "os", "pathlib", "secrets", "select",
    "selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "zmq",
}  # fmt: skip
BANNED_CALLS = {"hash", "id", "input", "open", "print", "eval", "exec", "globals", "vars"}
"""`hash` and `id` differ from process to process, the others reach outside."""


def sources(*folders: str) -> Iterator[Path]:
    """Every Python file of the folders, except generated and foreign ones."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield path


def pure_sources() -> Iterator[Path]:
    """The modules whose only input is their arguments."""
    for path in sources("vsync", "broker", "tools"):
        if name(path).startswith(PURE_ROOMS) and name(path) not in IMPURE_FILES:
            yield path


def name(path: Path) -> str:
    """The path as a person would write it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def impurities(path: Path) -> Iterator[str]:
    """Every banned import, call and unordered iteration in one file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        place = f"{name(path)}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] in BANNED_MODULES:
                        yield f"{place}: imports {alias.name}"
            case ast.ImportFrom(module=str(module)):
                if module.split(".")[0] in BANNED_MODULES:
                    yield f"{place}: imports from {module}"
                if module == "random":
                    yield f"{place}: the shared random source; take a random.Random as argument"
            case ast.Call(func=ast.Name(id=function)) if function in BANNED_CALLS:
                yield f"{place}: calls {function}()"
            case ast.Attribute(value=ast.Name(id="random"), attr=attribute):
                if attribute != "Random":
                    yield f"{place}: random.{attribute}; take a random.Random as argument"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr="Random")):
                yield f"{place}: makes its own random source; take one as argument"
            case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
                if is_set(iterated):
                    yield f"{name(path)}:{iterated.lineno}: iterates over a set; sort it first"
            case _:
                pass


def is_set(node: ast.expr) -> bool:
    """Whether the expression is a set by its very form."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference")):
            return True
        case _:
            return False


def test_pure_modules_use_nothing_outside() -> None:
    found = [violation for path in pure_sources() for violation in impurities(path)]
    assert not found, "\n".join(["a pure module reaches outside:", *found])


def test_files_exempt_from_purity_need_the_exemption() -> None:
    pure = [path for path in IMPURE_FILES if not list(impurities(ROOT / path))]
    assert not pure, f"pure by now, remove them from IMPURE_FILES: {pure}"


def test_the_purity_check_finds_what_it_should(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        "import time\nimport random\nfrom os import path\nx = hash(1)\n"
        "y = random.random()\nfor z in {1, 2}: pass\nw = [a for a in set(b)]\n"
        "r = random.Random(1)\ndef f(g: random.Random) -> None: pass\n",
        encoding="utf-8",
    )
    lines = [int(violation.split(":")[1]) for violation in impurities(planted)]
    assert sorted(lines) == [1, 3, 4, 5, 6, 7, 8]


def test_every_module_has_a_docstring() -> None:
    texts = {path: path.read_text("utf-8") for path in sources(*PACKAGES)}
    silent = [
        name(path)
        for path, text in texts.items()
        if text and not text.startswith('"""') and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent, f"no module docstring: {', '.join(silent)}"


LOADED_BY = {
    "conf/container/Containerfile": "tests/unit/service/test_container_files.py",
    "conf/container/compose.yaml": "tests/unit/service/test_container_files.py",
    "conf/container/kubernetes.yaml": "tests/unit/service/test_container_files.py",
    "conf/haproxy.cfg": "tests/system/service/test_load_balancer.py",
    "conf/grafana/qpidd-overview.json": "tests/system/management/test_metrics.py",
    "conf/ocf/qpidd": "tests/unit/service/test_ocf_agent.py",
    "conf/prometheus/alerts.yml": "tests/system/management/test_metrics.py",
    "conf/prometheus/prometheus.yml": "tests/system/management/test_metrics.py",
    "conf/prometheus/verify-alerts.yml": "tests/unit/verify/live/test_metrics.py",
    "conf/federation.json": "tests/unit/shovels/test_upstreams.py",
    "conf/shovel.json": "tests/unit/shovels/test_definition.py",
    "conf/service/qpidd.logrotate": "tests/unit/service/test_unit_file.py",
    "conf/service/qpidd.service": "tests/unit/service/test_unit_file.py",
}
"""What in conf/ is no option file, and the test that loads it."""


def test_every_other_file_in_conf_is_loaded_by_its_test() -> None:
    files = {name(path) for path in (ROOT / "conf").rglob("*") if path.is_file()}
    assert {path for path in files if not path.endswith(".conf")} == set(LOADED_BY)
    silent = [
        path
        for path, test in LOADED_BY.items()
        if f'"{Path(path).name}"' not in (ROOT / test).read_text(encoding="utf-8")
    ]
    assert not silent, f"not named in its test: {', '.join(silent)}"


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.conf")), ids=lambda path: path.name)
def test_every_sample_in_conf_loads(path: Path) -> None:
    given = read_option_file(path)
    assert given, "a sample sets something"
    assert resolve(given).port


def test_operations_explains_every_exit_code_and_option() -> None:
    codes, options = chapter("Exit codes"), chapter("Options of qpidd")
    missing = [str(code.value) for code in Exit if f"\n| {code.value} |" not in codes]
    missing += [option for option in DEFAULTS if f"`--{option}" not in options]
    assert not missing, f"the manual says nothing of {', '.join(missing)}"
