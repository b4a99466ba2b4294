"""Logs of simulated clusters, with and without planted lies."""
