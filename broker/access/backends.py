"""Back ends for logins: the cluster's definitions, a file, an HTTP server, and their order.

The operator sets the order. The first back end that accepts the credentials is the one whose tags
count, and a user it no longer knows is disconnected. What a user may do in a virtual host is
decided by the definitions, or by an ACL file in their place
(docs/decisions/0037-a-login-may-be-judged-beside-the-cluster.md); for a user that the server let
in, by the server (docs/decisions/0040-a-server-is-asked-over-http.md).

A file of users has one line for each, `NAME:HASH:TAG,TAG`. The hash has RabbitMQ's format, of
SHA-256 or SHA-512 by its length. Tags may be left out; empty lines, and lines that begin with #,
are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.access import passwords
from broker.access.acl_file import Acl
from broker.access.auth_server import Answer, AuthQuestion, AuthServer

INTERNAL, FILE, HTTP = "internal", "file", "http"
LINE_MAX, USERS_MAX = 1024, 20_000


class BadUserFile(Exception):
    """A file of users is unusable; the text names the line and what is wrong."""


class FileUser(NamedTuple):
    """One line."""

    password_hash: str
    algorithm: str
    tags: tuple[str, ...]


class Login(NamedTuple):
    """The result of a login."""

    backend: str = ""
    """The one that let the user in; empty: none did."""
    tags: tuple[str, ...] = ()
    """The user's rights beside AMQP."""


REFUSED = Login()


class ToAsk(NamedTuple):
    """A login that the server decides."""

    question: AuthQuestion
    otherwise: Login
    """The result if the server does not let the user in."""

    def decided(self, answer: Answer) -> Login:
        """Its final result."""
        return Login(HTTP, answer.tags) if answer.allowed else self.otherwise


class Backends:
    """The order, the users of the file, the server, and the ACL file that replaces permissions."""

    def __init__(
        self,
        order: tuple[str, ...] = (INTERNAL,),
        users: Mapping[str, FileUser] | None = None,
        acl: Acl | None = None,
        server: AuthServer | None = None,
    ) -> None:
        """`server` is there if `http` is in the order."""
        self.order = order
        self.users = users or {}
        self.acl = acl
        self.server = server
        self.version = 0
        """Changes whenever a file was read again."""

    def replace(self, users: Mapping[str, FileUser], acl: Acl | None = None) -> None:
        """The files were read again."""
        self.users, self.acl = users, acl
        self.version += 1
        if self.server is not None:
            self.server.forget()


def read_users(text: str) -> dict[str, FileUser]:
    """Return the users of a file. Raises BadUserFile; hashes are not quoted."""
    users: dict[str, FileUser] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, user = _user(number, line.strip())
            if name in users:
                raise BadUserFile(f"line {number}: user '{name}' has a line already; drop one")
            users[name] = user
    if len(users) > USERS_MAX:
        raise BadUserFile(f"it has {len(users)} users, more than {USERS_MAX}")
    return users


def _user(number: int, line: str) -> tuple[str, FileUser]:
    name, colon, rest = line.partition(":")
    password_hash, _, tags = rest.partition(":")
    if not (name and colon and password_hash) or len(line) > LINE_MAX or not name.isprintable():
        raise BadUserFile(f"line {number}: it is not of the form NAME:HASH:TAG,TAG")
    if password_hash.startswith(("$", "{")):
        raise BadUserFile(
            f"line {number}: the hash of '{name}' is of another kind than RabbitMQ's, which has no "
            "$ or { before it; make a new one: qpidctl hash_password (docs/operations/users.md)"
        )
    for algorithm in passwords.ALGORITHMS:
        if not passwords.fault_of(password_hash, algorithm):
            found = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
            return name, FileUser(password_hash, algorithm, found)
    raise BadUserFile(
        f"line {number}: the hash of '{name}' is not base64 of a salt of 4 bytes and a SHA-256 or "
        "SHA-512 of salt and password"
    )
