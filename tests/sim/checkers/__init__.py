"""Properties of a history, checked as it grows and at its end."""
