"""Turns client commands into ordered items, and ordered items into applied state (pure)."""
