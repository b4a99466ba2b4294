"""A member within the confinement of the systemd unit, as the kernel enforces it."""

from __future__ import annotations

import ctypes
import errno
import platform
import re
import socket
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.system.support.clusters import wait_until
from tools.demo.local_cluster import HOST, ROOT, command, free_ports

pytestmark = pytest.mark.system
UNIT = ROOT / "conf" / "service" / "qpidd.service"
START_S = 30.0
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
"""The number of the system call `socket`, by machine."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
CALL_AT, FAMILY_AT = 0, 16
"""Where a filter finds the number of the call, and its first argument."""


def only_families(families: Iterable[int]) -> bytes:
    """The filter equivalent to systemd's RestrictAddressFamilies=: others are EAFNOSUPPORT."""
    wanted = list(families)
    steps = [
        (LOAD, 0, 0, CALL_AT),
        (EQUAL, 0, len(wanted) + 2, SOCKET_CALL[platform.machine()]),
        (LOAD, 0, 0, FAMILY_AT),
        *((EQUAL, len(wanted) - place, 0, family) for place, family in enumerate(wanted)),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def confine(program: bytes) -> None:
    """Put this process and its successors under a filter.  Raises OSError if not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 2, ctypes.c_ulong, ctypes.c_ulong]
    filled = ctypes.create_string_buffer(header, len(header))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filled), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")


@pytest.mark.skipif(
    platform.machine() not in SOCKET_CALL,
    reason="system call numbers of this machine are not known",
)
def test_a_member_starts_within_the_address_families_of_the_unit(tmp_path: Path) -> None:
    """The ring's library asks the kernel for its interfaces over netlink, and aborts if refused."""
    (line,) = re.findall(r"^RestrictAddressFamilies=(.*)$", UNIT.read_text(), re.MULTILINE)
    program = only_families(getattr(socket, name) for name in line.split())
    ring, port = free_ports(2)
    log = tmp_path / "log"
    with log.open("wb") as said:
        member = subprocess.Popen(
            [
                *command("qpidd"), "--cluster-name", "confined", "--cluster-size", "1",
                "--cluster-bind", f"{HOST}:{ring}", "--cluster-nodes", f"{HOST}:{ring}",
                "--port", str(port), "--data-dir", str(tmp_path / "data"),
            ],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            preexec_fn=lambda: confine(program),
        )  # fmt: skip
    try:
        wait_until(
            lambda: "READY, was" in log.read_text() or member.poll() is not None, START_S, "READY"
        )
        assert member.poll() is None, log.read_text()
    finally:
        member.kill()
        member.wait()


def test_a_family_that_the_unit_does_not_name_is_refused() -> None:
    """This shows that the test above would notice."""
    code = "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"
    tried = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code],
        check=False, capture_output=True, text=True,
        preexec_fn=lambda: confine(only_families([socket.AF_INET, socket.AF_UNIX])),
    )  # fmt: skip
    assert tried.returncode == 1
    assert f"[Errno {errno.EAFNOSUPPORT}]" in tried.stderr
