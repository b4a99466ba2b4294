"""Authentication of HTTP requests: basic, against the broker's own users, cached briefly."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable

from broker.access.backends import REFUSED, Login
from vsync.types import record

KEPT_S = 5.0
"""How long a login is cached; a change of the user takes effect after that at the latest."""
KEPT_MAX = 1024
CREDENTIALS_BYTES_MAX = 4096

Check = Callable[[str, str, str], Awaitable[Login]]
"""The result of a login with this user and password from this address."""


@record
class Identity:
    """An authenticated user, and its address."""

    name: str
    tags: frozenset[str]
    address: str
    """HOST:PORT."""
    login: Login = REFUSED
    """The login by which the user came in; the broker's own parts have none."""
    vhosts: frozenset[str] | None = None
    """Which of a request's virtual hosts it may enter; None: the definitions say."""

    @property
    def administers(self) -> bool:
        return "administrator" in self.tags

    @property
    def monitors(self) -> bool:
        return self.administers or "monitoring" in self.tags

    @property
    def makes_policies(self) -> bool:
        return self.administers or "policymaker" in self.tags

    @property
    def manages(self) -> bool:
        """Whether this user may use the API at all."""
        return bool(self.tags & {"administrator", "monitoring", "policymaker", "management"})


def credentials(header: str) -> tuple[str, str] | None:
    """Return user and password of an Authorization header; None if it is not basic
    authentication.
    """
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > CREDENTIALS_BYTES_MAX:
        return None
    try:
        user, colon, password = (
            base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        )
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


class Logins:
    """Successful logins, so that a page of ten requests asks the back end once."""

    def __init__(self, check: Check, version: Callable[[], object]) -> None:
        """`version` changes whenever users have changed."""
        self._check, self._version = check, version
        self._kept_version: object = None
        self._secret = secrets.token_bytes(32)
        self._kept: dict[bytes, tuple[float, Login]] = {}
        self.counters = {"logins": 0, "logins_refused": 0}

    async def login(self, user: str, password: str, address: str) -> Identity | None:
        """Return the identity; None: these credentials are not valid from there."""
        loop = asyncio.get_running_loop()
        host = address.rpartition(":")[0]
        key = hmac.new(self._secret, repr((user, password, host)).encode(), hashlib.sha256).digest()
        now, version = loop.time(), self._version()
        if version != self._kept_version:
            self._kept.clear()
            self._kept_version = version
        until, found = self._kept.get(key, (0.0, REFUSED))
        if until <= now:
            found = await self._check(user, password, address)
            if not found.backend:
                self.counters["logins_refused"] += 1
                return None
            self.counters["logins"] += 1
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = (loop.time() + KEPT_S, found)  # the check may have taken long
        return Identity(user, frozenset(found.tags), address, found)
