"""The first administrator of a new cluster: exactly one, with a random password.

The first member of the first view defines the user `admin`. It writes the password to a file of
mode 600 before it orders the user, so that no crash in between leaves a user whose password nobody
knows. The password is shown once on a terminal, and never logged. The machine accepts one first
administrator in the life of a cluster, from any member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from pathlib import Path

from broker.admin.definitions import Definitions
from broker.machine.commands import Table
from broker.machine.handlers.definitions import CONFLICT, FIRST_ADMINISTRATOR
from broker.replication.controller import Controller
from store.files.durable_files import sync_directory

USER, FILE = "admin", "administrator"
PASSWORD_BYTES = 15
LOOK_S = 0.25

log = logging.getLogger("qpidd")


async def see_to_it(
    controller: Controller, definitions: Definitions, data_dir: Path, *, kept: bool
) -> None:
    """Define the first administrator unless one exists; return when there is one.

    `kept`: the data directory outlives the member.
    """
    path, me = data_dir / FILE, controller.me.name
    while True:
        parameters = controller.replica.machine.definitions["global_parameter"]
        first = parameters.get(("", FIRST_ADMINISTRATOR))
        holders = controller.primary.caught_up_names - controller.primary.mark.without_data
        if controller.serving and first is not None:
            if first["value"] != (USER, me):
                await asyncio.to_thread(path.unlink, missing_ok=True)
            return
        if controller.serving and me == min(holders, default=me):
            password = await asyncio.to_thread(password_in, path)
            body: Table = {"password": password, "tags": "administrator", "first": True}
            outcome = await definitions.define("user", "", USER, body, by=me)
            if outcome.good:
                log.warning(
                    "this new cluster has an administrator '%s'; its password is in %s%s", USER,
                    path, "" if kept else ", which is gone with this broker",
                )  # fmt: skip
                await asyncio.to_thread(_show, password)
            if outcome.code == CONFLICT:
                await asyncio.to_thread(path.unlink, missing_ok=True)
                return
        await asyncio.sleep(LOOK_S)


def _show(password: str) -> None:
    """Show the password on a terminal only: where standard error is a file, that is a log."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"qpidd: user {USER}, password {password} (shown once)\n")
            sys.stderr.flush()


def password_in(path: Path) -> str:
    """Return the password in the file; creates the file with a new password if it is missing."""
    with contextlib.suppress(FileNotFoundError, IndexError):
        return path.read_text(encoding="utf-8").split()[3]
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"user {USER} password {password}\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return password
