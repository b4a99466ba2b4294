"""The systemd unit: its list of retried exit codes matches the codes."""

from __future__ import annotations

import re
from pathlib import Path

from broker.exit_codes import Exit

UNIT = Path(__file__).resolve().parents[3] / "conf" / "service" / "qpidd.service"
OF_TOOLS = {Exit.OK, Exit.NO_INPUT}


def test_every_exit_code_is_either_retried_or_not() -> None:
    text = UNIT.read_text()
    (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    prevented = {int(word) for word in line.split()}
    comment = text[text.index("# Restart after") : text.index("Restart=")]
    again, mend = comment.split("# Do not restart")
    named = [{int(n) for n in re.findall(r"\b(\d{1,2})\b", part)} for part in (again, mend)]
    assert named[1] == prevented
    assert named[0] | named[1] == {int(code) for code in Exit} - OF_TOOLS
    assert not named[0] & named[1]


def test_its_type_is_what_the_broker_supports() -> None:
    text = UNIT.read_text()
    assert "Type=notify" in text
    assert re.search(r"^ExecReload=/bin/kill -HUP \$MAINPID$", text, re.MULTILINE)


def test_rotation_makes_the_broker_reopen_its_log() -> None:
    """The file is renamed, then the main process gets SIGHUP; nothing is truncated."""
    text = (UNIT.parent / "qpidd.logrotate").read_text()
    assert f"--signal=HUP --kill-whom=main {UNIT.name}" in text
    assert "copytruncate" not in text
    assert text.count("{") == text.count("}") == 1


def test_the_sample_of_a_shared_store_runs_in_the_unit() -> None:
    """Everything else is read-only; and over a mount point without its file system it must
    not start."""
    text = UNIT.read_text()
    sample = (UNIT.parents[1] / "shared-store.conf").read_text()
    (path,) = re.findall(r"^shared-store = (.*)$", sample, re.MULTILINE)
    assert f"\nReadWritePaths=-{path}\n" in text
    assert f"\nRequiresMountsFor={path}\n" in text
    assert "interface = 0.0.0.0" in sample
