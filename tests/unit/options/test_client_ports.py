"""Options of client connections."""

import pytest

from broker.options.broker import broker_options
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


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("tls-port", {"tls-port": "5672"}),
        ("tls-port", {"port": "5671"}),
        ("management-port", {"management-port": "5671"}),
        ("management-port", {"management-port": "5672"}),
        ("management-tls-port", {"management-tls-port": "5671"}),
        ("management-tls-port", {"management-tls-port": "15672"}),
        ("prometheus-port", {"prometheus-port": "5671"}),
    ],
)
def test_one_port_is_not_given_to_two_services(option: str, given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"take another one|taken by another option") as refused:
        broker_options({"tls-cert": "/c.pem", **given})
    assert refused.value.option == option
    assert broker_options({"tls-cert": "/c.pem", "port": "0", "tls-port": "0"}).port == 0
