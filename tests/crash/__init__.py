"""Crash points of the real store: each write of each step fails, kills, or goes with the power."""
