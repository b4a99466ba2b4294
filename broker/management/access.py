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
"""How long a login is believed: a change of the user counts after that at the latest."""
KEPT_MAX = 1024
CREDENTIALS_BYTES_MAX = 4096

Check = Callable[[str, str, str], Awaitable[Login]]
"""What becomes of the login of a user with this password, who connects from this address."""


@record
class Identity:
    """A user who was authenticated, and from where."""

    name: str
    tags: frozenset[str]
    address: str
    """HOST:PORT."""
    login: Login = REFUSED
    """By which the user came in; that of the broker's own parts is none."""
    vhosts: frozenset[str] | None = None
    """Which it may enter of those that a request is about; None: the definitions say it."""

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
    """Return user and password of an Authorization header; None if it is none of basic's."""
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
    """Logins that were good, so that a page of ten requests asks the back end once."""

    def __init__(self, check: Check, version: Callable[[], object]) -> None:
        """`version` is another one whenever users have changed."""
        self._check, self._version = check, version
        self._kept_version: object = None
        self._secret = secrets.token_bytes(32)
        self._kept: dict[bytes, tuple[float, Login]] = {}
        self.counters = {"logins": 0, "logins_refused": 0}

    async def login(self, user: str, password: str, address: str) -> Identity | None:
        """Return who it is; None: these credentials are not good from there."""
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
