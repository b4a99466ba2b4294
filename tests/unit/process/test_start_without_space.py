"""A disk that becomes full between the look at its space and the first line of the member log."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from broker.exit_codes import Exit
from broker.memberlog.writer import LogWriteFailed, MemberLogWriter
from broker.process import server


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, Exit.FULL, "No space left on device: free space there"),
        (errno.EDQUOT, Exit.FULL, "Disk quota exceeded: free space there"),
        (errno.EACCES, Exit.CANNOT_CREATE, "Permission denied"),
    ],
)
def test_the_code_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, code: Exit, said: str
) -> None:
    def member(*_: object) -> None:
        raise LogWriteFailed(f"DIR: {os.strerror(number)}", number)

    monkeypatch.setattr(server, "BrokerMember", member)
    nothing: Any = None
    with pytest.raises(server._Refused, match=f"DIR: {said}$") as refused:
        server._member(nothing, nothing, nothing, nothing, "", nothing)
    assert refused.value.code == code


def test_the_log_says_what_the_system_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(LogWriteFailed) as failed:
        MemberLogWriter(tmp_path, "shop", "id", "a", 1, lambda: 0)
    assert failed.value.no_space
