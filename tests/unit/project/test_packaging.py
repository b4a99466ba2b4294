"""Contents of the distributions: a wheel of four packages and their commands, and all the
sources.
"""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"broker", "store", "tools", "vsync"}
MANUAL = "share/doc/qpid-cluster-py"
COMMANDS = {
    "qpidd": "tools.start:main",
    "qpid-cluster": "tools.commands.qpid_cluster:main",
    "qpidctl": "tools.operate.qpidctl:main",
    "qpid-stat": "tools.operate.qpid_stat:main",
    "qpid-config": "tools.operate.qpid_config:main",
    "qpid-route": "tools.operate.qpid_route:main",
    "qpid-cluster-keys": "tools.commands.qpid_cluster_keys:main",
    "qpid-cluster-store": "tools.commands.qpid_cluster_store:main",
    "qpid-cluster-verify": "tools.commands.qpid_cluster_verify:main",
    "qpid-ha": "tools.commands.qpid_ha:main",
    "spout": "tools.commands.spout:main",
    "drain": "tools.commands.drain:main",
    "cpgtool": "tools.commands.cpgtool:main",
    "quorumtool": "tools.commands.quorumtool:main",
    "ringtrace": "tools.commands.ringtrace:main",
}


def build(out: Path, kind: str) -> Path:
    """Build one as setuptools does, in a process of its own, as it changes global state."""
    script = (
        f"import sys\nfrom setuptools import build_meta\nbuild_meta.build_{kind}(sys.argv[1])\n"
    )
    source, made = out / "source", out / "made"
    source.mkdir()
    made.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "LICENSE", "Makefile"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for page in ROOT.glob("*.md"):
        (source / page.name).write_bytes(page.read_bytes())
    for folder in (*PACKAGES, "conf", "docs", "tests", ".ci"):
        (source / folder).symlink_to(ROOT / folder)
    built = subprocess.run(
        [sys.executable, "-c", script, str(made)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return next(made.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel"), "wheel"))


def test_a_source_distribution_can_be_run_tested_and_changed(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "sdist")) as sources:
        inside = {entry.partition("/")[2] for entry in sources.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    wanted = tracked.stdout.split() or ["Makefile", "conf/member-a.conf", "docs/OPERATIONS.md"]
    assert {*wanted} - inside <= {".dockerignore", ".gitignore"}


def test_top_level_packages(wheel: zipfile.ZipFile) -> None:
    tops = {entry.split("/")[0] for entry in wheel.namelist()}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == PACKAGES


def test_every_source_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in inside
        assert f"{package}/py.typed" in inside
    assert "tools/verify/report/style.css" in inside


def test_manual_and_samples_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Messages name `docs/ONCALL.md`: it is below share/doc, with every page that it names."""
    _, _, inside = zip(*(entry.partition(f"/{MANUAL}/") for entry in wheel.namelist()), strict=True)
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in (ROOT / "docs", ROOT / "conf")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not wanted - {*inside}


def test_the_licence_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert any(entry.endswith("LICENSE") for entry in wheel.namelist())


def test_entry_points(wheel: zipfile.ZipFile) -> None:
    listing = next(entry for entry in wheel.namelist() if entry.endswith("entry_points.txt"))
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(listing).decode())
    assert dict(parser["console_scripts"]) == COMMANDS


@pytest.mark.parametrize("target", sorted(COMMANDS.values()))
def test_the_help_of_every_entry_point_has_examples(target: str) -> None:
    module = target.partition(":")[0]
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Usage:" in shown.stdout
    assert len(shown.stdout.splitlines()) > 15, "a useful --help has examples"
