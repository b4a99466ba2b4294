"""Queries to a running member of a ring, and its replies."""
