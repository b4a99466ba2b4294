"""Options of client connections."""

import pytest

from broker.options.client_ports import DEFAULTS, ClientLimits, read_client_limits
from broker.options.values import OptionError


def test_the_defaults() -> None:
    assert read_client_limits(DEFAULTS) == ClientLimits()


@pytest.mark.parametrize("text", ["0", "1", "65535"])
def test_the_heartbeat_is_a_number_of_seconds(text: str) -> None:
    assert read_client_limits({**DEFAULTS, "heartbeat": text}).heartbeat_s == int(text)


@pytest.mark.parametrize("text", ["-1", "65536", "1s", "2.5", ""])
def test_an_invalid_heartbeat_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_client_limits({**DEFAULTS, "heartbeat": text})
    assert refused.value.option == "heartbeat"
