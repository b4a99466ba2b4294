"""A systemd booted beside the machine's own, in its own namespaces, with the sample unit.

Its root is the machine's, with a temporary layer in memory on top; its processes are in a control
group of their own.  The network is the machine's.  This needs root and systemd; `booted` skips the
test, with the reason, where something is missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.demo.local_cluster import ROOT

SYSTEMD = Path("/lib/systemd/systemd")
UNIT = ROOT / "conf" / "service" / "qpidd.service"
BOOT_S = 20.0
PLACE = "/opt/qpidd"
"""The path of Python and this program in there, as the unit hides home directories."""
BOOT = f"""
set -e
scratch=$1 root=$1/root
mount -t tmpfs tmpfs "$scratch"
mkdir "$root" "$scratch/upper" "$scratch/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
# It would raise limits of the kernel, which the machine shares.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
# The machine's own services must not start, only what a unit requires.
rm -rf "$root"/usr/lib/systemd/system/*.wants "$root"/etc/systemd/system
mkdir -p "$root/etc/systemd/system" "$root/etc/qpidd"
mkdir -p "$root{PLACE}/python" "$root{PLACE}/code" "$root{PLACE}/site"
: >"$root/etc/fstab"
mount --bind "$2" "$root{PLACE}/python"
mount --bind "$3" "$root{PLACE}/code"
mount --bind "$4" "$root{PLACE}/site"
grep -q ^qpidd: "$root/etc/passwd" || {{
    echo 'qpidd:x:64321:64321::/nonexistent:/usr/sbin/nologin' >>"$root/etc/passwd"
    echo 'qpidd:x:64321:' >>"$root/etc/group"
}}
cat >"$root/usr/local/bin/qpidd" <<EOF
#!/bin/sh
export PYTHONPATH={PLACE}/code:{PLACE}/site PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH={PLACE}/python/lib
cd {PLACE}/code && exec {PLACE}/python/bin/$5 -m tools.commands.qpidd "\\$@"
EOF
chmod 755 "$root/usr/local/bin/qpidd"
cp "$6" "$root/etc/systemd/system/"
printf '[Unit]\\nDefaultDependencies=no\\n' >"$root/etc/systemd/system/boot.target"
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" {SYSTEMD} \\
    --system --unit=boot.target --show-status=no --log-target=console --log-level=info
"""


class Booted:
    """A running systemd; `pid` is that of its first process, as seen here."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self.root = Path(f"/proc/{pid}/root")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, to its end."""
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-r", "-w", "--"]
        return subprocess.run(
            [*inside, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    def systemctl(self, *words: str) -> str:
        """Return the output of `systemctl`, which must succeed."""
        ended = self.run("systemctl", "--no-pager", *words)
        assert ended.returncode == 0, f"{words}: {ended.stderr}\n{self.log.read_text()[-3000:]}"
        return ended.stdout.strip()

    def shown(self, name: str) -> str:
        """One property of the unit."""
        return self.systemctl("show", "--value", "-p", name, UNIT.name)

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return self.run("systemctl", "show", "-p", "Version").returncode == 0


def why_not() -> str:
    """Return what it lacks here, "" if nothing is known to be missing."""
    if os.getuid():
        return "only root may boot a systemd"
    if not SYSTEMD.exists():
        return "systemd is not installed"
    if _control_groups() is None:
        return "there are no control groups of version 2"
    return ""


def _control_groups() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


@contextlib.contextmanager
def booted(scratch: Path) -> Iterator[Booted]:
    """A booted systemd, with the sample unit and the account that it names; skips the test where
    none can be booted."""
    if lacking := why_not():
        pytest.skip(f"no systemd of its own: {lacking}")
    groups = _control_groups()
    assert groups is not None
    group, log = groups / f"qpidd-test-{os.getpid()}", scratch.with_name(f"{scratch.name}.log")
    scratch.mkdir()
    try:
        group.mkdir()
    except OSError as refused:
        pytest.skip(f"no systemd of its own: {group}: {refused.strerror}")
    words = [
        "unshare", "--cgroup", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc",
        "sh", "-c", BOOT, "boot", scratch, sys.base_prefix, ROOT, _site_packages(),
        f"python{sys.version_info[0]}.{sys.version_info[1]}", UNIT,
    ]  # fmt: skip
    enter = f'echo $$ >"{group}/cgroup.procs" && exec "$@"'
    with log.open("wb") as said:
        outer = subprocess.Popen(
            ["sh", "-c", enter, "enter", *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    try:
        yield _when_up(outer, log)
    finally:
        for child in _children(outer.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # the first process of its namespace: all end
        outer.kill()
        outer.wait()
        _remove(group)


def _when_up(outer: subprocess.Popen[bytes], log: Path) -> Booted:
    deadline = time.monotonic() + BOOT_S
    while time.monotonic() < deadline and outer.poll() is None:
        for child in _children(outer.pid):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{child}/exe").endswith("/systemd"):
                    found = Booted(child, log)
                    if found.is_up:
                        return found
        time.sleep(0.05)
    said = log.read_text(errors="replace").strip() or "it does not answer"
    pytest.skip(f"no systemd of its own: {said.splitlines()[-1]}")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _site_packages() -> Path:
    return Path(pytest.__file__).resolve().parents[1]


def _remove(group: Path) -> None:
    """Remove its control groups, which takes until their last process has ended."""
    deadline = time.monotonic() + 5.0
    while group.exists() and time.monotonic() < deadline:
        for place, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        time.sleep(0.02)
