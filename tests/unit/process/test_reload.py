"""SIGHUP: which options it reloads, which need a restart, and what is logged."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from broker.access import passwords
from broker.listener.client_listener import ClientListener
from broker.options.broker import BrokerOptions, broker_options
from broker.options.logs import LogOptions
from broker.options.table import DEFAULTS
from broker.process.reload import OF_LOGS, OF_TLS, RELOADED, Reload, Serving, changes
from broker.service.messages import LogFileError, Messages
from tests.support.certificates import Authority


def test_every_reloaded_option_exists() -> None:
    assert DEFAULTS.keys() >= RELOADED >= OF_TLS | OF_LOGS


def test_which_changes_are_reloaded() -> None:
    before = broker_options({}).text
    after = broker_options({"log-level": "debug", "port": "1", "memory-limit": "0.5"}).text
    found = changes(before, after, without=frozenset())
    assert set(found.names) == {"log-level", "memory-limit"}
    assert "log-level info -> debug" in found.taken
    assert found.restart == ("port 5672 -> 1",)


def test_unreadable_files_are_not_reloaded() -> None:
    before = broker_options({}).text
    after = broker_options({"log-level": "debug"}).text
    assert changes(before, after, without=OF_LOGS) == ((), (), ())


def test_secrets_are_named_and_not_shown() -> None:
    given = {"cluster-name": "c", "no-data-dir": "yes", "cluster-username": "u"}
    before = broker_options(given | {"cluster-password": "geheim"}).text
    after = broker_options(given | {"cluster-password": "streng"}).text
    found = changes(before, after, without=frozenset())
    assert found.restart == ("cluster-password",)
    assert "geheim" not in repr(before)


class _Messages:
    """A log whose file has not moved."""

    def reopen(self, _options: LogOptions) -> Callable[[], None]:
        return lambda: None


class _Member:
    """Takes any limits."""

    def set_limits(self, options: BrokerOptions) -> None:
        """Nothing is limited here."""


def test_the_user_file_is_reread_and_a_mistake_keeps_the_old_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "qpidd")
    file = tmp_path / "users"
    file.touch(0o600)
    options = broker_options({"auth-backends": "file", "auth-file": str(file)})
    loop = asyncio.new_event_loop()
    try:
        listener = ClientListener(options.clients, loop)
        listener.begin_access(options.access)
        serving = Serving(_Member(), listener)
        messages = cast("Messages", _Messages())
        reload = Reload(options, lambda: options, loop, serving, messages)
        hashed = passwords.hashed("secret", b"salt")
        for text, users in (
            (f"ada:{hashed}", ["ada"]),
            ("ada", ["ada"]),
            (f"eve:{hashed}", ["eve"]),
        ):
            file.write_text(text)
            before = listener.backends.version
            reload._put_in_force(reload._read())
            assert list(listener.backends.users) == users
            assert (listener.backends.version == before) is (text == "ada")
            assert (f"--auth-file {file}: line 1" in reload.not_taken) is (text == "ada")
        assert caplog.messages.count(f"SIGHUP: users in {file}: 1") == 2
        (problem,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert problem.startswith(f"SIGHUP: what was in force stays: --auth-file {file}: line 1")
    finally:
        loop.close()


def test_switching_tls_on_or_off_is_named_as_in_need_of_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The port for TLS is opened at a start; the log must not say that nothing changed."""
    files = Authority(tmp_path / "pki").issue("server", "localhost")
    caplog.set_level("INFO", "qpidd")
    without = broker_options({})
    over_tls = {"tls-cert": str(files.certificate), "tls-key": str(files.key)}
    with_tls = broker_options(over_tls)
    loop = asyncio.new_event_loop()
    try:
        for before, after, said in (
            (without, with_tls, f"tls-cert (none) -> {files.certificate}"),
            (with_tls, without, f"tls-cert {files.certificate} -> (none)"),
        ):
            listener = ClientListener(before.clients, loop)
            if before.tls is not None:
                listener.begin_tls(before.tls)
            serving = Serving(_Member(), listener)
            messages = cast("Messages", _Messages())
            reload = Reload(before, lambda after=after: after, loop, serving, messages)  # type: ignore[misc]
            for _ in range(2):  # as long as it is not restarted
                caplog.clear()
                reload._put_in_force(reload._read())
                assert f"SIGHUP: only a restart changes: {said}" in caplog.text
            assert (listener.tls is None) is (before.tls is None)
    finally:
        loop.close()


