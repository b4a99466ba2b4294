"""Digest votes: detection of members that computed another state, and the consequences (pure)."""
