"""Digest votes: which members computed something else, and what follows from it (pure)."""
