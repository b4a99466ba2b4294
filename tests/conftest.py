"""How all tests run: properties have no time limits of their own."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example takes as long as the machine lets it, and pytest-timeout ends what hangs.  The rest
# stays as it is: where CI is set, hypothesis draws the same examples each time.
settings.register_profile(
    "tests", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
