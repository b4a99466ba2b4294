"""The OCF agent: its metadata, and what it refuses before anything starts."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from broker.exit_codes import Exit

AGENT = Path(__file__).resolve().parents[3] / "conf" / "ocf" / "qpidd"
ARGS, UNIMPLEMENTED, INSTALLED, NOT_RUNNING = 2, 3, 5, 7


def agent(*words: str, **parameters: str) -> subprocess.CompletedProcess[str]:
    given = {f"OCF_RESKEY_{name}": value for name, value in parameters.items()}
    return subprocess.run(
        [AGENT, *words], env=os.environ | given, capture_output=True, text=True, check=False
    )


def test_its_metadata_names_its_parameters_and_verbs() -> None:
    """With their defaults; that of `pidfile` depends on the environment."""
    done = agent("meta-data")
    assert done.returncode == 0
    root = ET.fromstring(done.stdout)
    assert root.get("name") == "qpidd"
    shown = {
        str(one.get("name")): content.get("default")
        for one in root.iter("parameter")
        if (content := one.find("content")) is not None
    }
    text = AGENT.read_text()
    defaults = dict(re.findall(r'^: "\$\{OCF_RESKEY_(\w+):=(.*)\}"$', text, re.MULTILINE))
    assert shown.keys() == defaults.keys()
    assert {name for name in shown if shown[name] != defaults[name]} == {"pidfile"}
    verbs = {(str(one.get("name")), one.get("role")) for one in root.iter("action")}
    assert verbs == {
        ("start", None), ("stop", None), ("promote", None), ("demote", None),
        ("monitor", "Unpromoted"), ("monitor", "Promoted"), ("meta-data", None),
        ("validate-all", None),
    }  # fmt: skip
    for verb, _ in verbs:
        assert verb in agent("usage").stdout


@pytest.mark.parametrize(
    ("words", "code"), [((), ARGS), (("start", "now"), ARGS), (("migrate_to",), UNIMPLEMENTED)]
)
def test_an_unknown_verb(words: tuple[str, ...], code: int) -> None:
    done = agent(*words)
    assert done.returncode == code
    assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"binary": "/opt/none/qpidd"}, "there is no program /opt/none/qpidd: install"),
        ({"user": "nobody-of-this-name"}, "there is no account nobody-of-this-name"),
        ({"config": "/etc/none.conf"}, "/etc/none.conf is not there"),
        ({"password_file": "/etc/none"}, "/etc/none is not there"),
    ],
)
def test_a_missing_prerequisite_is_named(
    parameters: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    """Nothing is started; a machine where the broker is not installed runs nothing."""
    for name in ("qpidd", "qpid-ha", "qpid-cluster"):
        (tmp_path / name).symlink_to("/bin/true")
    config = tmp_path / "qpidd.conf"
    config.touch()
    owner = config.owner()
    given = {"binary": f"{tmp_path}/qpidd", "config": str(config), "user": owner}
    given["pidfile"] = str(tmp_path / "pid")
    assert agent("validate-all", **given).returncode == 0
    for verb in ("validate-all", "start"):
        done = agent(verb, **given | parameters)
        assert done.returncode == INSTALLED
        assert sentence in done.stderr
    assert agent("monitor", **given | parameters).returncode == NOT_RUNNING
    assert agent("stop", **given | parameters).returncode == 0


def test_the_brokers_exit_codes_are_told_apart() -> None:
    """Neither retries what an operator has to repair (the unit's list)."""
    (body,) = re.findall(r"^ended\(\) \{(.*?)^\}", AGENT.read_text(), re.MULTILINE | re.DOTALL)
    mended = {int(code) for code in re.findall(r"\b(\d\d)\b", body)}
    unit = (AGENT.parents[1] / "service" / "qpidd.service").read_text()
    (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert mended == {int(word) for word in line.split()} - {Exit.BUSY}
