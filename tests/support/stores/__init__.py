"""Stores for tests: one in memory, and one with a command in it that no member can apply."""
