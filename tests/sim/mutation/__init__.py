"""Protocols with one bug each, and whether the simulator notices."""
