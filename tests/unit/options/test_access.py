"""The options of logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.options.access import DEFAULTS, AccessOptions, read_access_options
from broker.options.values import OptionError


def test_guest_comes_from_this_machine_only_unless_told_otherwise() -> None:
    assert read_access_options(DEFAULTS) == AccessOptions()
    given = {
        "loopback-users": "guest, test",
        "cert-login-from": "common_name",
        "anonymous-user": "nobody",
        "auth-backends": "FILE, internal",
        "auth-file": "/etc/users",
        "acl-file": "/etc/acl",
    }
    assert read_access_options({**DEFAULTS, **given}) == (
        frozenset(("guest", "test")), "common-name", "nobody", ("file", "internal"),
        Path("/etc/users"), Path("/etc/acl"),
    )  # fmt: skip
    assert not read_access_options({**DEFAULTS, "loopback-users": "none"}).loopback_users


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loopback-users", ","),
        ("cert-login-from", "face"),
        ("auth-backends", "ldap"),
        ("auth-backends", "file"),
        ("auth-backends", "internal,internal"),
        ("auth-file", "x"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError):
        read_access_options({**DEFAULTS, name: value})