def test_changes_to_unread_files_are_answered_with_what_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker started with options only has no file: the signal changes nothing."""
    caplog.set_level("INFO", "qpidd")
    loop = asyncio.new_event_loop()
    try:
        for text, said in (
            ({}, "changed: nothing; only the --config file is read again, and the command line"),
            ({"log-level": "debug"}, "changed: log-level info -> debug"),
        ):
            after = broker_options(text)
            messages = cast("Messages", _Messages())
            reload = Reload(broker_options({}), lambda after=after: after, loop, None, messages)  # type: ignore[misc]
            caplog.clear()
            reload._put_in_force(reload._read())
            assert f"SIGHUP: read again; {said}" in caplog.text
    finally:
        loop.close()


class _Limited:
    """Notes the options whose limits it was given."""

    def __init__(self) -> None:
        self.given: list[BrokerOptions] = []

    def set_limits(self, options: BrokerOptions) -> None:
        """Use them."""
        self.given.append(options)


class _LostLog:
    """A log whose file cannot be opened again."""

    def reopen(self, _options: LogOptions) -> Callable[[], None]:
        raise LogFileError("--log-file: gone")


def test_limits_are_in_force_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "qpidd")
    before = broker_options({})
    after = broker_options({"max-connections": "7", "memory-limit": "0.5", "log-level": "debug"})
    loop = asyncio.new_event_loop()
    try:
        member, listener = _Limited(), ClientListener(before.clients, loop)
        lost = cast("Messages", _LostLog())
        reload = Reload(before, lambda: after, loop, Serving(member, listener), lost)
        for first in (True, False):
            caplog.clear()
            reload._put_in_force(reload._read())
            assert ("max-connections" in caplog.text) is first
            assert ("changed: nothing" in caplog.text) is not first
            assert "log-level info -> debug" not in caplog.text
            assert reload.not_taken == "--log-file: gone"
        assert member.given == [after, after]
        assert listener.limits.limits == after.clients
    finally:
        loop.close()


def test_signals_while_the_options_are_read_lead_to_one_more_reading() -> None:
    """The file may have changed after it was read."""
    options = broker_options({})
    loop = asyncio.new_event_loop()
    try:
        reading: list[asyncio.Future[object]] = []

        def run_in_executor(_executor: None, _call: object) -> asyncio.Future[object]:
            reading.append(loop.create_future())
            return reading[-1]

        loop.run_in_executor = run_in_executor  # type: ignore[method-assign,assignment]
        reload = Reload(options, lambda: options, loop, None, cast("Messages", _Messages()))
        for _ in range(3):
            reload.begin()
        assert len(reading) == 1
        for count in (2, 2):
            reading[-1].set_exception(ValueError("line 1: a mistake"))
            loop.run_until_complete(asyncio.sleep(0))
            assert len(reading) == count
        assert reload.not_taken == "line 1: a mistake"
    finally:
        loop.close()


def test_an_arbitrator_takes_the_settings_of_its_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "qpidd")
    after = broker_options({"max-connections": "7", "log-level": "debug"})
    loop = asyncio.new_event_loop()
    try:
        messages = cast("Messages", _Messages())
        reload = Reload(broker_options({}), lambda: after, loop, None, messages)
        reload._put_in_force(reload._read())
        assert "changed: log-level info -> debug" in caplog.text
        assert "max-connections" not in caplog.text
    finally:
        loop.close()


def test_new_certificates_are_used_and_faulty_rules_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Authority(tmp_path / "pki").issue("server", "localhost")
    over_tls = {"tls-cert": str(files.certificate), "tls-key": str(files.key)}
    before = broker_options(over_tls)
    after = broker_options(over_tls | {"acl-file": str(tmp_path / "none")})
    caplog.set_level("INFO", "qpidd")
    loop = asyncio.new_event_loop()
    try:
        listener = ClientListener(before.clients, loop)
        assert before.tls is not None
        listener.begin_tls(before.tls)
        old = listener.tls
        messages = cast("Messages", _Messages())
        reload = Reload(before, lambda: after, loop, Serving(_Member(), listener), messages)
        reload._put_in_force(reload._read())
        assert listener.tls is not old
        assert "acl-file (none) ->" not in caplog.text
        assert "No such file" in reload.not_taken
    finally:
        loop.close()
