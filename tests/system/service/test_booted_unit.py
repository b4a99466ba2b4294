"""The sample unit under a systemd booted for it: start, reload, kill, exit codes, stop."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from functools import cache

import pytest

from broker.exit_codes import Exit
from tests.system.service.booted_systemd import UNIT, Booted, booted
from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import free_ports

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

CONFIG, STATE, LOG = "etc/qpidd/qpidd.conf", "var/lib/qpidd", "var/log/qpidd/qpidd.log"
OVERRIDE = f"run/systemd/system/{UNIT.name}.d/test.conf"
ENDS_WITH = "/bin/sh -c 'exit $(cat /run/code)'"
EACH = f"""
for code in "$@"; do
    echo "$code" >/run/code
    systemctl start {UNIT.name} 2>/run/said
    echo "$code $(systemctl show --value -p SubState {UNIT.name})"
    systemctl stop {UNIT.name}
    systemctl reset-failed {UNIT.name} 2>/run/said
done
"""
"""A broker that ends with 0 before READY is restarted, too."""
PORTS = cache(lambda: free_ports(2))
WAIT_S = 30.0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """One systemd for all tests, with an option file in place."""
    with booted(tmp_path_factory.mktemp("booted") / "scratch") as found:
        (found.root / CONFIG).write_text(options("info"))
        yield found


def options(log_level: str) -> str:
    """The options of a single broker."""
    port, management = PORTS()
    return (
        f"port = {port}\nmanagement-port = {management}\ndata-dir = /{STATE}\n"
        f"log-file = /{LOG}\nlog-level = {log_level}\n"
    )


def test_the_unit_is_started_when_the_broker_says_ready(system: Booted) -> None:
    """`systemctl start` returns then."""
    system.systemctl("start", UNIT.name)
    assert system.shown("ActiveState") == "active"
    wait_until(lambda: system.shown("StatusText") == "READY", WAIT_S, "its state to be told")
    assert (system.root / STATE / "store" / "data.mdb").exists()


def test_its_files_are_not_readable_by_others(system: Booted) -> None:
    """The unit's UMask= holds for every file, from Python, LMDB or a library."""
    system.systemctl("start", UNIT.name)
    pid = system.shown("MainPID")
    status = (system.root / f"proc/{pid}/status").read_text()
    assert re.search(r"^Umask:\s+0027$", status, re.MULTILINE)
    owner = os.stat(system.root / f"proc/{pid}").st_uid
    assert owner != 0
    found = [*(system.root / STATE).rglob("*"), system.root / LOG]
    assert len(found) > 5
    for path in found:
        mode = path.lstat()
        assert not stat.S_IMODE(mode.st_mode) & 0o027, f"{path}: {stat.filemode(mode.st_mode)}"
        assert mode.st_uid == owner


def test_reload_rereads_the_options(system: Booted) -> None:
    system.systemctl("start", UNIT.name)
    log = system.root / LOG
    before = log.stat().st_size
    (system.root / CONFIG).write_text(options("debug"))
    system.systemctl("reload", UNIT.name)
    wait_until(lambda: "log-level" in log.read_text()[before:], WAIT_S, "the options to be read")
    assert system.shown("ActiveState") == "active"


def test_a_killed_broker_is_restarted(system: Booted) -> None:
    system.systemctl("start", UNIT.name)
    before, pid = int(system.shown("NRestarts")), system.shown("MainPID")
    system.systemctl("kill", "--signal=KILL", "--kill-whom=main", UNIT.name)
    wait_until(lambda: int(system.shown("NRestarts")) == before + 1, WAIT_S, "the restart")
    wait_until(lambda: system.shown("ActiveState") == "active", WAIT_S, "READY")
    assert system.shown("MainPID") not in (pid, "0")


def test_stop_is_orderly(system: Booted) -> None:
    system.systemctl("start", UNIT.name)
    system.systemctl("stop", UNIT.name)
    assert system.shown("ActiveState") == "inactive"
    assert (system.shown("Result"), system.shown("ExecMainStatus")) == ("success", "0")
    assert "stopping: " in (system.root / LOG).read_text()


def test_a_broker_that_needs_an_operator_is_not_restarted(system: Booted) -> None:
    """A real case: the option file has a mistake."""
    system.systemctl("stop", UNIT.name)
    file = system.root / CONFIG
    kept = file.read_text()
    file.write_text(f"{kept}no-such-option = 1\n")
    try:
        assert system.run("systemctl", "start", UNIT.name).returncode
        assert system.shown("SubState") == "failed"
        assert int(system.shown("ExecMainStatus")) in (Exit.USAGE, Exit.CONFIG)
    finally:
        file.write_text(kept)
        system.systemctl("reset-failed", UNIT.name)


def test_systemd_restarts_by_exit_code(system: Booted) -> None:
    """All exit codes, from a program in the broker's place."""
    system.systemctl("stop", UNIT.name)
    (line,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    prevented = {int(word) for word in line.split()}
    override = system.root / OVERRIDE
    override.parent.mkdir(parents=True)
    override.write_text(f"[Service]\nExecStart=\nExecStart={ENDS_WITH}\n")
    try:
        system.systemctl("daemon-reload")
        ended = system.run("sh", "-c", EACH, "each", *(str(int(code)) for code in Exit))
        states = dict(line.split() for line in ended.stdout.splitlines())
    finally:
        override.unlink()
        system.systemctl("daemon-reload")
    assert states == {
        str(int(code)): "failed" if code in prevented else "auto-restart" for code in Exit
    }
