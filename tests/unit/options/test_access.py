"""Options of logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.access.auth_server import ABOUT
from broker.options.access import DEFAULTS, AccessOptions, HttpAuthOptions, read_access_options
from broker.options.values import OptionError


def test_guest_may_log_in_only_locally_by_default() -> None:
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
        Path("/etc/users"), Path("/etc/acl"), None,
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
        ("auth-backends", "http"),
        ("auth-http-user-path", "http://localhost/user"),
        ("auth-http-method", "post"),
        ("auth-http-ca", "x"),
        ("auth-cache-seconds", "1"),
    ],
)
def test_contradictory_options_are_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_access_options({**DEFAULTS, name: value})
    assert refused.value.option == name


SERVER = {
    "auth-backends": "internal, HTTP",
    **{f"auth-http-{about}-path": f"http://localhost:8000/{about}" for about in ABOUT},
}


def test_an_authentication_server_has_four_urls() -> None:
    found = read_access_options({**DEFAULTS, **SERVER})
    assert found.backends == ("internal", "http")
    urls = {about: f"http://localhost:8000/{about}" for about in ABOUT}
    assert found.http == HttpAuthOptions(urls, "get", None, 15)
    more = {
        "auth-http-method": "POST", "auth-cache-seconds": "0", "auth-http-ca": "/etc/ca.pem",
        "auth-http-user-path": "https://[::1]/user",
    }  # fmt: skip
    found = read_access_options({**DEFAULTS, **SERVER, **more})
    urls["user"] = more["auth-http-user-path"]
    assert found.http == HttpAuthOptions(urls, "post", Path("/etc/ca.pem"), 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("auth-http-topic-path", "", "give --auth-http-topic-path, too"),
        ("auth-http-user-path", "localhost:8000", "is not of the form http://HOST"),
        ("auth-http-user-path", "ftp://localhost/user", "is not of the form http://HOST"),
        ("auth-http-user-path", "http:///user", "is not of the form http://HOST"),
        ("auth-http-user-path", "http://a:x/user", "is not of the form http://HOST"),
        ("auth-http-user-path", "http://a/user?by=qpidd", "is not of the form http://HOST"),
        ("auth-http-user-path", "http://a/us er", "is not of the form http://HOST"),
        ("auth-http-user-path", "http://me:topsecret@a/user", "would be in logs"),
        ("auth-http-method", "put", "is not one of get, post"),
        ("auth-http-ca", "/etc/ca.pem", "no URL of --auth-http-... begins with https://"),
        ("auth-cache-seconds", "3601", "is not a whole number from 0 to 3600"),
        ("acl-file", "/etc/acl", "says who may do what; drop one of them"),
    ],
)
def test_an_invalid_authentication_server_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as refused:
        read_access_options({**DEFAULTS, **SERVER, name: value})
    assert "topsecret" not in refused.value.reason
