"""Runs of seeds: one, many, a gate, a campaign; shrinking of failures."""
