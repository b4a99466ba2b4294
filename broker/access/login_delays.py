"""Slows down who guesses passwords: the more logins failed, the later the verdict comes.

Counted for a user at an address, so that one client with an old password does not slow the others
of its machine, and at a higher number for the address, so that trying many users is slowed, too.
"""

from __future__ import annotations

USER_FREE, ADDRESS_FREE = 5, 50
"""So many may fail before anything is slowed."""
FIRST_S, LONGEST_S = 0.25, 8.0
"""Doubled with each failure; less than a client, and the time limit of a handshake, wait."""
FORGET_S = 60.0
"""Failures count until there was none for so long."""
KEPT_MAX = 4096


class LoginDelays:
    """The logins that failed lately, by address and user."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}

    def failed(self, address: str, user: str, now: float) -> None:
        """Count a login that was refused."""
        for key in ((address, user), (address, "")):
            count = self._count(key, now) + 1
            self._failed.pop(key, None)
            if len(self._failed) >= KEPT_MAX:
                del self._failed[next(iter(self._failed))]  # the one that failed longest ago
            self._failed[key] = (count, now)

    def delay_s(self, address: str, user: str, now: float) -> float:
        """Return how much later than known the verdict on the next login is told."""
        over = max(
            self._count((address, user), now) - USER_FREE,
            self._count((address, ""), now) - ADDRESS_FREE,
        )
        return min(FIRST_S * 2.0 ** min(over, 16), LONGEST_S) if over >= 0 else 0.0

    def wait_s(self, address: str, user: str, now: float) -> float:
        """For whom nobody can delay: how long from now on the next login is not looked at."""
        _, user_at = self._failed.get((address, user), (0, 0.0))
        _, address_at = self._failed.get((address, ""), (0, 0.0))
        delay = self.delay_s(address, user, now)
        return max(0.0, max(user_at, address_at) + delay - now) if delay else 0.0

    def _count(self, key: tuple[str, str], now: float) -> int:
        count, at = self._failed.get(key, (0, now))
        return count if now - at <= FORGET_S else 0
