"""Texts that are no number, and no name of a host."""

from __future__ import annotations

import pytest

from broker.options.broker import broker_options
from broker.options.modes.active_passive import ActivePassiveOptions
from broker.options.values import OptionError


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("port", "1" * 5000), ("memory-limit", "1" * 400), ("max-message-size", "1" * 400),
        ("cluster-url", "amqp:a:65536"), ("management-interface", "a b"),
        ("memory-limit", "1.0"), ("memory-limit", "100%"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_number_or_no_name_is_refused_as_such(option: str, text: str) -> None:
    with pytest.raises(OptionError) as refused:
        broker_options({option: text})
    assert refused.value.option == option


def test_a_key_needs_a_member_with_a_fixed_address() -> None:
    keys = {"cluster-key": "/k", "cluster-allow": "/a"}
    given = {"cluster-name": "shop", "data-dir": "/var/tmp/x", **keys}
    with pytest.raises(OptionError, match="the ring port must be fixed"):
        broker_options({**given, "cluster-bind": "127.0.0.1:0"})
    assert broker_options(given).security.mechanism == "CURVE"


def test_units_of_bounds_and_times() -> None:
    assert broker_options({"disk-backlog-max": "9"}).bounds.backlog_bytes == 9 << 20
    given = {"cluster-name": "shop", "no-data-dir": "yes", "ha-cluster": "yes"}
    for text, seconds in (("250ms", 0.25), ("2", 2.0), ("1.5s", 1.5)):
        mode = broker_options({**given, "ha-backup-timeout": text}).mode
        assert isinstance(mode, ActivePassiveOptions)
        assert mode.backup_timeout_s == seconds
