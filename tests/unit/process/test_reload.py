"""What SIGHUP takes, what needs a restart, and what is shown of it."""

from broker.options.broker import DEFAULTS, broker_options
from broker.process.reload import OF_LOGS, OF_TLS, RELOADED, changes


def test_every_reloaded_option_exists() -> None:
    assert DEFAULTS.keys() >= RELOADED >= OF_TLS | OF_LOGS


def test_what_is_taken_and_what_is_not() -> None:
    before = broker_options({}).text
    after = broker_options({"log-level": "debug", "port": "1", "memory-limit": "0.5"}).text
    found = changes(before, after, without=frozenset())
    assert set(found.names) == {"log-level", "memory-limit"}
    assert "log-level info -> debug" in found.taken
    assert found.restart == ("port 5672 -> 1",)


def test_what_could_not_be_read_is_not_taken() -> None:
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
