"""The scenarios of the original's cluster tests with real members."""
