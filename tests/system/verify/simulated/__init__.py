"""Logs of simulated clusters: what is found in them, and what must be."""
