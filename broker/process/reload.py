"""SIGHUP: reads the options again, on a thread, and puts changeable ones in force.

One log line names the changes, and one names those that need a restart. A faulty options file
changes nothing; a faulty file of TLS or users leaves those settings as they were. An arbitrator,
which serves no clients, takes only the settings of its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.access.acl_file import Acl
from broker.access.backends import FileUser
from broker.listener.client_listener import AccessFileError, ClientListener, acl_in, users_in
from broker.listener.tls import ServerTls, TlsFileError, server_tls
from broker.options.broker import BrokerOptions
from broker.options.values import SECRET_OPTIONS
from broker.service.hang_up import on_hang_up as on_hang_up
from broker.service.messages import LogFileError, Messages

log = logging.getLogger("qpidd")


RELOADED = frozenset(
    (
        "disk-free-limit", "memory-limit",
        "auth-file", "acl-file",
        "log-level", "log-file", "log-format",
        "tls-cert", "tls-key", "tls-ca", "tls-verify",
        "max-connections", "connection-limit-per-ip", "max-negotiating", "max-negotiate-time",
    )
)  # fmt: skip
NOTHING = (
    "nothing; only the --config file is read again, and the command line and the environment "
    "take precedence until a restart"
)
"""Logged for a signal without effect: its sender usually changed something that is not read."""
OF_ACCESS = frozenset(("auth-file", "acl-file"))
OF_LOGS = frozenset(("log-level", "log-file", "log-format"))
OF_TLS = frozenset(("tls-cert", "tls-key", "tls-ca", "tls-verify"))


class Bounded(Protocol):
    """The member, as far as options reach it."""

    def set_limits(self, options: BrokerOptions) -> None:
        """Use other limits from here on."""


class Serving(NamedTuple):
    """The parts of a member that serves clients."""

    member: Bounded
    listener: ClientListener


class _Read(NamedTuple):
    """The thread's results."""

    options: BrokerOptions
    tls: ServerTls | None
    tls_error: str
    access: tuple[Mapping[str, FileUser], Acl | None] | None
    access_error: str
    switch_log: Callable[[], None] | None
    log_error: str


class Reload:
    """The options in force, and their replacement."""

    def __init__(
        self,
        options: BrokerOptions,
        reread: Callable[[], BrokerOptions],
        loop: asyncio.AbstractEventLoop,
        serving: Serving | None,
        messages: Messages,
    ) -> None:
        self._in_force = dict(options.text)
        self._reread, self._loop = reread, loop
        self._serving, self._messages = serving, messages
        self._under_way = self._again = False
        self.not_taken = ""
        """What the latest SIGHUP did not put in force, and why."""

    def begin(self) -> None:
        """The signal came."""
        if self._under_way:
            self._again = True
            return
        self._under_way = True
        self._loop.run_in_executor(None, self._read).add_done_callback(self._take)

    def _read(self) -> _Read:
        """On a thread: options, certificates, users and the log file."""
        options = self._reread()
        tls, tls_error, switch, log_error = None, "", None, ""
        access, access_error = None, ""
        serving = self._serving
        if serving is not None and options.tls is not None and serving.listener.tls is not None:
            try:
                tls = server_tls(options.tls)
            except TlsFileError as error:
                tls_error = str(error)
        if serving is not None:
            try:
                access = users_in(options.access.user_file), acl_in(options.access.acl_file)
            except AccessFileError as error:
                access_error = str(error)
        try:
            switch = self._messages.reopen(options.log)
        except LogFileError as error:
            log_error = str(error)
        return _Read(options, tls, tls_error, access, access_error, switch, log_error)

    def _take(self, done: asyncio.Future[_Read]) -> None:
        """On the loop."""
        self._under_way = False
        if error := done.exception():
            self.not_taken = str(error)
            log.error("SIGHUP: everything stays as it is: %s", error)
        else:
            self._put_in_force(done.result())
        if self._again:
            self._again = False
            self.begin()

    def _put_in_force(self, read: _Read) -> None:
        options, without, started = read.options, frozenset[str](), frozenset[str]()
        if read.tls is None:
            without |= OF_TLS
        if read.access is None:
            without |= OF_ACCESS
        if read.switch_log is None:
            without |= OF_LOGS
        else:
            read.switch_log()
        if self._serving is None:
            without |= RELOADED - OF_LOGS
        else:
            member, listener = self._serving
            if read.tls is not None:
                listener.tls = read.tls
            if (options.tls is None) is not (listener.tls is None):
                started = OF_TLS
            if read.access is not None:
                listener.backends.replace(*read.access)
                _tell_of_access(options, *read.access)
            listener.limits.limits = options.clients
            member.set_limits(options)
        found = changes(self._in_force, options.text, without=without, started=started)
        self._in_force.update({name: options.text[name] for name in found.names})
        log.info("SIGHUP: read again; changed: %s", "; ".join(found.taken) or NOTHING)
        if read.tls is not None:
            log.info("SIGHUP: TLS of new connections: %s", read.tls.describe())
            if read.tls.warning:
                log.warning("SIGHUP: TLS: %s", read.tls.warning)
        if options.log.file is not None and read.switch_log is not None:
            log.info("SIGHUP: the log continues here")
        problems = [*filter(None, (read.tls_error, read.access_error, read.log_error))]
        self.not_taken = "; ".join(problems)
        for problem in problems:
            log.error("SIGHUP: what was in force stays: %s", problem)
        if found.restart:
            log.warning("SIGHUP: only a restart changes: %s", "; ".join(found.restart))


def _tell_of_access(options: BrokerOptions, users: Mapping[str, FileUser], acl: Acl | None) -> None:
    if options.access.user_file is not None:
        log.info("SIGHUP: users in %s: %d", options.access.user_file, len(users))
    if acl is not None:
        log.info("SIGHUP: rules in %s: %d", options.access.acl_file, len(acl))


class Changes(NamedTuple):
    """Options whose text differs, as parts of sentences: `log-level info -> debug`."""

    names: tuple[str, ...]
    """Names of the options that take effect."""
    taken: tuple[str, ...]
    restart: tuple[str, ...]


def changes(
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    without: frozenset[str],
    started: frozenset[str] = frozenset(),
) -> Changes:
    """Compare the options; `without` names reloadable ones that cannot take effect this time, and
    `started` those of a port that only a start opens or closes."""
    differ = [name for name in after if after[name] != before.get(name, "")]
    taken = [name for name in differ if name in RELOADED - without - started]
    restart = [name for name in differ if name not in RELOADED - started]
    return Changes(
        tuple(taken),
        tuple(_change(name, before, after) for name in taken),
        tuple(_change(name, before, after) for name in restart),
    )


def _change(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if name in SECRET_OPTIONS:
        return name
    return f"{name} {before.get(name) or '(none)'} -> {after[name] or '(none)'}"
