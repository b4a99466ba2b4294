"""Where the management API listens, by the operator's options."""

from __future__ import annotations

import pytest

from broker.options.management import DEFAULTS, ManagementOptions, read_management_options
from broker.options.values import OptionError


def read(**given: str) -> ManagementOptions:
    text = {**DEFAULTS, "tls-cert": "", **{name.replace("_", "-"): v for name, v in given.items()}}
    return read_management_options(text, "127.0.0.1", 5672)


def test_the_default_is_a_port_next_to_the_clients_without_tls() -> None:
    found = read()
    assert (found.interface, found.port, found.chosen) == ("127.0.0.1", 15672, False)
    assert (found.tls_port, found.prometheus) == (None, None)


def test_over_tls_only() -> None:
    found = read(management_port="off", management_tls_port="15671", tls_cert="server.pem")
    assert (found.port, found.tls_port) == (None, 15671)


@pytest.mark.parametrize(
    ("given", "option", "why"),
    [
        ({"management_tls_port": "15671"}, "management-tls-port", "needs a certificate"),
        ({"management_tls_port": "15672", "tls_cert": "c"}, "management-tls-port", "taken by"),
        ({"management_tls_port": "x", "tls_cert": "c"}, "management-tls-port", "x"),
        ({"management_port": "5672"}, "management-port", "client port"),
        ({"prometheus_port": "15672"}, "prometheus-port", "taken by"),
        ({"management_interface": "a b"}, "management-interface", "not a host name"),
    ],
)
def test_an_impossible_value_is_reported_with_its_option(
    given: dict[str, str], option: str, why: str
) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        read(**given)
    assert refused.value.option == option
