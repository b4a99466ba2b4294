"""Corrupted logs and histories, and the findings that they must give."""
