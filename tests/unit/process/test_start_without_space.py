"""A disk that fills up between the check for space and the first line of the member log."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from broker.durability.data_directory import DataDirectory
from broker.exit_codes import Exit
from broker.memberlog.writer import LogWriteFailed, MemberLogWriter
from broker.options.broker import broker_options
from broker.process import server
from store.errors import MEND, broken


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, Exit.FULL, "No space left on device: free space there"),
        (errno.EDQUOT, Exit.FULL, "Disk quota exceeded: free space there"),
        (errno.EACCES, Exit.CANNOT_CREATE, "Permission denied"),
        (errno.EROFS, Exit.IO_ERROR, re.escape(f"Read-only file system (EROFS); {MEND}")),
        (errno.EIO, Exit.IO_ERROR, re.escape(f"Input/output error (EIO); {MEND}")),
    ],
)
def test_the_exit_code_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, code: Exit, said: str
) -> None:
    def member(*_: object) -> None:
        raise LogWriteFailed(f"DIR: {os.strerror(number)}", number)

    monkeypatch.setattr(server, "BrokerMember", member)
    nothing: Any = None
    with pytest.raises(server._Refused, match=f"DIR: {said}$") as refused:
        server._member(nothing, nothing, nothing, nothing, "", nothing)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, Exit.IO_ERROR),
        (errno.EROFS, Exit.IO_ERROR),
        (errno.ENOSPC, Exit.FULL),
        (errno.EACCES, Exit.CANNOT_CREATE),
    ],
)
def test_any_file_of_the_data_directory_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch, number: int, code: Exit
) -> None:
    """Of evidence, say. (It was a traceback, and code 70.)"""

    def member(*_: object) -> None:
        raise OSError(number, os.strerror(number), "DIR/evidence")

    monkeypatch.setattr(server, "BrokerMember", member)
    nothing: Any = None
    with pytest.raises(server._Refused, match=f"DIR/evidence.*{os.strerror(number)}") as refused:
        server._member(nothing, nothing, nothing, nothing, "", nothing)
    assert refused.value.code == code


def test_an_error_of_something_else_is_not_the_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    def member(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(server, "BrokerMember", member)
    nothing: Any = None
    with pytest.raises(OSError, match="Too many open files"):
        server._member(nothing, nothing, nothing, nothing, "", nothing)


def test_the_log_has_the_systems_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(LogWriteFailed) as failed:
        MemberLogWriter(tmp_path, "shop", "id", "a", 1, lambda: 0)
    assert failed.value.no_space


def test_a_full_disk_is_told_apart_from_a_wrong_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the data directory itself: the sample unit does not retry it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    options = broker_options({"data-dir": str(tmp_path / "new")})
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(server._Refused) as refused, server._opening():
        DataDirectory(options)
    assert refused.value.code is Exit.IO_ERROR
    assert refused.value.reason.endswith(f"(EROFS); {MEND}")
    with pytest.raises(server._Refused) as refused, server._opening():
        raise broken("DIR", errno.EIO)
    assert refused.value.code is Exit.IO_ERROR
