"""Crash points of the real store: at each write an error, a kill or a power loss."""
