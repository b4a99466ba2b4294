"""The scenarios of the original's cluster tests, tried with real members."""
