"""Digest votes: who computed something else, and what becomes of it (pure)."""
