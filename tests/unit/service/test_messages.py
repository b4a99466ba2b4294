"""The log: a rotated file, JSON, and a full disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.options.logs import LogOptions
from broker.service.messages import LogFileError, Messages

log = logging.getLogger("qpidd.test")


@contextmanager
def logging_to(options: LogOptions) -> Iterator[Messages]:
    root = logging.getLogger()
    level = root.level
    messages = Messages(options)
    try:
        yield messages
    finally:
        messages.end(5.0)
        root.setLevel(level)


def test_json_is_one_object_per_line(tmp_path: Path) -> None:
    """Whatever the message contains, and including the exception."""
    path = tmp_path / "log"
    with logging_to(LogOptions("info", path, "json")) as messages:
        messages.prefix = lambda: "cluster(10.0.0.1:25672 READY) "
        log.info('a "quoted"\nline')
        try:
            raise ZeroDivisionError("why")
        except ZeroDivisionError:
            log.exception("it failed")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["message"] == 'a "quoted"\nline'
    assert (first["member"], first["state"]) == ("10.0.0.1:25672", "READY")
    assert (first["level"], first["logger"]) == ("info", "qpidd.test")
    assert first["time"].endswith("+00:00")
    assert "ZeroDivisionError: why" in second["message"] + second.get("exception", "")


def test_others_cannot_read_the_log(tmp_path: Path) -> None:
    """A first start logs the administrator's password."""
    path = tmp_path / "log"
    before = os.umask(0)
    try:
        with logging_to(LogOptions("info", path)):
            log.info("said")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_rotated_file(tmp_path: Path) -> None:
    """As by logrotate: earlier lines are in the old file, later ones in the new."""
    path = tmp_path / "log"
    options = LogOptions("info", path)
    with logging_to(options) as messages:
        log.info("before")
        moved = path.rename(tmp_path / "log.1")
        messages.reopen(options)()
        log.info("after")
    assert "before" in moved.read_text()
    assert "after" not in moved.read_text()
    assert path.read_text().endswith("qpidd.test: after\n")


def test_a_new_level_counts_from_the_switch_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(LogOptions("info", path)) as messages:
        log.debug("too early")
        switch = messages.reopen(LogOptions("debug", path))
        log.debug("not yet")
        switch()
        log.debug("in detail")
        messages.reopen(LogOptions("error", path))()
        log.warning("too little")
    assert [line.rpartition(": ")[2] for line in path.read_text().splitlines()] == ["in detail"]


def test_a_file_that_cannot_be_opened_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(LogOptions("info", path)) as messages:
        with pytest.raises(LogFileError, match=f"--log-file {tmp_path}: is a directory"):
            messages.reopen(LogOptions("info", tmp_path))
        log.info("still here")
    assert "still here" in path.read_text()


def test_a_full_disk_does_not_end_the_thread(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    path = tmp_path / "log"
    with logging_to(LogOptions("info", full)) as messages:
        log.info("lost")
        messages.reopen(LogOptions("info", path))()
        log.info("this stays")
    assert "this stays" in path.read_text()
