"""Slows down password guessing: the more logins failed, the later the verdict comes.

Failures count per user at an address, so that one client with an old password does not slow other
clients on its machine, and with a higher threshold per address, so that trying many users is slowed
too. The count of an address leaks away: a client that is slowed and keeps failing for hours stays
below the threshold. Slowed logins wait in line: many connections at once guess no faster than one.
"""

from __future__ import annotations

import ipaddress
import math
from typing import NamedTuple

USER_FREE, ADDRESS_FREE = 5, 50
"""Failures allowed before anything is slowed."""
FIRST_S, LONGEST_S = 0.25, 8.0
"""Doubled with each failure, up to less than a client, and the time limit of a handshake, wait."""
FORGET_S = 60.0
"""A user's failures count until there was none for this long; an address forgets ADDRESS_FREE of
them in this time."""
KEPT_MAX = 4096


def source_of(host: str) -> str:
    """What counts as one address: for IPv6 the network, because one host may use all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class _Failures(NamedTuple):
    logins: float
    at: float
    """When the last login failed."""
    free_at: float
    """When all promised verdicts are given."""


_NONE = _Failures(0, 0.0, 0.0)
_Key = tuple[str, str]


class LoginDelays:
    """Recent failed logins, by address and user."""

    def __init__(self) -> None:
        self._failed: dict[_Key, _Failures] = {}

    def failed(self, address: str, user: str, now: float) -> None:
        """Count a login that was refused."""
        source = source_of(address)
        for key in ((source, user), (source, "")):
            known = self._known(key, now)
            self._failed.pop(key, None)
            if len(self._failed) >= KEPT_MAX:
                del self._failed[next(iter(self._failed))]  # the one that failed longest ago
            self._failed[key] = _Failures(known.logins + 1, now, known.free_at)

    def turn_s(self, address: str, user: str, now: float) -> float | None:
        """Return how long the verdict on this login is delayed, and take that place in the line of
        its address; None: too many are before it, and it is not to be looked at."""
        delay, key = self._delay_s(address, user, now)
        if not delay:
            return 0.0
        known = self._failed[key]
        due = max(now, known.free_at) + delay
        if due - now > LONGEST_S:
            return None
        self._failed[key] = known._replace(free_at=due)
        return due - now

    def wait_s(self, address: str, user: str, now: float) -> float:
        """For callers that nobody can delay: how long from now the next login is refused a look."""
        delay, _ = self._delay_s(address, user, now)
        if not delay:
            return 0.0
        source = source_of(address)
        last = max(self._known(key, now).at for key in ((source, user), (source, "")))
        return max(0.0, last + delay - now)

    def _delay_s(self, address: str, user: str, now: float) -> tuple[float, _Key]:
        """The delay of the next login, and whose failures cause it."""
        source = source_of(address)
        of_user, of_address = (source, user), (source, "")
        over = self._known(of_user, now).logins - USER_FREE
        over_address = math.floor(self._known(of_address, now).logins) - ADDRESS_FREE
        key = of_user if over >= over_address else of_address
        over = max(over, over_address)
        return (min(FIRST_S * 2.0 ** min(over, 16), LONGEST_S) if over >= 0 else 0.0), key

    def _known(self, key: _Key, now: float) -> _Failures:
        known = self._failed.get(key, _NONE)
        past = now - known.at
        if past > FORGET_S:
            return _NONE
        if key[1]:
            return known
        return known._replace(logins=max(0.0, known.logins - past * ADDRESS_FREE / FORGET_S))
