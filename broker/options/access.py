"""The options of logins: where users are looked up, and which logins are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from broker.options.values import Kind, Option, OptionError, choice, defaults_of, number

OPTIONS: Mapping[str, Option] = {
    "loopback-users": Option("guest", "USER,...",
        "Users who may log in from this machine only; none: every user may log in from anywhere. "
        "Default: guest, whose password is public."),
    "cert-login-from": Option("distinguished-name", "WHICH",
        "With the mechanism EXTERNAL: which name in a client's verified certificate becomes the "
        "user name: distinguished-name (default), common-name, or the first alternative name of a "
        "kind: dns, email, uri."),
    "anonymous-user": Option("", "NAME",
        "Accept clients without a user name (mechanism ANONYMOUS) as this user, from where this "
        "user may log in. Default: refuse them."),
    "auth-backends": Option("internal", "LIST",
        "Where to look users up, in this order: internal (the cluster's definitions), file, http "
        "(ask a server). Default: internal.", Kind.ALIKE),
    "auth-file": Option("", "FILE",
        "The users of the backend file, one NAME:HASH:TAG,TAG a line. Read again at SIGHUP."),
    "acl-file": Option("", "FILE",
        "Qpid's rules (acl allow|deny USER ACTION OBJECT ...), which replace the cluster's "
        "permissions for clients of this member. Read again at SIGHUP."),
    "auth-http-user-path": Option("", "URL",
        "For the backend http, like RabbitMQ's auth_http.user_path: the server's URL that answers "
        "'allow' (and tags) or 'deny' for a user name and password."),
    "auth-http-vhost-path": Option("", "URL",
        "The URL that answers the same for a user who enters a virtual host."),
    "auth-http-resource-path": Option("", "URL",
        "The URL that answers the same for a permission (configure, write, read) on a queue or "
        "exchange."),
    "auth-http-topic-path": Option("", "URL",
        "The URL that answers the same for a routing key of a topic exchange. All four URLs are "
        "required."),
    "auth-http-method": Option("get", "get|post",
        "HTTP method of these requests. With get the password is part of the URL, and so in the "
        "server's logs. Default get, as in RabbitMQ."),
    "auth-http-ca": Option("", "FILE",
        "For https: the certificates (PEM) of the authorities that may sign the server's "
        "certificate. Default: those that this machine trusts."),
    "auth-cache-seconds": Option("15", "N",
        "How long to remember what the server allowed; 0: ask each time. Logins and refusals are "
        "never remembered. Default 15."),
}  # fmt: skip
DEFAULTS = defaults_of(OPTIONS)
BACKENDS = ("internal", "file", "http")
METHODS = ("get", "post")
CACHE_SECONDS_MAX = 3600
URL_CHARACTERS_MAX = 2000
_PATHS = tuple(name for name in DEFAULTS if name.endswith("-path"))
_OF_HTTP = tuple(name for name in DEFAULTS if name.startswith(("auth-http-", "auth-cache-")))
SOURCES = ("distinguished-name", "common-name", "dns", "email", "uri")


class HttpAuthOptions(NamedTuple):
    """The server that is asked about users."""

    urls: Mapping[str, str]
    """The URL for each kind of question: user, vhost, resource, topic."""
    method: str
    """One of METHODS."""
    ca: Path | None
    """PEM: the authorities for the server's certificate; None: those that this machine trusts."""
    cache_s: int
    """How long the server's permission is kept; 0: the server is asked each time."""


class AccessOptions(NamedTuple):
    """How clients of this member log in."""

    loopback_users: frozenset[str] = frozenset(("guest",))
    """The users that may log in from this machine only."""
    cert_login_from: str = SOURCES[0]
    """The name in a verified certificate that is the user, with EXTERNAL: one of SOURCES."""
    anonymous_user: str = ""
    """The user of clients that name none, with ANONYMOUS; empty: they are refused."""
    backends: tuple[str, ...] = ("internal",)
    """The back ends where users are looked up, in this order: some of BACKENDS."""
    user_file: Path | None = None
    """The users of the back end `file`."""
    acl_file: Path | None = None
    """Qpid's rules, in place of permissions."""
    http: HttpAuthOptions | None = None
    """The server of the back end `http`."""


def read_access_options(text: Mapping[str, str]) -> AccessOptions:
    """Read the options.  Raises OptionError."""
    given = text["loopback-users"]
    users = [user.strip() for user in given.split(",")] if given.lower() != "none" else []
    if not all(users):
        raise OptionError("loopback-users", f"'{given}' is no list of users, as guest,test is")
    source = text["cert-login-from"].lower().replace("_", "-")
    if source not in SOURCES:
        raise OptionError("cert-login-from", f"'{source}' is none of {', '.join(SOURCES)}")
    backends, file = _backends(text["auth-backends"]), text["auth-file"]
    if file and "file" not in backends:
        raise OptionError("auth-file", "nobody looks there: name file in --auth-backends, too")
    if "file" in backends and not file:
        raise OptionError("auth-backends", "file needs the file of users: give --auth-file")
    user_file, acl_file = (
        Path(text[name]).expanduser().absolute() if text[name] else None
        for name in ("auth-file", "acl-file")
    )
    http = _http_options(text, backends)
    if http is not None and text["acl-file"]:
        raise OptionError(
            "acl-file", "the server of --auth-backends http says who may do what; drop one of them"
        )
    anonymous = text["anonymous-user"]
    return AccessOptions(frozenset(users), source, anonymous, backends, user_file, acl_file, http)


def _http_options(text: Mapping[str, str], backends: tuple[str, ...]) -> HttpAuthOptions | None:
    if "http" not in backends:
        for name in _OF_HTTP:
            if text[name] != DEFAULTS[name]:
                raise OptionError(name, "no server is asked: name http in --auth-backends, too")
        return None
    missing = [f"--{name}" for name in _PATHS if not text[name]]
    if missing:
        raise OptionError("auth-backends", f"http needs four URLs: give {', '.join(missing)}, too")
    urls = {name.removeprefix("auth-http-").removesuffix("-path"): _url(name, text[name])
            for name in _PATHS}  # fmt: skip
    ca = text["auth-http-ca"]
    if ca and not any(url.startswith("https:") for url in urls.values()):
        raise OptionError("auth-http-ca", "no URL of --auth-http-... begins with https://")
    return HttpAuthOptions(
        urls,
        choice("auth-http-method", text["auth-http-method"].lower(), METHODS),
        Path(ca).expanduser().absolute() if ca else None,
        number("auth-cache-seconds", text["auth-cache-seconds"], 0, CACHE_SECONDS_MAX),
    )


def _url(option: str, text: str) -> str:
    """A URL of the server; a password in it is not quoted."""
    try:
        found = urlsplit(text)
        good = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        good, found = False, urlsplit("")
    if "@" in found.netloc:
        raise OptionError(option, "a user or a password in it would be in logs; drop it")
    plain = text.isascii() and text.isprintable() and not any(one in text for one in " ?#")
    if not (good and plain) or len(text) > URL_CHARACTERS_MAX:
        raise OptionError(
            option, f"'{text[:200]}' is not of the form http://HOST[:PORT]/PATH, or https://..."
        )
    return text


def _backends(given: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in given.split(","))
    for name in names:
        if name not in BACKENDS:
            raise OptionError("auth-backends", f"'{name}' is none of {', '.join(BACKENDS)}")
    if len(set(names)) < len(names):
        raise OptionError("auth-backends", f"'{given}' names one twice")
    return names
