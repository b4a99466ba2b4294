"""Operators' queries to a running member, and the operations that they request of it."""
