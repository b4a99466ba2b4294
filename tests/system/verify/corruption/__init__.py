"""Logs and histories that are made to lie, and what must be found in them."""
